"""Cache rows in one op: norm, RoPE, quantization and packing, with or without the store (SPEC 4.2-4.5)."""

from collections.abc import Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, StringAttr, UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    attr_def,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    opt_operand_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from dsv41c.ir.ops.custom import CustomOp, row_bytes, run_reference, shaped
from dsv41c.ir.ops.state import StateOp
from dsv41c.ir.ops.table import Argument, Cost, Effect, OpRule, Shaped, moved_bytes
from dsv41c.ir.types import FORMATS, CacheType, TensorType

# Norm (square, sum, scale, weight), rotation of some channels, and quantization (scale, divide, round) of one value.
_FLOPS = 8


def check_row(
    op: Operation, x: SSAValue, cos: SSAValue, sin: SSAValue, weight: SSAValue | None
) -> tuple[int | str, int]:
    """Refuse operands that do not fit together; gives rows and channels."""
    types = [value.type for value in (x, cos, sin)]
    assert all(isinstance(type_, TensorType) for type_ in types)
    rows, channels = types[0].dims  # type: ignore[attr-defined]  # asserted above
    if not isinstance(channels, int):
        raise VerifyException(f"{op.name}: x has rows of '{channels}'; a cache row needs a constant size")
    if types[1] != types[2] or types[1].dims[0] != rows:  # type: ignore[attr-defined]
        raise VerifyException(f"{op.name}: cos is {types[1]}, sin {types[2]}; both have one row for each of x's {rows}")
    if weight is not None and weight.type != TensorType.of([channels], "bf16"):
        raise VerifyException(f"{op.name}: the norm's weight is {weight.type}; x has rows of {channels} bf16")
    return rows, channels


@irdl_op_definition
class PackRows(CustomOp):
    """Norm, RoPE, quantization and packing: bf16 [T, D] to packed rows ui8 [T, row bytes]."""

    name = "dsv41.pack_rows"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("norm_eps", "row_format")
    x = operand_def(TensorType)
    cos = operand_def(TensorType)
    sin = operand_def(TensorType)
    weight = opt_operand_def(TensorType)
    norm_eps = attr_def(FloatAttr)
    row_format = attr_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        check_row(self, self.x, self.cos, self.sin, self.weight)
        if self.row_format.data not in FORMATS or not FORMATS[self.row_format.data][1]:
            raise VerifyException(f"{self.name}: row format '{self.row_format.data}' is not a packed one")


@irdl_op_definition
class WriteRows(StateOp):
    """`pack_rows` and `store` in one: takes a cache and gives the new one."""

    name = "dsv41.write_rows"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("norm_eps", "row_format", "page")
    cache = operand_def(CacheType)
    x = operand_def(TensorType)
    cos = operand_def(TensorType)
    sin = operand_def(TensorType)
    weight = opt_operand_def(TensorType)
    slots_ = operand_def(TensorType)
    norm_eps = attr_def(FloatAttr)
    row_format = attr_def(StringAttr)
    page = attr_def(IntegerAttr)
    in_place = opt_attr_def(UnitAttr)
    result = result_def(CacheType)

    def verify_(self) -> None:
        cache = self.cache_type("cache")
        if self.result.type != cache:
            raise VerifyException(f"dsv41.write_rows takes {cache} and gives {self.result.type}; both must be one type")
        _, channels = check_row(self, self.x, self.cos, self.sin, self.weight)
        self.check_layout("cache", self.row_format.data, self.page.value.data, channels)


def _pack_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    assert isinstance(op, PackRows)
    rows, channels = shaped(operands[0]).shape
    return [Shaped((rows, row_bytes(op.row_format.data, channels)), "ui8")]


def _write_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    return [operands[0]]


def _pack_cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    return Cost(moved_bytes(operands), moved_bytes(results), {"f32": _FLOPS * shaped(operands[0]).count})


def _write_cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    """As if every row were stored; a row that completes no entry stores none."""
    assert isinstance(op, WriteRows)
    x = shaped(operands[1])
    return Cost(moved_bytes(operands), x.shape[0] * op.cache_type("cache").row_bytes, {"f32": _FLOPS * x.count})


def _run_write(op: Operation, operands: Sequence[Any]) -> list[Any]:
    assert isinstance(op, WriteRows)
    cache = operands[0] if op.in_place is not None else operands[0].clone()
    run_reference(op, [cache, *operands[1:]])
    return [cache]


RULES = [
    OpRule(PackRows, _pack_shape, Effect(), _pack_cost, run_reference),
    OpRule(WriteRows, _write_shape, Effect(reads=("cache",), writes=("cache",)), _write_cost, _run_write),
]
