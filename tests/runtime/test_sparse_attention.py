"""The attention kernel for many rows is the op's definition to the last bit, whatever its tiles and batches."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dsv41c.models import attention_ops, ops, quant
from dsv41c.models.rows import INPUT_NAMES, Chunk, Rows, step_inputs
from dsv41c.runtime.kernels import registry, sparse_attention
from dsv41c.runtime.kernels.binding import LaunchContext

HEADS, DIM, PAGE = 2, 64, 4
SLOTS = 48  # rows of the main cache
RINGS = 3

Arguments = list[Tensor | None]


def cache(pages: int, page: int, row_format: str, rng: torch.Generator) -> Tensor:
    """Random rows, and NaN behind them in every page."""
    rows = quant.quantize(torch.randn(pages * page, DIM, generator=rng), row_format)
    stored = torch.full((pages, -(-page * rows.shape[1] // 256) * 256), 0x7F, dtype=torch.uint8)
    ops.store(stored, rows, torch.arange(pages * page), row_format, page)
    return stored


def batch_index(chunks: list[tuple[int, int]], window: int, padded: int = 0) -> Tensor:
    """The window index of chunks of (tokens, context), each with a ring of its own."""
    given = [Chunk([5] * count, context, ring, [ring]) for ring, (count, context) in enumerate(chunks)]
    inputs = step_inputs(given, [0], padded_rows=padded)
    names = [name for name in INPUT_NAMES if name not in ("tokens", "logit_rows")]
    return Rows.of_batch(*(inputs[name] for name in names)).window_index(window)


def arguments(index: Tensor, selected: int, seed: int = 0) -> tuple[Arguments, dict[str, Any]]:
    """Rows with this window index that select among `SLOTS` main rows: some twice, some none."""
    rng = torch.Generator().manual_seed(seed)
    rows, window = index.shape
    query = torch.randn(rows, HEADS, DIM, generator=rng).to(torch.bfloat16)
    fresh = quant.quantize(torch.randn(rows, DIM, generator=rng), "fp8_e8m0")
    main = cache(SLOTS // PAGE, PAGE, "fp4_e4m3", rng) if selected else None
    slots = torch.randint(-1, SLOTS, (rows, selected), generator=rng).to(ops.LIST) if selected else None
    sink = torch.randn(HEADS, generator=rng)
    attrs = {"scale": DIM**-0.5, "window_page": window, "main_page": PAGE}
    return [query, cache(RINGS, window, "fp8_e8m0", rng), fresh, index, main, slots, sink], attrs


def kernel(args: Arguments, attrs: dict[str, Any]) -> Tensor:
    """The op's kernel on its arguments; with two more than `sparse_attention` takes it is `attend`."""
    name, first = ("sparse_attention", 1) if len(args) == 7 else ("attend", 3)
    constants = tuple(arg if at in (first, first + 3) else None for at, arg in enumerate(args))
    return registry.find(name).bind(LaunchContext(attrs, constants))(list(args))[0]


def assert_equal(args: Arguments, attrs: dict[str, Any]) -> None:
    assert torch.equal(kernel(args, attrs), ops.sparse_attention(*args, **attrs))


BATCHES = {
    "one sequence": [(33, 0)],
    "behind a full ring": [(33, 200)],
    "behind a part of a ring": [(33, 5)],
    "several sequences": [(9, 70), (1, 3), (23, 0)],
    "rows of their own": [(1, 10), (1, 100), (1, 0)],
}


@pytest.mark.parametrize("selected", [0, 3, 8, 64, 70, 128])
@pytest.mark.parametrize("window", [1, 16, 64, 80])
@pytest.mark.parametrize("batch", BATCHES)
def test_the_kernel_is_the_definition(batch: str, window: int, selected: int) -> None:
    args, attrs = arguments(batch_index(BATCHES[batch], window, padded=1), selected)
    assert_equal(args, attrs)
    order = torch.randperm(args[0].shape[0], generator=torch.Generator().manual_seed(1))
    moved = [arg[order] if arg is not None and at in (0, 3, 5) else arg for at, arg in enumerate(args)]
    assert_equal(moved, attrs)


@pytest.mark.parametrize("tile", range(1, 12))
def test_tiles_and_batches_of_every_size(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that end inside a sequence, with a single row left over, and of one batch and more."""
    for batch in {1, 2, tile}:
        monkeypatch.setattr(sparse_attention, "tile_rows", lambda keys, dim: tile)
        monkeypatch.setattr(sparse_attention, "batch_rows", lambda keys, dim, batch=batch: batch)
        for rows in (1, 7, 13):
            for window, selected in ((64, 8), (16, 8), (16, 0)):
                assert_equal(*arguments(batch_index([(rows, 70), (3, 0)], window), selected, seed=rows))


def test_slots_far_apart_are_sorted() -> None:
    """Few rows of a large cache: their range is not counted through."""
    args, attrs = arguments(batch_index([(5, 0)], 64), 8)
    rng = torch.Generator().manual_seed(2)
    args[4] = cache(1000, PAGE, "fp4_e4m3", rng)
    args[5] = torch.randint(-1, 4000, (5, 8), generator=rng).to(ops.LIST)
    assert int(args[5].max()) > sparse_attention.DENSE * args[5].numel()
    assert_equal(args, attrs)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_addresses_are_wide(dtype: torch.dtype) -> None:
    """Lists of either width; a row of the cache lies further than 2^31 bytes from its start."""
    page, pages = 1 << 16, 1000
    stride = page * 36
    held = torch.empty((pages, stride), dtype=torch.uint8)  # touched in one place only
    rows = quant.quantize(torch.randn(2, DIM, generator=torch.Generator().manual_seed(3)), "fp4_e4m3")
    args, attrs = arguments(batch_index([(2, 0)], 64), 1)
    slot = (pages - 1) * page + 7
    ops.store(held, rows[:1], torch.tensor([slot]), "fp4_e4m3", page)
    args[4], args[5] = held, torch.tensor([[slot], [-1]], dtype=dtype)
    assert_equal(args, attrs | {"main_page": page})


def test_keys_behind_a_tile_without_any() -> None:
    """The running maximum is still its seed behind 64 keys that are not there."""
    args, attrs = arguments(torch.full((5, 64), -1, dtype=ops.LIST), 70)
    slots = args[5]
    assert slots is not None
    slots[:, :64] = -1
    slots[:, 64:] = torch.arange(6)
    assert_equal(args, attrs)
    assert (kernel(args, attrs) != 0).any(-1).all()


@pytest.mark.parametrize("selected", [0, 8])
def test_rows_without_a_key_are_zero(selected: int) -> None:
    """Rows 1 and 2 have none, and row 2 a query that is no number."""
    args, attrs = arguments(batch_index([(4, 0)], 64), selected)
    query, index, slots = args[0], args[3], args[5]
    assert query is not None
    assert index is not None
    index[1:3] = -1
    query[2] = float("nan")
    if slots is not None:
        slots[1:3] = -1
    ours = kernel(args, attrs)
    assert (ours[1:3] == 0).all()
    assert_equal(args, attrs)


def test_values_where_no_key_is_read_may_be_anything() -> None:
    """Slot -1 reads no row: NaN in row 0 of both caches does not reach the output."""
    args, attrs = arguments(batch_index([(7, 5)], 16), 8)
    index, slots = args[3], args[5]
    assert index is not None
    assert slots is not None
    index[index == 0] = -1
    slots[slots == 0] = -1
    want = kernel(args, attrs)
    for at, row_format, page in ((1, "fp8_e8m0", 16), (4, "fp4_e4m3", PAGE)):
        width = quant.FORMATS[row_format].row_bytes(DIM)
        ops.store(args[at], torch.full((1, width), 0x7F, dtype=torch.uint8), torch.tensor([0]), row_format, page)
    assert torch.equal(kernel(args, attrs), want)


@pytest.mark.parametrize("selected", [0, 8])
@pytest.mark.parametrize("tile", [1, 5, 1000])
def test_attend_is_its_definition(tile: int, selected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries as they are projected, a slice of a wider product, rotated before and behind."""
    monkeypatch.setattr(sparse_attention, "tile_rows", lambda keys, dim: tile)
    (query, *rest), attrs = arguments(batch_index([(11, 70), (2, 0)], 16), selected)
    assert query is not None
    rng = torch.Generator().manual_seed(4)
    cos, sin = torch.randn(2, 13, 8, generator=rng)
    wide = torch.cat((query.flatten(1), query[:, 0]), dim=1)[:, : HEADS * DIM]
    args = [wide, cos, sin, *rest]
    ours = kernel(args, attrs)
    assert torch.equal(ours, attention_ops.attend(*args, **attrs))
    heads = attention_ops.turned_heads(wide, cos, sin, HEADS)
    assert torch.equal(ours, attention_ops.turned_back(ops.sparse_attention(heads, *rest, **attrs), cos, sin))
