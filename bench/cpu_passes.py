"""What each rewrite brings on the CPU: plans of one checkpoint, each without one pass, against the plan with all.

    python bench/cpu_passes.py                  mini6
    python bench/cpu_passes.py --models 100m

One process, one sequence; plans are timed in turn, round after round. A ratio is the median, over rounds, of the time
without the pass by the time with all: above one, the pass makes the step faster. Launches and bytes held at the peak
say what a pass changes that the CPU's time does not show.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from cpu_step import CASES, PAGE_TOKENS, conditions, empty_caches, inputs_of, seconds_of
from generate_checkpoint import GOLDEN, generate, lengthened
from rich.console import Console
from rich.table import Table

from dsv41c.compiler.codegen.mlir.iree import KernelCache
from dsv41c.compiler.driver import CompileOptions, compile_checkpoint
from dsv41c.models.checkpoint import Checkpoint
from dsv41c.runtime.executor_cpu import CpuExecutor
from dsv41c.runtime.plan import Plan

PASSES = (
    "group-csa2",
    "restrict-candidates",
    "delay-mhc",
    "lower-fp8-window",
    "lower-fp4-kv",
    "lower-index-k",
    "lower-experts",
    "lower-linear",
    "lower-sparse-attention",
    "merge-projections",
    "fuse-rows",
    "schedule",
)
ALL = "all passes"


def compiled(checkpoint: Path, folder: Path, skip: str) -> Plan:
    """The plan without a pass; step and its form for one row, which is what is timed."""
    options = CompileOptions(
        page_tokens=PAGE_TOKENS, cache=KernelCache.default(), skip=frozenset({"split-ced", skip}) - {ALL}
    )
    return Plan.load(compile_checkpoint(checkpoint, folder / skip.replace(" ", "_"), options))


def bench_model(name: str, folder: Path, rounds: int, threads: int, console: Console) -> dict[str, Any]:
    """Compiles, measures and prints one model."""
    checkpoint = folder / name
    if name == "mini6":
        lengthened(GOLDEN / "mini6", checkpoint)
    else:
        generate(checkpoint, name)
    plans: dict[str, Plan] = {}
    for one in (ALL, *PASSES):
        console.print(f"{name}: compile without {one}" if one != ALL else f"{name}: compile with all passes")
        plans[one] = compiled(checkpoint, folder, one)
    opened = Checkpoint.open(checkpoint)
    executors = {one: CpuExecutor(plan, empty_caches(opened), threads) for one, plan in plans.items()}
    found: dict[str, Any] = {}
    for case, (rows, context) in CASES.items():
        filling, inputs = (
            inputs_of(*sizes, opened.config.vocab_size) for sizes in ((max(context, 1), 0), (rows, context))
        )
        times: dict[str, list[float]] = {one: [] for one in plans}
        for executor in executors.values():
            executor.run("step", filling)
            executor.run("step", inputs)
        for start in range(rounds):
            # Each round begins with another plan: the place in a round has cost some percent.
            for one in rotated(list(executors), start):
                run = executors[one].run
                times[one].append(seconds_of(lambda given, run=run: run("step", given)["logits"], inputs))
        form = executors[ALL].form_for("step", inputs)
        found[case] = {one: _figures(times, plans, one, form, rows) for one in plans}
        _print(name, case, found[case], console)
    return found


def rotated(names: list[str], start: int) -> list[str]:
    """Names in their order, from another one on."""
    start %= len(names)
    return names[start:] + names[:start]


def _figures(
    times: Mapping[str, list[float]], plans: Mapping[str, Plan], one: str, form: str, rows: int
) -> dict[str, Any]:
    peaks = {peak["chunk"]: peak["bytes"] for peak in plans[one].manifest.bill["transient_peak_bytes"]}
    ratios = [without / full for without, full in zip(times[one], times[ALL], strict=True)]
    return {
        "milliseconds": round(statistics.median(times[one]) * 1e3, 3),
        "ratio": round(statistics.median(ratios), 3),
        "launches": len(plans[one].programs[form].launches),
        "peak_bytes": peaks[min(peaks, key=lambda chunk: abs(chunk - rows))],
    }


def _print(name: str, case: str, figures: dict[str, Any], console: Console) -> None:
    table = Table(title=f"{name}, {case}: each pass left out")
    for column in ("without", "ms", "times as long", "launches", "peak KiB"):
        table.add_column(column, justify="left" if column == "without" else "right")
    for one, own in figures.items():
        label = "nothing" if one == ALL else one
        cells = (f"{own['milliseconds']:.2f}", f"{own['ratio']:.2f}", own["launches"], own["peak_bytes"] >> 10)
        table.add_row(label, *map(str, cells))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["mini6"], choices=["mini6", "100m"])
    parser.add_argument("--rounds", type=int, default=13)
    parser.add_argument("--threads", type=int, default=1, help="of torch and of the plan")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "cpu_passes.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console(width=120)
    result: dict[str, Any] = {"conditions": asdict(conditions(options)), "models": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            found = bench_model(name, Path(folder), options.rounds, options.threads, console)
            result["models"][name] = found
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    console.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
