"""Makes one op of what a router does behind its product."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.utils.test_value import create_ssa_value

from dsv41c.errors import CompileError
from dsv41c.ir.builder import attribute, functions
from dsv41c.ir.names import set_name
from dsv41c.ir.ops.custom import SelectExperts
from dsv41c.ir.ops.moe import RouteExperts
from dsv41c.ir.text import line_of
from dsv41c.ir.types import TensorType
from dsv41c.passes.matching import NoMatch, dims, match, only_user, scalar
from dsv41c.passes.pass_base import Pass, PassContext, PassResult
from dsv41c.passes.patterns import match_definition


@dataclass(frozen=True)
class LowerRouter(Pass):
    """Makes one op of what a router does behind its product: scores, choice and weights.

    What:
        %s = sqrt(softplus(%logits))                                       2 ops
        %ids = dsv41.select_experts (%s + %bias) {k = 6} : ...             2
        %c = torch.aten.gather %s, %int1, %ids, %false : ...
        %w = %c / (sum(%c) + 1e-20) * 1.5                                  4
          ->  %ids, %w = dsv41.route_experts %logits, %bias {k = 6, scale = 1.5} : ...

    Why: a region, a kernel and a region become one launch of little work, and the scores are never in memory.

    Needs: `ctx.define`, whose definition of dsv41.route_experts is the pattern. What is left of the scores goes with
    dead-code.

    Does not handle: other scores, weights that are not normalized or not scaled; they stay. Scores that something else
    reads are computed for it as before.
    """

    name: ClassVar[str] = "lower-router"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Lower all routers; counts `router`."""
        choices = [op for func in functions(module).values() for op in _choices(func)]
        count = sum(_lower(op, ctx) for op in choices)
        return PassResult(count > 0, {"router": count})

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """In a traced model every choice is such a router's."""
        if ctx.config is None:
            return None
        return {"router": sum(len(_choices(func)) for func in functions(module).values())}


def _choices(func: FuncOp) -> list[SelectExperts]:
    return [op for op in func.body.block.ops if isinstance(op, SelectExperts)]


def _lower(choice: SelectExperts, ctx: PassContext) -> bool:
    """Put one op in the place of the router that a choice belongs to, if it is one."""
    try:
        quotient = only_user(only_user(choice.result, "gather"), "div.Tensor")
        weights = only_user(quotient, "mul.Scalar")
        scale = scalar(match(weights, "mul.Scalar", ..., ...)[1])
    except NoMatch:
        return False
    count = dims(choice.scores)[-1]
    if not isinstance(scale, float) or not isinstance(count, int):
        return False
    types, attributes = [choice.result.type, weights.type], {"k": choice.k, "scale": attribute(scale)}
    own = map(create_ssa_value, (choice.scores.type, TensorType.of([count], "f32")))
    definition = ctx.define(RouteExperts.from_slots(list(own), types, dict(attributes)))
    if definition is None:
        raise CompileError(f"the target defines no dsv41.route_experts, which {line_of(choice)} would become")
    found = match_definition(definition, choice.result, weights)
    if found is None:
        return False
    _replace(choice, weights, RouteExperts.from_slots(found, types, attributes))
    return True


def _replace(choice: SelectExperts, weights: SSAValue, router: RouteExperts) -> None:
    """Put a router where its choice stands: there is what it needs, and all that reads its results stands behind."""
    block = choice.parent_block()
    assert block is not None
    block.insert_op_before(router, choice)
    for old, new in ((choice.result, router.ids), (weights, router.weights)):
        set_name(new, old.name_hint)
        old.replace_all_uses_with(new)
        assert isinstance(old.owner, Operation)
        old.owner.detach()
        old.owner.erase()
