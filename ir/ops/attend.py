"""Attention from projection to projection: what `lower-sparse-attention` makes of an attention and two rotations."""

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, StringAttr
from xdsl.ir import Operation
from xdsl.irdl import (
    AttrSizedOperandSegments,
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

from dsv41c.ir.ops.custom import run_reference, shaped
from dsv41c.ir.ops.state import AttentionOp
from dsv41c.ir.ops.table import Argument, Cost, Effect, OpRule
from dsv41c.ir.types import CacheType, TensorType

_ROTATION = 3  # operations for each value: two products and a sum


@irdl_op_definition
class Attend(AttentionOp):
    """RoPE, attention as `sparse_attention`, RoPE back: bf16 [T, H * D] as projected to bf16 [T, H * D]."""

    name = "dsv41.attend"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("scale", "window_page", "main_page")
    query = operand_def(TensorType)
    cos = operand_def(TensorType)
    sin = operand_def(TensorType)
    window = operand_def(CacheType)
    fresh = operand_def(TensorType)
    window_index = operand_def(TensorType)
    main = opt_operand_def(CacheType)
    main_slots = opt_operand_def(TensorType)
    sink = operand_def(TensorType)
    scale = attr_def(FloatAttr)
    window_page = attr_def(IntegerAttr)
    main_page = attr_def(IntegerAttr)
    mode = opt_attr_def(StringAttr)
    source = opt_attr_def(StringAttr)
    group = opt_attr_def(IntegerAttr)
    result = result_def(TensorType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        cos, sin = self.cos.type, self.sin.type
        assert isinstance(cos, TensorType)
        rows, _, columns = self.head_sizes
        rotated = cos.dims[-1]
        if cos != sin or cos.dims[0] != rows:
            raise VerifyException(f"{self.name}: cos is {cos}, sin {sin}; both have one row for each of query's {rows}")
        if not isinstance(rotated, int) or 2 * rotated > columns:
            raise VerifyException(f"{self.name}: cos turns {rotated} pairs of channels; a head has {columns} channels")
        self.check_caches(columns)

    @property
    def head_sizes(self) -> tuple[int | str, int, int]:
        """Rows, heads and channels of a head."""
        query, sink = self.query.type, self.sink.type
        assert isinstance(query, TensorType)
        assert isinstance(sink, TensorType)
        (rows, width), (heads,) = query.dims, sink.dims
        if not isinstance(width, int) or not isinstance(heads, int) or width % heads:
            raise VerifyException(
                f"{self.name}: query has rows of {width}; they hold {heads} heads of one size, one for each of sink"
            )
        return rows, heads, width // heads


def _shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    return [shaped(operands[0])]


def _cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    assert isinstance(op, Attend)
    (rows, width), (heads,), (_, pairs) = (shaped(operands[at]).shape for at in (0, -1, 1))
    turned = 2 * rows * heads * 2 * pairs
    own = op.attention_cost(operands, results, heads, width // heads)
    return own + Cost(flops={"f32": _ROTATION * turned})


RULES = [OpRule(Attend, _shape, Effect(reads=("window", "main")), _cost, run_reference)]
