"""Launch lists on the CPU: reference kernels against the model's definitions, compiled ones, and values between."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hand_made import ENGRAM, EXPERT_WEIGHTS, hand_made_manifest
from torch import Tensor

from dsv41c.errors import PlanError
from dsv41c.models import ops, quant
from dsv41c.models.state import StateSpec
from dsv41c.runtime.caches import CachePool
from dsv41c.runtime.executor_cpu import CpuExecutor
from dsv41c.runtime.iree_device import aligned_empty
from dsv41c.runtime.kernels import load, registry, store
from dsv41c.runtime.kernels.binding import LaunchContext
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.plan_format import KernelEntry
from dsv41c.runtime.weights import Bundle


@pytest.fixture(scope="module")
def executor(finished_plan: Path) -> CpuExecutor:
    plan = Plan.load(finished_plan)
    pool = CachePool(plan.manifest.state, plan.manifest.page_tokens, 4, 3)
    return CpuExecutor(plan, pool.tensors)


def test_store_and_load_through_a_cache(executor: CpuExecutor) -> None:
    rows = torch.randint(0, 256, (5, 66), dtype=torch.uint8)
    slots = torch.tensor([0, 17, -1, 47, 16])
    found = executor.run("cache", {"rows": rows, "slots": slots, "read": torch.tensor([[17, 47], [16, 0]])})["found"]
    assert torch.equal(found, rows[[1, 3, 4, 0]].view(2, 2, 66))


def test_lookup_of_mapped_rows(executor: CpuExecutor) -> None:
    rows = torch.tensor([[0, 5], [7, 5]])
    values = executor.run("lookup", {"rows": rows})["values"]
    table, scale = (executor.weight(f"{ENGRAM}.{part}").tensor() for part in ("weight", "scale"))
    assert torch.equal(values, ops.lookup_definition(table, scale, rows))


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("n", [0, 1, 9])
def test_compiled_kernels_take_any_tensor(executor: CpuExecutor, start: int, n: int) -> None:
    a = aligned_empty((20,), torch.float32).normal_()[start : start + n]
    assert torch.equal(executor.run("negate", {"a": a})["b"], a)
    strided = torch.randn(n, 2)[:, 1]
    assert torch.equal(executor.run("negate", {"a": strided})["b"], strided)


def routing(rows: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(rows)
    x = quant.fake_quantize(torch.randn(rows, 128, generator=rng), "fp8_e8m0")
    ids = torch.stack([torch.randperm(8, generator=rng)[:2] for _ in range(rows)])
    return {"x": x, "ids": ids, "weights": torch.rand(rows, 2, generator=rng)}


@pytest.mark.parametrize("rows", [1, 2, 23])
def test_experts_equal_the_definition(executor: CpuExecutor, rows: int) -> None:
    inputs = routing(rows)
    if rows > 1:
        inputs["ids"][1, 0] = -1
    bundles = [executor.weight(symbol) for symbol in EXPERT_WEIGHTS]
    stacked = [torch.stack([bundle.tensor(e) for e in range(8)]) for bundle in bundles]
    assert all(isinstance(bundle, Bundle) and len(bundle) == 8 for bundle in bundles)
    want = ops.experts(*inputs.values(), *stacked, 10.0)
    assert torch.equal(executor.run("experts", inputs)["y"], want)


def test_compiled_expert_body_is_called_for_each_choice_of_a_row(executor: CpuExecutor) -> None:
    inputs = routing(1)
    # The hand-made body negates its row, and the row chose two experts.
    assert torch.equal(executor.run("compiled_experts", inputs)["y"], -2 * inputs["x"].float())


def spec_of(kind: str) -> StateSpec:
    return next(spec for spec in hand_made_manifest().state if spec.kind == kind)


@pytest.mark.parametrize("kind", ["window", "main", "index", "tail", "history"])
@pytest.mark.parametrize("rows", [0, 1, 6])
def test_store_and_load_equal_the_definitions(kind: str, rows: int) -> None:
    spec = spec_of(kind)
    cache = spec.empty(3)
    cache.view(torch.uint8).random_(0, 120)
    mine, theirs = cache.clone(), cache.clone()
    new = torch.randint(0, 100, (rows, spec.row_width)).to(spec.dtype)
    slots = torch.randperm(3 * spec.page)[:rows]
    slots[1:2] = -1
    where = {"row_format": spec.row_format, "page": spec.page}
    store.bind(LaunchContext(where, (mine, None, None)))([mine, new, slots])
    ops.store(theirs, new, slots, **where)
    assert torch.equal(mine, theirs)
    run = load.bind(LaunchContext({**where, "row_width": spec.row_width}, (mine, None)))
    read = torch.randint(-1, 3 * spec.page, (4, 2))
    want = ops.load_definition(theirs, read, spec.row_format, spec.page, spec.row_width)
    assert torch.equal(run([mine, read])[0], want)


def test_rotary_equals_the_definition() -> None:
    positions, frequencies = torch.tensor([0, 3, 130000]), torch.rand(8)
    run = registry.find("rotary").bind(LaunchContext({}, (None, None)))
    for mine, theirs in zip(run([positions, frequencies]), ops.rotary(positions, frequencies), strict=True):
        assert torch.equal(mine, theirs)


def test_launch_overhead(executor: CpuExecutor) -> None:
    """Python adds little to a compiled launch: 40 us is the budget, the median of many calls counts."""
    a = torch.ones(4)
    times = [t for _ in range(200) for _, t in executor.timed_run("negate", {"a": a}, time.perf_counter)]
    assert sorted(times)[len(times) // 2] < 40e-6


def test_refusals(executor: CpuExecutor, plan_folder: Path, rewrite: Callable[..., None]) -> None:
    with pytest.raises(PlanError, match=r"no program tail; it has step"):
        executor.run("tail", {})
    with pytest.raises(PlanError, match=r"takes a; missing: a"):
        executor.run("negate", {})
    with pytest.raises(PlanError, match=r"no reference kernel spin; it has attend, .*store"):
        registry.find("spin")
    kernels = tuple(KernelEntry(k.name, k.kind, k.band, k.file, f"{k.function}_2") if k.file else k
                    for k in hand_made_manifest().kernels)  # fmt: skip
    rewrite(kernels=kernels)
    plan = Plan.load(plan_folder)
    with pytest.raises(PlanError, match="negate_2"):
        CpuExecutor(plan, CachePool(plan.manifest.state, 16, 1, 1).tensors)
