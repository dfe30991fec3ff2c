"""Runs a plan's step on the last rows of a long context and prints what its allocators counted at their peaks.

    python measure_peak.py PLAN ROWS CONTEXT

A process of its own: IREE counts for all devices of a process together.
"""

import itertools
import json
import sys

import iree.runtime
import torch
from torch.profiler import ProfilerActivity, profile

from dsv41c.models.rows import Chunk, step_inputs
from dsv41c.runtime import iree_device
from dsv41c.runtime.executor_cpu import CpuExecutor
from dsv41c.runtime.plan import Plan


def uncached_device(driver: str, threads: int | None) -> iree.runtime.HalDevice:
    """A device that gives freed buffers back at once, so that its count is of what is in use."""
    found = iree.runtime.get_driver(driver)
    return found.create_device(found.query_available_devices()[0])


def main(folder: str, rows: int, context: int) -> None:
    """Caches hold one small code everywhere, so that all keys are finite and their scores tie."""
    torch.set_num_threads(1)
    iree_device._create_device = uncached_device
    plan = Plan.load(folder)
    pages = list(range(-(-context // plan.manifest.page_tokens)))
    caches = {spec.name: spec.empty({"pages": len(pages), "rings": 1}[spec.pool]) for spec in plan.manifest.state}
    for cache in caches.values():
        cache.fill_(0x21 if cache.dtype == torch.uint8 else 1)
    executor = CpuExecutor(plan, caches)
    inputs = step_inputs([Chunk([5 + i % 50 for i in range(rows)], context - rows, 0, pages)], [rows - 1])
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        executor.run("step", inputs)
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    torch_peak = max(itertools.accumulate(change for _, change in changes))
    iree_peak = executor._device._device.allocator.statistics["device_bytes_peak"]
    print(json.dumps({"torch": torch_peak, "iree": iree_peak}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
