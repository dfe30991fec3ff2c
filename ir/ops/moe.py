"""The MoE sublayer as two ops (SPEC 6): the router's choice, which `lower-router` makes, and what stands behind it,
which `lower-experts` makes."""

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.ir import Operation
from xdsl.irdl import attr_def, irdl_op_definition, operand_def, result_def, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from dsv41c.ir.ops.custom import CustomOp, experts_cost, run_reference, shaped
from dsv41c.ir.ops.table import Argument, Cost, Effect, OpRule, Shaped, moved_bytes
from dsv41c.ir.types import TensorType

_ROUTED = 9  # operands of `dsv41.experts`, which come first
_BLOCK = 32  # rows and columns of an FP8 weight that share a scale


@irdl_op_definition
class RouteExperts(CustomOp):
    """f32 [T, E] logits and the bias f32 [E] to the k chosen experts si64 [T, k] and their weights f32 [T, k]."""

    name = "dsv41.route_experts"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("k", "scale")
    logits = operand_def(TensorType)
    bias = operand_def(TensorType)
    k = attr_def(IntegerAttr)
    scale = attr_def(FloatAttr)
    ids = result_def(TensorType)
    weights = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        logits, bias = self.logits.type, self.bias.type
        assert isinstance(logits, TensorType)
        count = logits.dims[-1]
        if len(logits.dims) != 2 or not isinstance(count, int) or not 1 <= self.k.value.data <= count:
            raise VerifyException(
                f"{self.name}: {self.k.value.data} of the experts of {logits}; logits are [rows, experts], a number of "
                "them, and k is at most that"
            )
        if bias != TensorType.of([count], "f32"):
            raise VerifyException(f"{self.name}: bias is {bias}; logits of {count} experts ask for f32 [{count}]")


@irdl_op_definition
class Moe(CustomOp):
    """Routed and shared experts and their sum: bf16 [T, d] to bf16 [T, d]; operands as `dsv41.experts`, then six."""

    name = "dsv41.moe"
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
    shared_w1 = operand_def(TensorType)
    shared_s1 = operand_def(TensorType)
    shared_w3 = operand_def(TensorType)
    shared_s3 = operand_def(TensorType)
    shared_w2 = operand_def(TensorType)
    shared_s2 = operand_def(TensorType)
    limit = attr_def(FloatAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        (rows, d), (experts, inner), shared = self._dims("x"), self._dims("w1")[:2], self._dims("shared_w1")[0]
        if not all(isinstance(size, int) for size in (d, experts, inner, shared)):
            raise VerifyException(f"{self.name}: the sizes of weights are numbers, and so are x's rows")
        assert isinstance(d, int)
        assert isinstance(inner, int)
        assert isinstance(shared, int)
        wide, narrow = (-(-shared // _BLOCK), -(-d // _BLOCK)), (-(-d // _BLOCK), -(-shared // _BLOCK))
        into = {"w1": d // 2, "s1": d // _BLOCK, "w3": d // 2, "s3": d // _BLOCK}
        self._check(**{name: (experts, inner, columns) for name, columns in into.items()})
        self._check(w2=(experts, d, inner // 2), s2=(experts, d, inner // _BLOCK))
        self._check(shared_w1=(shared, d), shared_w3=(shared, d), shared_w2=(d, shared))
        self._check(shared_s1=wide, shared_s3=wide, shared_s2=narrow)
        self._check(ids=(rows, self._dims("ids")[1]), weights=self._dims("ids"), result=(rows, d))

    def _dims(self, name: str) -> tuple[int | str, ...]:
        type_ = getattr(self, name).type
        assert isinstance(type_, TensorType)
        return type_.dims

    def _check(self, **wanted: tuple[int | str, ...]) -> None:
        for name, sizes in wanted.items():
            if self._dims(name) != sizes:
                raise VerifyException(
                    f"{self.name}: {name} has sizes {list(self._dims(name))}; x of {list(self._dims('x'))}, w1 of "
                    f"{list(self._dims('w1'))} and shared_w1 of {list(self._dims('shared_w1'))} ask for {list(sizes)}"
                )


def _route_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    assert isinstance(op, RouteExperts)
    sizes = (shaped(operands[0]).shape[0], op.k.value.data)
    return [Shaped(sizes, "si64"), Shaped(sizes, "f32")]


def _route_cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    """A score: softplus, root, sum with its bias, and a comparison a choice; a weight: sum, quotient, product."""
    assert isinstance(op, RouteExperts)
    flops = (3 + op.k.value.data) * shaped(operands[0]).count + 3 * shaped(results[1]).count
    return Cost(moved_bytes(operands), moved_bytes(results), {"f32": flops})


def _shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    return [Shaped(shaped(operands[0]).shape, "bf16")]


def _cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    """As `dsv41.experts`, and three products with the shared weights, which are read once."""
    shared = operands[_ROUTED:]
    flops = 2 * 3 * shaped(operands[0]).shape[0] * shaped(shared[0]).count
    return experts_cost(op, operands[:_ROUTED], results) + Cost(read=moved_bytes(shared), flops={"fp8_fp8": flops})


RULES = [
    OpRule(RouteExperts, _route_shape, Effect(), _route_cost, run_reference),
    OpRule(Moe, _shape, Effect(), _cost, run_reference),
]
