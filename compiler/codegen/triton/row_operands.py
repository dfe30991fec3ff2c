"""What row programs read of an op: its constants, dimensions and lists, and how they refuse one."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from dsv41c.errors import CompileError
from dsv41c.ir.ops.torch_ops import ListConstruct, Scalar, constant_value, is_constant
from dsv41c.ir.text import line_of
from dsv41c.ir.types import TensorType

__all__ = ["constant_of", "dimension_of", "list_items", "op_word", "refused", "tensor_type"]


def refused(op: Operation, reason: str) -> CompileError:
    """The error for an op that row programs do not have."""
    func = op.parent_op()
    name = func.sym_name.data if isinstance(func, FuncOp) else "?"
    return CompileError(f"region '{name}' is no row program because of {op.name}: {reason}; in: {line_of(op)}")


def op_word(op: Operation) -> str:
    """An aten op's name without its prefix, such as "mul.Tensor"."""
    return op.name.removeprefix("torch.aten.")


def tensor_type(value: SSAValue) -> TensorType:
    """The type of a value that is a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


def constant_of(value: SSAValue) -> Scalar:
    """The number, or None, of a value that is a constant; None for any other."""
    owner = value.owner
    return constant_value(owner) if isinstance(owner, Operation) and is_constant(owner) else None


def dimension_of(op: Operation, place: int, value: SSAValue) -> int:
    """The dimension of a value that a constant operand names, counted from the first."""
    found = constant_of(op.operands[place])
    if not isinstance(found, int):
        raise refused(op, f"operand {place} is no known dimension")
    return found % max(1, len(tensor_type(value).dims))


def list_items(op: Operation, place: int) -> Sequence[SSAValue]:
    """The items of an operand that is a list."""
    owner = op.operands[place].owner
    if not isinstance(owner, ListConstruct):
        raise refused(op, f"operand {place} is no list of values")
    return owner.items
