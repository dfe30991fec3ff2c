"""Bounded replay of the encoder: the windows of a prefix whose pages were found (SPEC 5.5, 5.6).

The last rows of the prefix run once more to fill the rings. They attend to no window row before the first of them, and
they write no entry: the pages hold theirs already, and others read them. `encode` does neither by itself, so its replay
form takes the two lists that decide it as inputs instead of computing them:

    attend(query, cos, sin, $window.L, fresh, %window_index, ...)   ->   %replay.window
    store($main.L, rows, %slots)                                    ->   %replay.slots.R      for entries of R tokens
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from dsv41c.errors import PlanError
from dsv41c.models.rows import Rows
from dsv41c.models.state import StateSpec
from dsv41c.runtime.batch import Piece
from dsv41c.runtime.bounded import ENCODE
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.plan_format import InputSpec, Program

ENCODE_REPLAY = "encode_replay"
_STORE = "store"
# Where the kernels that attend take the window cache and its index.
_ATTENTIONS = {"attend": (3, 5), "sparse_attention": (1, 3)}
_WINDOW = "replay.window"


def with_replay(plan: Plan) -> Plan:
    """The plan and a replay form of its `encode`.

    Raises:
        PlanError: a plan whose launches do not show the two lists.
    """
    program = plan.programs.get(ENCODE)
    if program is None:
        raise PlanError(f"the plan has no program {ENCODE}, so no prefix can be replayed; compile the plan again")
    return dataclasses.replace(
        plan, programs={**plan.programs, ENCODE_REPLAY: _replay_form(program, plan.manifest.state)}
    )


def _replay_form(program: Program, state: Sequence[StateSpec]) -> Program:
    specs = {f"${spec.name}": spec for spec in state if spec.name in program.caches}
    wanted = {name for name, spec in specs.items() if spec.pool == "pages" or spec.kind == "window"}
    found: set[str] = set()
    launches = []
    for launch in program.launches:
        args = list(launch.args)
        window, index = _ATTENTIONS.get(launch.kernel, (0, 0))
        if launch.kernel in _ATTENTIONS and args[window] in wanted:
            found.add(str(args[window]))
            args[index] = f"%{_WINDOW}"
        elif launch.kernel == _STORE and args[0] in wanted and specs[str(args[0])].pool == "pages":
            found.add(str(args[0]))
            args[2] = f"%{_slots(specs[str(args[0])].ratio)}"
        launches.append(dataclasses.replace(launch, args=tuple(args)))
    if found != wanted:
        raise PlanError(
            f"{ENCODE} does not show which rows it attends to, or where it stores, in "
            f"{', '.join(sorted(wanted - found))}, "
            "so no prefix can be replayed; use prefill exact, or a release of dsv41c that fits the plan"
        )
    ratios = sorted({spec.ratio for spec in specs.values() if spec.pool == "pages"})
    inputs = (InputSpec(_WINDOW, "si32", ("T", "W")), *(InputSpec(_slots(ratio), "si64", ("T",)) for ratio in ratios))
    return dataclasses.replace(program, inputs=program.inputs + inputs, launches=tuple(launches))


def _slots(ratio: int) -> str:
    return f"replay.slots.{ratio}"


class Replay:
    """The inputs that replay forms take besides those of their program.

    Args:
        state: the state table.
        window: rows of a window.
        page_tokens: tokens a page.
    """

    def __init__(self, state: Sequence[StateSpec], window: int, page_tokens: int) -> None:
        self._window, self._page_tokens = window, page_tokens
        self._ratios = sorted({spec.ratio for spec in state if spec.pool == "pages"})

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
            made[_slots(ratio)] = torch.where(written, slots, -1)
        return made
