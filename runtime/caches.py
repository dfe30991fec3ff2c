"""Paged caches, made from the plan's state table: one tensor a cache, pages and ring slots handed out by number.

A page id means the same tokens in every cache of the "pages" pool, and a ring slot the same sequence in every cache of
the "rings" pool, so a sequence holds one block table and one ring, whatever the number of caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dsv41c.errors import RequestError
from dsv41c.models.state import StateSpec
from dsv41c.runtime.cache_memory import CacheMemory, HostMemory, poison_value
from dsv41c.runtime.pages import Numbers, Pages


@dataclass
class Allotment:
    """What one sequence holds.

    Attributes:
        ring: its ring slot.
        pages: its pages in token order.
    """

    ring: int
    pages: list[int] = field(default_factory=list)


class CacheBook:
    """Who holds which part of the caches, and the bytes of it; no memory.

    Args:
        specs: the state table.
        page_tokens: tokens a page.
        n_pages: pages of every cache in the "pages" pool.
        n_rings: sequence slots of every cache in the "rings" pool.
    """

    def __init__(self, specs: Sequence[StateSpec], page_tokens: int, n_pages: int, n_rings: int) -> None:
        self.specs = tuple(specs)
        self.page_tokens = page_tokens
        self.pages = Pages(n_pages)
        self.rings = Numbers(n_rings)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, all caches together."""
        return sum(spec.page_bytes for spec in self.specs if spec.pool == "pages")

    @property
    def ring_bytes(self) -> int:
        """Bytes of a sequence's rings, all caches together."""
        return sum(spec.page_bytes for spec in self.specs if spec.pool == "rings")

    @property
    def total_bytes(self) -> int:
        """Bytes of all caches."""
        return self.page_bytes * self.pages.count + self.ring_bytes * self.rings.count

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages and rings that sequences hold."""
        return self.page_bytes * self.pages.held + self.ring_bytes * (self.rings.count - self.rings.free)

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens of one sequence fill."""
        return -(-tokens // self.page_tokens)

    def bytes_for(self, tokens: int) -> int:
        """Bytes that a sequence of so many tokens takes."""
        return self.page_bytes * self.pages_for(tokens) + self.ring_bytes

    def own_tokens(self, tokens: int, length: int) -> int:
        """Tokens that a sequence of `tokens` needs pages for if it is a fork of another one at `length`."""
        return tokens - length // self.page_tokens * self.page_tokens

    def has_room(self, tokens: int) -> bool:
        """Whether a sequence of `tokens` tokens can start now."""
        return self.rings.free >= 1 and self.pages.available >= self.pages_for(tokens)

    def allot(self, tokens: int, shared: Sequence[int] = ()) -> Allotment:
        """A ring and the pages for `tokens` tokens.

        Args:
            tokens: of the whole sequence.
            shared: pages with its first tokens, held by others or idle.
        Raises:
            RequestError: there are not so many; nothing was taken.
        """
        self.pages.share(shared)
        needed = self.pages_for(tokens) - len(shared)
        if self.rings.free < 1 or self.pages.available < needed:
            self.pages.give_back(reversed(shared))
            raise RequestError(
                f"out of pages: {tokens} tokens need {needed} pages of {self.page_tokens} tokens and a sequence slot, "
                f"{self.pages.available} of {self.pages.count} pages and {self.rings.free} of {self.rings.count} slots "
                "are free; ask for fewer tokens, or load the plan with more cache_tokens or max_sequences"
            )
        return Allotment(self.rings.take(1)[0], [*shared, *self.pages.take(needed)])

    def release(self, allotment: Allotment) -> None:
        """Takes back what `allot` gave; nothing is cleared, since only written rows are ever read."""
        self.rings.give_back([allotment.ring])
        # The last page first: of a chain of idle pages the end goes before what it hangs on.
        self.pages.give_back(reversed(allotment.pages))


class CachePool(CacheBook):
    """The caches of a plan.

    Args:
        specs, page_tokens, n_pages, n_rings: see `CacheBook`.
        poison: fill pages with 0x7F, NaN and -1 instead of zero, whenever they are handed out; for tests, which then
            see every read of a row that was never written.
        memory: that holds them; host memory if None.
    """

    def __init__(
        self,
        specs: Sequence[StateSpec],
        page_tokens: int,
        n_pages: int,
        n_rings: int,
        poison: bool = False,
        memory: CacheMemory | None = None,
    ) -> None:
        super().__init__(specs, page_tokens, n_pages, n_rings)
        self.poison = poison
        self.memory = HostMemory(specs, n_pages, n_rings) if memory is None else memory
        if poison:
            self._poison("pages", range(n_pages))
            self._poison("rings", range(n_rings))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The caches by name, [pages or rings, page width]; RequestError where they are not in host memory."""
        if not isinstance(self.memory, HostMemory):
            raise RequestError(
                "the caches are in a GPU's memory, and a check of every call compares them in the host's; load the "
                "plan for the CPU, or leave the check out"
            )
        return self.memory.tensors

    def allot(self, tokens: int, shared: Sequence[int] = ()) -> Allotment:
        allotment = super().allot(tokens, shared)
        if self.poison:
            self._poison("pages", allotment.pages[len(shared) :])
            self._poison("rings", [allotment.ring])
        return allotment

    def fork(self, first: Allotment, second: Allotment, length: int) -> None:
        """Lets a sequence go on from the first `length` tokens of another one, by the table's column `lifetime`.

        What lives as long as a prefix is shared, but for the page that both write on in; that page and what lives as
        long as a sequence are copied.

        Args:
            first: its sequence has just reached `length`.
            second: with pages for the tokens that are not shared (`own_tokens`), and nothing in them.
            length: tokens that both have.
        """
        shared = first.pages[: length // self.page_tokens]
        self.pages.share(shared)
        if length % self.page_tokens:
            self.write_page(second.pages[0], self.read_page(first.pages[len(shared)]))
        second.pages[:0] = shared
        self.write_ring(second.ring, self.read_ring(first.ring))

    def make_writable(self, allotment: Allotment, first: int, end: int) -> None:
        """Before a write: gives a sequence copies of the pages of tokens [first, end) that others read or find.

        Raises:
            RequestError: there is no page for a copy.
        """
        for at in range(first // self.page_tokens, self.pages_for(end)):
            page = allotment.pages[at]
            if not self.pages.is_fixed(page):
                continue
            (copy,) = self.pages.take(1)
            self.write_page(copy, self.read_page(page))
            allotment.pages[at] = copy
            self.pages.give_back([page])

    def read_page(self, page: int) -> dict[str, Tensor]:
        """A page's row of every cache that lives as long as a prefix, by name; views or copies, in host memory."""
        return self._read("prefix", page)

    def write_page(self, page: int, rows: Mapping[str, Tensor]) -> None:
        for name, row in rows.items():
            self.memory.write(name, page, row)

    def read_ring(self, ring: int) -> dict[str, Tensor]:
        """A row of every cache that lives as long as a sequence, by name; views or copies, in host memory."""
        return self._read("sequence", ring)

    def write_ring(self, ring: int, rows: Mapping[str, Tensor]) -> None:
        for name, row in rows.items():
            self.memory.write(name, ring, row)

    def write_ids(self, ring: int, tokens: Sequence[int], end: int) -> None:
        """Writes the last ids before token `end` into the caches that are recomputed from tokens.

        Args:
            ring: of the sequence.
            tokens: all of it.
            end: the first token that is not written.
        """
        for spec in self.specs:
            if spec.restored == "recomputed":
                row = self.memory.read(spec.name, ring).clone()
                for position in range(max(0, end - spec.page), end):
                    row[position % spec.page] = tokens[position]
                self.memory.write(spec.name, ring, row)

    def _read(self, lifetime: str, number: int) -> dict[str, Tensor]:
        return {spec.name: self.memory.read(spec.name, number) for spec in self.specs if spec.lifetime == lifetime}

    def _poison(self, pool: str, numbers: Sequence[int]) -> None:
        for spec in self.specs:
            if spec.pool == pool:
                row = torch.full((spec.page_width,), poison_value(spec.dtype), dtype=spec.dtype)
                for number in numbers:
                    self.memory.write(spec.name, number, row)
