"""Symptom: out of memory in a long prefill although KV pages are free (sglang#35201, #39187, #40217, #39095).

Cause: a score matrix of all rows by all entries in fp32, with masks beside it: 96 GiB for 16,384 rows at a context of
one million, whatever memory is set aside for scratch.

Why this input: 16,384 rows at 487,936 entries for the plan, where no GPU and no memory is needed: what the kernels
promise to take at most is the same for fewer rows and a shorter context. Then 96 rows at 2,048 entries with a budget of
256 KiB, counted: the matrix alone would be 768 KiB, and no tensor that is made is larger than the budget, operands and
results aside.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dsv41c.models import ops, quant
from dsv41c.runtime.kernels import index_topk
from dsv41c.runtime.kernels.binding import LaunchContext
from dsv41c.runtime.kernels.scratch import scratch_bytes

ROWS, ENTRIES, PAGE, HEADS, DIM, BLOCK, K = 96, 2048, 64, 2, 32, 8, 16
BUDGET = 256 << 10


class Largest(TorchDispatchMode):
    """Keeps the bytes of the largest storage that an op makes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, Tensor)}
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, list | tuple) else [result]:
            if isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in known:
                self.bytes = max(self.bytes, made.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("restricted", [False, True])
def test_the_longest_context_takes_no_more_than_a_shorter_one(restricted: bool) -> None:
    """Scores and packed scores are 12 bytes a row and entry; the matrices of all rows would be 89 GiB."""
    entries, rows, page = 487_936, 16_384, 64
    assert 12 * rows * entries > 89 << 30
    pool = 2048 if restricted else None
    most = promised(rows, entries // page, page, pool)
    assert promised(rows, entries // page // 4, page, pool) == most < 64 << 20
    assert most - promised(rows // 4, entries // page, page, pool) <= 64 * rows, "which rows there are"


def promised(rows: int, pages: int, page: int, pool: int | None) -> int:
    """The released indexer's scratch bytes over all entries, or over a pool."""
    vector, candidates = (rows,), None if pool is None else (rows, pool)
    shapes = [(rows, 32, 128), (rows, 32), (pages, page * 68), (1, pages), vector, vector, candidates]
    attributes = {"ratio": 1, "k": 512, "page": page, "block": 8}
    if pool is not None:
        return scratch_bytes("index_pool_topk", shapes, attributes)
    return scratch_bytes("index_topk", shapes, {**attributes, "n_blocks": 2048})


def selection(restricted: bool) -> tuple[list[Tensor | None], dict[str, int]]:
    """The last 96 rows of a sequence of 2,048 entries, all of them or those of 12 blocks each."""
    generator = torch.Generator().manual_seed(7)
    pages = ENTRIES // PAGE
    width = quant.FORMATS["fp4_e8m0"].row_bytes(DIM)
    cache = torch.zeros(pages, PAGE * width, dtype=torch.uint8)
    keys = torch.randn(ENTRIES, DIM, generator=generator).bfloat16()
    ops.store(cache, quant.quantize(keys, "fp4_e8m0"), torch.arange(ENTRIES), "fp4_e8m0", PAGE)
    query = quant.fake_quantize(torch.randn(ROWS, HEADS, DIM, generator=generator).bfloat16(), "fp4_e8m0")
    weights = torch.rand(ROWS, HEADS, generator=generator).bfloat16()
    table, owner = torch.arange(pages).unsqueeze(0), torch.zeros(ROWS, dtype=torch.int64)
    positions = torch.arange(ENTRIES - ROWS, ENTRIES)
    shuffled = torch.stack([torch.randperm(ENTRIES // BLOCK - 12, generator=generator)[:12] for _ in range(ROWS)])
    pool = shuffled.sort(dim=1).values if restricted else None
    return [query, weights, cache, table, owner, positions, pool], {"ratio": 1, "k": K, "page": PAGE, "block": BLOCK}


@pytest.mark.parametrize("restricted", [False, True])
def test_no_tensor_is_larger_than_the_budget(monkeypatch: pytest.MonkeyPatch, restricted: bool) -> None:
    arguments, attributes = selection(restricted)
    bind = index_topk.bind_pool if restricted else index_topk.bind
    attributes |= {} if restricted else {"n_blocks": 0}
    constants = tuple(arguments[2] if i == 2 else None for i in range(7))
    whole = bind(LaunchContext(attributes, constants))(arguments)[0]
    monkeypatch.setattr(index_topk, "SCRATCH_BYTES", BUDGET)
    with Largest() as largest:
        tiled = bind(LaunchContext(attributes, constants))(arguments)[0]
    assert torch.equal(tiled, whole)
    assert 4 * ROWS * ENTRIES > BUDGET
    assert 0 < largest.bytes <= BUDGET
    if not restricted:
        monkeypatch.setattr(index_topk, "dense_span", lambda *sizes: ENTRIES)
        with Largest() as untiled:
            bind(LaunchContext(attributes, constants))(arguments)
        assert untiled.bytes > BUDGET, "the count sees a matrix of all entries"
