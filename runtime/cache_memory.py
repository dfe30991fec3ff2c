"""Where the bytes of caches lie, and how the host reads and writes a page or a ring of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from dsv41c.models.state import StateSpec
from dsv41c.runtime.aligned import aligned_empty

_POISON_BYTE = 0x7F  # NaN as an e4m3 value and as an e4m3 scale, a factor of 1 as a ue8m0 scale
_POISON_ID = -1


class CacheMemory(Protocol):
    """The caches of an executor, by name and by number of a page or a ring; zero at first."""

    def read(self, cache: str, number: int) -> Tensor:
        """A page or ring [page width] in host memory, as it is behind all calls so far; a view or a copy."""
        ...

    def write(self, cache: str, number: int, row: Tensor) -> None:
        """Overwrites it, before the next call.

        Args:
            row: [page width] in host memory, of the cache's dtype.
        """
        ...


class HostMemory:
    """Caches as tensors in host memory, which kernels on the CPU share.

    Args:
        specs: the state table.
        n_pages, n_rings: of each pool.

    Attributes:
        tensors: by name, [pages or rings, page width]; they keep their memory.
    """

    def __init__(self, specs: Sequence[StateSpec], n_pages: int, n_rings: int) -> None:
        counts = {"pages": n_pages, "rings": n_rings}
        self.tensors = {
            spec.name: aligned_empty((counts[spec.pool], spec.page_width), spec.dtype).zero_() for spec in specs
        }

    def read(self, cache: str, number: int) -> Tensor:
        """A view."""
        return self.tensors[cache][number]

    def write(self, cache: str, number: int, row: Tensor) -> None:
        self.tensors[cache][number] = row


def poison_value(dtype: torch.dtype) -> float:
    """The value that unwritten memory of that dtype is filled with in tests."""
    if dtype == torch.uint8:
        return _POISON_BYTE
    return float("nan") if dtype.is_floating_point else _POISON_ID
