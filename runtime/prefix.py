"""Prefixes that were computed before: pages found by the tokens that lead to them, and window states for a while.

A page's name is a hash over its tokens, the digests of the images that they belong to, and the name of the page before
it, so a name stands for a whole prefix. Global
entries stay in the pages; windows, compressor tails and look-back ids belong to a sequence and are restored in one of
two ways:

    state     rings as they were at the end of a page, kept for minutes: the sequence goes on as if it had not stopped
    replay    the last window of the prefix runs again (`runtime.replay`): an approximation, for bounded prefill only
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from dsv41c.runtime.bounded import Carry
from dsv41c.runtime.preconditions import Held

Name = bytes
_NAME_BYTES = 16


@dataclass(frozen=True)
class PrefixOptions:
    """What is kept of prefixes.

    Attributes:
        state_seconds: how long window states live.
        state_bytes: of all window states.
        store: a folder for pages on disk, which other processes and later ones find too; none if absent.
        store_bytes: of that folder's pages.
    """

    state_seconds: float = 300.0
    state_bytes: int = 256 << 20
    store: Path | None = None
    store_bytes: int = 1 << 30


@dataclass(frozen=True)
class Image:
    """An image in a prompt, whose tokens all have the same id: what it shows is in its digest alone.

    Attributes:
        start: position of its first token.
        tokens: how many it has.
        digest: of its content.
    """

    start: int
    tokens: int
    digest: bytes


def names_of(
    tokens: Sequence[int], page_tokens: int, before: Name = b"", first: int = 0, images: Sequence[Image] = ()
) -> Iterator[Name]:
    """The names of the full pages of a sequence.

    Args:
        tokens: ids; those of the last page, if it is not full, count for nothing.
        page_tokens: tokens a page.
        before: the name that the first page follows; empty at the start.
        first: position of the first token.
        images: of the sequence; a page's name depends on those that reach into it, and where they begin.
    """
    name = before
    for at in range(0, len(tokens) - page_tokens + 1, page_tokens):
        begin, end = first + at, first + at + page_tokens
        page = hashlib.blake2b(name, digest_size=_NAME_BYTES)
        page.update(struct.pack(f"<{page_tokens}q", *tokens[at : at + page_tokens]))
        for image in images:
            if image.start < end and image.start + image.tokens > begin:
                page.update(struct.pack("<qqq", image.start, image.tokens, len(image.digest)) + image.digest)
        name = page.digest()
        yield name


@dataclass(frozen=True)
class WindowState:
    """A sequence's rings at the end of a page.

    Attributes:
        rings: by cache.
        held: the positions that caches held then.
        carry: what a bounded prefill keeps for its tail; empty where the decoder's windows are there.
        is_whole: the windows of all layers are there, not only the encoder's.
    """

    rings: dict[str, Tensor]
    held: Held
    carry: Carry
    is_whole: bool

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for part in (self.rings, self.carry) for tensor in part.values())


class WindowStates:
    """Window states by the name of the page that they stand behind; the one used longest ago goes first.

    Args:
        seconds: how long one lives after its last use.
        limit: bytes of all.
        clock: seconds of a clock that never goes back.
    """

    def __init__(self, seconds: float, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._limit, self._clock = seconds, limit, clock
        self._states: OrderedDict[Hashable, tuple[float, WindowState]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._states)

    def put(self, name: Name, state: WindowState) -> None:
        """Keeps a state, unless it alone is more than all may be."""
        self.drop(name)
        self._expire()
        if state.bytes > self._limit:
            return
        self._states[name] = self._clock(), state
        self.bytes += state.bytes
        while self.bytes > self._limit:
            self.drop(next(iter(self._states)))

    def find(self, name: Name) -> WindowState | None:
        """The state of that name, which lives on from now."""
        self._expire()
        if name not in self._states:
            return None
        state = self._states.pop(name)[1]
        self._states[name] = self._clock(), state
        return state

    def drop(self, name: Hashable) -> None:
        """Forgets a state, if it is there."""
        if name in self._states:
            self.bytes -= self._states.pop(name)[1].bytes

    def _expire(self) -> None:
        oldest = self._clock() - self._seconds
        while self._states and next(iter(self._states.values()))[0] < oldest:
            self.drop(next(iter(self._states)))


@dataclass(frozen=True)
class Hit:
    """How a prompt goes on from a prefix.

    Attributes:
        tokens: of the prefix; a multiple of a page.
        state: the window state at its end, or None for a replay.
    """

    tokens: int
    state: WindowState | None

    def tokens_back(self, prompt: int) -> int:
        """Tokens of the prefix that run again: the last one, where the prompt ends at a state and logits are needed.

        A state without the decoder's windows still has its tail to run, and so has a replay: these give the logits.
        """
        return int(self.tokens == prompt and self.state is not None and self.state.is_whole)


def best_hit(found: Sequence[WindowState | None], page_tokens: int, window: int, may_replay: bool) -> Hit | None:
    """The prefix that leaves least to run.

    Args:
        found: for each page of the prompt that is there, the window state behind it.
        page_tokens: tokens a page.
        window: rows of a window, which are those of a replay.
        may_replay: where no state is there.
    """
    whole = len(found) * page_tokens
    at, state = next(((at, state) for at, state in reversed(list(enumerate(found, 1))) if state), (0, None))
    with_state = at * page_tokens
    # A replay of a prefix no longer than a window would run all of it.
    if may_replay and whole > window and whole - window > with_state:
        return Hit(whole, None)
    return Hit(with_state, state) if state is not None else None
