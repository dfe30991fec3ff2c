"""Bytes and flops of a function under an assignment of its symbols."""

from dataclasses import dataclass

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation

from dsv41c.ir.dialect import rule_of
from dsv41c.ir.dims import Assignment
from dsv41c.ir.effects import callee_of, module_of_op, stand_in
from dsv41c.ir.ops.program import Call, Launch, Weight
from dsv41c.ir.ops.table import Argument, Cost, moved_bytes
from dsv41c.ir.shapes import ShapeEvaluator


@dataclass(frozen=True)
class FunctionCost:
    """The cost of one run of a function: the sum, and each op's share in program order."""

    total: Cost
    ops: tuple[tuple[Operation, Cost], ...]


def cost_of(func: FuncOp, assignment: Assignment) -> FunctionCost:
    """Count the bytes read and written and the flops of a function.

    Every op counts the operands it reads and the results it writes as if nothing were fused; a call or a launch of an
    outlined function counts the function's operands, results and weights as bytes, and its ops' flops.

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
        actual = stand_in(op)
        return rule_of(actual).cost(actual, operands, results)
    assert isinstance(op, Call | Launch)
    inner = cost_of(callee, assignment)
    weights = sum(moved_bytes([evaluator.declared(w.result_types[0])]) for w, _ in inner.ops if isinstance(w, Weight))
    return Cost(moved_bytes(operands) + weights, moved_bytes(results), inner.total.flops)


def _declared(op: Operation, evaluator: ShapeEvaluator) -> list[Argument]:
    return [evaluator.declared(result.type) for result in op.results]
