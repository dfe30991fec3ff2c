"""Tuned tiles by measurement: each kernel in variants of its own tiles on the GPU at hand, the fastest right one kept.

A variant changes one thing of one of the kernel's tiles: warps, stages, or one size of its block, halved or doubled.
One that does not fit the target, spills, or gives other values than the reference is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dsv41c.compiler.codegen.triton.configs import Config, Configs
from dsv41c.compiler.codegen.triton.families import Kernel, Tile
from dsv41c.compiler.codegen.triton.targets import GpuTarget
from dsv41c.compiler.codegen.triton.timing import Launcher
from dsv41c.compiler.codegen.triton.trials import Trial, trials_of
from dsv41c.runtime.cuda_driver import Driver
from dsv41c.runtime.plan_format import GpuKernel

__all__ = ["tune", "variants"]

_WARPS = (1, 2, 4, 8, 16)
_STAGES = (1, 2, 3, 4)
_WORTH = 0.98  # of the default's time that another tile must stay under; less is noise
_CONTEXT = 64 << 10

# A kernel with one tile, compiled: its record and its function on the GPU; None where the tile does not do.
Load = Callable[[Kernel, Tile], tuple[GpuKernel, Any] | None]


def variants(kernel: Kernel, target: GpuTarget) -> list[Tile]:
    """The kernel's own tiles for a target, the default first, then what differs from one of them in one thing."""
    own = [tile for tile in kernel.tiles if target.name.startswith(tile.targets)]
    made = list(own)
    for tile in own:
        made += [replace(tile, warps=warps) for warps in _WARPS if warps in (tile.warps // 2, tile.warps * 2)]
        made += [replace(tile, stages=stages) for stages in _STAGES if stages != tile.stages]
        for name, value in tile.holes.items():
            # Whether a hole is a flag or a size shows in its value: sizes are powers of two from 2 on.
            if isinstance(value, bool) or not isinstance(value, int) or value < 2:
                continue
            made += [replace(tile, holes={**tile.holes, name: size}) for size in (value // 2, value * 2)]
    return [tile for number, tile in enumerate(made) if tile not in made[:number]]


def tune(
    kernels: Iterable[Kernel],
    target: GpuTarget,
    driver: Driver,
    load: Load,
    device: str = "cuda",
    report: Callable[[str], None] = lambda line: None,
) -> Configs:
    """The fastest tile of each kernel that has trials, where it beats the default.

    Args:
        kernels: as families make them.
        target, driver: the GPU.
        load: compiles a tile and loads it.
        device: where torch puts the inputs.
        report: called with a line for each kernel.
    """
    chosen = []
    for kernel in kernels:
        config = _tuned(kernel, target, driver, load, device)
        if config is None:
            continue
        speed = config.default_microseconds / config.microseconds
        report(f"{kernel.name}: {config.default_microseconds:.1f} us by default, {config.microseconds:.1f} us tuned")
        if speed * _WORTH >= 1:
            chosen.append(config)
    return Configs(target.name, tuple(chosen), dict(driver.description))


def _tuned(kernel: Kernel, target: GpuTarget, driver: Driver, load: Load, device: str) -> Config | None:
    """The fastest right tile beside the default; None where nothing can be tried."""
    times: list[tuple[float, Tile]] = []
    for tile in variants(kernel, target):
        loaded = load(kernel, tile)
        if loaded is None:
            continue
        gpu, function = loaded
        launcher = Launcher(driver, kernel.name, gpu, function)
        if not all(_is_right(launcher, trial) for trial in trials_of(kernel.function, gpu, device, timing=False)):
            continue
        medians = [statistics.median(launcher.microseconds(trial)) for trial in _timings(kernel, gpu, device)]
        if medians:
            times.append((sum(medians), tile))
    if not times:
        return None
    best, tile = min(times, key=lambda one: one[0])
    return Config(kernel.function, dict(kernel.holes), tile, best, times[0][0])


def _timings(kernel: Kernel, gpu: GpuKernel, device: str) -> Iterator[Trial]:
    return trials_of(kernel.function, gpu, device, timing=True, contexts=(_CONTEXT,))


def _is_right(launcher: Launcher, trial: Trial) -> bool:
    errors: Mapping[str, float] = launcher.errors(trial)
    return max(errors.values()) <= trial.relative
