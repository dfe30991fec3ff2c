"""Matching chains of aten ops from their last value back, by use and definition.

    match(value, "add.Scalar", ..., 1e-6, 1)      ->  [operand 0], if the constants are 1e-6 and 1

What does not fit raises NoMatch, which names what was expected and what was found.
"""

from typing import Any

import torch
from xdsl.ir import Operation, SSAValue

from dsv41c.ir.ops.aten import PREFIX, SCALAR_TYPE_CODES
from dsv41c.ir.ops.torch_ops import ListConstruct, constant_value, is_constant
from dsv41c.ir.text import line_of
from dsv41c.ir.types import TensorType

_UNKNOWN = object()


class NoMatch(Exception):
    """A pattern does not fit; the text says where."""


def match(value: SSAValue, name: str, *expected: Any) -> list[SSAValue]:
    """Take apart a value that an aten op of this name makes.

    Args:
        expected: one a operand: `...` gives the operand back, anything else is the constant that it must be.

    Returns:
        the operands at `...`.

    Raises:
        NoMatch: another op, or another constant.
    """
    op = value.owner
    if not isinstance(op, Operation) or op.name != PREFIX + name:
        raise NoMatch(f"expected {name}, found {_spell(value)}")
    if len(op.operands) != len(expected):
        raise NoMatch(f"expected {name} with {len(expected)} operands, found {_spell(value)}")
    for operand, wanted in zip(op.operands, expected, strict=True):
        if wanted is not ... and not _is(operand, wanted):
            raise NoMatch(f"expected {name} with {wanted!r}, found {_spell(operand)} in {_spell(value)}")
    return [operand for operand, wanted in zip(op.operands, expected, strict=True) if wanted is ...]


def match_one(value: SSAValue, name: str, *expected: Any) -> SSAValue:
    """As `match`, for a pattern with a single `...`."""
    (operand,) = match(value, name, *expected)
    return operand


def match_cast(value: SSAValue, dtype: torch.dtype) -> SSAValue:
    """Take apart `x.to(dtype)` and give x."""
    return match_one(value, "to.dtype", ..., SCALAR_TYPE_CODES[dtype], False, False, None)


def expect(condition: bool, reason: str) -> None:
    """Refuse a pattern for a reason."""
    if not condition:
        raise NoMatch(reason)


def same(values: list[SSAValue], what: str) -> SSAValue:
    """Give the one value that several parts of a pattern read."""
    expect(all(value is values[0] for value in values), f"expected one {what}, found {_names(values)}")
    return values[0]


def only_user(value: SSAValue, name: str) -> SSAValue:
    """Give what the only aten op of this name makes of a value."""
    users = [use.operation for use in value.uses if use.operation.name == PREFIX + name]
    expect(len(users) == 1, f"expected one {name} of {_spell(value)}, found {len(users)}")
    return users[0].results[0]


def dims(value: SSAValue) -> tuple[int | str, ...]:
    """The sizes of a tensor."""
    expect(isinstance(value.type, TensorType), f"expected a tensor, found {_spell(value)}")
    assert isinstance(value.type, TensorType)
    return value.type.dims


def scalar(value: SSAValue) -> Any:
    """The Python value of a constant."""
    found = _constant(value)
    expect(found is not _UNKNOWN, f"expected a constant, found {_spell(value)}")
    return found


def _is(operand: SSAValue, wanted: Any) -> bool:
    found = _constant(operand)
    return type(found) is type(wanted) and bool(found == wanted)


def _constant(value: SSAValue) -> Any:
    owner = value.owner
    if not isinstance(owner, Operation):
        return _UNKNOWN
    if isinstance(owner, ListConstruct):
        return [_constant(item) for item in owner.operands]
    return constant_value(owner) if is_constant(owner) else _UNKNOWN


def _names(values: list[SSAValue]) -> str:
    return ", ".join(_spell(value) for value in values)


def _spell(value: SSAValue) -> str:
    return line_of(value.owner) if isinstance(value.owner, Operation) else f"argument %{value.name_hint}"
