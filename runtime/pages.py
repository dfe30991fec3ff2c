"""Cache pages by number: who holds which, which are shared, and which idle ones still hold content that is known.

A page is free, held or idle. A held page has one holder or several; a page with several holders, or with a name, is
never written: its writer takes a copy first (`CachePool.make_writable`). A named page that nobody holds is idle: it is
found by its name until its number is needed, the one that was held longest ago first.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable

from dsv41c.errors import RequestError


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

    def give_back(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            heapq.heappush(self._free, number)


class Pages:
    """The pages of a pool.

    Args:
        count: how many there are.
        on_evict: called with the name of an idle page whose number is taken for something else.
    """

    def __init__(self, count: int, on_evict: Callable[[Hashable], None] | None = None) -> None:
        self._numbers = Numbers(count)
        self._holders: dict[int, int] = {}
        self._names: dict[int, Hashable] = {}
        self._named: dict[Hashable, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self.on_evict = on_evict

    @property
    def count(self) -> int:
        return self._numbers.count

    @property
    def held(self) -> int:
        """Pages that somebody holds."""
        return len(self._holders)

    @property
    def idle(self) -> int:
        """Named pages that nobody holds."""
        return len(self._idle)

    @property
    def available(self) -> int:
        """Pages that can be taken: free ones and idle ones."""
        return self._numbers.free + len(self._idle)

    def holders(self, number: int) -> int:
        """How many hold a page."""
        return self._holders.get(number, 0)

    def is_fixed(self, number: int) -> bool:
        """Whether the page's content must stay as it is."""
        return self.holders(number) > 1 or number in self._names

    def take(self, count: int) -> list[int]:
        """Pages of which the caller is the one holder: the lowest free ones, then the oldest idle ones.

        Raises:
            RequestError: there are not so many; nothing was taken.
        """
        if count > self.available:
            raise RequestError(
                f"out of pages: {count} are asked for, {self._numbers.free} of {self.count} are free and {self.idle} "
                "idle; wait for running requests, ask for fewer tokens, or load the plan with more cache_tokens"
            )
        while self._numbers.free < count:
            self._evict()
        taken = self._numbers.take(count)
        self._holders.update(dict.fromkeys(taken, 1))
        return taken

    def share(self, numbers: Iterable[int]) -> None:
        """One more holder of held or idle pages."""
        for number in numbers:
            assert number in self._holders or number in self._idle, f"page {number} is free, it has no content"
            self._idle.pop(number, None)
            self._holders[number] = self.holders(number) + 1

    def give_back(self, numbers: Iterable[int]) -> None:
        """One holder less of each page, in the order in which they may be evicted."""
        for number in numbers:
            self._holders[number] -= 1
            if self._holders[number]:
                continue
            del self._holders[number]
            if number in self._names:
                self._idle[number] = None
            else:
                self._numbers.give_back([number])

    def set_name(self, number: int, name: Hashable) -> bool:
        """Makes a held page findable; False if another page has that name already, and this one stays without."""
        assert number in self._holders, f"page {number} is not held"
        if name in self._named:
            return False
        assert number not in self._names, f"page {number} has another name already"
        self._names[number], self._named[name] = name, number
        return True

    def find(self, name: Hashable) -> int | None:
        """The page of that name, or None."""
        return self._named.get(name)

    def forget(self, name: Hashable) -> None:
        """Takes a name away; an idle page becomes free."""
        number = self._named.pop(name)
        del self._names[number]
        if number in self._idle:
            del self._idle[number]
            self._numbers.give_back([number])

    def _evict(self) -> None:
        number = next(iter(self._idle))
        name = self._names[number]
        self.forget(name)
        if self.on_evict is not None:
            self.on_evict(name)
