"""Concrete sizes of every value of a function under one assignment of its symbols."""

from collections.abc import Hashable, Sequence
from typing import Any

from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from dsv41c.errors import IRError
from dsv41c.ir.dialect import rule_of
from dsv41c.ir.dims import Assignment
from dsv41c.ir.effects import stand_in
from dsv41c.ir.ops.custom import CustomOp
from dsv41c.ir.ops.program import Call, Launch, Weight
from dsv41c.ir.ops.state import Storage
from dsv41c.ir.ops.syntax import PlainSyntax
from dsv41c.ir.ops.table import Argument, Shaped
from dsv41c.ir.types import CacheType, TensorType


class _Unknown:
    """The value of a scalar that depends on data."""

    def __repr__(self) -> str:
        return "a value that depends on data"


UNKNOWN = _Unknown()
Memo = dict[Hashable, Sequence[Argument]]


class ShapeEvaluator:
    """Knows the concrete operands and results of the ops of one function.

    Args:
        assignment: a value for each symbol of the function.
        memo: shared between evaluators; equal ops on equal operands are evaluated once.
    """

    def __init__(self, assignment: Assignment, memo: Memo | None = None) -> None:
        self._assignment = assignment
        self._memo: Memo = {} if memo is None else memo
        self._values: dict[SSAValue, Any] = {}

    def operands(self, op: Operation) -> list[Argument]:
        """Give the concrete operands of an op, None where an optional one is absent."""
        slots = op.slots() if isinstance(op, PlainSyntax | Launch) else op.operands
        return [None if slot is None else self.value(slot) for slot in slots]

    def value(self, value: SSAValue) -> Argument:
        """Give the concrete form of a value: declared sizes for tensors, the computed value for scalars."""
        if value not in self._values:
            self._values[value] = self._compute(value)
        found = self._values[value]
        if found is UNKNOWN:
            raise IRError("a size depends on data; sizes may depend on constants and on operand sizes only")
        return found

    def declared(self, type_: Attribute) -> Argument:
        """Give the concrete form that a type declares."""
        if isinstance(type_, TensorType):
            try:
                return Shaped(type_.shape(self._assignment), type_.element)
            except ValueError as error:
                raise IRError(f"type {type_}: {error}; declare it in dsv41.symbols") from error
        return type_ if isinstance(type_, CacheType) else UNKNOWN  # type: ignore[return-value]

    def results(self, op: Operation) -> Sequence[Argument]:
        """Apply an op's shape rule."""
        operands = self.operands(op)
        key = (op.name, _freeze(operands), _identity(op))
        if key not in self._memo:
            self._memo[key] = rule_of(op).shape(op, operands)
        return self._memo[key]

    def _compute(self, value: SSAValue) -> Argument:
        if isinstance(value.type, TensorType | CacheType):
            return self.declared(value.type)
        owner = value.owner
        if not isinstance(owner, Operation) or isinstance(owner, Call | Launch):
            return UNKNOWN  # type: ignore[return-value]
        return self.results(owner)[[result is value for result in owner.results].index(True)]


def check_results(op: Operation, evaluator: ShapeEvaluator) -> None:
    """Refuse an op whose declared result types are not what its shape rule gives.

    Raises:
        IRError: naming both; also when the rule refuses the operands.
    """
    if isinstance(op, Weight | Call | Storage | FuncOp):
        return
    actual = stand_in(op)
    if isinstance(actual, Launch):
        return
    computed = _computed(op, actual, evaluator)
    for index, (result, found) in enumerate(zip(op.results, computed, strict=True)):
        if not isinstance(result.type, TensorType | CacheType):
            continue
        declared = evaluator.declared(result.type)
        if declared != found:
            raise IRError(f"result {index} is declared {result.type}, i.e. {_spell(declared)}; it is {_spell(found)}")


def _computed(op: Operation, actual: Operation, evaluator: ShapeEvaluator) -> Sequence[Argument]:
    try:
        if actual is op:
            return evaluator.results(op)
        return rule_of(actual).shape(actual, evaluator.operands(op))
    except IRError:
        raise
    # torch raises many kinds for operands it cannot take; all mean that this op does not verify.
    except Exception as error:
        raise IRError(f"operands do not fit: {str(error).splitlines()[0]}") from error


def _spell(argument: Argument) -> str:
    if isinstance(argument, Shaped):
        return f"{list(argument.shape)} {argument.element}"
    return str(argument)


def _identity(op: Operation) -> Hashable:
    """What besides the operands decides an op's results."""
    if isinstance(op, CustomOp):
        caches = tuple(operand.type for operand in op.operands if isinstance(operand.type, CacheType))
        return (tuple(op.arguments()), caches)
    value = op.attributes.get("value")
    return None if value is None else str(value)


def _freeze(operands: Sequence[Argument]) -> Hashable:
    frozen: list[Hashable] = []
    for operand in operands:
        # 1, 1.0 and True are equal in Python and different in a program.
        frozen.append((type(operand).__name__, _freeze(operand) if isinstance(operand, list) else operand))
    return tuple(frozen)
