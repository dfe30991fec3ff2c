"""The generated sources that are kept, to see what a change of the generator does to them.

    python tests/triton/golden_sources.py

writes them anew to tests/triton/golden; the regions that they are made from are in tests/triton/regions.
"""

from pathlib import Path

from xdsl.dialects.func import FuncOp

from dsv41c.compiler.codegen.triton.row_programs import row_program
from dsv41c.ir.builder import functions
from dsv41c.ir.text import parse_module

REGIONS = Path(__file__).parent / "regions"
GOLDEN = Path(__file__).parent / "golden"
# An index, a norm, an FP4 quantizer, sums over streams in order, products that are cut over programs.
KEPT = ("entry_slots", "norm", "index_queries", "mixed_streams", "one_row_products")


def region(name: str) -> FuncOp:
    """A region of tests/triton/regions."""
    return functions(parse_module((REGIONS / f"{name}.mlir").read_text()))[name]


def sources(name: str) -> dict[str, str]:
    """A region's sources by the name of their file."""
    return {f"{kernel.name}.py.txt": kernel.generated for kernel in row_program(region(name)).kernels}


def main() -> None:
    """Writes all files anew."""
    for file in GOLDEN.glob("*.py.txt"):
        file.unlink()
    for name in KEPT:
        for file, text in sources(name).items():
            (GOLDEN / file).write_text(text)


if __name__ == "__main__":
    main()
