"""What a reference kernel is given when a plan is loaded, and what it gives back.

A kernel is bound once for each launch: all that does not change from call to call (attributes, weights, caches and
their views) is prepared there, and the call itself takes the launch's arguments only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Results = Sequence[Tensor]
# The launch's arguments in order: tensors, bundles of expert tensors, None for an absent optional.
Run = Callable[[list[Any]], Results]
# A compiled kernel of the plan as a function of tensors.
Function = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class ExpertKernels:
    """The compiled kernels of one expert; a program of one row has `one_row`, another one the other two.

    Attributes:
        one_row: (x bf16 [1, d], weights fp32 [1, k], (expert, choice) of each addition in order) -> fp32 [1, d].
        unpack: expert -> its w1, w3 [I, d] and w2 [d, I] in bf16.
        activate: gate and up bf16 [M, I], weights fp32 [M] -> bf16 [M, I]; see `models.ops.expert_activation`.
    """

    one_row: Callable[[Tensor, Tensor, Sequence[tuple[int, int]]], Tensor] | None = None
    unpack: Callable[[int], tuple[Tensor, ...]] | None = None
    activate: Function | None = None


@dataclass(frozen=True)
class LaunchContext:
    """The constant side of one launch.

    Attributes:
        attrs: the kernel's arguments that are no tensors, by name.
        constants: the arguments in order, None where a value arrives only at the call (or never).
        expert: for `experts`: the compiled kernels of one expert, if the plan has them.
    """

    attrs: dict[str, Any]
    constants: tuple[Any, ...]
    expert: ExpertKernels = ExpertKernels()


@dataclass(frozen=True)
class ReferenceKernel:
    """A registered kernel.

    Attributes:
        name: the custom op it computes.
        band: its priority band.
        bind: prepares one launch.
    """

    name: str
    band: str
    bind: Callable[[LaunchContext], Run]


def plain(function: Callable[..., Any]) -> Callable[[LaunchContext], Run]:
    """Binds a function of tensors and keyword attributes that has nothing to prepare."""

    def bind(context: LaunchContext) -> Run:
        attrs = context.attrs

        def run(args: list[Any]) -> Results:
            result = function(*args, **attrs)
            return result if isinstance(result, tuple) else (result,)

        return run

    return bind
