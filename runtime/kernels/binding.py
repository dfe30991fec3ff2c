"""What a reference kernel is given when a plan is loaded, and what it gives back.

A kernel is bound once for each launch: all that does not change from call to call (attributes, weights, caches and
their views) is prepared there, and the call itself takes the launch's arguments only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

Results = Sequence[Tensor]
# The launch's arguments in order: tensors, bundles of expert tensors, None for an absent optional.
Run = Callable[[list[Any]], Results]
# A compiled function of the plan that a kernel calls: of tensors, and of what `Device` shares.
Part = Callable[[Sequence[Any]], tuple[Tensor, ...]]


class Device(Protocol):
    """How a kernel hands tensors to its parts more cheaply than as tensors."""

    def share(self, tensor: Tensor) -> Any:
        """A tensor in the form that parts take; worth it where the same one goes to several."""

    def aligned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor that is shared without a copy."""

    def weight(self, at: int, expert: int | None = None) -> Any:
        """The launch's argument `at`, a weight (or an expert's part of it), in the form that parts take."""


@dataclass(frozen=True)
class LaunchContext:
    """The constant side of one launch.

    Attributes:
        attrs: the kernel's arguments that are no tensors, by name.
        constants: the arguments in order, None where a value arrives only at the call (or never).
        parts: the compiled functions of the launch by the attribute that names each, as far as the plan has them.
        device: what parts run on; None where there are no parts.
    """

    attrs: dict[str, Any]
    constants: tuple[Any, ...]
    parts: Mapping[str, Part] = field(default_factory=dict)
    device: Device | None = None


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
