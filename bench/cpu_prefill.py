"""A prefill of 4K tokens on the CPU: `encode` and `tail` against all layers everywhere, from one plan in one process.

    python bench/cpu_prefill.py
    python bench/cpu_prefill.py --tokens 1024 --rounds 1 --kernel-cache

The model is generated: 103M parameters in eight layers of which four lie above the last KV source, like the released
model's forty and twenty. Both ways serve the same prompt through the engine, in chunks of 512 rows, and end with the
first new token; they take turns, round after round.

    exact      step over every chunk
    bounded    encode over every chunk, then tail over the last window of rows

Both clocks are in the result, the wall's and the processor's, with the load average: on a busy machine the second says
more.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
from cpu_step import conditions
from generate_checkpoint import generate
from rich.console import Console
from rich.table import Table

from dsv41c.compiler.codegen.mlir.iree import KernelCache
from dsv41c.compiler.driver import CompileOptions, compile_checkpoint
from dsv41c.runtime.engine import PREFILLS, Engine
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.sampling import SamplingParams

PAGE_TOKENS = 16
SIZE = "100m"


def engines(folder: Path, options: argparse.Namespace) -> dict[str, Engine]:
    """Compiles the model and loads the plan once for each way."""
    generate(folder / "model", SIZE, max_positions=options.tokens + 64)
    cache = KernelCache.default() if options.kernel_cache else KernelCache(None)
    compile_checkpoint(folder / "model", folder / "plan", CompileOptions(page_tokens=PAGE_TOKENS, cache=cache))
    plan = Plan.load(folder / "plan")
    return {way: Engine(plan, max_sequences=1, threads=options.threads, prefill=way) for way in PREFILLS}


def seconds_of(engine: Engine, prompt: list[int]) -> float:
    """From the prompt to its first new token."""
    start = time.perf_counter()
    engine.generate([prompt], SamplingParams(max_new_tokens=1, stop_at_eos=False))
    return time.perf_counter() - start


def measure(ways: dict[str, Engine], options: argparse.Namespace) -> dict[str, list[float]]:
    """Processor and wall time of each round, by way; processor time is what a busy machine leaves comparable."""
    vocab = next(iter(ways.values())).config.vocab_size
    prompt = torch.randint(4, vocab, (options.tokens,), generator=torch.Generator().manual_seed(1)).tolist()
    for engine in ways.values():
        seconds_of(engine, prompt[:600])
    times: dict[str, list[float]] = {f"{way} {clock}": [] for way in ways for clock in ("wall", "processor")}
    for _ in range(options.rounds):
        for way, engine in ways.items():
            start = time.process_time()
            times[f"{way} wall"].append(seconds_of(engine, prompt))
            times[f"{way} processor"].append(time.process_time() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of torch and of the plan")
    parser.add_argument("--kernel-cache", action="store_true", help="take compiled kernels from the cache")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "cpu_prefill.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console(width=100)
    with tempfile.TemporaryDirectory() as folder:
        ways = engines(Path(folder), options)
        started = os.getloadavg()[0]
        times = measure(ways, options)
    medians = {name: statistics.median(values) for name, values in times.items()}
    table = Table(title=f"{options.tokens} tokens, medians of {options.rounds} rounds, load average {started:.1f}")
    for column in ("clock", *ways, "ratio"):
        table.add_column(column, justify="right")
    ratios = {}
    for clock in ("wall", "processor"):
        exact, bounded = (medians[f"{way} {clock}"] for way in ("exact", "bounded"))
        ratios[clock] = round(exact / bounded, 2)
        table.add_row(clock, f"{exact:.2f} s", f"{bounded:.2f} s", f"{exact / bounded:.2f}")
    console.print(table)
    result = {
        "conditions": asdict(conditions(options)),
        "tokens": options.tokens,
        "load_average_before": round(started, 2),
        "seconds": {name: [round(value, 3) for value in values] for name, values in times.items()},
        "ratio": ratios,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    console.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
