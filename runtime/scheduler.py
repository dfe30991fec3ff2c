"""Which rows the next call runs: all that decode, then chunks of prompts, under a budget of rows.

A call runs one program. Tails go first, since the values they need take memory until then. Of the other programs that
requests wait for, the one goes next that ran longest ago, so that a stream of prompts holds up nobody who decodes for
more than a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsv41c.runtime.bounded import ENCODE, TAIL
from dsv41c.runtime.replay import ENCODE_REPLAY
from dsv41c.runtime.requests import Request

STEP = "step"


@dataclass(frozen=True)
class Limits:
    """Of one call.

    Attributes:
        rows: tokens.
        logit_rows: rows whose logits are wanted.
        tail: rows of a request's tail.
        tails: of one call.
    """

    rows: int
    logit_rows: int
    tail: int
    tails: int


@dataclass(frozen=True)
class Call:
    """A program and the requests whose next tokens it runs, each with their number."""

    program: str
    parts: tuple[tuple[Request, int], ...]


class Scheduler:
    """Picks calls.

    Args:
        limits: of every call.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._calls = 0
        self._ran: dict[str, int] = {}

    def next_call(self, active: Sequence[Request]) -> Call:
        """The next call for at least one request, in order of arrival."""
        waiting: dict[str, list[Request]] = {}
        for request in active:
            waiting.setdefault(program_of(request), []).append(request)
        program = TAIL if TAIL in waiting else min(waiting, key=lambda name: self._ran.get(name, -1))
        self._calls += 1
        self._ran[program] = self._calls
        if program == TAIL:
            chosen = waiting[TAIL][: self.limits.tails]
            return Call(TAIL, tuple((request, self.limits.tail) for request in chosen))
        return Call(program, self._parts(waiting[program]))

    def _parts(self, requests: Sequence[Request]) -> tuple[tuple[Request, int], ...]:
        rows, logit_rows = self.limits.rows, self.limits.logit_rows
        parts = []
        for request in sorted(requests, key=lambda one: one.in_prompt):
            count = request.rows_within(rows)
            if request.params.collect_logits and request.in_prompt:
                count = min(count, logit_rows)
            if count == 0 or logit_rows == 0:
                break
            parts.append((request, count))
            rows -= count
            logit_rows -= len(request.wanted(count))
        return tuple(parts)


def program_of(request: Request) -> str:
    """The program that takes a request's next tokens."""
    if request.carry and not request.pending:
        return TAIL
    if not (request.encodes and request.in_prompt):
        return STEP
    return ENCODE_REPLAY if request.context < request.written_from else ENCODE
