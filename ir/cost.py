"""Bytes and flops of a function under an assignment of its symbols."""

from dataclasses import dataclass

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from dsv41c.ir.dialect import rule_of
from dsv41c.ir.dims import Assignment
from dsv41c.ir.effects import callee_of, module_of_op, stand_in
from dsv41c.ir.ops.aten import is_gather, is_view
from dsv41c.ir.ops.program import Call, Launch, Weight
from dsv41c.ir.ops.state import Storage
from dsv41c.ir.ops.table import Argument, Cost, moved_bytes
from dsv41c.ir.precision import product_precision
from dsv41c.ir.shapes import ShapeEvaluator


@dataclass(frozen=True)
class FunctionCost:
    """The cost of one run of a function: the sum, and each op's share in program order."""

    total: Cost
    ops: tuple[tuple[Operation, Cost], ...]


def cost_of(func: FuncOp, assignment: Assignment) -> FunctionCost:
    """Count the bytes read and written and the flops of a function.

    Every op counts the operands it reads and the results it writes as if nothing were fused; a call or a launch of an
    outlined function counts the function's operands, results and weights as bytes, and its ops' flops. Of a cache or a
    table that a function only gathers from, the gathered elements count.

    Args:
        assignment: a value for each symbol.

    Raises:
        IRError: a symbol has no value.
    """
    evaluator = ShapeEvaluator(assignment)
    shares = tuple((op, _op_cost(op, evaluator, assignment)) for op in func.body.block.ops)
    return FunctionCost(sum((share for _, share in shares), Cost()), shares)


def _op_cost(op: Operation, evaluator: ShapeEvaluator, assignment: Assignment) -> Cost:
    if isinstance(op, ReturnOp):
        return Cost()
    operands = evaluator.operands(op)
    results = _declared(op, evaluator)
    callee = callee_of(op, module_of_op(op))
    if callee is None:
        return _rule_cost(op, operands, results)
    assert isinstance(op, Call | Launch)
    inner = cost_of(callee, assignment)
    callee_evaluator = ShapeEvaluator(assignment)
    weights = sum(moved_bytes([evaluator.declared(w.result_types[0])]) for w, _ in inner.ops if isinstance(w, Weight))
    read = sum(_read_through(argument, callee_evaluator) for argument in callee.args)
    return Cost(read + weights, moved_bytes(results), inner.total.flops)


def _rule_cost(op: Operation, operands: list[Argument], results: list[Argument]) -> Cost:
    """An op by its own rule, its products under the precision of the values that they multiply."""
    actual = stand_in(op)
    cost = rule_of(actual).cost(actual, operands, results)
    precision = product_precision(op)
    if precision is None:
        return cost
    # What a product does besides multiplying, as quantizing its input, is counted under another precision than bf16.
    return Cost(
        cost.read, cost.written, {precision if one == "bf16" else one: count for one, count in cost.flops.items()}
    )


def _read_through(argument: SSAValue, evaluator: ShapeEvaluator) -> int:
    """Bytes that a function reads of an argument: all of it, or what it gathers if it does nothing else with it."""
    gathered, aliases, readers = 0, [argument], 0
    while aliases:
        for use in aliases.pop().uses:
            op = use.operation
            if isinstance(op, Storage) or (is_view(op) and use.index == 0):
                aliases += op.results
            elif is_gather(op) and use.index == 0:
                gathered += moved_bytes(_declared(op, evaluator))
            else:
                readers += 1
    return gathered if readers == 0 else moved_bytes([evaluator.value(argument)])


def _declared(op: Operation, evaluator: ShapeEvaluator) -> list[Argument]:
    return [evaluator.declared(result.type) for result in op.results]
