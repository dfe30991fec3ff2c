"""The prefix cache of an engine: finds where a prompt can go on, and keeps what running requests leave behind."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from dsv41c.errors import StateError
from dsv41c.runtime.caches import CachePool
from dsv41c.runtime.page_store import PageStore
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.preconditions import Preconditions
from dsv41c.runtime.prefix import Hit, Name, PrefixOptions, WindowState, WindowStates, best_hit, names_of
from dsv41c.runtime.requests import Request

_SAMPLES, _SAMPLE_BYTES = 64, 4096  # of each weight file, for the identity of pages on disk


@dataclass
class PrefixCounts:
    """What the cache did.

    Attributes:
        queries, hits: prompts looked up, and those that went on from a prefix.
        query_tokens, hit_tokens: their tokens, and those that did not have to run.
        replayed_tokens: that ran a second time.
        loaded_pages: that came from disk.
    """

    queries: int = 0
    hits: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0
    replayed_tokens: int = 0
    loaded_pages: int = 0


class PrefixCache:
    """Names pages as they fill up, keeps window states at the ends of pages, and lets prompts start behind them.

    Args:
        caches: of the engine.
        preconditions: of the engine.
        plan: whose pages these are.
        options: what is kept.
        window: rows of a window.
        tail: rows that the decoder takes of a bounded prompt.
        may_replay: a prefix without a window state is replayed.
        clock: of the lifetime of states.

    Attributes:
        counts: what it did so far.
        states: window states.
        store: pages on disk, or None.
    """

    def __init__(
        self,
        caches: CachePool,
        preconditions: Preconditions,
        plan: Plan,
        options: PrefixOptions,
        window: int,
        tail: int,
        may_replay: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._caches, self._preconditions = caches, preconditions
        self._window, self._tail, self._may_replay = window, tail, may_replay
        self._page_tokens = caches.page_tokens
        self.states = WindowStates(options.state_seconds, options.state_bytes, clock)
        self.counts = PrefixCounts()
        self.store = None
        if options.store is not None:
            self.store = PageStore(options.store, identity_of(plan), options.store_bytes)
        caches.pages.on_evict = self.states.drop

    def start(self, request: Request) -> None:
        """Gives a new request its caches, and lets it go on from the longest prefix that is worth it.

        Raises:
            RequestError: there is no room; nothing was taken.
        """
        prompt = request.prompt
        self._plan_cuts(request)
        if request.params.collect_logits:
            # The logits of every token of the prompt are wanted, so every token runs.
            request.allotment = self._caches.allot(request.total_tokens)
            return
        names = list(names_of(prompt, self._page_tokens, images=request.images))
        states = [self.states.find(name) for name in names]
        if len(names) * self._page_tokens == len(prompt) and not self._goes_back(states[-1], len(prompt)):
            states[-1] = None
        pages = self._found(names if self._may_replay else names[: _last_state(states)])
        hit = best_hit(states[: len(pages)], self._page_tokens, self._window, self._may_replay)
        back = hit.tokens_back(len(prompt)) if hit else 0
        self._take(request, names, pages[: hit.tokens // self._page_tokens] if hit else [], back)
        self.counts.queries += 1
        self.counts.query_tokens += len(prompt)
        if hit is not None:
            self._resume(request, hit, back)

    def after_call(self, request: Request, is_whole: bool) -> None:
        """After a call that ran some of a request's rows: names the pages that are full now, and keeps its windows.

        Args:
            request: that still holds its caches.
            is_whole: the call wrote the windows of all layers.
        """
        assert request.allotment is not None, "running requests hold their caches"
        full = request.context // self._page_tokens
        fresh = {}
        while len(request.names) < full:
            at = len(request.names) * self._page_tokens
            page = request.known[at : at + self._page_tokens]
            before = request.names[-1] if request.names else b""
            request.names += names_of(page, self._page_tokens, before, at, request.images)
        for at in range(request.named, full):
            number, name = request.allotment.pages[at], request.names[at]
            self._caches.pages.set_name(number, name)
            if self.store is not None:
                fresh[name] = self._pack(number)
        request.named = max(request.named, full)
        if fresh and self.store is not None:
            self.store.put(fresh)
        if request.context % self._page_tokens == 0 and request.context >= request.cut:
            self._keep_state(request, is_whole)

    # --- looking up -----------------------------------------------------------------------------------------------

    def _plan_cuts(self, request: Request) -> None:
        """A call ends at the last full page before the prompt's end, so that a window state is kept there."""
        request.cut = (len(request.prompt) - 1) // self._page_tokens * self._page_tokens

    def _found(self, names: Sequence[Name]) -> list[int | bytes]:
        """The pages from the first on that are there: numbers of those in memory, then the bytes of those on disk."""
        found: list[int | bytes] = []
        for name in names:
            page = self._caches.pages.find(name)
            if page is None or (found and isinstance(found[-1], bytes)):
                # Behind a page from disk, which takes a number, what is in memory now may have to go.
                packed = None if self.store is None else self.store.get(name)
                if packed is None:
                    break
                found.append(packed)
            else:
                found.append(page)
        return found

    def _take(self, request: Request, names: Sequence[Name], pages: Sequence[int | bytes], back: int) -> None:
        """Allots the request's caches: pages in memory are shared, those on disk fill pages of its own.

        So does the last page of a request that goes back: it is written on.
        """
        shared = len(pages) - min(back, 1)
        self.counts.loaded_pages += sum(isinstance(page, bytes) for page in pages)
        # Before the allotment, which may take the number of a page that nobody holds.
        contents = [
            page if at < shared or isinstance(page, bytes) else self._pack(page) for at, page in enumerate(pages)
        ]
        in_memory = [page for page in contents if isinstance(page, int)]
        request.allotment = self._caches.allot(request.total_tokens, in_memory)
        for at, content in enumerate(contents):
            if isinstance(content, bytes):
                self._unpack(request.allotment.pages[at], content)
                if at < shared:
                    self._caches.pages.set_name(request.allotment.pages[at], names[at])
        request.names, request.named = list(names[: len(pages)]), shared

    # --- resuming -------------------------------------------------------------------------------------------------

    def _goes_back(self, state: WindowState | None, length: int) -> bool:
        """Whether a prompt that ends where a state stands can go on from it: its last token gives the logits."""
        if state is None or not state.is_whole:
            return True
        try:
            self._preconditions.truncated(state.held, length - 1)
        except StateError:
            return False
        return True

    def _resume(self, request: Request, hit: Hit, back: int) -> None:
        request.cached_tokens = hit.tokens - back
        self.counts.hits += 1
        self.counts.hit_tokens += request.cached_tokens
        if hit.state is None:
            self._replay(request, hit.tokens)
            return
        assert request.allotment is not None, "it was just given"
        ring = request.allotment.ring
        self._caches.write_ring(ring, hit.state.rings)
        request.held = hit.state.held.copy()
        if back:
            request.held = self._preconditions.truncated(request.held, request.cached_tokens)
            self._caches.write_ids(ring, request.prompt, request.cached_tokens)
        request.carry = dict(hit.state.carry)
        self._go_on(request, request.cached_tokens)
        # With all windows there, what is left runs as steps if it is no longer than a tail would be.
        is_short = len(request.pending) <= self._tail
        request.encodes = request.encodes and not is_short if hit.state.is_whole else True

    def _replay(self, request: Request, tokens: int) -> None:
        """The last window of the prefix runs again; the look-back ids before it come from the prompt."""
        start = tokens - self._window
        assert request.allotment is not None, "it was just given"
        self._preconditions.restore(request.held, tokens, start)
        self._caches.write_ids(request.allotment.ring, request.prompt, start)
        request.start, request.written_from = start, tokens
        self.counts.replayed_tokens += self._window
        self._go_on(request, start)

    def _go_on(self, request: Request, context: int) -> None:
        request.context = context
        request.pending = list(request.prompt[context:])

    # --- keeping --------------------------------------------------------------------------------------------------

    def _keep_state(self, request: Request, is_whole: bool) -> None:
        assert request.allotment is not None, "running requests hold their caches"
        name = request.names[request.context // self._page_tokens - 1]
        rings = {cache: row.clone() for cache, row in self._caches.read_ring(request.allotment.ring).items()}
        if request.kept is not None and not request.in_prompt:
            self.states.drop(request.kept)
        # Those of the prompt stay, for other requests with the same one; of the new tokens only the last page's does.
        request.kept = None if request.context <= len(request.prompt) else name
        self.states.put(name, WindowState(rings, request.held.copy(), dict(request.carry), is_whole))

    def _pack(self, page: int) -> bytes:
        rows = self._caches.read_page(page).values()
        return b"".join(row.contiguous().view(torch.uint8).numpy().tobytes() for row in rows)

    def _unpack(self, page: int, packed: bytes) -> None:
        rows: dict[str, Tensor] = {}
        start = 0
        for name, row in self._caches.read_page(page).items():
            part = bytearray(packed[start : start + row.nbytes])
            rows[name] = torch.frombuffer(part, dtype=torch.uint8).view(row.dtype)
            start += row.nbytes
        self._caches.write_page(page, rows)


def _last_state(states: Sequence[WindowState | None]) -> int:
    """How many pages lead to the last window state."""
    return max((at for at, state in enumerate(states, 1) if state is not None), default=0)


def identity_of(plan: Plan) -> bytes:
    """A digest of what page bytes depend on: cache formats, the model's config, and samples of its weights."""
    digest = hashlib.blake2b(digest_size=16)
    state = [asdict(spec) for spec in plan.manifest.state if spec.lifetime == "prefix"]
    digest.update(json.dumps([state, plan.manifest.page_tokens, plan.manifest.model], sort_keys=True).encode())
    for name in sorted(plan.manifest.checkpoint.files):
        digest.update(name.encode() + _sampled(plan.checkpoint / name))
    return digest.digest()


def _sampled(path: Path) -> bytes:
    """Parts of a file that tell weights apart without reading all of them: a fine-tuned model differs everywhere."""
    size = path.stat().st_size
    digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=16)
    with path.open("rb") as file:
        for at in range(_SAMPLES):
            file.seek(size * at // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()
