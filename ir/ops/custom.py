"""The custom ops without state: quantization, products, routing, experts, Engram, rotary positions.

Operands and attributes have the names and the order of `torch.ops.dsv41.<op>`, which is the reference of each.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, StringAttr
from xdsl.ir import Attribute, Operation
from xdsl.irdl import IRDLOperation, attr_def, irdl_op_definition, operand_def, result_def, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from dsv41c.ir.ops.syntax import PlainSyntax, Slot
from dsv41c.ir.ops.table import Argument, Cost, Effect, OpRule, Shaped, moved_bytes
from dsv41c.ir.types import FORMATS, TensorType


class CustomOp(IRDLOperation, PlainSyntax):
    """An op that stands for one custom torch op."""

    # Attributes that are part of the torch call, in its order; the others (origin, in_place) are notes.
    ARGUMENTS: ClassVar[tuple[str, ...]] = ()

    def slots(self) -> Sequence[Slot]:
        return [getattr(self, name) for name, _ in self.get_irdl_definition().operands]

    @classmethod
    def from_slots(
        cls, slots: Sequence[Slot], result_types: Sequence[Attribute], attributes: dict[str, Attribute]
    ) -> Self:
        wanted = [name for name, _ in cls.get_irdl_definition().operands]
        if len(slots) != len(wanted):
            raise VerifyException(f"{cls.name} has {len(slots)} operands; it takes {', '.join(wanted)}")
        return cls.build(operands=list(slots), result_types=list(result_types), attributes=attributes)

    def torch_operands(self, values: Sequence[Any]) -> list[Any]:
        """The tensor arguments of the torch call, from a value for each slot."""
        return list(values)

    def arguments(self) -> list[int | float | str]:
        """The non-tensor arguments of the torch call, in its order."""
        return [plain(self.attributes[name]) for name in self.ARGUMENTS]


def plain(attribute: Attribute) -> int | float | str:
    """Give the Python value of an int, float or string attribute."""
    match attribute:
        case IntegerAttr():
            return attribute.value.data
        case FloatAttr():
            return attribute.value.data
        case StringAttr():
            return attribute.data
    raise VerifyException(f"attribute {attribute} is not an integer, a float or a string")


def run_reference(op: Operation, operands: Sequence[Any]) -> list[Any]:
    """Run the torch op that a custom op stands for."""
    # They register torch.ops.dsv41; late, since only the interpreter runs models.
    import dsv41c.models.attention_ops
    import dsv41c.models.mhc_ops
    import dsv41c.models.moe_ops
    import dsv41c.models.ops
    import dsv41c.models.pack_ops
    import dsv41c.models.product_ops  # noqa: F401

    assert isinstance(op, CustomOp)
    function = getattr(torch.ops.dsv41, op.name.removeprefix("dsv41."))
    result = function(*op.torch_operands(operands), *op.arguments())
    return list(result) if isinstance(result, list | tuple) else [result]


def shaped(argument: Argument) -> Shaped:
    """Assert that an operand is a tensor."""
    assert isinstance(argument, Shaped)
    return argument


def row_bytes(row_format: str, columns: int) -> int:
    """Bytes of a packed row of `columns` values."""
    element, _, group = FORMATS[row_format]
    return (columns // 2 if element == "e2m1" else columns) + columns // group


def row_columns(row_format: str, width: int) -> int:
    """Values of a packed row of `width` bytes."""
    element, _, group = FORMATS[row_format]
    return width * group * 2 // (group + 2) if element == "e2m1" else width * group // (group + 1)


def streaming(precision: str, per_element: int = 1) -> Any:
    """A cost rule: all operands read, all results written, `per_element` flops for each result element."""

    def rule(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
        count = sum(result.count for result in results if isinstance(result, Shaped))
        return Cost(moved_bytes(operands), moved_bytes(results), {precision: per_element * count})

    return rule


def decoding(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    """A cost rule: all operands read, all results written, no arithmetic: the same values in another format."""
    return Cost(moved_bytes(operands), moved_bytes(results))


class _Packing(CustomOp):
    def verify_(self) -> None:
        row_format = str(self.arguments()[0])
        packed = [word for word, (_, scale, _) in FORMATS.items() if scale]
        if row_format not in packed:
            raise VerifyException(f"row format '{row_format}' is unknown; supported are {', '.join(packed)}")


@irdl_op_definition
class Quantize(_Packing):
    """[..., D] to packed rows ui8 [..., row bytes]."""

    name = "dsv41.quantize"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("row_format",)
    x = operand_def(TensorType)
    row_format = attr_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())


@irdl_op_definition
class Dequantize(_Packing):
    """Packed rows ui8 [..., row bytes] to bf16 [..., D]."""

    name = "dsv41.dequantize"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("row_format",)
    rows = operand_def(TensorType)
    row_format = attr_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())


@irdl_op_definition
class FakeQuantize(_Packing):
    """[..., D] to bf16 [..., D], the values that packed rows would hold."""

    name = "dsv41.fake_quantize"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("row_format",)
    x = operand_def(TensorType)
    row_format = attr_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())


@irdl_op_definition
class DequantizeWeight(CustomOp):
    """f8E4M3FN [N, K] and its block scales ui8 to bf16 [N, K]."""

    name = "dsv41.dequantize_weight"
    weight = operand_def(TensorType)
    scale = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure())


def check_product(groups: IntegerAttr, x: Attribute, weight: Attribute) -> None:
    """Refuse a weight that does not fit a product's input; the groups' outputs stand one behind the other."""
    assert isinstance(x, TensorType)
    assert isinstance(weight, TensorType)
    count = groups.value.data
    outputs, inputs = weight.dims
    if not isinstance(outputs, int) or not isinstance(inputs, int):
        raise VerifyException(f"a weight's sizes are numbers; found {weight}")
    if count < 1 or outputs % count or x.dims[-1] != count * inputs:
        raise VerifyException(
            f"a weight of {outputs} outputs and {inputs} inputs in {count} groups takes rows of "
            f"{count * inputs}, and outputs that divide evenly; x has rows of {x.dims[-1]}"
        )


@irdl_op_definition
class LinearFp8(CustomOp):
    """bf16 [T, groups * K] times f8E4M3FN [N, K] with its block scales ui8, in groups side by side: bf16 [T, N]."""

    name = "dsv41.linear_fp8"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("groups",)
    x = operand_def(TensorType)
    weight = operand_def(TensorType)
    scale = operand_def(TensorType)
    groups = attr_def(IntegerAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        check_product(self.groups, self.x.type, self.weight.type)


@irdl_op_definition
class Sinkhorn(CustomOp):
    """f32 [T, n, n] logits to the doubly normalized mix."""

    name = "dsv41.sinkhorn"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("iterations", "eps")
    logits = operand_def(TensorType)
    iterations = attr_def(IntegerAttr)
    eps = attr_def(FloatAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())


@irdl_op_definition
class SelectExperts(CustomOp):
    """f32 [T, E] scores to the k best experts si64 [T, k]."""

    name = "dsv41.select_experts"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("k",)
    scores = operand_def(TensorType)
    k = attr_def(IntegerAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())


@irdl_op_definition
class Experts(CustomOp):
    """The weighted sum of the routed experts: bf16 [T, d] to f32 [T, d]; weights are packed fp4, [E, ...]."""

    name = "dsv41.experts"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("limit",)
    x = operand_def(TensorType)
    ids = operand_def(TensorType)
    weights = operand_def(TensorType)
    w1 = operand_def(TensorType)
    s1 = operand_def(TensorType)
    w3 = operand_def(TensorType)
    s3 = operand_def(TensorType)
    w2 = operand_def(TensorType)
    s2 = operand_def(TensorType)
    limit = attr_def(FloatAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())


@irdl_op_definition
class NgramHash(CustomOp):
    """si64 [T, n] compressed ids to table rows si64 [T, columns]."""

    name = "dsv41.ngram_hash"
    ids = operand_def(TensorType)
    multipliers = operand_def(TensorType)
    primes = operand_def(TensorType)
    offsets = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure())


@irdl_op_definition
class Lookup(CustomOp):
    """Rows of an f8E4M3FN table with scales: si64 [T, c] to bf16 [T, c * hd]."""

    name = "dsv41.lookup"
    table = operand_def(TensorType)
    scale = operand_def(TensorType)
    rows = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure())


@irdl_op_definition
class Rotary(CustomOp):
    """si64 [T] positions and f32 [h] frequencies to cos and sin f32 [T, h]."""

    name = "dsv41.rotary"
    positions = operand_def(TensorType)
    inv_freq = operand_def(TensorType)
    cos = result_def(TensorType)
    sin = result_def(TensorType)
    traits = traits_def(Pure())


def _quantize_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    assert isinstance(op, Quantize)
    *rows, columns = shaped(operands[0]).shape
    return [Shaped((*rows, row_bytes(op.row_format.data, columns)), "ui8")]


def _dequantize_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    assert isinstance(op, Dequantize)
    *rows, width = shaped(operands[0]).shape
    return [Shaped((*rows, row_columns(op.row_format.data, width)), "bf16")]


def _same_shape(element: str) -> Any:
    def rule(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
        return [Shaped(shaped(operands[0]).shape, element)]

    return rule


def _product_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    return [Shaped((shaped(operands[0]).shape[0], shaped(operands[1]).shape[0]), "bf16")]


def _product_cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    # `ir.cost` renames the precision where it sees that x and the weight hold fp8 values.
    rows, weight = shaped(operands[0]).shape[0], shaped(operands[1])
    return Cost(moved_bytes(operands), moved_bytes(results), {"bf16": 2 * rows * weight.count})


def _select_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    assert isinstance(op, SelectExperts)
    return [Shaped((shaped(operands[0]).shape[0], op.k.value.data), "si64")]


def _hash_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    return [Shaped((shaped(operands[0]).shape[0], shaped(operands[2]).shape[0]), "si64")]


def _lookup_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    rows, columns = shaped(operands[2]).shape
    return [Shaped((rows, columns * shaped(operands[0]).shape[1]), "bf16")]


def _rotary_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    result = Shaped((shaped(operands[0]).shape[0], shaped(operands[1]).shape[0]), "f32")
    return [result, result]


def experts_cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    """A cost rule: the three products of each chosen expert; only the weights of chosen experts are read."""
    x, ids, weights, *bundle = [shaped(operand) for operand in operands]
    experts, inner = bundle[0].shape[:2]
    rows, chosen = ids.shape
    # Only chosen experts are read: at most one a choice, at most all.
    touched = min(rows * chosen, experts)
    packed = sum(weight.bytes for weight in bundle) * touched // experts
    # Only products: three of each chosen expert, with fp8 values of x and of what the down projection reads.
    flops = 2 * 3 * rows * chosen * x.shape[1] * inner
    return Cost(moved_bytes([x, ids, weights]) + packed, moved_bytes(results), {"fp4_fp8": flops})


def _lookup_cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    table, scale, rows = [shaped(operand) for operand in operands]
    read = rows.bytes + rows.count * (table.shape[1] + scale.shape[1])
    return Cost(read, moved_bytes(results))


def _sinkhorn_cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    assert isinstance(op, Sinkhorn)
    # An iteration normalizes rows and columns: a sum and a division each.
    return streaming("f32", 4 * op.iterations.value.data)(op, operands, results)


def _rule(op: type[CustomOp], shape: Any, cost: Any) -> OpRule:
    return OpRule(op, shape=shape, effect=Effect(), cost=cost, reference=run_reference)


RULES = [
    _rule(Quantize, _quantize_shape, streaming("f32", 2)),
    _rule(Dequantize, _dequantize_shape, decoding),
    _rule(FakeQuantize, _same_shape("bf16"), streaming("f32", 3)),
    _rule(DequantizeWeight, _same_shape("bf16"), decoding),
    _rule(LinearFp8, _product_shape, _product_cost),
    _rule(Sinkhorn, _same_shape("f32"), _sinkhorn_cost),
    _rule(SelectExperts, _select_shape, streaming("f32")),
    _rule(Experts, _same_shape("f32"), experts_cost),
    _rule(NgramHash, _hash_shape, streaming("int", 3)),
    _rule(Lookup, _lookup_shape, _lookup_cost),
    _rule(Rotary, _rotary_shape, streaming("f32", 2)),
]
