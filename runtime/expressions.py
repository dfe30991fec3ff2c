"""Values of the sizes that a plan spells as text: `T`, `4*T`, `128*S + T`, `T floordiv 4`, `max(T, 8)`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache

from dsv41c.errors import PlanError

__all__ = ["size_value"]

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_CALLS: dict[str, Callable[..., int]] = {"max": max, "min": min}


def size_value(size: int | str, sizes: Mapping[str, int]) -> int:
    """The value of a size.

    Args:
        size: a number, or an expression in symbols with + - * floordiv mod max min and powers.
        sizes: a value for each symbol.
    Raises:
        PlanError: the text is no such expression, divides by zero, or names a symbol that has no value.
    """
    if isinstance(size, int):
        return size
    try:
        return _value(_parsed(size), sizes)
    except (SyntaxError, KeyError, TypeError, ZeroDivisionError) as error:
        known = ", ".join(f"{name} = {value}" for name, value in sizes.items()) or "no sizes"
        raise PlanError(
            f"size '{size}' has no value with {known} ({type(error).__name__}: {error}); compile the plan again"
        ) from None


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    return ast.parse(text.replace(" floordiv ", " // ").replace(" mod ", " % ").strip(), mode="eval").body


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, sizes)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]):
            return _CALLS[name](*(_value(part, sizes) for part in parts))
    raise TypeError(f"{ast.unparse(node)} is no part of a size")
