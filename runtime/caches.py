"""Paged caches, made from the plan's state table: one tensor a cache, pages and ring slots handed out by number.

A page id means the same tokens in every cache of the "pages" pool, and a ring slot the same sequence in every cache of
the "rings" pool, so a sequence holds one block table and one ring, whatever the number of caches.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dsv41c.errors import RequestError
from dsv41c.models.state import StateSpec
from dsv41c.runtime.iree_device import aligned_empty

_POISON_BYTE = 0x7F  # NaN as an e4m3 value and as an e4m3 scale, a factor of 1 as a ue8m0 scale
_POISON_ID = -1


class Numbers:
    """Hands out the numbers 0..count-1, the lowest free one first, so that runs repeat exactly."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))

    @property
    def free(self) -> int:
        """How many are left."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """The `count` lowest free numbers; the caller has checked that there are so many."""
        return [heapq.heappop(self._free) for _ in range(count)]

    def give_back(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            heapq.heappush(self._free, number)


@dataclass
class Allotment:
    """What one sequence holds: its ring slot and its pages in token order."""

    ring: int
    pages: list[int] = field(default_factory=list)


class CachePool:
    """The caches of a plan and who holds which part of them.

    Args:
        specs: the state table.
        page_tokens: tokens a page.
        n_pages: pages of every cache in the "pages" pool.
        n_rings: sequence slots of every cache in the "rings" pool.
        poison: fill pages with 0x7F, NaN and -1 instead of zero, whenever they are handed out; for tests, which then
            see every read of a row that was never written.
    """

    def __init__(
        self, specs: Sequence[StateSpec], page_tokens: int, n_pages: int, n_rings: int, poison: bool = False
    ) -> None:
        self.specs = tuple(specs)
        self.page_tokens = page_tokens
        self.pages = Numbers(n_pages)
        self.rings = Numbers(n_rings)
        self.poison = poison
        self.tensors: dict[str, Tensor] = {}
        for spec in self.specs:
            cache = aligned_empty((self._count(spec), spec.page_width), spec.dtype)
            self.tensors[spec.name] = cache.fill_(poison_value(cache.dtype) if poison else 0)

    def _count(self, spec: StateSpec) -> int:
        return self.pages.count if spec.pool == "pages" else self.rings.count

    @property
    def total_bytes(self) -> int:
        """Bytes of all cache tensors."""
        return sum(cache.nbytes for cache in self.tensors.values())

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages and rings that sequences hold."""
        used = {"pages": self.pages.count - self.pages.free, "rings": self.rings.count - self.rings.free}
        return sum(spec.page_bytes * used[spec.pool] for spec in self.specs)

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens of one sequence fill."""
        return -(-tokens // self.page_tokens)

    def has_room(self, tokens: int) -> bool:
        """Whether a sequence of `tokens` tokens can start now."""
        return self.rings.free >= 1 and self.pages.free >= self.pages_for(tokens)

    def allot(self, tokens: int) -> Allotment:
        """A ring and the pages for `tokens` tokens.

        Raises:
            RequestError: there are not so many.
        """
        needed = self.pages_for(tokens)
        if not self.has_room(tokens):
            raise RequestError(
                f"out of pages: {tokens} tokens need {needed} pages of {self.page_tokens} tokens and a sequence slot, "
                f"{self.pages.free} of {self.pages.count} pages and {self.rings.free} of {self.rings.count} slots are "
                "free; ask for fewer tokens, or load the plan with more cache_tokens or max_sequences"
            )
        allotment = Allotment(self.rings.take(1)[0], self.pages.take(needed))
        if self.poison:
            self._poison(allotment)
        return allotment

    def release(self, allotment: Allotment) -> None:
        """Takes back what `allot` gave; nothing is cleared, since only written rows are ever read."""
        self.rings.give_back([allotment.ring])
        self.pages.give_back(allotment.pages)

    def _poison(self, allotment: Allotment) -> None:
        for spec in self.specs:
            cache = self.tensors[spec.name]
            cache[allotment.pages if spec.pool == "pages" else [allotment.ring]] = poison_value(cache.dtype)


def poison_value(dtype: torch.dtype) -> float:
    """The value that unwritten memory of that dtype is filled with in tests."""
    if dtype == torch.uint8:
        return _POISON_BYTE
    return float("nan") if dtype.is_floating_point else _POISON_ID
