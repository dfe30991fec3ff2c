"""Finds the ops that compute what a fused op stands for: the pattern of a fusion is the fused op's own definition.

    definition of dsv41.pack_rows           in the program                 bindings
      %n = torch.aten.square %x              %a = torch.aten.square %7      %x     -> %7
      ...                                    ...                            %cos   -> %cos
      return dsv41.quantize %cat             %b = dsv41.quantize %c         %weight -> %kv_norm.weight

So a pattern cannot say another thing than the op that takes its place.
"""

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from dsv41c.ir.builder import ORIGIN
from dsv41c.ir.ops.torch_ops import constant_value, is_constant

Bindings = dict[SSAValue, SSAValue]


def match_definition(definition: FuncOp, *values: SSAValue) -> list[SSAValue] | None:
    """Match values against what a definition returns.

    Args:
        definition: a function.
        values: of a program, one for each result.
    Returns:
        the program's value for each argument of the definition, or None where a value is computed otherwise.
    """
    last = definition.body.block.last_op
    assert isinstance(last, ReturnOp)
    bindings: Bindings = {}
    if not all(_unify(wanted, value, bindings) for wanted, value in zip(last.operands, values, strict=True)):
        return None
    return [bindings[argument] for argument in definition.args]


def _unify(pattern: SSAValue, value: SSAValue, bindings: Bindings) -> bool:
    if pattern in bindings:
        return bindings[pattern] is value or _same_constant(pattern, value)
    bindings[pattern] = value
    if isinstance(pattern, BlockArgument):
        return pattern.type == value.type
    return isinstance(pattern.owner, Operation) and _unify_ops(pattern, value, bindings)


def _unify_ops(pattern: SSAValue, value: SSAValue, bindings: Bindings) -> bool:
    wanted, op = pattern.owner, value.owner
    if not isinstance(wanted, Operation) or not isinstance(op, Operation) or wanted.name != op.name:
        return False
    if is_constant(wanted):
        return _same_constant(pattern, value)
    if list(wanted.results).index(pattern) != list(op.results).index(value):  # type: ignore[arg-type]  # it is one
        return False
    if _attributes(wanted) != _attributes(op) or len(wanted.operands) != len(op.operands):
        return False
    return all(_unify(inner, outer, bindings) for inner, outer in zip(wanted.operands, op.operands, strict=True))


def _same_constant(pattern: SSAValue, value: SSAValue) -> bool:
    wanted, op = pattern.owner, value.owner
    if not isinstance(wanted, Operation) or not isinstance(op, Operation) or wanted.name != op.name:
        return False
    return is_constant(wanted) and constant_value(wanted) == constant_value(op)


def _attributes(op: Operation) -> dict[str, Attribute]:
    return {name: value for name, value in op.attributes.items() if name != ORIGIN}
