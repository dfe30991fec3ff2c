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
# One expert on its rows: (expert, x bf16 [M, d], weights fp32 [M]) -> bf16 [M, d].
ExpertBody = Callable[[int, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LaunchContext:
    """The constant side of one launch.

    Attributes:
        attrs: the kernel's arguments that are no tensors, by name.
        constants: the arguments in order, None where a value arrives only at the call (or never).
        expert_body: for `experts`: the compiled kernel of one expert, if the plan has one.
    """

    attrs: dict[str, Any]
    constants: tuple[Any, ...]
    expert_body: ExpertBody | None = None


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
