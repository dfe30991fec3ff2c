"""docs/kernels.md lists every kernel of the released config, and what it shows keeps the targets' limits."""

import re
from pathlib import Path

import pytest

from dsv41c.compiler.codegen.triton.families import Kernel, kernels_of
from dsv41c.compiler.codegen.triton.targets import TARGETS, GpuTarget
from dsv41c.models.config import ModelConfig

ROOT = Path(__file__).parents[2]
CELL = re.compile(r"(\d+)(?:\+(\d+))? / ([\d.]+)( t)?")
# sm_75 has no matrix instructions for bf16.
WITHOUT_SPILLS = [name for name in TARGETS if name.startswith("cuda:") and name != "cuda:sm_75"]
# Every kernel was compiled for these; of the others the page shows what was.
COMPLETE = WITHOUT_SPILLS
NO_SPILLS = ("mhc", "gemm", "indexer", "sparse_attention")
REGISTERS = {"cuda": 255, "hip": 512}  # that a thread can have


def rows() -> dict[str, list[str]]:
    """The page's cells by kernel, in the order of the targets."""
    lines = (ROOT / "docs" / "kernels.md").read_text().splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    header = ["kernel", *(name.partition(":")[2] for name in TARGETS)]
    assert all(row == header for row in table if row[0] == "kernel")
    return {row[0]: row[1:] for row in table if row[0] != "kernel"}


def released() -> tuple[Kernel, ...]:
    return kernels_of(ModelConfig.from_json(ROOT / "tests" / "golden" / "released"))


def test_page_lists_every_kernel() -> None:
    assert list(rows()) == [kernel.name for kernel in released()]


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_kernels_are_within_the_limits(target: GpuTarget) -> None:
    page, column = rows(), list(TARGETS).index(target.name)
    for kernel in released():
        if page[kernel.name][column] == "-" and target.name not in COMPLETE:
            continue
        found = CELL.fullmatch(page[kernel.name][column])
        assert found is not None, (kernel.name, page[kernel.name][column])
        registers, spills, shared, other = found.groups()
        assert 0 < int(registers) <= REGISTERS[target.backend], kernel.name
        assert float(shared) <= target.shared_limit / 1024, kernel.name
        meant = [tile for tile in kernel.tiles if target.name.startswith(tile.targets)]
        assert other is None or len(meant) > 1, kernel.name
        if kernel.family in NO_SPILLS and target.name in WITHOUT_SPILLS:
            assert spills is None, kernel.name
