"""Sparse attention kernels against models/ops.py, over caches whose every other row would give NaN."""

import pytest
import torch
from cost_rules import rule
from interpreter import counted, run
from op_bounds import assert_bf16_close
from tolerances import TRITON
from torch import Tensor

from dsv41c.compiler.codegen.triton.families import Kernel
from dsv41c.compiler.codegen.triton.kernels import sparse_attention
from dsv41c.compiler.codegen.triton.targets import TARGETS
from dsv41c.ir.types import CacheType
from dsv41c.models import ops, quant

RING, PAGE, TOKENS = 128, 64, 4
POISON = 0xFF  # NaN in data and scales of every format


def paged(form: str, channels: int, page: int, slots: Tensor, n_pages: int) -> Tensor:
    """A planar cache in which only `slots` hold rows."""
    width = quant.FORMATS[form].row_bytes(channels)
    cache = torch.full((n_pages, -(-page * width // 256) * 256), POISON, dtype=torch.uint8)
    held = slots.unique()
    held = held[held >= 0].long()
    rows = torch.randn(len(held), channels) * torch.rand(len(held), 1) * 3
    ops.store(cache, quant.quantize(rows, form), held, form, page)
    return cache


class Case:
    """Inputs of the reference; the first rows have no key at all, no window, no key in the first tile."""

    def __init__(self, heads: int, channels: int, window: int, selected: int, tokens: int = TOKENS, seed: int = 7):
        torch.manual_seed(seed)
        self.query = torch.randn(tokens, heads, channels).bfloat16()
        self.fresh = quant.quantize(torch.randn(tokens, channels), "fp8_e8m0")
        self.index = self._some(torch.randint(-1 - tokens, 3 * RING, (tokens, window)))
        self.slots = self._some(torch.randint(0, 9 * PAGE, (tokens, selected)))
        if tokens > 1:
            self.index[:2], self.slots[0], self.index[2, :64] = -1, -1, -1
        self.window = paged("fp8_e8m0", channels, RING, self.index, 3)
        self.main = paged("fp4_e4m3", channels, PAGE, self.slots, 9)
        self.sink = torch.randn(heads)
        self.out = torch.full_like(self.query, 7)
        self.sizes = (window, RING, self.window.shape[1]), (selected, PAGE, self.main.shape[1])

    @staticmethod
    def _some(index: Tensor) -> Tensor:
        return torch.where(torch.rand(index.shape) < 0.15, -1, index).int()

    def kernel(self, split: bool = False) -> Kernel:
        return sparse_attention.attend("attend", *self.query.shape[1:], *self.sizes, split)

    def given(self, rows: int) -> dict[str, Tensor | int]:
        caches = {"window_ptr": self.window, "fresh_ptr": self.fresh, "main_ptr": self.main, "sink_ptr": self.sink}
        lists = {"window_index_ptr": self.index, "main_slots_ptr": self.slots}
        return {"query_ptr": self.query, **caches, **lists, "n_rows": rows}

    def run(self, rows: int | None = None, fp8_casts: bool = True, tile: int = 0) -> Tensor:
        unused = torch.empty(0)
        given = self.given(len(self.query) if rows is None else rows)
        parts = {"out_ptr": self.out, "maximum_ptr": unused, "total_ptr": unused, "n_splits": 1}
        run(self.kernel(), tile=tile, fp8_casts=fp8_casts, **given, **parts)
        return self.out

    def run_split(self, splits: int) -> Tensor:
        tokens, heads, channels = self.query.shape
        part = torch.full((tokens, splits, heads, channels), torch.nan)
        maximum, total = (torch.full((tokens, splits, heads), torch.nan) for _ in range(2))
        sizes = {"maximum_ptr": maximum, "total_ptr": total, "n_splits": splits}
        with counted() as self.moved:
            run(self.kernel(split=True), **self.given(tokens), **sizes, out_ptr=part)
        combine = sparse_attention.combine("combine", heads, channels)
        run(combine, part_ptr=part, **sizes, sink_ptr=self.sink, out_ptr=self.out, n_rows=tokens)
        return self.out

    def expected(self) -> Tensor:
        main, slots = (self.main, self.slots) if self.slots.shape[1] else (None, None)
        cached = (self.window, self.fresh, self.index, main, slots)
        return ops.sparse_attention(self.query, *cached, self.sink, self.query.shape[-1] ** -0.5, RING, PAGE)


@pytest.mark.parametrize(
    ("heads", "channels", "window", "selected", "fp8_casts"),
    [
        (4, 64, 16, 8, False),  # mini6: one tile of both kinds, which most of it does not fill
        (2, 32, 16, 8, True),  # sched40
        (3, 64, 133, 0, False),  # a draft block: window and own rows, no main cache
        (1, 64, 128, 100, True),  # one head a rank
        (20, 128, 128, 65, False),  # two blocks of heads, the second not full; a last tile of one key
    ],
)
def test_equals_the_reference(heads: int, channels: int, window: int, selected: int, fp8_casts: bool) -> None:
    case = Case(heads, channels, window, selected)
    ours = case.run(fp8_casts=fp8_casts, tile=0 if fp8_casts else -1)  # the last tile reads queries again
    assert_bf16_close(ours, case.expected())
    assert ours[0].count_nonzero() == 0
    assert ours[2].count_nonzero() > 0


def test_released_size_moves_each_key_once() -> None:
    """64 heads of 512 over 640 entries: the reference's values, and no byte read twice within a block of heads."""
    case = Case(64, 512, 128, 512, tokens=1)
    with counted() as moved:
        ours = case.run()
    assert_bf16_close(ours, case.expected())
    blocks = 64 // case.kernel().tiles[0].holes["BLOCK_HEADS"]
    keys = 528 * int((case.index != -1).sum()) + 288 * int((case.slots >= 0).sum())
    assert moved["loads"] == case.query.nbytes + case.sink.nbytes + blocks * (4 * 640 + keys)
    assert moved["stores"] == ours.nbytes

    # The op's rule reads every key and fresh row once; keys that do not exist are masked, and fresh rows are keys here.
    window = CacheType.of("window", 0, 0, RING, "fp8_e8m0", 512)
    main = CacheType.of("main", 2, 2, PAGE, "fp4_e4m3", 512)
    operands = [case.query, window, case.fresh, case.index, main, case.slots, case.sink]
    cost = rule("sparse_attention", operands, [ours], scale=512**-0.5, window_page=RING, main_page=PAGE)
    masked = 528 * 128 + 288 * 512 - keys + case.fresh.nbytes
    assert moved["loads"] == cost.read - masked + (blocks - 1) * (4 * 640 + keys)
    assert moved["stores"] == cost.written


@pytest.mark.parametrize("splits", [2, 6])
def test_splits_and_combine(splits: int) -> None:
    """Also more splits than tiles, and rows whose splits have no key; a key is read once for all heads of a program."""
    case = Case(5, 64, 96, 150)
    expected = case.expected().float()
    ours = case.run_split(splits).float()
    assert (ours - expected).norm() <= TRITON["sparse_attention split"].relative * expected.norm()
    assert ours[0].count_nonzero() == 0
    keys = 66 * int((case.index != -1).sum()) + 36 * int((case.slots >= 0).sum())
    assert case.moved["loads"] == splits * case.query.nbytes + case.index.nbytes + case.slots.nbytes + keys


def test_one_split_is_the_kernel_without_splits() -> None:
    case = Case(5, 64, 96, 150)
    assert torch.equal(case.run_split(1).clone(), case.run())


def test_nothing_behind_the_rows_is_written() -> None:
    case = Case(3, 64, 16, 8)
    assert case.run(rows=2)[2:].eq(7).all()


def test_pages_beyond_int32() -> None:
    """A cache of more bytes than an int32 counts; its memory is never touched but for two pages."""
    case = Case(1, 64, 16, 8, tokens=1)
    far = 2**31 // case.main.shape[1] + 5
    large = torch.empty(far + 9, case.main.shape[1], dtype=torch.uint8)
    large[far:] = case.main
    expected = case.expected()
    case.slots, case.main = torch.where(case.slots >= 0, case.slots + far * PAGE, -1), large
    assert_bf16_close(case.run(), expected)


def test_tiles_by_target() -> None:
    """Blocks of heads are no larger than there are heads for, and every target has one tile or more."""
    few, many = (sparse_attention.attend("a", heads, 512, *Case(1, 64, 16, 8, 1).sizes).tiles for heads in (8, 64))
    assert [tile.holes["BLOCK_HEADS"] for tile in few] == [16, 16, 16, 16]
    assert [tile.holes["BLOCK_HEADS"] for tile in many] == [16, 16, 16, 16], "a tile of both kinds spills with 32"
    assert all(any(name.startswith(tile.targets) for tile in few) for name in TARGETS)
    whole = sparse_attention.attend("a", 64, 512, (128, RING, 528 * RING), (512, PAGE, 288 * PAGE)).tiles
    assert [tile.holes["BLOCK_HEADS"] for tile in whole] == [32, 16, 16, 16, 16]
