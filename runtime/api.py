"""The runtime's front door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsv41c.runtime.engine import Engine
from dsv41c.runtime.executor import cuda_backend
from dsv41c.runtime.executor_cuda import open_plan
from dsv41c.runtime.plan import Plan


def load(path: str | Path, *, checkpoint: str | Path | None = None, gpu: int | None = None, **options: Any) -> Engine:
    """Opens a plan and makes it ready to serve.

    Args:
        path: the plan folder.
        checkpoint: where the checkpoint lies now, if it was moved since the compilation.
        gpu: the number of the GPU to run it on; the CPU if absent.
        options: of `Engine`: max_sequences, cache_tokens, threads, row_multiple, poison, prefill.
    Returns:
        the engine.
    Raises:
        PlanError: the plan cannot be loaded here.
    """
    if gpu is None:
        return Engine(Plan.load(path, checkpoint=checkpoint), **options)
    plan, driver = open_plan(path, gpu, checkpoint)
    return Engine(plan, backend=cuda_backend(driver), **options)
