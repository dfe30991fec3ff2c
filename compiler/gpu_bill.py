"""The bill of a plan's GPU programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from xdsl.dialects.func import FuncOp

from dsv41c.compiler.bill import Programs, contexts_of, sizes_of, state_bill, step_cost
from dsv41c.compiler.gpu_programs import DECODE, GpuPrograms
from dsv41c.compiler.layers import launches_by_kind
from dsv41c.ir.dims import evaluate
from dsv41c.ir.types import dtype_of
from dsv41c.models.config import ModelConfig
from dsv41c.runtime.plan_format import DeviceBuffer, DeviceProgram

__all__ = ["gpu_bill_of"]

_INDEXER = "indexer"  # the family of its kernels


def gpu_bill_of(
    config: ModelConfig, page_tokens: int, network: FuncOp, step: FuncOp, made: GpuPrograms, highest: Mapping[str, int]
) -> dict[str, Any]:
    """The bill of a plan's GPU programs: the keys of `bill.bill_of`, counted on what a GPU launches.

    Args:
        config, page_tokens: as of `bill.bill_of`.
        network: as of `bill.Programs`.
        step: the step program as it was lowered for GPUs.
        made: the GPU programs.
        highest: largest value by symbol. A bucket's memory is for the longest context, so peaks are stated for that.
    """
    forms = {"prefill": str(made.programs[DECODE].of), "decode": DECODE}
    by_kind = {form: launches_by_kind(step, config, made.counts[name]) for form, name in forms.items()}
    context = min(highest["P"] * page_tokens, config.max_position_embeddings)
    buckets = [(bucket, name) for name in forms.values() for bucket in made.programs[name].buckets]
    peaks = {
        bucket.rows: {
            "chunk": bucket.rows,
            "context": context,
            "bytes": bucket.arena,
            "indexer_bytes": _indexer_bytes(made, name, {**highest, **sizes_of(bucket.rows, context, page_tokens)}),
        }
        for bucket, name in buckets
    }
    programs = Programs(network, step, step, {name: (1, high) for name, high in highest.items()})
    return {
        **state_bill(config, page_tokens),
        "kernels_per_layer": {kind: {form: by_kind[form][kind] for form in forms} for kind in by_kind["prefill"]},
        "launches_per_step": {form: len(made.programs[name].launches) for form, name in forms.items()},
        "transient_peak_bytes": [peaks[rows] for rows in sorted(peaks)],
        "step_cost": [step_cost(config, programs, context, page_tokens) for context in contexts_of(config)],
    }


def _indexer_bytes(made: GpuPrograms, name: str, sizes: Mapping[str, int]) -> int:
    """What the launches of the indexer's kernels read and write of a program's own values, the largest of them."""
    program, found = made.programs[name], 0
    for launch in program.launches:
        if made.kernels[launch.kernel].family != _INDEXER:
            continue
        buffers = {arg for arg in launch.args if isinstance(arg, str) and arg[:1] == "%"} & _own(program)
        found = max(found, sum(_bytes_of(program.buffers[arg[1:]], sizes) for arg in buffers))
    return found


def _own(program: DeviceProgram) -> set[str]:
    return {f"%{name}" for name in program.buffers}


def _bytes_of(buffer: DeviceBuffer, sizes: Mapping[str, int]) -> int:
    return math.prod(evaluate(size, sizes) for size in buffer.shape) * dtype_of(buffer.dtype).itemsize
