"""What a plan holds, as JSON values: `dsv41c inspect` prints this."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from dsv41c.errors import PlanError
from dsv41c.models.state import StateSpec
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.plan_format import ELEMENT_TYPES, DeviceProgram, Program, WeightEntry, to_json

_REASONS = {
    "tuned": "tuned: the fastest that was measured on this target",
    "default": "default: the first of the kernel's own tiles for this target; nothing was measured for it",
    "smaller": "smaller: the first of the kernel's own tiles that fits this target without spills",
}


def describe(plan: Plan) -> dict[str, Any]:
    """A plan's programs, kernels, caches and bytes.

    Args:
        plan: the plan.
    Returns:
        JSON values; all sizes in bytes.
    """
    manifest = plan.manifest
    names = {kernel.name for kernel in manifest.kernels}
    return {
        "path": str(plan.path),
        "format": manifest.format,
        "targets": to_json(manifest.targets),
        "shape_ranges": to_json(manifest.shape_ranges),
        "page_tokens": manifest.page_tokens,
        "passes": to_json(manifest.passes),
        "tools": manifest.tools,
        "checkpoint": str(plan.checkpoint),
        "tokenizer": manifest.tokenizer,
        "programs": {name: describe_program(program, names) for name, program in plan.programs.items()},
        "gpu_programs": {name: describe_gpu_program(program) for name, program in plan.device.items()},
        "kernels": [{**to_json(kernel), "bytes": _file_bytes(plan, kernel.file)} for kernel in manifest.kernels],
        "reference_kernels": sorted(kernel.name for kernel in manifest.kernels if kernel.kind == "reference"),
        "cache_formats": {spec.name: spec.row_format for spec in manifest.state},
        "state": [describe_state(spec) for spec in manifest.state],
        "ring_bytes_per_sequence": sum(ring_bytes(manifest.state, kind) for kind in ("window", "tail", "history")),
        "weights": {symbol: describe_weight(weight) for symbol, weight in manifest.weights.items()},
        "resident_bytes": resident_bytes(plan),
        "memory": manifest.memory,
        **manifest.bill,
    }


def explain(plan: Plan, kernel: str) -> list[dict[str, Any]]:
    """Which tile a GPU kernel was compiled in, for each target.

    Returns:
        `kernel`, `target`, `tile`, where it is `chosen` from and the `reason` in words, and why others were `refused`.
    Raises:
        PlanError: the plan has no GPU kernel of that name; the message lists those it has.
    """
    own = [one for one in plan.manifest.kernels if one.gpu is not None]
    found = [one for one in own if one.name == kernel]
    if not found:
        names = ", ".join(sorted({one.name for one in own})) or "none; compile it with --target cuda:sm_90, for example"
        raise PlanError(f"the plan has no GPU kernel {kernel!r}; it has {names}")
    return [
        {
            "kernel": one.name,
            "target": one.target,
            "tile": one.gpu.tile,
            "chosen": one.gpu.chosen,
            "reason": _REASONS[one.gpu.chosen],
            "refused": list(one.gpu.refused),
        }
        for one in found
        if one.gpu is not None
    ]


def describe_program(program: Program, kernels: Collection[str]) -> dict[str, Any]:
    """A program's interface, how often it launches each kernel, and which kernels run inside another one's launch."""
    return {
        "inputs": to_json(program.inputs),
        "caches": list(program.caches),
        "outputs": [output.name for output in program.outputs],
        "launches": len(program.launches),
        "launches_by_kernel": dict(sorted(Counter(launch.kernel for launch in program.launches).items())),
        "bodies": _bodies(program, kernels),
    }


def describe_gpu_program(program: DeviceProgram) -> dict[str, Any]:
    """What a GPU program computes, how often it launches each kernel, and the bytes of its values by rows of a call."""
    return {
        "of": program.of,
        "padded": program.padded,
        "launches": len(program.launches),
        "launches_by_kernel": dict(sorted(Counter(launch.kernel for launch in program.launches).items())),
        "buckets": [{"rows": bucket.rows, "arena_bytes": bucket.arena} for bucket in program.buckets],
    }


def _bodies(program: Program, kernels: Collection[str]) -> dict[str, str]:
    """The kernels that another kernel calls, because its launch names them among its attributes, with that kernel."""
    return {
        value: launch.kernel
        for launch in program.launches
        for value in launch.attrs.values()
        if isinstance(value, str) and value in kernels
    }


def describe_state(spec: StateSpec) -> dict[str, Any]:
    """A row of the state table with the bytes of one page."""
    return {**to_json(spec), "page_bytes": spec.page_bytes}


def describe_weight(weight: WeightEntry) -> dict[str, Any]:
    """A weight's type and size, and how many checkpoint tensors it consists of (0 for a derived one)."""
    return {
        "source": weight.source,
        "dtype": weight.dtype,
        "shape": list(weight.shape),
        "tensors": len(weight.parts),
        "bytes": _n_bytes(weight.dtype, weight.shape),
    }


def ring_bytes(specs: Sequence[StateSpec], kind: str) -> int:
    """Bytes that the rings of one kind take for each sequence."""
    return sum(spec.page_bytes for spec in specs if spec.pool == "rings" and spec.kind == kind)


def resident_bytes(plan: Plan) -> dict[str, int]:
    """Bytes that a loaded plan maps: checkpoint weights, derived weights, the kernels of the target that has most."""
    weights = plan.manifest.weights.values()
    derived = [weight for weight in weights if weight.source == "derived"]
    kernels: dict[str | None, set[str]] = defaultdict(set)
    for kernel in plan.manifest.kernels:
        if kernel.file is not None:
            kernels[kernel.target].add(kernel.file)
    # One tensor may be read under two symbols; it is mapped once.
    mapped = {(part.file, part.offset): part.bytes for weight in weights for part in weight.parts}
    bill = {
        "checkpoint_weights": sum(mapped.values()),
        "derived_weights": sum(_n_bytes(weight.dtype, weight.shape) for weight in derived),
        "kernels": max((sum(_file_bytes(plan, file) for file in files) for files in kernels.values()), default=0),
    }
    return {**bill, "total": sum(bill.values())}


def _file_bytes(plan: Plan, file: str | None) -> int:
    return (plan.path / file).stat().st_size if file is not None else 0


def _n_bytes(dtype: str, shape: Sequence[int]) -> int:
    count = ELEMENT_TYPES[dtype].itemsize
    for size in shape:
        count *= size
    return count
