"""Bounded replay of the encoder: the windows of a prefix whose pages were found (SPEC 5.5, 5.6).

The last rows of the prefix run once more to fill the rings. They attend to no window row before the first of them, and
they write no entry: the pages hold theirs already, and others read them. A plan holds a form of `encode` for it, which
takes the lists that decide both as inputs instead of computing them:

    replay.window     int32 [T, W]    the keys of the window, as `Rows.window_index` gives them
    replay.slots.R    int64 [T]       where the entries of R tokens go, -1 for nowhere
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dsv41c.errors import PlanError
from dsv41c.models.rows import Rows
from dsv41c.runtime.batch import Piece
from dsv41c.runtime.plan import Plan

ENCODE_REPLAY = "encode_replay"
_WINDOW = "replay.window"


class Replay:
    """The inputs that a replay takes besides those of `encode`.

    Args:
        plan: that holds the program.
        window: rows of a window.
    Raises:
        PlanError: a plan without it.
    """

    def __init__(self, plan: Plan, window: int) -> None:
        if ENCODE_REPLAY not in plan.interfaces:
            raise PlanError(
                f"the plan has no program {ENCODE_REPLAY}, only {', '.join(plan.interfaces)}, so no prefix can be "
                "replayed; compile the plan again"
            )
        self._window, self._page_tokens = window, plan.manifest.page_tokens
        self._ratios = sorted({spec.ratio for spec in plan.manifest.state if spec.pool == "pages"})

    def inputs(self, pieces: Sequence[Piece], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """By name, from the pieces of a call and the inputs that its program takes anyway."""
        sequence, positions = inputs["sequence"], inputs["positions"]
        names = ("positions", "sequence", "first_row", "context", "lengths", "ring", "pages")
        rows = Rows.of_batch(*(inputs[name] for name in names))
        start = torch.tensor([piece.start for piece in pieces])[sequence]
        index = rows.window_index(self._window)
        key = positions.unsqueeze(-1) - torch.arange(self._window - 1, -1, -1)
        made = {_WINDOW: torch.where(key >= start.unsqueeze(-1), index, -1)}
        written = positions >= torch.tensor([piece.written_from for piece in pieces])[sequence]
        for ratio in self._ratios:
            slots = rows.entry_store(ratio, self._page_tokens // ratio)
            made[f"replay.slots.{ratio}"] = torch.where(written, slots, -1)
        return made
