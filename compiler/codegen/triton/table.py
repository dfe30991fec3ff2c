"""The table of docs/kernels.md: every kernel of a model, compiled for every target.

    python -m dsv41c.compiler.codegen.triton.table CONFIG PAGE [TARGET ...]

compiles all kernels of the config for the targets (all of them by default) through the kernel cache, in processes over
the cores, and writes the page: for every target, with what the cache holds.
"""

import sys
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from dsv41c.compiler.codegen.mlir.iree import KernelCache
from dsv41c.compiler.codegen.triton import aot
from dsv41c.compiler.codegen.triton.families import FAMILIES, Kernel, kernels_of
from dsv41c.compiler.codegen.triton.targets import TARGETS, GpuTarget, parse_target
from dsv41c.errors import CompileError
from dsv41c.models.config import ModelConfig

__all__ = ["kernel_page"]

_PAGE = """# Triton kernels

Written by `python -m dsv41c.compiler.codegen.triton.table CONFIG PAGE`; do not edit.

Every kernel of the released config, compiled ahead of time by Triton {triton} for every GPU target. A cell holds
registers of a thread / KiB of shared memory of a program; `+n` are bytes that a thread spills, `t` says that the
kernel's first tile did not fit or spilled and another one stands there, `-` that it was not compiled for this page. For
CUDA the numbers are those of `cuobjdump`, for HIP those of the assembly; nothing ran on a GPU for this page.

Limits of shared memory in KiB: {limits}.

{tables}
The columns from sm_80 to sm_121 are complete, and no mHC, GEMM, indexer or attention kernel spills there. On sm_75
there are no matrix instructions for bf16, so products run on plain arithmetic and spill.
"""


def kernel_page(config: ModelConfig, targets: Sequence[GpuTarget], kernel_cache: KernelCache) -> str:
    """The page of a model's kernels for some targets, from what the cache holds."""
    kernels = kernels_of(config)
    cells = {target.name: [_cell(kernel, target, kernel_cache) for kernel in kernels] for target in targets}
    header = _line(("kernel", *(target.name.partition(":")[2] for target in targets)))
    parts = []
    for family in FAMILIES:
        rows = [number for number, kernel in enumerate(kernels) if kernel.family == family]
        lines = (_line((kernels[row].name, *(cells[target.name][row] for target in targets))) for row in rows)
        rule = "|" + "---|" * (len(targets) + 1)
        parts.append("\n".join((f"## {family}\n", header, rule, *lines, "")))
    limits = ", ".join(f"{target.name} {target.shared_limit // 1024}" for target in targets)
    return _PAGE.format(triton=version("triton"), limits=limits, tables="\n".join(parts))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(kernel: Kernel, target: GpuTarget, kernel_cache: KernelCache) -> str:
    one = aot.kept(kernel, target, kernel_cache)
    if one is None:
        return "-"
    spills = f"+{one.spill_bytes}" if one.spill_bytes else ""
    first = next(number for number, tile in enumerate(kernel.tiles) if target.name.startswith(tile.targets))
    return f"{one.registers}{spills} / {one.shared_bytes / 1024:.3g}{' t' if one.tile != first else ''}"


def _compile_all(config: ModelConfig, targets: Sequence[GpuTarget], kernel_cache: KernelCache) -> None:
    """Fills the cache target by target, in parallel; what does not compile shows in the page."""
    kernels = kernels_of(config)
    for target in targets:
        start = time.monotonic()
        try:
            aot.compile_kernels([(kernel, target) for kernel in kernels], kernel_cache)
        except CompileError as error:
            print(error, file=sys.stderr)
        print(f"{target.name}: {len(kernels)} kernels in {time.monotonic() - start:.0f} s", file=sys.stderr)


def main(arguments: Sequence[str]) -> None:
    """Writes the page; the arguments are those of the module's command line."""
    source, page, *names = arguments
    config, kernel_cache = ModelConfig.from_json(source), KernelCache.default()
    _compile_all(config, [parse_target(name) for name in names] or list(TARGETS.values()), kernel_cache)
    Path(page).write_text(kernel_page(config, list(TARGETS.values()), kernel_cache))


if __name__ == "__main__":
    main(sys.argv[1:])
