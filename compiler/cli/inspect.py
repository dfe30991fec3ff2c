"""`dsv41c inspect`: what a plan holds; loads no part of the compiler."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from dsv41c.compiler.cli.output import bytes_text, console, table
from dsv41c.runtime.inspect import describe, explain
from dsv41c.runtime.plan import Plan

_GPU_NUMBERS = ("registers", "spill_bytes", "shared_bytes", "load_bits")


@click.command("inspect", short_help="Show what a plan holds.")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Where the checkpoint lies now, if it was moved.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--explain-kernel",
    metavar="NAME",
    help="For each GPU target: the tile a kernel was compiled in, where it comes from, and why others were not taken.",
)
def inspect_command(plan: Path, checkpoint: Path | None, as_json: bool, explain_kernel: str | None) -> None:
    """Shows what a plan holds: programs, kernels with their band, caches, weights, bytes.

    Everything is read from the plan's files after their digests were checked; nothing is executed.

    \b
    Example:
      dsv41c inspect plans/mini6
      dsv41c inspect plans/mini6 --json | jq .resident_bytes
      dsv41c inspect plans/mini6-gpu --explain-kernel gemm_fp8_tiled
    """
    opened = Plan.load(plan, checkpoint=checkpoint, target=None)
    if explain_kernel is not None:
        explained = explain(opened, explain_kernel)
        click.echo(json.dumps(explained) if as_json else "\n".join(map(_explained, explained)))
        return
    found = describe(opened)
    if as_json:
        click.echo(json.dumps(found))
        return
    out = console()
    gpus = [one["name"] for one in found["targets"] if one["name"] != "cpu"]
    on_gpus: list[Callable[[dict[str, Any]], Table]] = [partial(_gpu_kernels, target=target) for target in gpus]
    on_cpu = [_programs, _kernels] if found["programs"] else []
    for part in (_facts, *on_cpu, *([_gpu_programs] if gpus else []), *on_gpus, _state, _weights, _bytes):
        out.print(part(found))
        out.print()
    for name, bill in _bills(found).items():
        for table_of in _bill_parts(bill):
            out.print(table_of(bill, name))
            out.print()
    if found["reference_kernels"]:
        names = ", ".join(found["reference_kernels"])
        note = "kernels run as torch functions of the runtime, not compiled code"
        out.print(f"[yellow]reference[/] {note}: {names}", soft_wrap=True)


def _facts(found: dict[str, Any]) -> Table:
    ranges = ", ".join(f"{name} {low}..{high}" for name, (low, high) in found["shape_ranges"].items())
    rows = [
        ("format", found["format"]),
        *(("target", f"{one['name']}: {' '.join(one['features'])}") for one in found["targets"]),
        ("checkpoint", found["checkpoint"]),
        ("tokenizer", found["tokenizer"] or "none"),
        ("sizes", ranges),
        ("page", f"{found['page_tokens']} tokens"),
        ("passes", ", ".join(record["name"] for record in found["passes"])),
        ("made by", ", ".join(f"{name} {version}" for name, version in found["tools"].items())),
    ]
    return table(found["path"], ("what", "value"), rows)


def _programs(found: dict[str, Any]) -> Table:
    rows = [
        (name, program["launches"], ", ".join(one["name"] for one in program["inputs"]), ", ".join(program["outputs"]))
        for name, program in found["programs"].items()
    ]
    return table("programs", ("program", "launches", "inputs", "outputs"), rows, ("launches",))


def _kernels(found: dict[str, Any]) -> Table:
    programs = found["programs"]
    rows = [
        (
            kernel["name"],
            _marked(kernel["band"]),
            _marked(kernel["kind"]),
            *(_launches(program, kernel["name"]) for program in programs.values()),
            bytes_text(kernel["bytes"]) if kernel["file"] else "",
        )
        for kernel in found["kernels"]
        if kernel["kind"] != "triton"
    ]
    numbers = [f"launches in {name}" for name in programs]
    return table("kernels", ("kernel", "band", "kind", *numbers, "size"), rows, (*numbers, "size"))


def _gpu_kernels(found: dict[str, Any], target: str) -> Table:
    rows = [
        (kernel["name"], kernel["band"], *(gpu[name] for name in _GPU_NUMBERS), ", ".join(gpu["mma"]), gpu["chosen"])
        for kernel in found["kernels"]
        if kernel["target"] == target and (gpu := kernel["gpu"]) is not None
    ]
    numbers = [name.replace("_", " ") for name in _GPU_NUMBERS]
    return table(f"kernels for {target}", ("kernel", "band", *numbers, "MMA", "tile"), rows, numbers)


def _explained(one: dict[str, Any]) -> str:
    tile = ", ".join(f"{name} {value}" for name, value in one["tile"].items())
    refused = "".join(f"\n  not taken: {reason}" for reason in one["refused"])
    return f"{one['kernel']} for {one['target']}: {tile}\n  {one['reason']}{refused}"


def _launches(program: dict[str, Any], kernel: str) -> str:
    """How often a program launches a kernel, or from within which other kernel."""
    if kernel in program["bodies"]:
        return f"by {program['bodies'][kernel]}"
    return str(program["launches_by_kernel"].get(kernel, ""))


def _marked(word: str) -> str:
    return f"[yellow]{word}[/]" if word == "reference" else word


def _state(found: dict[str, Any]) -> Table:
    rows = [
        (
            spec["name"],
            spec["row_format"],
            spec["pool"],
            spec["page"],
            bytes_text(spec["page_bytes"]),
            spec["lifetime"],
            spec["restored"],
            spec["rollback"],
        )
        for spec in found["state"]
    ]
    columns = ("cache", "row format", "pool", "rows a page", "page", "lifetime", "restored", "rollback")
    return table("state", columns, rows, ("rows a page", "page"))


def _weights(found: dict[str, Any]) -> Table:
    sizes: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for weight in found["weights"].values():
        size = sizes[weight["source"], weight["dtype"]]
        for i, count in enumerate((1, weight["tensors"], weight["bytes"])):
            size[i] += count
    rows = [(*key, symbols, tensors, bytes_text(n)) for key, (symbols, tensors, n) in sorted(sizes.items())]
    numbers = ("symbols", "tensors", "size")
    return table("weights", ("source", "type", *numbers), rows, numbers)


def _bytes(found: dict[str, Any]) -> Table:
    return table("bytes", ("what", "size"), _resident(found), ("size",))


def _resident(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, size in found["resident_bytes"].items():
        yield f"resident: {name.replace('_', ' ')}", bytes_text(size)
    if "global_cache_bytes_per_token" in found:
        yield "paged caches, a token", bytes_text(found["global_cache_bytes_per_token"])
        yield "windows, a sequence, drafts included", bytes_text(found["window_bytes_per_sequence"])
    yield "all rings of the backbone, a sequence", bytes_text(found["ring_bytes_per_sequence"])


def _gpu_programs(found: dict[str, Any]) -> Table:
    rows = [
        (name, program["of"], program["launches"], bucket["rows"], bytes_text(bucket["arena_bytes"]))
        for name, program in found["gpu_programs"].items()
        for bucket in program["buckets"]
    ]
    numbers = ("launches", "rows up to", "values")
    return table("programs on GPUs", ("program", "computes", *numbers), rows, numbers)


def _bills(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The bills of a plan by what they are for: its only one, or the CPU's and that of its GPUs."""
    return {"cpu": found, "GPUs": found["gpu"]} if "gpu" in found else {"": found}


def _bill_parts(bill: dict[str, Any]) -> list[Callable[[dict[str, Any], str], Table]]:
    """The tables of a bill; a plan that was not made by the compiler may lack some."""
    parts = {"kernels_per_layer": _launches_by_kind, "step_cost": _step_cost, "transient_peak_bytes": _transient}
    return [part for key, part in parts.items() if key in bill]


def _titled(title: str, of: str) -> str:
    return f"{title}, {of}" if of else title


def _launches_by_kind(found: dict[str, Any], of: str) -> Table:
    rows = [(kind, forms["prefill"], forms["decode"]) for kind, forms in found["kernels_per_layer"].items()]
    whole = found["launches_per_step"]
    rows.append(("whole step", whole["prefill"], whole["decode"]))
    return table(_titled("launches", of), ("layer", "prefill", "decode"), rows, ("prefill", "decode"))


def _step_cost(found: dict[str, Any], of: str) -> Table:
    rows = [
        (
            one["context"],
            ", ".join(f"{precision} {_giga(count)}" for precision, count in one["flops"].items()),
            _giga(one["flops_bf16_equivalent"]),
            bytes_text(one["bytes"]),
            bytes_text(one["minimal_bytes"]),
        )
        for one in found["step_cost"]
    ]
    numbers = ("context", "as bf16", "moved", "least")
    return table(_titled("decode step in GFLOP", of), ("context", "by precision", *numbers[1:]), rows, numbers)


def _giga(count: float) -> str:
    return f"{count / 1e9:.3g}"


def _transient(found: dict[str, Any], of: str) -> Table:
    rows = [
        (one["chunk"], one["context"], bytes_text(one["bytes"]), bytes_text(one["indexer_bytes"]))
        for one in found["transient_peak_bytes"]
    ]
    columns = ("rows", "context", "peak", "indexer's share")
    return table(_titled("transient bytes", of), columns, rows, columns)
