"""A plan's kernels for GPU targets: their entries in the manifest and their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsv41c.compiler.codegen.mlir.iree import KernelCache
from dsv41c.compiler.codegen.triton import aot
from dsv41c.compiler.codegen.triton.aot import Compiled
from dsv41c.compiler.codegen.triton.configs import Configs, with_config
from dsv41c.compiler.codegen.triton.families import Kernel
from dsv41c.compiler.codegen.triton.targets import GpuTarget
from dsv41c.errors import CompileError
from dsv41c.runtime.plan_format import GpuKernel, KernelEntry

__all__ = ["GpuKernels", "compile_for_gpus", "entry_of"]


@dataclass(frozen=True)
class GpuKernels:
    """Entries, one for each kernel and target, and the files that they name, by their path in the plan."""

    entries: tuple[KernelEntry, ...]
    files: dict[str, bytes]


def compile_for_gpus(
    kernels: Sequence[Kernel],
    targets: Sequence[GpuTarget],
    configs: Mapping[str, Configs],
    kernel_cache: KernelCache | None,
    workers: int | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> GpuKernels:
    """Compiles kernels for targets, each in the tile that fits.

    Args:
        kernels: with unique names.
        configs: tuned configs by target; a target without any takes the kernels' own tiles.
        kernel_cache, workers: as in `aot.compile_kernels`.
        progress: called after each kernel with its name and target.
    Raises:
        CompileError: a kernel fits a target with none of its tiles; the message names kernel, limit and need.
    """
    jobs = [
        (*with_config(kernel, target, configs.get(target.name)), target) for target in targets for kernel in kernels
    ]
    compiled = aot.compile_kernels([(kernel, target) for kernel, _, target in jobs], kernel_cache, workers, progress)
    entries, files = [], {}
    for (kernel, is_tuned, target), binary in zip(jobs, compiled, strict=True):
        entry = entry_of(kernel, is_tuned, target, binary)
        assert entry.gpu is not None
        entries.append(entry)
        files[str(entry.file)] = binary.binary
        files[str(entry.gpu.assembly)] = binary.assembly.encode()
    for kernel in kernels:
        files |= {_source_file(name): text.encode() for name, text in aot.imported_sources(kernel).items()}
    return GpuKernels(tuple(entries), files)


def entry_of(kernel: Kernel, is_tuned: bool, target: GpuTarget, compiled: Compiled) -> KernelEntry:
    """The entry of a compiled kernel; `is_tuned` says that its first tile is a tuned one."""
    if compiled.scratch_bytes:
        raise CompileError(
            f"kernel {kernel.name!r} for {target.name} needs {compiled.scratch_bytes} bytes of global scratch, which "
            "the runtime does not give; leave out what makes Triton ask for it (descriptors made on the device)"
        )
    tile = kernel.tiles[compiled.tile]
    chosen = _chosen(kernel, is_tuned, target, compiled.tile)
    stem = f"kernels/{target.name.replace(':', '_')}/{kernel.name}"
    known: dict[str, Any] = {**kernel.holes, **tile.holes}
    gpu = GpuKernel(
        arguments=dict(kernel.arguments),
        grid=tuple((known.get(str(size), size), known.get(str(per), per)) for size, per in kernel.grid),
        warps=compiled.warps,
        sizes=kernel.sizes,
        unaligned=kernel.unaligned,
        multiples=kernel.multiples,
        registers=compiled.registers,
        spill_bytes=compiled.spill_bytes,
        shared_bytes=compiled.shared_bytes,
        load_bits=compiled.load_bits,
        mma=tuple(compiled.mma),
        assembly=f"{stem}.{target.assembly}",
        source=_source_file(kernel.source_file),
        holes=kernel.filled(tile, target.fp8_casts),
        tile={**tile.holes, "warps": tile.warps, "stages": tile.stages},
        chosen=chosen,
        refused=tuple(compiled.refused),
    )
    band = "tuned" if chosen == "tuned" else "portable"
    file = f"{stem}.{target.binary}"
    return KernelEntry(kernel.name, "triton", band, file, compiled.symbol, target.name, gpu=gpu)


def _chosen(kernel: Kernel, is_tuned: bool, target: GpuTarget, tile: int) -> str:
    if is_tuned and tile == 0:
        return "tuned"
    own = [n for n, one in enumerate(kernel.tiles) if target.name.startswith(one.targets)][is_tuned:]
    return "default" if tile == own[0] else "smaller"


def _source_file(name: str) -> str:
    return f"kernels/sources/{name}"
