"""Makes one op of a MoE sublayer behind its router."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.utils.test_value import create_ssa_value

from dsv41c.errors import CompileError
from dsv41c.ir.builder import functions, has_one_row
from dsv41c.ir.names import replace_op
from dsv41c.ir.ops.custom import DequantizeWeight, Experts
from dsv41c.ir.ops.moe import Moe
from dsv41c.ir.text import line_of
from dsv41c.ir.types import TensorType
from dsv41c.passes.pass_base import Pass, PassContext, PassResult
from dsv41c.passes.patterns import match_definition


@dataclass(frozen=True)
class LowerExperts(Pass):
    """Makes one op of a MoE sublayer behind its router: routed experts, shared expert, their sum.

    What:
        %r = dsv41.experts %x, %ids, %weights, %w1, ... {limit = 10.0} : ...
        %s = the shared expert of %x (products with three dequantized weights, SwiGLU, quantization)
        %t = torch.aten.add.Tensor %r, (%s as f32), %int1 : ...
        %y = torch.aten.to.dtype %t, %int15, ... : ...
          ->  %y = dsv41.moe %x, %ids, %weights, %w1, ..., %shared_w1, ... {limit = 10.0} : ...

    Why: five launches become one. The products of the shared expert run tile by tile between compiled parts, as those
    of the routed experts do; their sum is rounded where it is made, and no dequantized weight outlives its product.

    Needs: `ctx.define`, whose definition of dsv41.moe is the pattern: order and roundings of the sum, both experts
    reading one input, and one limit in both. So it stands before any pass that gives products another form.

    Does not handle: programs of one row, where the shared expert is part of a compiled region already and the routed
    ones run a compiled body each; a routed or a whole fp32 sum that something else reads, or a sum of another kind:
    these stay as they are, which in a traced model is an error.
    """

    name: ClassVar[str] = "lower-experts"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Lower all sublayers in programs of many rows; counts them by program."""
        counts: dict[str, int] = {}
        for name, func in functions(module).items():
            found = 0 if has_one_row(func) else sum(_lower(op, ctx) for op in _experts_of(func))
            if found:
                counts[name] = found
        return PassResult(bool(counts), counts)

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """In a traced model all routed experts belong to such a sublayer."""
        if ctx.config is None:
            return None
        return {name: len(_experts_of(func)) for name, func in functions(module).items() if not has_one_row(func)}


def _experts_of(func: FuncOp) -> list[Experts]:
    return [op for op in func.body.block.ops if isinstance(op, Experts)]


def _lower(experts: Experts, ctx: PassContext) -> bool:
    """Put one op in the place of the sublayer that routed experts belong to, if it is one."""
    total = _last_op(experts)
    sample = None if total is None else _sample(experts, total)
    if total is None or sample is None:
        return False
    definition = ctx.define(sample)
    if definition is None:
        raise CompileError(f"the target defines no dsv41.moe, which {line_of(experts)} would become")
    found = match_definition(definition, total.results[0])
    if found is None:
        return False
    operands = list(total.operands)
    replace_op(total, Moe.from_slots(found, total.result_types, {"limit": experts.limit}))
    _erase_unused(operands)
    return True


def _last_op(experts: Experts) -> Operation | None:
    """The rounding of the sum that routed experts go into, where nothing else reads either of them."""
    last: Operation = experts
    for name in ("torch.aten.add.Tensor", "torch.aten.to.dtype"):
        users = [use.operation for use in last.results[0].uses]
        if len(users) != 1 or users[0].name != name:
            return None
        last = users[0]
    return last


def _sample(experts: Experts, total: Operation) -> Moe | None:
    """An op of the types that the sublayer would have; the shared expert's follow from its last weight."""
    down = _nearest_weight(total, experts)
    if down is None:
        return None
    weight, scale = down.weight.type, down.scale.type
    assert isinstance(weight, TensorType)
    assert isinstance(scale, TensorType)
    wide = [TensorType.of(reversed(type_.dims), type_.element) for type_ in (weight, scale)]
    types = [*(value.type for value in experts.slots() if value), *wide, *wide, weight, scale]
    return Moe.from_slots(list(map(create_ssa_value, types)), total.result_types, {"limit": experts.limit})


def _nearest_weight(total: Operation, experts: Experts) -> DequantizeWeight | None:
    """The first FP8 weight behind a sum."""
    waiting, seen = [total], {total}
    while waiting:
        op = waiting.pop(0)
        if isinstance(op, DequantizeWeight):
            return op
        owners = [operand.owner for operand in op.operands if isinstance(operand.owner, Operation)]
        new = [owner for owner in owners if owner not in seen and owner is not experts]
        waiting += new
        seen.update(new)
    return None


def _erase_unused(values: list[SSAValue]) -> None:
    """Remove what made these values, as far as nothing reads it any more, so that no later pass looks at it."""
    while values:
        op = values.pop().owner
        if not isinstance(op, Operation) or op.parent is None or any(result.uses for result in op.results):
            continue
        values += op.operands
        op.detach()
        op.erase()
