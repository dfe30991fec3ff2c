"""Symptom: no configuration is found for a target with less memory (pytorch/helion#3161).

Cause: a search over tiles that starts from sizes that are invalid there, and has no smallest one that is always valid.

Why this input: a chain of launches with a wide value in the middle, at budgets from all rows at once down to what the
smallest tile takes. Each budget is met; one byte less than the smallest tile takes is refused with the numbers.
"""

import re

import pytest
from chain import NARROW, WIDE, chain

from dsv41c.compiler.definitions import context_of
from dsv41c.errors import CompileError
from dsv41c.ir.builder import functions
from dsv41c.ir.transient import launches_of, tiles_of, transient_peak
from dsv41c.passes.manager import PassManager
from dsv41c.passes.plan_memory import SMALLEST, PlanMemory

ROWS = 512
ENDS = 2 * 4 * NARROW * ROWS  # input and output, for all rows
INSIDE = 2 * 4 * WIDE  # of a row of a tile: two wide values


def peak_under(budget: int) -> tuple[int, list[int]]:
    """The peak of the chain that was brought under a budget, and the rows of its tiles."""
    module = chain(ROWS)
    step = functions(PassManager([PlanMemory(budget=budget)], context_of(module)).run(module))["step"]
    peak = transient_peak(step, {"T": ROWS}, lambda kernel, shapes, attrs: 0)
    return peak.bytes, [tile.rows for tile in tiles_of(launches_of(step)) if tile.rows]


@pytest.mark.parametrize("rows", [16, 17, 32, 100, 255])
def test_every_budget_that_can_be_met_is(rows: int) -> None:
    budget = ENDS + INSIDE * rows
    peak, tiles = peak_under(budget)
    assert peak <= budget
    assert tiles == [1 << (rows.bit_length() - 1)], "the largest power of two that fits"


def test_a_cheaper_way_is_taken_where_the_budget_allows_it() -> None:
    """The wide value exists once for all rows, its exponential is written over it: one launch in tiles, not three."""
    budget = ENDS + INSIDE * 256
    peak, tiles = peak_under(budget)
    assert peak <= budget
    assert tiles == [128]


def test_the_smallest_tile_is_always_valid_and_less_is_refused() -> None:
    least = ENDS + INSIDE * SMALLEST
    assert peak_under(least) == (least, [SMALLEST])
    with pytest.raises(
        CompileError, match=rf"may hold {re.escape(f'{least - 1:,}')}; tiles of {SMALLEST} rows or more"
    ):
        peak_under(least - 1)
