"""The op table: one rule an op, with the parts that a program's tools ask for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from xdsl.ir import Operation

from dsv41c.ir.types import CacheType, dtype_of


@dataclass(frozen=True)
class Shaped:
    """A tensor's concrete sizes and element."""

    shape: tuple[int, ...]
    element: str

    @property
    def count(self) -> int:
        """Number of elements."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def bytes(self) -> int:
        return self.count * dtype_of(self.element).itemsize


# What a rule sees of an operand: a tensor's sizes, a cache's type, a scalar's value, or None for an absent operand.
Argument = Shaped | CacheType | int | float | bool | str | None | list[Any]


@dataclass(frozen=True)
class Effect:
    """Which cache operands an op reads and which it writes, by operand name."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cost:
    """Bytes read and written and operations by precision (see `BF16_EQUIVALENT`), for one execution.

    Moving a value and changing its format (casts, copies, gathers, decoding of packed values) are no operations.
    """

    read: int = 0
    written: int = 0
    flops: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: "Cost") -> "Cost":
        precisions = sorted({*self.flops, *other.flops})
        flops = {name: self.flops.get(name, 0) + other.flops.get(name, 0) for name in precisions}
        return Cost(self.read + other.read, self.written + other.written, flops)


# Work in one bf16 operation's time, by precision: a product of formats is named by its weights and its activations.
# Integer and byte work is not counted: it takes no part in the report's figures.
BF16_EQUIVALENT: Mapping[str, float] = {
    "bf16": 1.0,
    "f16": 1.0,
    "f32": 1.0,
    "f64": 1.0,
    "fp8_fp8": 0.5,
    "fp4_fp8": 0.5,
    "fp4_fp4": 0.25,
    "int": 0.0,
}


def bf16_equivalents(flops: Mapping[str, int]) -> float:
    """Floating-point operations by precision as so many bf16 operations.

    Raises:
        KeyError: a precision that `BF16_EQUIVALENT` does not have.
    """
    return sum(BF16_EQUIVALENT[precision] * count for precision, count in flops.items())


ShapeRule = Callable[[Operation, Sequence[Argument]], Sequence[Argument]]
CostRule = Callable[[Operation, Sequence[Argument], Sequence[Argument]], Cost]
Reference = Callable[[Operation, Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class OpRule:
    """The five parts of an op.

    Attributes:
        op: the op class; its fields are the signature and `verify_` checks them.
        shape: concrete results from concrete operands.
        effect: caches read and written.
        cost: bytes and flops from concrete operands and results.
        reference: runs the op on torch values; a written cache is changed in place by it and returned.
    """

    op: type[Operation]
    shape: ShapeRule
    effect: Effect
    cost: CostRule
    reference: Reference


def moved_bytes(arguments: Sequence[Argument]) -> int:
    """Sum the bytes of the tensors among operands or results."""
    return sum(_bytes(argument) for argument in arguments)


def _bytes(argument: Argument) -> int:
    if isinstance(argument, Shaped):
        return argument.bytes
    if isinstance(argument, list):
        return sum(_bytes(item) for item in argument)
    return 0


def precision_of(dtype: torch.dtype) -> str:
    """Name the precision under which an op's flops are counted; integer and byte work counts as `int`."""
    names = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float64: "f64", torch.float16: "f16"}
    return names.get(dtype, "int")
