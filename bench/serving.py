"""Serving on the CPU, in one run: throughput and latency over concurrency, prefix hits on and off, replay, and drift.

    python bench/serving.py
    python bench/serving.py --plan plans/mini6 --rounds 3

Without a plan, the small golden model is compiled first; a larger one needs a plan of its own. One engine serves in
this process, without the HTTP server, so that what is measured is the engine.

    concurrency     as many requests at the same time as the engine has sequences; all come at once
    prefix          one prompt's first token: cold, from a window state, and from a replay of the last window
    drift           logits of the same tokens: exact against bounded, with exact windows, and behind a replayed prefix

Times are the wall's; the processor's time stands beside them, since a busy machine changes only the first.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from cpu_step import conditions
from rich.console import Console
from rich.table import Table
from torch import Tensor

from dsv41c.compiler.codegen.mlir.iree import KernelCache
from dsv41c.compiler.driver import CompileOptions, compile_checkpoint
from dsv41c.runtime.engine import PREFILLS, Engine
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.prefix import PrefixOptions
from dsv41c.runtime.requests import Request
from dsv41c.runtime.sampling import SamplingParams

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "mini6"
CONCURRENCY = (1, 2, 4, 8, 16, 32)
NEW_TOKENS = 16
STATES, REPLAY = PrefixOptions(), PrefixOptions(state_bytes=0)

Row = dict[str, float | int | str]


def prompt_of(engine: Engine, length: int, seed: int) -> list[int]:
    """Random ids."""
    return torch.randint(4, engine.config.vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def first_token(engine: Engine, prompt: Sequence[int]) -> tuple[float, float, int]:
    """Wall and processor seconds to a prompt's first token, and how many of its tokens were cached."""
    wall, processor = time.perf_counter(), time.process_time()
    (done,) = engine.generate([prompt], SamplingParams(max_new_tokens=1, stop_at_eos=False))
    return time.perf_counter() - wall, time.process_time() - processor, done.cached_tokens


def over_concurrency(plan: Plan, options: argparse.Namespace) -> list[Row]:
    """All requests of a row come at once; the latency of a request counts from then."""
    rows: list[Row] = []
    for concurrency in CONCURRENCY:
        engine = Engine(plan, max_sequences=concurrency, threads=options.threads, prefill="bounded")
        first_token(engine, prompt_of(engine, options.tokens, 0))
        params = SamplingParams(max_new_tokens=NEW_TOKENS, stop_at_eos=False)
        requests = [engine.submit(prompt_of(engine, options.tokens, at), params) for at in range(2 * concurrency)]
        wall, processor = time.perf_counter(), time.process_time()
        first: dict[Request, float] = {}
        ended: dict[Request, float] = {}
        while len(ended) < len(requests):
            for request in engine.step():
                first.setdefault(request, time.perf_counter() - wall)
                if request.finished is not None:
                    ended[request] = time.perf_counter() - wall
        seconds, busy = time.perf_counter() - wall, time.process_time() - processor
        rows.append(
            {
                "concurrency": concurrency,
                "new tokens/s": round(len(requests) * NEW_TOKENS / seconds, 1),
                "per processor s": round(len(requests) * NEW_TOKENS / busy, 1),
                "first token, median s": round(statistics.median(first.values()), 4),
                "whole, median s": round(statistics.median(ended.values()), 4),
                "whole, worst s": round(max(ended.values()), 4),
            }
        )
    return rows


def prefixes(plan: Plan, options: argparse.Namespace) -> list[Row]:
    """First tokens of prompts that were seen before, without a prefix cache and with one."""
    ways = {"cold": None, "window state": STATES, "replay": REPLAY}
    rows: list[Row] = []
    for way, prefix in ways.items():
        engine = Engine(plan, max_sequences=1, threads=options.threads, prefill="bounded", prefix=prefix)
        taken = []
        for at in range(options.rounds + 1):
            prompt = prompt_of(engine, options.tokens, at)
            first_token(engine, prompt)
            taken.append(first_token(engine, prompt))
        # The first round warms up.
        wall, processor, cached = (statistics.median(column) for column in zip(*taken[1:], strict=True))
        rows.append(
            {
                "way": way,
                "cached tokens": int(cached),
                "of": options.tokens,
                "wall s": round(wall, 4),
                "processor s": round(processor, 4),
            }
        )
    return rows


def logits_of(engine: Engine, prompt: Sequence[int], forced: tuple[int, ...]) -> Tensor:
    """What each of the forced tokens would have been chosen from."""
    seen: list[Tensor] = []
    original = engine._take

    def take(request: Request, logits: Tensor) -> None:
        seen.append(logits.clone())
        original(request, logits)

    engine._take = take  # type: ignore[method-assign]
    engine.generate([prompt], SamplingParams(max_new_tokens=len(forced), forced_tokens=forced, stop_at_eos=False))
    del engine._take  # type: ignore[method-assign]
    return torch.stack(seen)


def drift(plan: Plan, options: argparse.Namespace) -> list[Row]:
    """How far logits of approximations lie from the exact ones, over several prompts; no bound is asserted."""
    exact, bounded = (Engine(plan, max_sequences=1, prefill=prefill) for prefill in PREFILLS)
    windows = Engine(plan, max_sequences=1, prefill="bounded", exact_window=True)
    replayed = Engine(plan, max_sequences=1, prefill="bounded", prefix=REPLAY)
    ways = {"bounded": bounded, "bounded, exact windows": windows, "bounded, replayed prefix": replayed}
    found: dict[str, list[Tensor]] = {way: [] for way in ways}
    agree: dict[str, list[float]] = {way: [] for way in found}
    deviation = []
    for at in range(options.rounds * 4):
        prompt, forced = prompt_of(exact, options.tokens, at), tuple(prompt_of(exact, 8, 100 + at))
        want = logits_of(exact, prompt, forced)
        deviation.append(float(want.std()))
        logits_of(replayed, prompt, forced)
        for way, engine in ways.items():
            ours = logits_of(engine, prompt, forced)
            found[way].append((ours - want).abs().amax(-1))
            agree[way].append(float((ours.argmax(-1) == want.argmax(-1)).float().mean()))
    return [
        {
            "way": way,
            "median of rows' largest": round(float(torch.cat(rows).median()), 3),
            "largest": round(float(torch.cat(rows).max()), 3),
            "same best token": f"{statistics.mean(agree[way]):.0%}",
            "logits' deviation": round(statistics.mean(deviation), 2),
        }
        for way, rows in found.items()
    ]


def show(console: Console, title: str, rows: Sequence[Row]) -> None:
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, help="a plan folder; the small golden model is compiled if absent")
    parser.add_argument("--tokens", type=int, default=150, help="of a prompt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of torch and of the plan")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "serving.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console(width=110)
    with tempfile.TemporaryDirectory() as folder:
        path = options.plan or Path(folder) / "plan"
        if options.plan is None:
            compile_checkpoint(GOLDEN, path, CompileOptions(page_tokens=16, cache=KernelCache.default()))
        plan = Plan.load(path)
        load = round(os.getloadavg()[0], 1)
        parts = {"concurrency": over_concurrency, "prefix": prefixes, "drift": drift}
        result = {name: measure(plan, options) for name, measure in parts.items()}
    for name, rows in result.items():
        show(console, f"{name}; prompts of {options.tokens} tokens, load average {load}", rows)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    described = {"conditions": asdict(conditions(options)), "tokens": options.tokens, "load_average_before": load}
    options.out.write_text(json.dumps({**described, **result}, indent=1) + "\n")
    console.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
