"""One thread for every test, as the golden data was computed; and the golden models' plans, compiled once."""

import os
from pathlib import Path

import pytest
import torch
from shared_folders import GOLDEN, once, tree_hash

import dsv41c

# Read when Triton is first imported, which torch.export may do: tests/triton interpret kernels in this process, and
# kernels are compiled in processes of their own.
os.environ["TRITON_INTERPRET"] = "1"

PLAN_PAGE_TOKENS = 16


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def mini6_plan() -> Path:
    """The plan of mini6 for this CPU, 16 tokens a page."""
    return _golden_plan("mini6")


@pytest.fixture(scope="session")
def sched40_plan() -> Path:
    """The plan of sched40 for this CPU, 16 tokens a page."""
    return _golden_plan("sched40")


def _golden_plan(model: str) -> Path:
    from dsv41c.compiler.codegen.mlir.iree import KernelCache
    from dsv41c.compiler.driver import CompileOptions

    options = CompileOptions(page_tokens=PLAN_PAGE_TOKENS, jobs=os.cpu_count(), cache=KernelCache.default())
    return once(f"{model}-{tree_hash(model)}", lambda path: dsv41c.compile(GOLDEN / model, path, options))
