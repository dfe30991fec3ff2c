"""What an op does to state, and the custom op that a launch stands for."""

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.utils.test_value import create_ssa_value

from dsv41c.errors import IRError
from dsv41c.ir.dialect import OP_TABLE
from dsv41c.ir.ops.aten import is_view
from dsv41c.ir.ops.custom import CustomOp
from dsv41c.ir.ops.program import Call, Launch
from dsv41c.ir.ops.state import Storage
from dsv41c.ir.types import CacheType


def custom_class(kernel: str) -> type[CustomOp] | None:
    """Give the custom op that a kernel name means, or None."""
    rule = OP_TABLE.get(f"dsv41.{kernel}")
    return rule.op if rule is not None and issubclass(rule.op, CustomOp) else None


def stand_in(op: Operation) -> Operation:
    """Give the op whose rules hold: for a launch of a custom op that op, on values of its own; else the op itself."""
    if not isinstance(op, Launch):
        return op
    custom = custom_class(op.kernel.data)
    if custom is None:
        return op
    slots = [None if slot is None else create_ssa_value(slot.type) for slot in op.slots()]
    return custom.from_slots(slots, op.result_types, dict(op.attributes))


def callee_of(op: Operation, module: ModuleOp | None) -> FuncOp | None:
    """Give the function that a call or launch runs, or None for other ops and kernels.

    Raises:
        IRError: the function is not in the module.
    """
    if isinstance(op, Call):
        name = op.callee.root_reference.data
    elif isinstance(op, Launch) and custom_class(op.kernel.data) is None:
        name = op.kernel.data
    else:
        return None
    for candidate in module.body.block.ops if module is not None else ():
        if isinstance(candidate, FuncOp) and candidate.sym_name.data == name:
            return candidate
    raise IRError(f"{op.name} runs '{name}', which is neither a function of the module nor a custom op")


def module_of_op(op: Operation) -> ModuleOp | None:
    """Give the module an op lies in."""
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, ModuleOp):
        parent = parent.parent_op()
    return parent


def cache_reads(op: Operation) -> list[SSAValue]:
    """Give the cache values an op reads; returning a cache reads it, and so does any use of its storage."""
    through_storage = [cache for operand in op.operands if (cache := _cache_behind(operand)) is not None]
    if op.name == "func.return":
        return [operand for operand in op.operands if isinstance(operand.type, CacheType)] + through_storage
    return _affected(op, "reads") + through_storage


def cache_users(cache: SSAValue) -> set[Operation]:
    """Give the ops that use a cache value, its storage or a view of that."""
    users: set[Operation] = set()
    aliases = [cache]
    while aliases:
        own = {use.operation for use in aliases.pop().uses}
        users |= own
        aliases += [result for user in own if isinstance(user, Storage) or is_view(user) for result in user.results]
    return users


def cache_writes(op: Operation) -> list[SSAValue]:
    """Give the cache values an op writes, i.e. takes and gives anew."""
    return _affected(op, "writes")


def has_state_effect(op: Operation) -> bool:
    """Whether an op reads or writes a cache."""
    return any(isinstance(operand.type, CacheType) for operand in op.operands)


def _cache_behind(value: SSAValue) -> SSAValue | None:
    """The cache whose buffer a tensor is, as its storage or as a view of it; None for a tensor of its own."""
    owner = value.owner
    if isinstance(owner, Storage):
        return owner.cache
    if not isinstance(owner, Operation) or not is_view(owner):
        return None
    return next((cache for operand in owner.operands if (cache := _cache_behind(operand)) is not None), None)


def _affected(op: Operation, part: str) -> list[SSAValue]:
    if not has_state_effect(op):
        return []
    rule_op: type[Operation] = type(op)
    slots = op.slots() if isinstance(op, CustomOp | Launch) else list(op.operands)
    if isinstance(op, Launch):
        rule_op = custom_class(op.kernel.data) or rule_op
    if not issubclass(rule_op, CustomOp):
        return [operand for operand in op.operands if isinstance(operand.type, CacheType)] if part == "reads" else []
    rule = OP_TABLE[rule_op.name]
    names = rule.effect.reads if part == "reads" else rule.effect.writes
    fields = [name for name, _ in rule_op.get_irdl_definition().operands]
    return [slot for name, slot in zip(fields, slots, strict=True) if name in names and slot is not None]
