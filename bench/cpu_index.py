"""Selection from the candidate pool against selection over all entries, at contexts from 4K to 256K.

The released indexer: 32 heads of 128 channels, 512 of 2,048 blocks of 8 entries, ratio 1. The query rows are the last
of one sequence; their pools are what the candidate source publishes for each of them. Both kernels give equal entries,
which is checked. `--rows 1` is a decode step, more are the end of a prefill chunk. Times are CPU time of the
process, so that other work on the machine counts only for what it takes of caches and memory.

    python -m dsv41c.bench.cpu_index --rows 1
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable

import click
import torch
from torch import Tensor

from dsv41c.models import quant
from dsv41c.runtime.kernels import index_topk
from dsv41c.runtime.kernels.binding import LaunchContext

HEADS, CHANNELS, PAGE = 32, 128, 64
RULE = {"ratio": 1, "k": 512, "page": PAGE, "block": 8}
BLOCKS = 2048
CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072, 262144)


def sequence(context: int, rows: int, generator: torch.Generator) -> list[Tensor]:
    """Query, weights, cache, pages, sequence, positions of the last `rows` rows of a sequence in shuffled pages."""
    pages = -(-context // PAGE)
    keys = torch.randn(pages * PAGE, CHANNELS, generator=generator).bfloat16()
    packed = quant.quantize(keys, "fp4_e8m0").view(pages, PAGE, -1)
    data = CHANNELS // 2
    cache = torch.cat((packed[:, :, :data].flatten(1), packed[:, :, data:].flatten(1)), dim=1)
    order = torch.randperm(pages, generator=generator)
    query = quant.fake_quantize(torch.randn(rows, HEADS, CHANNELS, generator=generator).bfloat16(), "fp4_e8m0")
    weights = torch.randn(rows, HEADS, generator=generator).bfloat16()
    table = torch.empty(1, pages, dtype=torch.int64)
    table[0, order] = torch.arange(pages)
    shuffled = cache[order].contiguous()
    positions = torch.arange(context - rows, context)
    return [query, weights, shuffled, table, torch.zeros(rows, dtype=torch.int64), positions]


def seconds(run: Callable[[], object], rounds: int) -> float:
    """The median CPU time of a call after one that warms up."""
    run()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times)


def measure(context: int, rows: int, rounds: int) -> dict[str, float | int]:
    """CPU milliseconds of both kernels at one context."""
    arguments = sequence(context, rows, torch.Generator().manual_seed(context))
    constants = tuple(arguments[2] if i == 2 else None for i in range(7))
    source = index_topk.bind(LaunchContext({**RULE, "n_blocks": BLOCKS}, constants))
    _, pool = source([*arguments, None])
    masked = index_topk.bind(LaunchContext({**RULE, "n_blocks": 0}, constants))
    pooled = index_topk.bind_pool(LaunchContext(RULE, constants))
    given = [*arguments, pool]
    if not torch.equal(masked(given)[0], pooled(given)[0]):
        raise click.ClickException(f"the kernels disagree at a context of {context}")
    all_ms, pool_ms = (1e3 * seconds(lambda run=run: run(given), rounds) for run in (masked, pooled))
    return {
        "context": context,
        "rows": rows,
        "all_ms": round(all_ms, 2),
        "pool_ms": round(pool_ms, 2),
        "ratio": round(all_ms / pool_ms, 2),
    }


@click.command()
@click.option("--rows", default=1, help="Query rows.")
@click.option("--rounds", default=5, help="Timed calls; the median counts.")
@click.option("--threads", default=1, help="Threads of torch.")
def main(rows: int, rounds: int, threads: int) -> None:
    """Print one JSON line a context."""
    torch.set_num_threads(threads)
    print(json.dumps({"machine": platform.processor() or platform.machine(), "cores": os.cpu_count()}))
    for context in CONTEXTS:
        print(json.dumps(measure(context, rows, rounds)), flush=True)


if __name__ == "__main__":
    main()
