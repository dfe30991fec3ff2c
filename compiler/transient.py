"""The bytes that a program of launches holds at its peak, weights and caches aside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from dsv41c.compiler.launch_list import NOTES
from dsv41c.ir.dims import Assignment
from dsv41c.ir.ops.custom import plain
from dsv41c.ir.ops.program import Launch
from dsv41c.ir.ops.table import Shaped
from dsv41c.ir.shapes import ShapeEvaluator
from dsv41c.ir.types import CacheType, TensorType
from dsv41c.runtime.kernels.scratch import scratch_bytes

INDEX_KERNELS = frozenset({"index_topk", "index_pool_topk"})


@dataclass(frozen=True)
class Transient:
    """Bytes at the peak of one run.

    Attributes:
        bytes: inputs, values between launches, and what reference kernels allocate while they run. What a compiled
            kernel needs inside is not counted.
        indexer_bytes: the indexer's largest share at any launch: scratch of its kernels, their lists, and the
            integer tensors that are computed from these lists.
    """

    bytes: int
    indexer_bytes: int


def transient_peak(func: FuncOp, assignment: Assignment) -> Transient:
    """Follow a program of launches and free each value after its last reader, as the runtime does.

    Args:
        func: a lowered program.
        assignment: a value for each of its symbols; pools hold as many pages as the batch needs.
    """
    evaluator = ShapeEvaluator(assignment)
    launches = [op for op in func.body.block.ops if isinstance(op, Launch)]
    last = {operand: i for i, op in enumerate(launches) for operand in op.operands}
    kept = {*func.args, *(func.body.block.last_op.operands if func.body.block.last_op else ())}
    listed = _index_values(launches)
    live: dict[SSAValue, int] = {
        value: _bytes(value, evaluator) for value in func.args if isinstance(value.type, TensorType)
    }
    peak = indexer_peak = 0
    for i, op in enumerate(launches):
        live |= {value: _bytes(value, evaluator) for value in op.results if isinstance(value.type, TensorType)}
        scratch = scratch_bytes(op.kernel.data, _shapes(op, evaluator), _attrs(op))
        lists = sum(size for value, size in live.items() if value in listed)
        peak = max(peak, sum(live.values()) + scratch)
        indexer_peak = max(indexer_peak, lists + (scratch if op.kernel.data in INDEX_KERNELS else 0))
        for value in (*op.operands, *op.results):
            if value not in kept and last.get(value, i) == i:
                live.pop(value, None)
    return Transient(peak, indexer_peak)


def _index_values(launches: list[Launch]) -> set[SSAValue]:
    """The indexer's lists and the integers that are computed from them, such as cache slots."""
    found: set[SSAValue] = set()
    for op in launches:
        if op.kernel.data in INDEX_KERNELS or found.intersection(op.operands):
            found |= {value for value in op.results if _is_integer(value)}
    return found


def _is_integer(value: SSAValue) -> bool:
    return isinstance(value.type, TensorType) and value.type.element.startswith(("si", "ui"))


def _bytes(value: SSAValue, evaluator: ShapeEvaluator) -> int:
    found = evaluator.value(value)
    assert isinstance(found, Shaped)
    return found.bytes


def _shapes(op: Launch, evaluator: ShapeEvaluator) -> list[tuple[int, ...] | None]:
    return [None if slot is None else _shape(slot, evaluator) for slot in op.slots()]


def _shape(value: SSAValue, evaluator: ShapeEvaluator) -> tuple[int, ...]:
    type_ = value.type.storage if isinstance(value.type, CacheType) else value.type
    found = evaluator.declared(type_)
    assert isinstance(found, Shaped)
    return found.shape


def _attrs(op: Launch) -> Mapping[str, Any]:
    return {name: plain(value) for name, value in op.attributes.items() if name not in NOTES}
