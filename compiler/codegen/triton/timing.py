"""Launches of a kernel's trials on a GPU, checked and timed; needs a driver, and no Triton."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from dsv41c.compiler.codegen.triton.trials import Arguments, Trial
from dsv41c.errors import CompileError
from dsv41c.runtime.cuda_driver import Driver
from dsv41c.runtime.launch_args import PackedArguments, grid_of
from dsv41c.runtime.plan_format import GpuKernel

__all__ = ["L2_BYTES", "REPLAYS", "Launcher", "chosen", "copies_of", "replayed", "spread"]

L2_BYTES = 128 << 20  # no GPU that this was written for has more: B200 126 MiB, GB202 128
REPLAYS = 15
_MOST_COPIES = 64
_WARP = 32


class Named(Protocol):
    """A kernel, or what a plan holds of one."""

    @property
    def name(self) -> str: ...


_Kernel = TypeVar("_Kernel", bound=Named)


def chosen(kernels: Iterable[_Kernel], words: Sequence[str]) -> list[_Kernel]:
    """The kernels whose names begin with one of some words; all of them where there are none.

    Raises:
        CompileError: no kernel begins with one of the words.
    """
    found = list(kernels)
    for word in words:
        if not any(kernel.name.startswith(word) for kernel in found):
            names = ", ".join(sorted(kernel.name for kernel in found))
            raise CompileError(f"--only: no kernel begins with {word!r}; there are {names}")
    return [kernel for kernel in found if kernel.name.startswith(tuple(words) or "")]


class Launcher:
    """Launches a kernel by its record.

    Args:
        driver: the GPU. name: for errors. gpu: the kernel's record. function: as the driver loaded it.
    """

    def __init__(self, driver: Driver, name: str, gpu: GpuKernel, function: Any) -> None:
        self.name, self.gpu = name, gpu
        self._driver, self._function = driver, function
        self._held: list[PackedArguments] = []

    def launch(self, arguments: Arguments, sizes: Mapping[str, int]) -> None:
        """One launch; its arguments stay in memory as long as this object, since a graph reads them again."""
        ordered = [arguments[name] for name in self.gpu.arguments]
        values = [one.data_ptr() if isinstance(one, Tensor) else one for one in ordered]
        grid = grid_of(self.name, self.gpu, values, sizes)
        packed = PackedArguments(self.name, self.gpu, values)
        self._held.append(packed)
        if grid is not None:
            threads = self.gpu.warps * _WARP
            self._driver.launch(self._function, grid, threads, self.gpu.shared_bytes, packed.address)

    def errors(self, trial: Trial) -> dict[str, float]:
        """How far the outputs of a small trial are from its reference, see `Trial.errors`."""
        _settle()
        self.launch(trial.arguments, trial.sizes)
        self._driver.synchronize()
        return trial.errors()

    def microseconds(self, trial: Trial) -> list[float]:
        """Of one launch in each replay of a graph that goes through copies of the inputs."""
        copies = trial.copies(copies_of(trial))
        _settle()
        self.launch(copies[0], trial.sizes)
        self._driver.synchronize()
        self._driver.begin_capture()
        try:
            for arguments in copies:
                self.launch(arguments, trial.sizes)
        finally:
            # A stream that is left recording would take no other kernel.
            graph = self._driver.end_capture()
        return [one / len(copies) for one in replayed(self._driver, graph)]


def _settle() -> None:
    """Waits for what torch makes inputs with: it has another stream."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def copies_of(trial: Trial) -> int:
    """How many copies of a trial's inputs go through more than the L2 cache holds."""
    return max(2, min(_MOST_COPIES, math.ceil(2 * L2_BYTES / max(1, trial.bytes))))


def replayed(driver: Driver, graph: Any) -> list[float]:
    """Microseconds of each replay of a graph, after two that do not count."""
    marks = []
    for _ in range(REPLAYS + 2):
        start = driver.event()
        driver.replay(graph)
        marks.append((start, driver.event()))
    driver.synchronize()
    return [1e3 * driver.elapsed_ms(start, end) for start, end in marks[2:]]


def spread(values: list[float]) -> tuple[float, float]:
    """The 10th and the 90th percentile."""
    ordered = sorted(values)
    return ordered[round(0.1 * (len(ordered) - 1))], ordered[round(0.9 * (len(ordered) - 1))]
