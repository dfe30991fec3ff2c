"""Symptom: out of memory in a long prefill although KV pages are free (sglang#35201, #39187, #40217, #39095).

Cause: a score matrix of all rows by all entries in fp32, with masks beside it: 96 GiB for 16,384 rows at a context of
one million, whatever memory is set aside for scratch.

Why this input: 16,384 rows at 487,936 entries for the plan, where no GPU and no memory is needed: a tile's bytes stay
below the budget and its rows shrink as entries grow. Then 96 rows at 2,048 entries with a budget of 256 KiB, counted:
the matrix alone would be 768 KiB, and no tensor that is made is larger than the budget, operands and results aside.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dsv41c.models import ops, quant
from dsv41c.runtime.kernels import index_topk
from dsv41c.runtime.kernels.binding import LaunchContext

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


def test_a_tile_at_a_long_context_stays_in_the_budget() -> None:
    """Scores, masks and keys of the choice are 24 bytes a row and entry; the matrix of all rows would be 179 GiB."""
    entries, rows = 487_936, 16_384
    assert 24 * rows * entries > 170 << 30
    tiles = [index_topk.dense_tile(n) for n in (entries // 4, entries // 2, entries)]
    for tile, n in zip(tiles, (entries // 4, entries // 2, entries), strict=True):
        assert 1 <= tile < rows
        assert 24 * tile * n <= index_topk.SCRATCH_BYTES
    assert tiles == sorted(tiles, reverse=True)
    released = 2048 * 8
    assert index_topk.pool_tile(released, 32, 128) * released * 4 * 128 <= index_topk.SCRATCH_BYTES


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
        monkeypatch.setattr(index_topk, "dense_tile", lambda longest: ROWS)
        with Largest() as untiled:
            bind(LaunchContext(attributes, constants))(arguments)
        assert untiled.bytes > BUDGET, "the count sees a matrix of all rows"
