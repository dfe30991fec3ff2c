"""What an engine asks of whatever runs a plan's programs, and the executors that there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from dsv41c.runtime.cache_memory import CacheMemory, HostMemory
from dsv41c.runtime.cuda_driver import Driver
from dsv41c.runtime.executor_cuda import CudaExecutor
from dsv41c.runtime.plan import Plan


class Executor(Protocol):
    """Runs the programs of a plan over one set of caches."""

    def run(self, program: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One call of a program; the next call sees what it stored.

        Args:
            program: its name.
            inputs: a tensor for each of its inputs, in host memory; the caches are none, they are written in place.
        Returns:
            its outputs by name, in host memory; other calls leave them as they are.
        Raises:
            PlanError: there is no such program, an input is missing, or the call is larger than it was compiled for.
        """
        ...


# From a plan, pages, rings and worker threads to what runs its programs and what holds its caches.
Backend = Callable[[Plan, int, int, int], tuple[Executor, CacheMemory]]


def cpu_backend(plan: Plan, n_pages: int, n_rings: int, threads: int) -> tuple[Executor, CacheMemory]:
    """This machine's CPU."""
    # Late: plans for GPUs need no IREE.
    from dsv41c.runtime.executor_cpu import CpuExecutor

    memory = HostMemory(plan.manifest.state, n_pages, n_rings)
    return CpuExecutor(plan, memory.tensors, threads), memory


def cuda_backend(driver: Driver) -> Backend:
    """A GPU, by its driver (`executor_cuda.open_plan` gives it with the plan)."""

    def open_gpu(plan: Plan, n_pages: int, n_rings: int, threads: int) -> tuple[Executor, CacheMemory]:
        executor = CudaExecutor(plan, driver, n_pages, n_rings)
        return executor, CudaMemory(plan, driver, executor)

    return open_gpu


class CudaMemory:
    """Caches in a GPU's memory, copied to the host and back.

    Args:
        plan: whose caches they are.
        driver: of the GPU.
        executor: that holds them.
    """

    def __init__(self, plan: Plan, driver: Driver, executor: CudaExecutor) -> None:
        self._specs = {spec.name: spec for spec in plan.manifest.state}
        self._driver, self._executor = driver, executor

    def read(self, cache: str, number: int) -> Tensor:
        """A copy."""
        spec = self._specs[cache]
        row = torch.empty((spec.page_width,), dtype=spec.dtype)
        self._driver.copy_out(row.data_ptr(), self._place(cache, number), row.nbytes)
        return row

    def write(self, cache: str, number: int, row: Tensor) -> None:
        held = row.to(self._specs[cache].dtype).contiguous()
        assert held.nbytes == self._specs[cache].page_bytes, "one page or ring"
        self._driver.copy_in(self._place(cache, number), held.data_ptr(), held.nbytes)
        # The copy reads host memory that goes when this returns.
        self._driver.synchronize()

    def _place(self, cache: str, number: int) -> int:
        return self._executor.cache_address(cache) + number * self._specs[cache].page_bytes
