"""The dialects `dsv41` and `torch` and the context that knows them; unknown ops of either are errors."""

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.dialects.func import Func
from xdsl.ir import Dialect, Operation

from dsv41c.errors import IRError
from dsv41c.ir.ops import aten, attend, custom, mhc, moe, pack, products, program, state, torch_ops
from dsv41c.ir.ops.table import OpRule
from dsv41c.ir.types import TYPES

OP_TABLE: dict[str, OpRule] = {
    rule.op.name: rule
    for rules in (torch_ops, attend, custom, mhc, moe, pack, products, state, program)
    for rule in rules.RULES
}

Dsv41 = Dialect(
    "dsv41",
    [rule.op for name, rule in OP_TABLE.items() if name.startswith("dsv41.")],
    [type_ for type_ in TYPES if type_.name.startswith("dsv41.")],
)
Torch = Dialect(
    "torch",
    [rule.op for name, rule in OP_TABLE.items() if name.startswith("torch.")],
    [type_ for type_ in TYPES if type_.name.startswith("torch.")],
)


class ProgramContext(Context):
    """A parsing context in which aten op classes come into being when first named."""

    def _get_known_op(self, name: str) -> type[Operation] | None:
        if name.startswith(aten.PREFIX):
            return aten.aten_class(name)
        return super()._get_known_op(name)


def make_context() -> Context:
    """Make a context with the dialects of dsv41 programs."""
    context = ProgramContext()
    for dialect in (Builtin, Func, Dsv41, Torch):
        context.load_dialect(dialect)
    return context


def rule_of(op: Operation) -> OpRule:
    """Give the rule of an op.

    Raises:
        IRError: the op is not part of dsv41 programs.
    """
    if isinstance(op, aten.AtenOp):
        return aten.aten_rule(op)
    if op.name not in OP_TABLE:
        raise IRError(f"op '{op.name}' is not part of dsv41 programs; supported are aten ops and {', '.join(OP_TABLE)}")
    return OP_TABLE[op.name]
