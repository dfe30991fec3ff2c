"""`dsv41c bench`: tuned configs for kernels, measured on this machine's GPU."""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from dsv41c.compiler.codegen.triton.configs import write_configs
from dsv41c.compiler.codegen.triton.families import Kernel, Tile, kernels_of
from dsv41c.compiler.codegen.triton.targets import GpuTarget, parse_target
from dsv41c.compiler.codegen.triton.timing import chosen
from dsv41c.compiler.codegen.triton.tune import Load, tune
from dsv41c.errors import CompileError
from dsv41c.models.config import ModelConfig
from dsv41c.runtime.cuda_driver import CudaDriver, Driver, DriverError
from dsv41c.runtime.plan_format import GpuKernel


@click.command("bench", short_help="Tune kernels on this machine's GPU.")
@click.argument("config", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--tune", "is_tuning", is_flag=True, help="Measure variants of each kernel's tiles, and keep the fastest."
)
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Where the tuned configs are written."
)
@click.option("--only", metavar="NAMES", default="", help="Beginnings of kernel names, with commas.  [default: all]")
@click.option("--device", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the GPU.")
def bench_command(config: Path, is_tuning: bool, output: Path | None, only: str, device: int) -> None:
    """Tunes the kernels of a model on this machine's NVIDIA GPU.

    CONFIG is a model's config.json or its folder; no weights are read. `dsv41c compile --configs FILE` takes the file.
    Times of a whole plan come from bench/gpu.sh.

    \b
    Example:
      dsv41c bench checkpoints/mini6 --tune -o tuned-sm_90.json
    """
    if not is_tuning or output is None:
        raise click.UsageError("say what to measure and where it goes: --tune -o FILE")
    _check_writable(output)
    driver = CudaDriver(device)
    target = parse_target(driver.target)
    kernels = chosen(kernels_of(ModelConfig.from_json(config)), [word for word in only.split(",") if word])
    with tempfile.TemporaryDirectory(prefix="dsv41c-tune-") as folder:
        found = tune(kernels, target, driver, _loader(target, driver, Path(folder)), report=click.echo)
    found.conditions.update(triton=version("triton"), date=f"{datetime.now(UTC):%Y-%m-%d}")
    write_configs(output, found)
    click.echo(f"{output}: {len(found.configs)} of {len(kernels)} kernels have a faster tile than their default")


def _check_writable(output: Path) -> None:
    """Before minutes of work, that a file can be written there."""
    if output.is_dir():
        raise CompileError(f"-o {output}: that is a folder; name a file in it")
    if not os.access(output if output.exists() else output.parent, os.W_OK):
        missing = "" if output.parent.is_dir() else f", {output.parent} is no folder"
        raise CompileError(f"-o {output}: no file can be written there{missing}; choose another place")


def _loader(target: GpuTarget, driver: Driver, folder: Path) -> Load:
    """Compiles tiles in this process and loads them."""
    # Imported here, since a machine without a GPU never gets this far.
    from dsv41c.compiler.codegen.triton import aot, worker
    from dsv41c.compiler.gpu_kernels import entry_of

    def load(kernel: Kernel, tile: Tile) -> tuple[GpuKernel, Any] | None:
        one = kernel.with_tiles(tile)
        made, problems = worker.attempt(one, target, tile, folder)
        if problems or made["spill_bytes"]:
            return None
        names = {"kernel": kernel.name, "target": target.name, "tile": 0, "refused": []}
        compiled = aot.Compiled.from_json({**names, **made})
        gpu = entry_of(one, False, target, compiled).gpu
        assert gpu is not None
        try:
            return gpu, driver.load(compiled.binary, compiled.symbol, gpu.shared_bytes)
        except DriverError:
            return gpu, driver.load(compiled.assembly.encode(), compiled.symbol, gpu.shared_bytes)

    return load
