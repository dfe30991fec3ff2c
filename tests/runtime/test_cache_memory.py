"""Caches in a GPU's memory, over a driver that holds it in this machine's: the engine's pool reads and writes them."""

from pathlib import Path

import pytest
import torch
from gpu_plan import TARGETS
from host_driver import HostDriver

from dsv41c.errors import RequestError
from dsv41c.runtime.caches import CachePool
from dsv41c.runtime.call_check import CallCheck
from dsv41c.runtime.executor import CudaMemory, cuda_backend
from dsv41c.runtime.plan import Plan

PAGES, RINGS = 3, 2


@pytest.fixture
def gpu(gpu_plan: Path) -> tuple[Plan, CachePool, object]:
    plan = Plan.load(gpu_plan, target=TARGETS[0])
    executor, memory = cuda_backend(HostDriver())(plan, PAGES, RINGS, 1)  # type: ignore[arg-type]
    assert isinstance(memory, CudaMemory)
    return plan, CachePool(plan.manifest.state, plan.manifest.page_tokens, PAGES, RINGS, memory=memory), executor


def test_pages_and_rings_are_what_was_written_and_nothing_else_moves(gpu: tuple[Plan, CachePool, object]) -> None:
    plan, pool, _ = gpu
    draw = torch.Generator().manual_seed(1)
    want = {}
    for spec in plan.manifest.state:
        for number in range(PAGES if spec.pool == "pages" else RINGS):
            assert not pool.memory.read(spec.name, number).view(torch.uint8).any(), "zero at first"
            row = torch.randint(0, 100, (spec.page_width,), generator=draw).to(spec.dtype)
            pool.memory.write(spec.name, number, row)
            want[spec.name, number] = row
    for (name, number), row in want.items():
        assert torch.equal(pool.memory.read(name, number), row), (name, number)


def test_a_fork_copies_rings_within_the_gpu(gpu: tuple[Plan, CachePool, object]) -> None:
    plan, pool, _ = gpu
    first = pool.allot(plan.manifest.page_tokens)
    rings = {name: torch.full_like(row, 3) for name, row in pool.read_ring(first.ring).items()}
    pool.write_ring(first.ring, rings)
    second = pool.allot(0)
    pool.fork(first, second, plan.manifest.page_tokens)
    assert second.pages == first.pages
    assert second.ring != first.ring
    for name, row in pool.read_ring(second.ring).items():
        assert torch.equal(row, rings[name])


def test_what_a_program_stores_is_there(gpu: tuple[Plan, CachePool, object]) -> None:
    _, pool, executor = gpu
    executor.run("step", {"positions": torch.tensor([1])})  # type: ignore[attr-defined]
    rows = pool.memory.read("tail.1", 0)
    assert rows.any()
    assert not pool.memory.read("tail.1", 1).any()
    with pytest.raises(RequestError, match="the caches are in a GPU's memory, and a check of every call"):
        CallCheck(pool)
