"""A check of every call, for finding the first one that does wrong instead of the request that suffers from it.

A kernel that writes where it should not breaks another request, later. With this check the call itself is named:
after it no byte of the caches may differ but in the rings and pages of its own requests, and no logit may be NaN or
infinite. It keeps a copy of all caches and compares it after each call, so it is for the search of faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dsv41c.errors import StateError
from dsv41c.runtime.batch import Piece
from dsv41c.runtime.caches import CachePool


class CallCheck:
    """Compares caches before and after calls.

    Args:
        caches: of the engine.
    Raises:
        RequestError: they are not in host memory.
    """

    def __init__(self, caches: CachePool) -> None:
        self._caches, self._tensors = caches, caches.tensors
        self._before: dict[str, Tensor] = {}
        self._calls = 0

    def before(self) -> None:
        """Before a call."""
        self._before = {name: cache.clone() for name, cache in self._tensors.items()}

    def after(self, program: str, pieces: Sequence[Piece], outputs: Mapping[str, Tensor]) -> None:
        """After it.

        Args:
            program: that ran.
            pieces: that it ran for.
            outputs: what it gave.
        Raises:
            StateError: it wrote outside of what its pieces may write, or gave logits that are no numbers.
        """
        self._calls += 1
        own = {"rings": {piece.allotment.ring for piece in pieces}, "pages": self._pages(pieces)}
        for spec in self._caches.specs:
            now, before = (tensors[spec.name].view(torch.uint8) for tensors in (self._tensors, self._before))
            changed = (now != before).any(-1).nonzero().flatten().tolist()
            stray = sorted(set(changed) - own[spec.pool])
            if stray:
                raise StateError(
                    f"call {self._calls}, a forward of {program}, wrote {spec.pool[:-1]} {stray[0]} of {spec.name}, "
                    "which none of its requests holds to write; the fault is in this call, whatever fails later"
                )
        logits = outputs.get("logits")
        if logits is not None and not torch.isfinite(logits).all():
            row = int((~torch.isfinite(logits)).any(-1).nonzero()[0])
            raise StateError(
                f"call {self._calls}, a forward of {program}, gave logits that are no numbers in row {row}"
            )

    def _pages(self, pieces: Sequence[Piece]) -> set[int]:
        size = self._caches.page_tokens
        pages: set[int] = set()
        for piece in pieces:
            first, end = max(piece.context, piece.written_from), piece.context + len(piece.tokens)
            pages |= set(piece.allotment.pages[first // size : self._caches.pages_for(end)]) if first < end else set()
        return pages
