"""What the plan's memory bill says about a call and about the caches, in bytes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from dsv41c.runtime.plan_format import Manifest


@dataclass(frozen=True)
class _Peak:
    rows: int
    context: int
    bytes: int


class MemoryBill:
    """The bill of a plan.

    Args:
        manifest: its manifest; a plan without a bill of transients counts them as 0.

    Attributes:
        weights: bytes that are mapped from files.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.weights = int(manifest.memory.get("weights", 0))
        listed: list[dict[str, Any]] = manifest.bill.get("transient_peak_bytes", [])
        self._peaks = [_Peak(one["chunk"], one["context"], one["bytes"]) for one in listed]

    def transient(self, rows: int, context: int) -> int:
        """Bytes that the values of a call take at most, all at one time.

        The bill names peaks at some numbers of rows and contexts. A peak is the largest of sums that grow linearly with
        the rows, so a line between two named ones lies above it; of the contexts the next longer one holds.

        Args:
            rows: of the call.
            context: tokens of its longest sequence.
        """
        if not self._peaks:
            return 0
        contexts = sorted({peak.context for peak in self._peaks})
        column = next((one for one in contexts if one >= context), contexts[-1])
        points = sorted((peak.rows, peak.bytes) for peak in self._peaks if peak.context == column)
        if rows <= points[0][0]:
            return points[0][1]
        for (low, low_bytes), (high, high_bytes) in itertools.pairwise(points):
            if rows <= high:
                return low_bytes + -(-(high_bytes - low_bytes) * (rows - low) // (high - low))
        return -(-points[-1][1] * rows // points[-1][0])
