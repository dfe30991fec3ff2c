"""The bill of a plan: what stays in memory, what a step computes, moves and holds, how much is launched.

`dsv41c inspect` prints it; docs/costs.md says how each figure is counted and derives the released model's by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.func import FuncOp

from dsv41c.compiler.layers import launches_by_kind
from dsv41c.compiler.least_bytes import least_bytes
from dsv41c.ir.cost import cost_of
from dsv41c.ir.ops.program import Launch
from dsv41c.ir.ops.table import BF16_EQUIVALENT, bf16_equivalents
from dsv41c.ir.transient import transient_peak
from dsv41c.models.config import ModelConfig
from dsv41c.models.state import draft_state_specs, state_specs
from dsv41c.runtime.kernels.scratch import scratch_bytes

# Rows of a forward and tokens of its sequence at which costs are stated, as far as a plan's ranges go; where they end
# before, their end.
CHUNKS = (1, 512, 16384)
CONTEXTS = (4096, 65536, 1 << 20)


@dataclass(frozen=True)
class Programs:
    """What a bill is made from.

    Attributes:
        network: the step program after the rewrites of the network and before formats are chosen: its products still
            show which formats they multiply.
        prefill: the lowered step program for many rows.
        decode: the lowered step program for one row.
        ranges: (smallest, largest) value by symbol.
    """

    network: FuncOp
    prefill: FuncOp
    decode: FuncOp
    ranges: Mapping[str, tuple[int, int]]


def bill_of(config: ModelConfig, page_tokens: int, programs: Programs) -> dict[str, Any]:
    """The whole bill as JSON values; sizes in bytes.

    Returns:
        `state_bill`, and
        `kernels_per_layer`: layer kind -> {"prefill": launches, "decode": launches}, the most of a layer of the kind.
        `launches_per_step`: {"prefill": launches, "decode": launches}.
        `transient_peak_bytes`: a list of {chunk, context, bytes, indexer_bytes}.
        `step_cost`: a list of {context, flops by precision, flops_bf16_equivalent, bytes, minimal_bytes}, one row.
    """
    forms = {"prefill": programs.prefill, "decode": programs.decode}
    by_kind = {form: launches_by_kind(func, config) for form, func in forms.items()}
    contexts = contexts_of(config)
    return {
        **state_bill(config, page_tokens),
        "kernels_per_layer": {kind: {form: by_kind[form][kind] for form in forms} for kind in by_kind["prefill"]},
        "launches_per_step": {form: _launches(func) for form, func in forms.items()},
        "transient_peak_bytes": [
            _transient(programs, chunk, context, page_tokens)
            for context in contexts
            for chunk in sorted({min(chunk, context, programs.ranges["T"][1]) for chunk in CHUNKS})
        ],
        "step_cost": [step_cost(config, programs, context, page_tokens) for context in contexts],
    }


def contexts_of(config: ModelConfig) -> list[int]:
    """The contexts at which a model's costs are stated: those of `CONTEXTS` that it has, or its longest."""
    return [n for n in CONTEXTS if n <= config.max_position_embeddings] or [config.max_position_embeddings]


def sizes_of(rows: int, context: int, page_tokens: int) -> dict[str, int]:
    """The step program's symbols for the last rows of one sequence, whose pages are the whole pool.

    Args:
        rows: new tokens, of which the last one's logits are wanted.
        context: tokens of the sequence, the new ones included.
    """
    pages = -(-context // page_tokens)
    return {"T": rows, "B": 1, "P": pages, "R": 1, "N": pages, "S": 1}


def _launches(func: FuncOp) -> int:
    return sum(isinstance(op, Launch) for op in func.body.block.ops)


def _transient(programs: Programs, chunk: int, context: int, page_tokens: int) -> dict[str, int]:
    func = programs.decode if chunk == 1 else programs.prefill
    peak = transient_peak(func, sizes_of(chunk, context, page_tokens), scratch_bytes)
    return {"chunk": chunk, "context": context, "bytes": peak.bytes, "indexer_bytes": peak.indexer_bytes}


def step_cost(config: ModelConfig, programs: Programs, context: int, page_tokens: int) -> dict[str, Any]:
    """What one row computes and moves at a context: an element of the bill's `step_cost`."""
    sizes = sizes_of(1, context, page_tokens)
    flops = cost_of(programs.network, sizes).total.flops
    moved = cost_of(programs.decode, sizes).total
    return {
        "context": context,
        "flops": {precision: count for precision, count in flops.items() if BF16_EQUIVALENT[precision]},
        "flops_bf16_equivalent": int(bf16_equivalents(flops)),
        "bytes": moved.read + moved.written,
        "minimal_bytes": least_bytes(programs.network, sizes, config),
    }


def state_bill(config: ModelConfig, page_tokens: int) -> dict[str, Any]:
    """Bytes of the caches that grow with the tokens, and of the windows that every sequence has.

    Args:
        config: the model; its draft layers have windows too.
        page_tokens: tokens a page of the global caches.
    Returns:
        `global_cache_bytes_per_token` without the padding at a page's end (SPEC 11.2), and
        `window_bytes_per_sequence` of the backbone's and the draft layers' rings (SPEC 0).
    """
    specs = state_specs(config, page_tokens)
    windows = [spec for spec in (*specs, *draft_state_specs(config)) if spec.kind == "window"]
    paged = [spec for spec in specs if spec.pool == "pages"]
    return {
        "global_cache_bytes_per_token": sum(spec.row_width * spec.dtype.itemsize / spec.ratio for spec in paged),
        "window_bytes_per_sequence": sum(spec.page_bytes for spec in windows),
    }
