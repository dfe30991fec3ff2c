"""A model-based test of pages, window states and the store: nothing lost, nothing leaked, every byte accounted for.

The machine runs requests through the prefix cache with a stand-in for the forward pass, which writes a byte that stands
for all tokens before it to every row that a real one would write. The model is what those bytes must be. By default it
runs some hundred operations; `DSV41C_FULL_TESTS=1` runs 100,000.
"""

import dataclasses
import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from torch import Tensor

from dsv41c.errors import RequestError, StateError
from dsv41c.models.state import HISTORY_ROWS, StateSpec
from dsv41c.runtime.caches import CachePool
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.plan_format import CheckpointEntry, Manifest, Program
from dsv41c.runtime.preconditions import Preconditions
from dsv41c.runtime.prefix import PrefixOptions
from dsv41c.runtime.prefix_cache import PrefixCache
from dsv41c.runtime.requests import Request
from dsv41c.runtime.sampling import SamplingParams

PAGE, WINDOW, PAGES, RINGS = 4, 4, 14, 3
FULL = bool(os.environ.get("DSV41C_FULL_TESTS"))
EXAMPLES, STEPS = (1000, 100) if FULL else (10, 50)
OPERATIONS = (*["start"] * 3, *["run"] * 6, "fork", "rollback", "stop", "stop", "disturb")


# Lifetime, how it is restored and how it is rolled back, as `models.state` says of each kind.
COLUMNS = {
    "window": ("sequence", "replayed", "overwritten"),
    "main": ("prefix", "cached", "cut"),
    "tail": ("sequence", "replayed", "overwritten"),
    "history": ("sequence", "recomputed", "rewritten"),
}


def spec(name: str, kind: str, pool: str, rows: int, ratio: int = 0) -> StateSpec:
    return StateSpec(name, kind, 0, ratio, "fp8_e8m0", 1, rows, 1, rows, pool, *COLUMNS[kind])


# A ring a byte a row; main entries of one token and of two, as a page holds them.
STATE = (
    spec("window.0", "window", "rings", WINDOW),
    spec("main.1", "main", "pages", PAGE, 1),
    spec("main.2", "main", "pages", PAGE // 2, 2),
    spec("tail.2", "tail", "rings", 8, 2),
    dataclasses.replace(spec("history", "history", "rings", HISTORY_ROWS), row_format="i32"),
)
PROGRAMS = {"step": Program((), tuple(one.name for one in STATE), (), ())}


def mark(tokens: Sequence[int]) -> int:
    """The byte of the row behind some tokens."""
    return hashlib.blake2b(bytes(tokens), digest_size=1).digest()[0]


class Caches(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = 0.0
        self.running: list[Request] = []
        self.said: list[list[int]] = [[first, *range(29)] for first in (1, 2)]
        self.open()

    def open(self) -> None:
        """As a new process would."""
        self.caches = CachePool(STATE, PAGE, PAGES, RINGS, poison=True)
        self.rules = Preconditions(STATE, PROGRAMS, PAGE, 3)
        manifest = Manifest(1, {}, (), {}, (), {}, PAGE, STATE, {}, (), {}, CheckpointEntry("x"), None, {}, {})
        plan = Plan(self.folder, manifest, PROGRAMS, self.folder)
        options = PrefixOptions(10, 4 * 60, self.folder / "store", 20 * self.caches.page_bytes)
        self.prefix = PrefixCache(self.caches, self.rules, plan, options, WINDOW, WINDOW, True, lambda: self.clock)

    def teardown(self) -> None:
        for request in list(self.running):
            self.end(request)
        assert self.caches.used_bytes == 0, "leaked"
        assert self.caches.pages.available == PAGES
        assert self.prefix.store is not None
        self.prefix.store.close()
        shutil.rmtree(self.folder)

    # --- the stand-in for a forward -------------------------------------------------------------------------------

    def row(self, request: Request, name: str, position: int) -> Tensor:
        """Where the row of a position lies; of a group of two, that of its last token."""
        assert request.allotment is not None
        cache, one = self.caches.tensors[name], next(one for one in STATE if one.name == name)
        if one.pool == "rings":
            return cache[request.allotment.ring, position % one.page : position % one.page + 1]
        entry = position // one.ratio
        return cache[request.allotment.pages[position // PAGE], entry % one.page : entry % one.page + 1]

    def forward(self, request: Request, count: int) -> None:
        piece = request.piece(count)
        self.rules.check("step", piece, request.held)
        end = request.context + count
        self.caches.make_writable(piece.allotment, max(request.context, request.written_from), end)
        for position in range(request.context, end):
            for one in STATE:
                is_entry = one.pool == "pages" and (position + 1) % one.ratio == 0
                if one.pool == "rings" or (is_entry and position >= request.written_from):
                    self.row(request, one.name, position)[0] = self.wanted(request, one.name, position)
        self.rules.advance("step", piece, request.held)
        request.advance(count)
        self.prefix.after_call(request, is_whole=True)

    def wanted(self, request: Request, name: str, position: int) -> int:
        known = request.known
        return known[position] if name == "history" else mark(known[: position + 1])

    def end(self, request: Request) -> None:
        self.running.remove(request)
        self.said.append(list(request.known[: request.context]))
        assert request.allotment is not None
        self.caches.release(request.allotment)

    # --- operations -----------------------------------------------------------------------------------------------

    @rule(data=st.data(), what=st.sampled_from(OPERATIONS))
    def operate(self, data: st.DataObject, what: str) -> None:
        """One rule for all: of several, hypothesis leaves some out for a whole run."""
        if self.running or what in ("start", "disturb"):
            getattr(self, what)(data)

    def start(self, data: st.DataObject) -> None:
        """A prompt that goes on from something said before, cut anywhere."""
        before = data.draw(st.sampled_from([*self.said[:2], *self.said[-4:]]))
        cut = data.draw(st.integers(0, len(before)) | st.just(len(before)))
        prompt = (*before[:cut], *data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=9)))[:28]
        new = data.draw(st.integers(0, 6))
        request = Request(0, prompt, SamplingParams(new), torch.Generator(), list(prompt), self.rules.nothing_held())
        if not self.caches.has_room(request.total_tokens):
            return
        counts = dataclasses.replace(self.prefix.counts)
        self.prefix.start(request)
        goes_back = request.cached_tokens == len(prompt) - 1
        assert request.cached_tokens % PAGE == 0 or (goes_back and len(prompt) % PAGE == 0)
        assert self.prefix.counts.hit_tokens - counts.hit_tokens == request.cached_tokens
        self.running.append(request)
        while data.draw(st.booleans()) and request.pending:
            self.forward(request, request.rows_within(9))

    def run(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.running))
        if not request.pending and len(request.tokens) < request.params.max_new_tokens:
            token = data.draw(st.integers(0, 3))
            request.tokens.append(token)
            request.pending.append(token)
        if request.pending:
            self.forward(request, request.rows_within(data.draw(st.integers(1, 9))))

    def fork(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.running))
        assert request.allotment is not None
        # A request that replays has the entries of its whole prefix already.
        length = max(request.context, request.written_from)
        own = self.caches.own_tokens(request.total_tokens, length)
        if not self.caches.has_room(own):
            return
        allotment = self.caches.allot(own)
        self.caches.fork(request.allotment, allotment, length)
        copied = dataclasses.replace(
            request,
            allotment=allotment,
            held=request.held.copy(),
            **{name: list(getattr(request, name)) for name in ("pending", "tokens", "names")},
        )
        self.running.append(copied)

    def rollback(self, data: st.DataObject) -> None:
        """Rejected new tokens go, as far as the rings still hold what is before them."""
        request = data.draw(st.sampled_from(self.running))
        count = data.draw(st.integers(1, 3))
        length = request.context - count
        if request.pending or length < len(request.prompt) or count > len(request.tokens):
            return
        assert request.allotment is not None
        try:
            held = self.rules.truncated(request.held, length, request.start)
            self.caches.make_writable(request.allotment, length, length + 1)
        except (StateError, RequestError):
            # The rings hold too little, or there is no page for a copy.
            return
        self.caches.write_ids(request.allotment.ring, request.known, length)
        request.held = held
        del request.tokens[-count:]
        request.context, request.kept = length, None
        del request.names[length // PAGE :]
        request.named = min(request.named, length // PAGE)

    def stop(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.running)))

    def disturb(self, data: st.DataObject) -> None:
        """Time goes by, something else takes pages for a moment, or the process dies and another one starts."""
        what = data.draw(st.sampled_from(("wait", "expire", "evict", "evict", "kill")))
        if what == "kill":
            self.kill()
        elif what == "evict":
            count = data.draw(st.integers(0, self.caches.pages.available))
            self.caches.pages.give_back(self.caches.pages.take(count))
        else:
            self.clock += 20 if what == "expire" else 1

    def kill(self) -> None:
        """A new process finds what is on disk."""
        assert self.prefix.store is not None
        self.said += [list(request.known[: request.context]) for request in self.running]
        self.running = []
        self.prefix.store.close()
        self.open()

    # --- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def rows_are_what_their_tokens_say(self) -> None:
        for request in self.running:
            for group, (first, end) in zip(self.rules.groups, request.held.spans, strict=True):
                for name in group.names:
                    ratio = next(one.ratio for one in STATE if one.name == name) if group.kind == "entries" else 1
                    for position in range(first, end):
                        if (position + 1) % ratio == 0:
                            found = int(self.row(request, name, position))
                            assert found == self.wanted(request, name, position), (name, position)

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        held = [page for request in self.running for page in request.allotment.pages]  # type: ignore[union-attr]
        pages = self.caches.pages
        assert all(pages.holders(page) == held.count(page) for page in range(PAGES))
        assert pages.held == len(set(held))
        assert pages.held + pages.available == PAGES
        rings = [request.allotment.ring for request in self.running]  # type: ignore[union-attr]
        assert len(set(rings)) == len(rings) == RINGS - self.caches.rings.free
        assert self.caches.used_bytes == pages.held * self.caches.page_bytes + len(rings) * self.caches.ring_bytes
        states = [state for _, state in self.prefix.states._states.values()]
        assert self.prefix.states.bytes == sum(state.bytes for state in states) <= 4 * 60


Caches.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize=not FULL,
    suppress_health_check=list(HealthCheck),
)
TestCaches = Caches.TestCase
