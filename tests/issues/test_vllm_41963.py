"""Symptom: out of shared memory, or a hang, on a GPU that has less of it (vllm#41963, mirage#738).

Cause: tiles tuned for 227 KB are used where a program has 64 or 99 KB.

Why this input: kernels of the released model on targets whose limits are 64, 99, 163 and 227 KB, from the table that
their compilation wrote; and a need at each limit, to the byte and a byte beyond it.
"""

import pytest
from test_kernel_page import CELL, COMPLETE, rows

from dsv41c.compiler.codegen.triton.families import fits
from dsv41c.compiler.codegen.triton.targets import TARGETS, parse_target

LIMITS = {65536: "hip:gfx942", 101376: "cuda:sm_120", 166912: "cuda:sm_80", 232448: "cuda:sm_90"}


def test_the_limits_are_those_of_the_targets() -> None:
    assert {parse_target(name).shared_limit for name in LIMITS.values()} == set(LIMITS)
    assert {target.shared_limit for target in TARGETS.values()} == set(LIMITS)
    assert {target.shared_limit for target in TARGETS.values() if target.backend == "hip"} == {65536}


@pytest.mark.parametrize(("limit", "target"), LIMITS.items())
def test_every_kernel_has_a_tile_within_the_limit(limit: int, target: str) -> None:
    column = list(TARGETS).index(target)
    cells = {name: CELL.fullmatch(cells[column]) for name, cells in rows().items()}
    if target in COMPLETE:
        assert [name for name, cell in cells.items() if cell is None] == []
    needs = [float(cell.group(3)) * 1024 for cell in cells.values() if cell is not None]
    assert len(needs) > len(cells) / 2
    assert max(needs) <= limit


@pytest.mark.parametrize(("limit", "target"), LIMITS.items())
def test_a_byte_more_is_refused_with_both_numbers(limit: int, target: str) -> None:
    assert fits(parse_target(target), limit, 0) == []
    assert fits(parse_target(target), limit + 1, 0) == [f"{limit + 1} bytes of shared memory, the limit is {limit}"]
