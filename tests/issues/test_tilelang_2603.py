"""Symptom: a tile size gives silently wrong numbers, or right ones in the first batch row only (tilelang#2603, #2547,
mirage#440).

Cause: the last tile of a size that does not divide the rows was never run.

Why this input: every number of rows from 1 to 70 in tiles of 1 to 33 rows, so that each remainder occurs, against
torch; the tiles in which the index kernel and attention cut their rows have such tests in tests/runtime.
"""

import pytest
import torch
from chain import NARROW, chain

from dsv41c.compiler.definitions import context_of
from dsv41c.ir.builder import functions
from dsv41c.ir.interpreter import Interpreter
from dsv41c.passes.manager import PassManager
from dsv41c.passes.plan_memory import PlanMemory


@pytest.mark.parametrize("tile", [1, 2, 3, 7, 8, 16, 33])
def test_every_remainder_of_a_tile(tile: int) -> None:
    module = chain(512)
    step = functions(PassManager([PlanMemory(rows=tile)], context_of(module)).run(module))["step"]
    for rows in range(1, 71):
        x = torch.randn(rows, NARROW, generator=torch.Generator().manual_seed(rows))
        (ours,) = Interpreter({}.__getitem__).run(step, {"x": x}).values()
        assert torch.equal(ours, torch.exp(x)), rows
