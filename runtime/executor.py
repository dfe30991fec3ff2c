"""What an engine asks of whatever runs a plan's programs, and which executor a plan's target has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dsv41c.errors import PlanError
from dsv41c.runtime.aligned import aligned_empty
from dsv41c.runtime.caches import Allocate
from dsv41c.runtime.plan import Plan


class Executor(Protocol):
    """Runs the programs of a plan over one set of caches."""

    def run(self, program: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One call of a program; what it stores is in the caches when the next call begins.

        Args:
            program: its name.
            inputs: a tensor for each of its inputs, in host memory, or as an earlier call gave it.
        Returns:
            its outputs by name, anywhere; they stay as they are when other calls run.
        Raises:
            PlanError: there is no such program, or an input is missing.
        """
        ...


@dataclass(frozen=True)
class Backend:
    """How a target's plans run.

    Attributes:
        allocate: memory for caches, where its kernels can read and write it. The engine copies pages and rings there
            by torch's indexing, and to and from the host.
        executor: makes one from a plan, its caches by name, and the worker threads of compiled kernels.
    """

    allocate: Allocate
    executor: Callable[[Plan, Mapping[str, Tensor], int], Executor]


def backend_of(plan: Plan) -> Backend:
    """The backend of the target that a plan was compiled for.

    Raises:
        PlanError: this runtime runs no plans of that target.
    """
    names = [target.name for target in plan.manifest.targets]
    for name in names:
        if name in _BACKENDS:
            return _BACKENDS[name]()
    raise PlanError(
        f"the plan is for {', '.join(names) or 'nothing'}, and this runtime runs {', '.join(_BACKENDS)}; compile it "
        "for one of these"
    )


def _cpu() -> Backend:
    # Late: plans of other targets need no IREE.
    from dsv41c.runtime.executor_cpu import CpuExecutor

    return Backend(aligned_empty, CpuExecutor)


_BACKENDS: dict[str, Callable[[], Backend]] = {"cpu": _cpu}
