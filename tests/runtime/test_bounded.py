"""What a bounded prefill keeps between the chunks of a prompt, and the plans that it refuses."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dsv41c.errors import RequestError
from dsv41c.runtime.api import load
from dsv41c.runtime.bounded import ENCODE, TAIL, BoundedPrefill, Carry
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.plan_format import InputSpec, OutputSpec, Program

WINDOW = 4


@pytest.fixture
def plan(finished_plan: Path) -> Plan:
    """The hand-made plan with the interfaces of two parts; `positions` is no carry, since `encode` does not give it."""
    encode = Program((), (), (OutputSpec("carry.0", "%a"), OutputSpec("carry.1", "%b")), ())
    inputs = (InputSpec("positions", "si64", ("T",)), InputSpec("carry.0", "bf16", ("T", 2)))
    tail = Program((*inputs, InputSpec("carry.1", "f32", ("T",))), (), (), ())
    made = Plan.load(finished_plan)
    return replace(made, programs=made.programs | {ENCODE: encode, TAIL: tail})


def rows_of(*positions: int) -> dict[str, Tensor]:
    numbers = torch.tensor(positions, dtype=torch.float32)
    return {"carry.0": numbers.unsqueeze(-1).expand(-1, 2).to(torch.bfloat16), "carry.1": numbers, "other": numbers}


@pytest.mark.parametrize("chunks", [(9,), (4, 5), (7, 1, 1), (1,) * 9, (3,)], ids=str)
def test_the_last_rows_are_kept_over_any_chunks(plan: Plan, chunks: tuple[int, ...]) -> None:
    bounded = BoundedPrefill(plan, WINDOW, max_rows=64)
    held: Carry = {}
    start = 0
    for count in chunks:
        # Three rows of another sequence before and two behind.
        given = rows_of(90, 91, 92, *range(start, start + count), 93, 94)
        held = bounded.kept(held, given, 3, count)
        assert all(rows.untyped_storage().nbytes() == rows.nbytes for rows in held.values()), "no view of all rows"
        start += count
    want = rows_of(*range(start)[-WINDOW:])
    assert held.keys() == {"carry.0", "carry.1"}
    assert all(torch.equal(held[name], want[name]) for name in held)


def test_the_tails_of_a_batch_lie_one_behind_the_other_and_are_padded(plan: Plan) -> None:
    bounded = BoundedPrefill(plan, WINDOW, max_rows=64)
    carries = [{name: rows_of(*numbers)[name] for name in ("carry.0", "carry.1")} for numbers in ((1, 2), (5, 6, 7))]
    inputs = bounded.inputs(carries, 7)
    assert inputs["carry.1"].tolist() == [1, 2, 5, 6, 7, 0, 0]
    assert inputs["carry.0"].shape == (7, 2)


def test_only_prompts_longer_than_a_window_have_rows_to_leave_out(plan: Plan) -> None:
    bounded = BoundedPrefill(plan, WINDOW, max_rows=64)
    assert [bounded.applies_to([0] * length) for length in (1, 4, 5)] == [False, False, True]


def test_plans_without_the_parts_or_with_fewer_rows_are_refused(finished_plan: Path, plan: Plan) -> None:
    with pytest.raises(RequestError, match=r"no programs encode and tail, only step, .*; use prefill exact"):
        load(finished_plan, prefill="bounded")
    with pytest.raises(RequestError, match=r"last 16 rows .* compiled for 8 rows .* use prefill exact"):
        BoundedPrefill(plan, 16, max_rows=8)
