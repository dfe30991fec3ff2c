"""Which rows a call runs: budgets, order, and that neither prompts nor decoding wait for ever."""

import pytest
import torch

from dsv41c.runtime.caches import Allotment
from dsv41c.runtime.preconditions import Held
from dsv41c.runtime.requests import Request
from dsv41c.runtime.sampling import SamplingParams
from dsv41c.runtime.scheduler import Call, Limits, Scheduler


def request(length: int, context: int = 0, encodes: bool = False, collect: bool = False) -> Request:
    """A request with so many tokens in the caches; behind its prompt it has one new token to feed."""
    params = SamplingParams(collect_logits=collect)
    tokens = [5] * (length - context) if context < length else [7]
    made = Request(0, (5,) * length, params, torch.Generator(), tokens, Held(0), allotment=Allotment(0))
    made.context, made.encodes = context, encodes
    return made


def parts(call: Call) -> list[tuple[int, int]]:
    return [(len(one.prompt), count) for one, count in call.parts]


def scheduler(rows: int = 8, logit_rows: int = 8, tails: int = 2) -> Scheduler:
    return Scheduler(Limits(rows, logit_rows, 4, tails))


def test_those_who_decode_come_first_and_prompts_fill_the_rest() -> None:
    call = scheduler().next_call([request(20, 4), request(3, 3), request(30), request(2, 2)])
    assert call.program == "step"
    assert parts(call) == [(3, 1), (2, 1), (20, 6)]


def test_a_short_prompt_leaves_rows_for_the_next() -> None:
    assert parts(scheduler().next_call([request(5), request(9)])) == [(5, 5), (9, 3)]


@pytest.mark.parametrize(("logit_rows", "expected"), [(8, [(6, 6), (5, 2)]), (4, [(6, 4)])])
def test_collected_logits_count_against_their_own_budget(logit_rows: int, expected: list[tuple[int, int]]) -> None:
    call = scheduler(logit_rows=logit_rows).next_call([request(6, collect=True), request(5, collect=True)])
    assert parts(call) == expected


def test_a_call_has_no_more_ends_than_logit_rows() -> None:
    assert parts(scheduler(logit_rows=2).next_call([request(1, 1), request(2, 2), request(3, 3)])) == [(1, 1), (2, 1)]


def test_tails_go_first_and_as_many_as_fit() -> None:
    ready = [request(length, length, encodes=True) for length in (9, 8, 7)]
    for one in ready:
        one.carry, one.pending = {"carry.0": torch.zeros(4)}, []
    call = scheduler().next_call([request(20, encodes=True), request(3, 3), *ready])
    assert (call.program, parts(call)) == ("tail", [(9, 4), (8, 4)])


def test_programs_take_turns() -> None:
    picks = scheduler()
    active = [request(20, encodes=True), request(3, 3)]
    assert [picks.next_call(active).program for _ in range(5)] == ["encode", "step", "encode", "step", "encode"]
    assert [picks.next_call(active[1:]).program for _ in range(2)] == ["step", "step"]
