"""Products as ops: one input and several packed weights, and one input and a bf16 weight (SPEC 2.5)."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Attribute, Operation
from xdsl.irdl import attr_def, irdl_op_definition, operand_def, result_def, traits_def, var_operand_def, var_result_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from dsv41c.ir.ops.custom import CustomOp, check_product, run_reference, shaped
from dsv41c.ir.ops.syntax import Slot
from dsv41c.ir.ops.table import Argument, Cost, Effect, OpRule, Shaped, moved_bytes
from dsv41c.ir.types import TensorType
from dsv41c.models.quant import WEIGHT_BLOCK

_QUANTIZE_FLOPS = 3  # a value: scale, divide, round; as `fake_quantize`


@irdl_op_definition
class Linears(CustomOp):
    """bf16 [T, groups * K] times each f8E4M3FN [N, K] with its block scales ui8: a bf16 [T, N] for each weight.

    Its operands are x, weight, scale, weight, scale, ...; with `quantize = 1` x is first rounded to fp8_e8m0 values.
    """

    name = "dsv41.linears"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("groups", "quantize")
    x = operand_def(TensorType)
    packed = var_operand_def(TensorType)
    groups = attr_def(IntegerAttr)
    quantize = attr_def(IntegerAttr)
    products = var_result_def(TensorType)
    traits = traits_def(Pure())

    def slots(self) -> Sequence[Slot]:
        return self.operands

    @classmethod
    def from_slots(
        cls, slots: Sequence[Slot], result_types: Sequence[Attribute], attributes: dict[str, Attribute]
    ) -> Self:
        present = [slot for slot in slots if slot is not None]
        if not present:
            raise VerifyException(f"{cls.name} has no operands; it takes x, then weights and their scales")
        x, *packed = present
        return cls.build(operands=[x, packed], result_types=[list(result_types)], attributes=attributes)

    def torch_operands(self, values: Sequence[Any]) -> list[Any]:
        return [values[0], list(values[1:])]

    def verify_(self) -> None:
        weights, scales = self.packed[::2], self.packed[1::2]
        if not weights or not len(weights) == len(scales) == len(self.products):
            raise VerifyException(
                f"{self.name} takes x, then a weight and its scale for each of its {len(self.products)} results; "
                f"it has {len(self.packed)} operands behind x"
            )
        if self.quantize.value.data not in (0, 1):
            raise VerifyException(f"{self.name}: quantize is {self.quantize.value.data}; it is 0 or 1")
        for weight, scale in zip(weights, scales, strict=True):
            check_product(self.groups, self.x.type, weight.type)
            assert isinstance(weight.type, TensorType)
            blocks = [-(-size // WEIGHT_BLOCK) for size in weight.type.shape({})]
            if scale.type != TensorType.of(blocks, "ui8"):
                raise VerifyException(
                    f"{self.name}: {weight.type} has scales [{blocks[0]}, {blocks[1]}] ui8, not {scale.type}"
                )


@irdl_op_definition
class LinearBf16(CustomOp):
    """bf16 [T, K] times bf16 [N, K], summed in f32: f32 [T, N] with `wide = 1`, else rounded to bf16."""

    name = "dsv41.linear_bf16"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("wide",)
    x = operand_def(TensorType)
    weight = operand_def(TensorType)
    wide = attr_def(IntegerAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        check_product(IntegerAttr(1, 64), self.x.type, self.weight.type)
        if self.wide.value.data not in (0, 1):
            raise VerifyException(f"{self.name}: wide is {self.wide.value.data}; it is 0 or 1")
        elements = [value.type.element for value in (self.x, self.weight) if isinstance(value.type, TensorType)]
        if elements != ["bf16", "bf16"]:
            raise VerifyException(f"{self.name} multiplies bf16 by bf16, not {' by '.join(elements)}")


def _shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    rows = shaped(operands[0]).shape[0]
    return [Shaped((rows, shaped(weight).shape[0]), "bf16") for weight in operands[1::2]]


def _cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    """Packed weights are read once; `ir.cost` renames the products' precision where x holds fp8 values."""
    assert isinstance(op, Linears)
    x, weights = shaped(operands[0]), [shaped(weight) for weight in operands[1::2]]
    flops = {"bf16": 2 * x.shape[0] * sum(weight.count for weight in weights)}
    if op.quantize.value.data:
        flops["f32"] = _QUANTIZE_FLOPS * x.count
    return Cost(moved_bytes(operands), moved_bytes(results), flops)


def _bf16_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    assert isinstance(op, LinearBf16)
    x, weight = shaped(operands[0]), shaped(operands[1])
    return [Shaped((x.shape[0], weight.shape[0]), "f32" if op.wide.value.data else "bf16")]


def _bf16_cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    x, weight = shaped(operands[0]), shaped(operands[1])
    return Cost(moved_bytes(operands), moved_bytes(results), {"bf16": 2 * x.shape[0] * weight.count})


RULES = [
    OpRule(Linears, _shape, Effect(), _cost, run_reference),
    OpRule(LinearBf16, _bf16_shape, Effect(), _bf16_cost, run_reference),
]
