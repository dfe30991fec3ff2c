"""Bounded prefill: the encoder on every row of a prompt, the rest of the network on its last rows (SPEC 5.3, 5.4).

A plan whose model has an encoder holds two programs besides `step`. `encode` writes all that the states of a prompt
need and gives the values that cross to the decoder, a row for each token; `tail` takes such rows and gives logits and
the windows of the decoder's layers, attending to no window row before its own. Between the chunks of a prompt only the
last rows of these values are kept, as many as the tail takes: a window's, which is the model's own approximation, or as
many as make the last window exact in every layer (W rows in the last layer, and W - 1 more in each layer before it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dsv41c.errors import RequestError
from dsv41c.runtime.plan import Plan

ENCODE = "encode"
TAIL = "tail"
Carry = dict[str, Tensor]


class BoundedPrefill:
    """The values that cross from `encode` to `tail`.

    Args:
        plan: the plan.
        window: rows of a window.
        max_rows: rows of one forward at most.
        is_exact: the tail makes the last window exact in every layer.
    Raises:
        RequestError: a plan without the two programs, or for fewer rows than the tail has.

    Attributes:
        rows: of the tail.
        is_exact: as given.
    """

    def __init__(self, plan: Plan, window: int, max_rows: int, is_exact: bool = False) -> None:
        if not {ENCODE, TAIL} <= plan.interfaces.keys():
            raise RequestError(
                f"prefill is bounded, and the plan has no programs {ENCODE} and {TAIL}, only "
                f"{', '.join(plan.interfaces)}; use prefill exact, or compile the plan again"
            )
        self.is_exact = is_exact
        self.rows = _exact_rows(plan, window) if is_exact else window
        if self.rows > max_rows:
            raise RequestError(
                f"prefill is bounded to the last {self.rows} rows of a prompt, and the plan was compiled for "
                f"{max_rows} rows at most; use prefill exact, or compile with a larger max_rows"
            )
        given = {output.name for output in plan.interfaces[ENCODE].outputs}
        self._names = [spec.name for spec in plan.interfaces[TAIL].inputs if spec.name in given]

    def applies_to(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt is longer than a tail; with a shorter one there is nothing to leave out."""
        return len(prompt) > self.rows

    def kept(self, held: Mapping[str, Tensor], outputs: Mapping[str, Tensor], start: int, count: int) -> Carry:
        """The last rows of what crosses, after another chunk of a sequence.

        Args:
            held: what was kept of its earlier chunks; empty before the first.
            outputs: of `encode`.
            start, count: the sequence's rows in that call.
        """
        kept: Carry = {}
        for name in self._names:
            fresh = outputs[name][start : start + count][-self.rows :]
            rows = torch.cat([held[name], fresh])[-self.rows :] if held else fresh
            # Cloned: a view would keep all rows of the call.
            kept[name] = rows.clone()
        return kept

    def inputs(self, carries: Sequence[Mapping[str, Tensor]], n_rows: int) -> Carry:
        """The tail's inputs from the rows kept of each sequence, padded with zeros to `n_rows` rows."""
        joined = {name: torch.cat([carry[name] for carry in carries]) for name in self._names}
        return {name: _padded(rows, n_rows) for name, rows in joined.items()}


def _exact_rows(plan: Plan, window: int) -> int:
    """The rows of a tail whose last window is that of an exact prefill, in every layer that it runs (SPEC 5.4)."""
    written = set(plan.interfaces[TAIL].caches)
    layers = sum(spec.kind == "window" and spec.name in written for spec in plan.manifest.state)
    return window + (layers - 1) * (window - 1)


def _padded(rows: Tensor, n_rows: int) -> Tensor:
    missing = n_rows - rows.shape[0]
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing > 0 else rows
