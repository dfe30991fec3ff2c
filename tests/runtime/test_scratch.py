"""Scratch rules against what torch's allocator counts while a kernel runs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from dsv41c.models import ops, quant
from dsv41c.runtime.kernels import experts, index_topk, registry, scratch, sparse_attention
from dsv41c.runtime.kernels.binding import LaunchContext, Results

# A rule may promise more than one run takes, for other routings and values, but not another order of magnitude.
LOOSE = 3


def measured(run: Callable[[], Results]) -> int:
    """The largest sum of live allocations of a call, less its results."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        results = run()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    live = most = 0
    for _, change in changes:
        live += change
        most = max(most, live)
    return most - sum(result.nbytes for result in results)


def check(kernel: str, args: list[Tensor | None], caches: tuple[int, ...], **attrs: Any) -> tuple[int, int]:
    """Runs a kernel; gives measured and promised bytes after comparing them."""
    constants = tuple(arg if i in caches else None for i, arg in enumerate(args))
    run = registry.find(kernel).bind(LaunchContext(attrs, constants))
    run(list(args))  # tables and views that are made once
    found = measured(lambda: run(list(args)))
    shapes = [None if arg is None else tuple(arg.shape) for arg in args]
    promised = scratch.scratch_bytes(kernel, shapes, attrs)
    assert found <= promised, kernel
    assert promised <= LOOSE * found, kernel
    return found, promised


def index_args(rows: int, pages: int, page: int = 64, heads: int = 32, dim: int = 128) -> list[Tensor | None]:
    """The last rows of one sequence that fills its pages."""
    rng = torch.Generator().manual_seed(rows + pages)
    keys = torch.randn(pages, page, dim, generator=rng).to(torch.bfloat16)
    packed = quant.quantize(keys, "fp4_e8m0")
    split = dim // 2
    cache = torch.cat((packed[..., :split].flatten(1), packed[..., split:].flatten(1)), dim=1)
    positions = torch.arange(pages * page - rows, pages * page)
    query = torch.randn(rows, heads, dim, generator=rng).to(torch.bfloat16)
    weights = torch.randn(rows, heads, generator=rng).to(torch.bfloat16)
    return [query, weights, cache, torch.arange(pages)[None], torch.zeros(rows, dtype=torch.int64), positions, None]


@pytest.mark.parametrize(("rows", "pages"), [(64, 32), (256, 128), (1, 256)])
@pytest.mark.parametrize("budget", [index_topk.SCRATCH_BYTES, 4 << 20])
def test_index_topk(rows: int, pages: int, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_topk, "SCRATCH_BYTES", budget)
    check("index_topk", index_args(rows, pages), (2,), ratio=1, k=512, page=64, block=8, n_blocks=256)


def test_index_topk_of_several_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are not neighbours are copied, a tile at a time."""
    monkeypatch.setattr(index_topk, "SCRATCH_BYTES", 4 << 20)
    args = index_args(192, 64)
    args[3], args[4] = torch.arange(64).repeat(2, 1), torch.arange(192) % 2
    check("index_topk", args, (2,), ratio=1, k=512, page=64, block=8, n_blocks=256)


def pools(rows: int, blocks: int, pages: int) -> Tensor:
    rng = torch.Generator().manual_seed(1)
    found = [torch.randperm(pages * 8, generator=rng)[:blocks].sort().values for _ in range(rows)]
    return torch.stack(found).to(torch.int32)


def test_index_topk_with_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_topk, "SCRATCH_BYTES", 4 << 20)
    args = index_args(64, 64)
    args[6] = pools(64, 256, 64)
    check("index_topk", args, (2,), ratio=1, k=512, page=64, block=8, n_blocks=0)


@pytest.mark.parametrize("rows", [16, 128])
@pytest.mark.parametrize("pages", [256, 32])
@pytest.mark.parametrize("budget", [index_topk.SCRATCH_BYTES, 2 << 20])
def test_index_pool_topk(rows: int, pages: int, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools of 256 blocks among those of 16,384 entries, and pools that hold all entries."""
    monkeypatch.setattr(index_topk, "SCRATCH_BYTES", budget)
    args = index_args(rows, pages)
    args[6] = pools(rows, 256, pages)
    check("index_pool_topk", args, (2,), ratio=1, k=512, page=64, block=8)


@pytest.mark.parametrize(("page", "ratio"), [(128, 1), (64, 2)])
def test_the_released_indexer_at_its_largest(page: int, ratio: int) -> None:
    """16,384 rows at a context of 1,048,576: the goal leaves 64 MiB beside the lists."""
    rows, pages = 16384, (1 << 20) // ratio // page
    shapes: list[tuple[int, ...] | None] = [(rows, 32, 128), (rows, 32), (pages, page * 68), (1, pages)]
    shapes += [(rows,), (rows,)]
    attrs = {"ratio": ratio, "k": 512, "page": page, "block": 8}
    assert scratch.scratch_bytes("index_topk", [*shapes, None], {**attrs, "n_blocks": 2048}) <= 64 << 20
    assert scratch.scratch_bytes("index_pool_topk", [*shapes, (rows, 2048)], attrs) <= 64 << 20


def packed_rows(count: int, row_format: str, dim: int) -> Tensor:
    rng = torch.Generator().manual_seed(count)
    return quant.quantize(torch.randn(count, dim, generator=rng).to(torch.bfloat16), row_format)


def attention_args(rows: int, selected: int, neighbours: bool, heads: int = 8, dim: int = 128) -> list[Tensor | None]:
    """A chunk that starts a sequence's window anew, or rows in no order; each selects others of the main rows."""
    keys = 64 if neighbours else 32
    rng = torch.Generator().manual_seed(2)
    query = torch.randn(rows, heads, dim, generator=rng).to(torch.bfloat16)
    window = packed_rows(32, "fp8_e8m0", dim).reshape(1, -1)
    back = -2 - torch.arange(rows)[:, None] + torch.arange(keys - 1, -1, -1)
    index = back.clamp(max=-1) if neighbours else torch.randint(-rows - 1, 32, (rows, keys), generator=rng)
    main = packed_rows(4096, "fp4_e4m3", dim).reshape(64, -1) if selected else None
    slots = torch.randint(0, 4096, (rows, selected), generator=rng).to(ops.LIST) if selected else None
    return [query, window, packed_rows(rows, "fp8_e8m0", dim), index.to(ops.LIST), main, slots, torch.zeros(heads)]


@pytest.mark.parametrize("rows", [32, 256])
@pytest.mark.parametrize(("selected", "neighbours"), [(512, True), (512, False), (0, False)])
def test_sparse_attention(rows: int, selected: int, neighbours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without selected rows neighbours would share nearly all that the rule counts."""
    monkeypatch.setattr(sparse_attention, "TABLE_BYTES", 4 << 20)
    monkeypatch.setattr(sparse_attention, "KEY_BYTES", 1 << 20)
    args = attention_args(rows, selected, neighbours)
    check("sparse_attention", args, (1, 4), scale=0.1, window_page=32, main_page=64)


@pytest.mark.parametrize("rows", [32, 256])
def test_attend(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_attention, "TABLE_BYTES", 4 << 20)
    query, *rest = attention_args(rows, 64, neighbours=True)
    assert query is not None
    args = [query.flatten(1), torch.ones(rows, 16), torch.ones(rows, 16), *rest]
    check("attend", args, (3, 6), scale=0.1, window_page=32, main_page=64)


def test_attention_of_a_long_chunk_keeps_its_budget() -> None:
    """The released model at 16,384 rows and a million tokens, and at four million."""
    rows, heads, dim, pages = 16384, 64, 512, 8192
    caches = [(1, 128 * 528), (rows, 528), (rows, 128), (pages, 128 * 288), (rows, 512), (heads,)]
    shapes = [(rows, heads * dim), (rows, 32), (rows, 32), *caches]
    attrs = {"scale": 0.04, "window_page": 128, "main_page": 128}
    parts = {"unpack_0": "part_0", "unpack_1": "part_1", "prologue": "part_2", "epilogue": "part_3"}
    for own in (attrs, attrs | parts):
        assert scratch.scratch_bytes("attend", shapes, own) <= 256 << 20
    longer = [(pages * 4, 128 * 288) if shape == (pages, 128 * 288) else shape for shape in shapes]
    assert scratch.scratch_bytes("attend", longer, attrs) == scratch.scratch_bytes("attend", shapes, attrs)


def codes(*shape: int) -> Tensor:
    return torch.randint(0, 120, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def expert_args(rows: int, width: int, inner: int) -> list[Tensor | None]:
    """All rows choose the same two of four experts."""
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    ids, weights = torch.tensor([[1, 3]]).expand(rows, 2).contiguous(), torch.ones(rows, 2)
    wide = [codes(4, inner, width // 2), codes(4, inner, width // 32)]
    return [x, ids, weights, *wide, *wide, codes(4, width, inner // 2), codes(4, width, inner // 32)]


@pytest.mark.parametrize("rows", [1, 64, 400])
def test_experts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "TILE_ROWS", 128)
    check("experts", expert_args(rows, 256, 128), tuple(range(3, 9)), limit=10.0)


@pytest.mark.parametrize(("rows", "inner", "shared"), [(64, 128, 128), (400, 128, 128), (400, 64, 256)])
def test_moe(rows: int, inner: int, shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "TILE_ROWS", 128)
    wide = [codes(shared, 256).view(torch.float8_e4m3fn), codes(shared // 32, 8)]
    narrow = [codes(256, shared).view(torch.float8_e4m3fn), codes(8, shared // 32)]
    args = [*expert_args(rows, 256, inner), *wide, *wide, *narrow]
    check("moe", args, tuple(range(3, 15)), limit=10.0)


def test_a_moe_of_the_released_model_stays_small() -> None:
    """16,384 rows that may all choose one expert: the fp32 sum of all rows is 320 MiB, all else takes half of it."""
    d, inner, count, rows, chosen = 5120, 2304, 384, 16384, 6
    wide, narrow = (inner, d), (d, inner)
    routed = [(count, n, k // per) for n, k in (wide, wide, narrow) for per in (2, 32)]
    fp8 = [(n // per, k // per) for n, k in (wide, wide, narrow) for per in (1, 32)]
    shapes = [(rows, d), (rows, chosen), (rows, chosen), *routed, *fp8]
    parts = {"unpack": "part_0", "unpack_shared": "part_1"}
    assert 320 << 20 < scratch.scratch_bytes("moe", shapes, parts) < 500 << 20


@pytest.mark.parametrize(("groups", "quantize"), [(1, 0), (1, 1), (4, 0)])
@pytest.mark.parametrize("rows", [64, 512])
def test_linears(rows: int, groups: int, quantize: int) -> None:
    rng = torch.Generator().manual_seed(4)
    x = torch.randn(rows, 256 * groups, generator=rng).to(torch.bfloat16)
    packed: list[Tensor | None] = []
    for outputs in (128, 256):
        packed.append(torch.randn(outputs, 256, generator=rng).to(torch.float8_e4m3fn))
        packed.append(torch.full((outputs // 32, 8), 127, dtype=torch.uint8))
    check("linears", [x, *packed], (1, 2, 3, 4), groups=groups, quantize=quantize)


def test_a_kernel_without_a_rule() -> None:
    assert scratch.scratch_bytes("rotary", [(4,), (32,)], {}) == 0
