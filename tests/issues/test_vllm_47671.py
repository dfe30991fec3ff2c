"""Symptom: illegal accesses, or output of zeros, once a cache is large (vllm#47671, ROCm/aiter#4474, flashinfer#3130,
sglang#20389, flashinfer#5119, review).

Cause: page number times page bytes in int32 wraps.

Why this input: main pages of 64 rows are 18,432 bytes, so page 116,509 begins beyond 2^31; the only live pages are
numbers 120,000 and on. The cache is 2.2 GB of address space, of which a few pages are touched. The interpreter's
integers wrap as a GPU's, so an offset that is int32 anywhere reads another page.
"""

import pytest
import torch
from interpreter import run
from op_bounds import assert_bf16_close
from test_attention_kernels import Case
from test_indexer import batch, choose

from dsv41c.compiler.codegen.triton.kernels import cache_rows
from dsv41c.models import ops, quant

FAR = 120_000


def far_pages(pages: torch.Tensor, width: int, first: int = FAR) -> torch.Tensor:
    """uint8 [first + n, width] that holds `pages` behind `first` pages that nobody touches."""
    cache = torch.empty(first + len(pages), width, dtype=torch.uint8)
    cache[first:] = pages
    return cache


@pytest.mark.parametrize(("row_format", "width", "first"), [("fp4_e4m3", 18432, FAR), ("fp8_e8m0", 67584, 40_000)])
def test_rows_are_written_to_a_far_page(row_format: str, width: int, first: int) -> None:
    page = width // quant.FORMATS[row_format].row_bytes(512)
    assert first * width > 2**31
    cache = far_pages(torch.full((2, width), 7, dtype=torch.uint8), width, first)
    x, unused = torch.randn(3, 512).bfloat16(), torch.zeros(1)
    slots = torch.tensor([first * page + 1, -1, (first + 1) * page + page - 1])
    arguments = {"x_ptr": x, "cos_ptr": unused, "sin_ptr": unused, "weight_ptr": torch.zeros(1).bfloat16()}
    kernel = cache_rows.writer("write", row_format, 512, 0, False, page, width)
    run(kernel, **arguments, slots_ptr=slots, cache_ptr=cache, n_rows=3, eps=0.0)
    expected = torch.full((2, width), 7, dtype=torch.uint8)
    ops.store(expected, quant.quantize(x[[0, 2]], row_format), torch.tensor([1, 2 * page - 1]), row_format, page)
    assert torch.equal(cache[first:], expected)


def test_attention_reads_a_far_page() -> None:
    case = Case(1, 512, 16, 8, tokens=1)
    assert case.main.shape[1] == 18432
    expected = case.expected()
    case.slots = torch.where(case.slots >= 0, case.slots + FAR * 64, -1)
    case.main = far_pages(case.main, 18432)
    assert_bf16_close(case.run(), expected)


def test_the_indexer_reads_a_far_page() -> None:
    """Index pages of 64 rows are 4,352 bytes: page 493,448 is the first beyond 2^31."""
    given = batch(8, 128, 1, 64, 3, [(0, 150)])
    expected, _ = given.reference(8, 1)
    given.index, given.pages = far_pages(given.index, 4352, 500_000), given.pages + 500_000
    scores, _ = given.scores(1, publish=False)
    assert torch.equal(choose(scores, 8, 256, given.positions), expected)


def test_tail_slots_beyond_int32() -> None:
    """Rings of 1024 fp32 channels: slot 2^21 is the first beyond 2^31 elements."""
    first = (1 << 21) + 3
    cache = torch.empty(first + 2, 1024)
    cache[first:] = 7
    rows = torch.randn(2, 1024)
    store = cache_rows.store_plain("store", "fp32", 1024)
    run(store, rows_ptr=rows, slots_ptr=torch.tensor([first + 1, -1]), cache_ptr=cache, n_rows=2)
    assert torch.equal(cache[first + 1], rows[0])
    assert cache[first].eq(7).all()
