"""docs/kernels.md lists every kernel of the released config, and what it shows keeps the targets' limits."""

import re
from pathlib import Path

from dsv41c.compiler.codegen.triton.families import kernels_of
from dsv41c.compiler.codegen.triton.targets import TARGETS
from dsv41c.models.config import ModelConfig

ROOT = Path(__file__).parents[2]
CELL = re.compile(r"(\d+)(?:\+(\d+))? / ([\d.]+)( t)?")
# sm_75 has no matrix instructions for bf16.
WITHOUT_SPILLS = [name for name in TARGETS if name.startswith("cuda:") and name != "cuda:sm_75"]
NO_SPILLS = ("mhc", "gemm", "indexer")


def rows() -> dict[str, list[str]]:
    """The page's cells by kernel, in the order of the targets."""
    lines = (ROOT / "docs" / "kernels.md").read_text().splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    header = ["kernel", *(name.partition(":")[2] for name in TARGETS)]
    assert all(row == header for row in table if row[0] == "kernel")
    return {row[0]: row[1:] for row in table if row[0] != "kernel"}


def test_page_lists_every_kernel_within_the_limits() -> None:
    page = rows()
    kernels = kernels_of(ModelConfig.from_json(ROOT / "tests" / "golden" / "released"))
    assert list(page) == [kernel.name for kernel in kernels]
    for kernel in kernels:
        for target, cell in zip(TARGETS.values(), page[kernel.name], strict=True):
            if cell == "-":
                continue
            found = CELL.fullmatch(cell)
            assert found is not None, (kernel.name, cell)
            assert float(found.group(3)) <= target.shared_limit / 1024, (kernel.name, target.name, cell)
            if kernel.family in NO_SPILLS and target.name in WITHOUT_SPILLS:
                assert found.group(2) is None, (kernel.name, target.name, cell)
    assert sum(cell != "-" for cells in page.values() for cell in cells) > len(kernels)
