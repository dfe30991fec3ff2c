"""Symptom: illegal accesses while a graph is captured (vllm#51970, #51181; DeepGEMM#399).

Cause: capture runs with lengths of zero everywhere, and a kernel that prepares the work reads behind the last entry.

Why this input: one row, and as many as a bucket has, all of them padding: position -1, slot -1, no expert. Every
pointer that a length would lead to is NaN or poison; lists come out empty, attention gives zeros, caches stay.
"""

import pytest
import torch
from interpreter import run
from test_attention_kernels import Case
from test_experts import LIMIT, TILE, lists, weights
from test_indexer import batch, choose

from dsv41c.compiler.codegen.triton.families import Tile
from dsv41c.compiler.codegen.triton.kernels import cache_rows, experts

BATCHES = [1, 6]


@pytest.mark.parametrize("rows", BATCHES)
def test_nothing_is_scored_and_nothing_chosen(rows: int) -> None:
    given = batch(8, 32, 2, 16, 5, [(0, 3)])  # pages of a single entry, all others NaN
    given.query, given.weights = given.query.expand(rows, -1, -1).contiguous(), given.weights.expand(rows, -1)
    given.weights = given.weights.contiguous()
    given.index.fill_(0xFF)
    given.sequence, given.positions = torch.zeros(rows, dtype=torch.int64), torch.full((rows,), -1)
    scores, blocks = given.scores(4)
    assert scores.isnan().all(), "nothing is written"
    assert (choose(scores, 8, 128, given.positions, ratio=2) == -1).all()
    assert (choose(blocks, 3, 128, given.positions, ratio=2, per=8) == -1).all()


@pytest.mark.parametrize("rows", BATCHES)
def test_attention_over_nothing_is_zero(rows: int) -> None:
    case = Case(2, 32, 16, 8, tokens=rows)
    case.index.fill_(-1)
    case.slots.fill_(-1)
    case.window.fill_(0xFF)
    case.main.fill_(0xFF)
    case.fresh.fill_(0xFF)
    assert case.run().count_nonzero() == 0
    assert case.run_split(3).count_nonzero() == 0


@pytest.mark.parametrize("rows", BATCHES)
def test_caches_stay_as_they_are(rows: int) -> None:
    cache = torch.full((2, 4 * 66), 7, dtype=torch.uint8)
    slots, x = torch.full((rows,), -1), torch.full((rows, 64), torch.nan).bfloat16()
    arguments = {"x_ptr": x, "cos_ptr": torch.zeros(1), "sin_ptr": torch.zeros(1), "weight_ptr": x[0].contiguous()}
    kernel = cache_rows.writer("write", "fp8_e8m0", 64, 0, True, 4, 4 * 66)
    run(kernel, **arguments, slots_ptr=slots, cache_ptr=cache, n_rows=rows, eps=1e-6)
    assert cache.eq(7).all()
    tail = torch.full((3, 64), 7.0)
    store = cache_rows.store_plain("store", "fp32", 64)
    run(store, rows_ptr=torch.full((rows, 64), torch.nan), slots_ptr=slots, cache_ptr=tail, n_rows=rows)
    assert tail.eq(7).all()


@pytest.mark.parametrize("rows", BATCHES)
def test_no_expert_is_read(rows: int) -> None:
    dim, inner, count, choices = 64, 32, 3, 2
    ids = torch.full((rows, choices), -1)
    made = lists(ids, count)
    assert made["counts_ptr"].eq(0).all()
    (w1, s1), (w3, s3) = weights(count, inner, dim, 1), weights(count, inner, dim, 2)
    hidden = torch.full((rows * choices, inner), 7.0).bfloat16()
    x = torch.full((rows, dim), torch.nan).bfloat16()
    up = experts.up("up", dim, inner).with_tiles(TILE)
    packed = {"w1_ptr": w1, "s1_ptr": s1, "w3_ptr": w3, "s3_ptr": s3, "hidden_ptr": hidden}
    sizes = {"n_choices": choices, "limit": LIMIT, "n_experts": count}
    run(up, x_ptr=x, weights_ptr=torch.full((rows, choices), torch.nan), **made, **packed, **sizes)
    assert hidden.eq(7).all()
    total = torch.full((rows, dim), torch.nan)
    combine = experts.combine("combine", dim, choices).with_tiles(Tile({"BLOCK": 64}))
    y = torch.full((rows * choices, dim), torch.nan).bfloat16()
    run(combine, y_ptr=y, ids_ptr=ids, shared_ptr=y, total_ptr=total, n_rows=rows)
    assert total.count_nonzero() == 0
