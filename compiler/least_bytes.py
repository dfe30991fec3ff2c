"""The fewest bytes that a step can move: what no rewrite and no kernel can save (docs/costs.md derives them)."""

from __future__ import annotations

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from dsv41c.ir.cost import cost_of
from dsv41c.ir.dims import Assignment
from dsv41c.ir.effects import has_state_effect
from dsv41c.ir.ops.aten import is_gather, is_view
from dsv41c.ir.ops.custom import Experts, Lookup
from dsv41c.ir.ops.program import Weight
from dsv41c.ir.ops.state import Store
from dsv41c.ir.ops.syntax import PlainSyntax
from dsv41c.ir.ops.table import Cost, Shaped, moved_bytes
from dsv41c.ir.shapes import ShapeEvaluator
from dsv41c.ir.types import TensorType
from dsv41c.models.config import ModelConfig


def least_bytes(func: FuncOp, assignment: Assignment, config: ModelConfig) -> int:
    """Bytes that one run of a traced program must move.

        weights    each once; of experts and tables what the rows choose
        caches     the rows that the ops read and write
        rows       inputs and outputs, and the streams at every site: 2n + 2 rows of d (SPEC 3.7)

    Args:
        func: a traced step program: one op for each thing that the network does.
        assignment: a value for each symbol; `T` are its rows.
    """
    evaluator = ShapeEvaluator(assignment)
    ends = [*func.args, *(func.body.block.last_op.operands if func.body.block.last_op else ())]
    total = moved_bytes([evaluator.value(value) for value in ends if isinstance(value.type, TensorType)])
    for op, cost in cost_of(func, assignment).ops:
        total += _op_bytes(op, cost, evaluator)
    return total + stream_bytes(config, assignment["T"])


def stream_bytes(config: ModelConfig, rows: int) -> int:
    """bf16 rows that pass from sublayer to sublayer: old and new streams, the output and the next input (SPEC 3.7)."""
    sites = 2 * config.num_hidden_layers
    return rows * sites * (2 * config.hc_mult + 2) * config.hidden_size * 2


def _op_bytes(op: Operation, cost: Cost, evaluator: ShapeEvaluator) -> int:
    if isinstance(op, Weight):
        return 0 if _only_gathered(op.result) else moved_bytes([evaluator.value(op.result)])
    if isinstance(op, Store):
        return cost.written
    if has_state_effect(op) or _gathers(op):
        return cost.read - _given_bytes(op, evaluator)
    return 0


def _given_bytes(op: Operation, evaluator: ShapeEvaluator) -> int:
    """Bytes of the operands that an op reads as a whole, caches and weights aside."""
    slots = op.slots() if isinstance(op, PlainSyntax) else op.operands
    given = [slot for slot in slots if slot is not None and not isinstance(slot.owner, Weight)]
    arguments = [evaluator.value(slot) for slot in given]
    return sum(argument.bytes for argument in arguments if isinstance(argument, Shaped)) + sum(
        moved_bytes(argument) for argument in arguments if isinstance(argument, list)
    )


def _gathers(op: Operation) -> bool:
    """Whether an op reads some rows of a weight."""
    taken = isinstance(op, Experts | Lookup) or is_gather(op)
    return taken and any(isinstance(operand.owner, Weight) for operand in op.operands)


def _only_gathered(weight: SSAValue) -> bool:
    """Whether all readers of a weight read some of its rows."""
    aliases, found = [weight], False
    while aliases:
        for use in aliases.pop().uses:
            op = use.operation
            if is_view(op):
                aliases += op.results
            elif isinstance(op, Experts | Lookup) or (is_gather(op) and use.index == 0):
                found = True
            else:
                return False
    return found
