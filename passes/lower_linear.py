"""Gives products with FP8 weights the form that their number of rows asks for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from dsv41c.ir.builder import attribute, functions, has_one_row
from dsv41c.ir.names import replace_op
from dsv41c.ir.ops.custom import DequantizeWeight, LinearFp8
from dsv41c.ir.ops.products import Linears
from dsv41c.ir.ops.state import SparseAttention
from dsv41c.ir.types import NONE, TensorType
from dsv41c.passes.pass_base import Pass, PassContext, PassResult


@dataclass(frozen=True)
class LowerLinear(Pass):
    """Gives products with FP8 weights the form that their number of rows asks for.

    What:
        %w = dsv41.dequantize_weight %weight, %scale : ...
        %y = torch.aten.linear %x, %w, %none : ...
          ->  %y = dsv41.linear_fp8 %x, %weight, %scale {groups = 1} : ...             in a program of one row
          ->  %y = dsv41.linears %x, %weight, %scale {groups = 1, quantize = 0} : ...  in a program of many

        the same for a product in groups: unflatten and transpose on both sides, matmul, transpose, flatten.

    Why: one row reads each weight once, so it is decoded where it is multiplied. Many rows share a weight that is
    dequantized once, and leave the product to a library that uses the CPU's matrix instructions; the CPU target's
    compiler does not (docs/cpu-target.md). Packed weights until then: a dequantized one lives inside one launch.

    Needs: nothing.

    Does not handle: products with other weights, and dequantized weights that something else reads; they stay.
    """

    name: ClassVar[str] = "lower-linear"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Rewrite all products; counts `linear` and `grouped`."""
        counts = {"linear": 0, "grouped": 0}
        for func in functions(module).values():
            one_row = has_one_row(func)
            for op in list(func.body.block.ops):
                product = _product(op) if isinstance(op, DequantizeWeight) else None
                if product is None:
                    continue
                assert isinstance(op, DequantizeWeight)
                replace_op(product.last, product.lowered(op, one_row))
                counts["linear" if product.groups == 1 else "grouped"] += 1
        return PassResult(any(counts.values()), counts)

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """In a traced model every FP8 weight belongs to one product, and each attention has one in groups."""
        if ctx.config is None:
            return None
        found = [op for func in functions(module).values() for op in func.body.block.ops]
        grouped = sum(isinstance(op, SparseAttention) for op in found) if ctx.config.o_groups > 1 else 0
        return {"linear": sum(isinstance(op, DequantizeWeight) for op in found) - grouped, "grouped": grouped}


@dataclass(frozen=True)
class _Product:
    """A product with a dequantized weight: its input, and the op that has its result."""

    x: SSAValue
    last: Operation
    groups: int

    def lowered(self, weight: DequantizeWeight, one_row: bool) -> Operation:
        """The op that takes its place."""
        slots, types = [self.x, weight.weight, weight.scale], [self.last.results[0].type]
        if one_row:
            return LinearFp8.from_slots(slots, types, {"groups": attribute(self.groups)})
        return Linears.from_slots(slots, types, {"groups": attribute(self.groups), "quantize": attribute(0)})


def _product(weight: DequantizeWeight) -> _Product | None:
    user = _only_user(weight.result)
    if user is None or user.name != "torch.aten.linear":
        return _grouped_product(weight.result)
    x, w, bias = user.operands
    return _Product(x, user, 1) if w is weight.result and bias.type == NONE else None


def _grouped_product(weight: SSAValue) -> _Product | None:
    """Matches `x.unflatten(-1, (g, k)).transpose(0, 1) @ w.unflatten(0, (g, n)).transpose(1, 2)`, joined again."""
    unflatten = _chain(weight, "unflatten.int", "transpose.int", "matmul", "transpose.int", "flatten.using_ints")
    if unflatten is None:
        return None
    _, turned_weight, matmul, turned_back, flatten = unflatten
    parts, groups = matmul.operands[0], _sizes(matmul.operands[0])[0]
    turned = _made_by(parts, "transpose.int")
    split = turned and _made_by(turned.operands[0], "unflatten.int")
    if not split or matmul.operands[1] is not turned_weight.results[0] or not isinstance(groups, int):
        return None
    x = split.operands[0]
    (rows, inputs), (outputs, width) = _sizes(x), _sizes(weight)
    assert isinstance(outputs, int)
    assert isinstance(width, int)
    expected = (
        (turned_weight, (groups, width, outputs // groups)),
        (turned, (groups, rows, width)),
        (turned_back, (rows, groups, outputs // groups)),
        (flatten, (rows, outputs)),
    )
    fits = inputs == groups * width and all(_sizes(op.results[0]) == sizes for op, sizes in expected if op)
    return _Product(x, flatten, groups) if fits else None


def _chain(value: SSAValue, *names: str) -> list[Operation] | None:
    """The ops of these names that use a value one after the other, if nothing else does."""
    ops: list[Operation] = []
    for name in names:
        user = _only_user(value)
        if user is None or user.name != f"torch.aten.{name}":
            return None
        ops.append(user)
        value = user.results[0]
    return ops


def _only_user(value: SSAValue) -> Operation | None:
    users = [use.operation for use in value.uses]
    return users[0] if len(users) == 1 else None


def _made_by(value: SSAValue, name: str) -> Operation | None:
    owner = value.owner
    return owner if isinstance(owner, Operation) and owner.name == f"torch.aten.{name}" else None


def _sizes(value: SSAValue) -> tuple[int | str, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.dims
