"""Symptom: a hang or illegal accesses when a captured graph is replayed with fewer rows (flashinfer#5015, vllm#56771).

Cause: three requests of two tokens are six rows in a graph of eight; the last two rows keep what the replay before
left in their buffers.

Why this input: a step of eight rows, then one of six in the same eight, over the same scratch and lists; the padded
rows have position -1 and slot -1, and everything else of theirs is NaN, stale or 2^31 - 1 before the replay. The six
rows are those of a call of six, to the bit; padded rows choose nothing, attend to nothing and write nothing.
"""

import torch
from interpreter import run
from test_indexer import BLOCK, NONE, Batch, batch
from torch import Tensor

from dsv41c.compiler.codegen.triton.kernels import cache_rows, indexer, sparse_attention
from dsv41c.models import ops, quant

ROWS, LIVE, K, PAGE, HEADS, DIM = 8, 6, 12, 16, 3, 32
LAST = 2**31 - 1


class Plan:
    """The buffers of eight rows, and the launches of indexer, attention and writer over them."""

    def __init__(self) -> None:
        torch.manual_seed(8)
        self.step = batch(8, 32, 1, PAGE, 5, [(b, 40 + 7 * b + i) for b in range(4) for i in range(2)])
        self.query = torch.randn(ROWS, HEADS, DIM).bfloat16()
        self.scores = torch.full((ROWS, self.step.entries), torch.nan).bfloat16()
        self.best = torch.full((ROWS, K), torch.nan).bfloat16()
        self.lists = torch.full((ROWS, K), LAST, dtype=torch.int32)
        self.out = torch.full((ROWS, HEADS, DIM), torch.nan).bfloat16()
        self.main = torch.zeros(20, PAGE * 18, dtype=torch.uint8)
        stored = quant.quantize(torch.randn(20 * PAGE, DIM), "fp4_e4m3")
        ops.store(self.main, stored, torch.arange(20 * PAGE), "fp4_e4m3", PAGE)
        self.written = torch.full((1, ROWS * 18), 7, dtype=torch.uint8)

    def launch(self, given: Batch, slots: Tensor, query: Tensor, rows: int) -> None:
        """One replay; grids are of `rows`, whatever the step holds."""
        sizes = (8, 32, 1, (PAGE, given.index.shape[1]), BLOCK)
        inputs = {"query_ptr": given.query, "weights_ptr": given.weights, "index_ptr": given.index}
        batch_of = {"pages_ptr": given.pages, "sequence_ptr": given.sequence, "positions_ptr": given.positions}
        counts = {"n_rows": rows, "n_entries": given.entries, "n_blocks": 1, "n_pages": given.pages.shape[1]}
        run(
            indexer.scores("scores", *sizes, 4),
            **inputs,
            **batch_of,
            **counts,
            candidates_ptr=NONE,
            scores_ptr=self.scores,
            blocks_ptr=self.best,
        )
        choice = {"n_scores": given.entries, "n_spans": 1, "k": K, "ratio": 1, "per": 1}
        outputs = {"best_ptr": self.best, "list_ptr": self.lists}
        read = {"scores_ptr": self.scores, "entries_ptr": NONE, "positions_ptr": given.positions}
        run(indexer.select("select", 0, 128), **read, **outputs, **choice, n_rows=rows)
        kernel = sparse_attention.attend("attend", HEADS, DIM, (16, 128, 4224), (K, PAGE, self.main.shape[1]))
        nothing = {"window_index_ptr": torch.full((ROWS, 16), -1, dtype=torch.int32)}
        nothing |= {"window_ptr": torch.zeros(1, dtype=torch.uint8), "fresh_ptr": torch.zeros(1, dtype=torch.uint8)}
        parts = {"maximum_ptr": torch.zeros(1), "total_ptr": torch.zeros(1), "n_splits": 1}
        cached = {"main_ptr": self.main, "main_slots_ptr": self.lists, "sink_ptr": torch.zeros(HEADS)}
        run(kernel, query_ptr=query, **nothing, **cached, **parts, out_ptr=self.out, n_rows=rows)
        unused = torch.zeros(1)
        x = self.out[:, 0].contiguous()
        rotation = {"cos_ptr": unused, "sin_ptr": unused, "weight_ptr": unused.bfloat16()}
        writer = cache_rows.writer("write", "fp4_e4m3", DIM, 0, False, ROWS, ROWS * 18)
        run(writer, x_ptr=x, **rotation, slots_ptr=slots, cache_ptr=self.written, n_rows=rows, eps=0.0)


def padded(given: Batch) -> Batch:
    """Six of the rows, and two of padding whose values are poison."""
    by_row = {name: getattr(given, name).clone() for name in ("query", "weights", "sequence", "positions")}
    by_row["query"][LIVE:] = torch.nan
    by_row["weights"][LIVE:] = torch.nan
    by_row["sequence"][LIVE:], by_row["positions"][LIVE:] = 0, -1
    return Batch(**by_row, index=given.index, pages=given.pages, ratio=1, page=PAGE)


def test_six_rows_in_a_graph_of_eight() -> None:
    """The list of one padded row holds 2^31 - 1 before, that of the other what the step of eight rows chose."""
    plan, slots = Plan(), torch.arange(ROWS)
    plan.launch(plan.step, slots, plan.query, ROWS)
    assert (plan.lists[ROWS - 1] >= 0).all()
    plan.lists[LIVE] = LAST
    plan.written.fill_(7)
    plan.scores[LIVE:], query = torch.nan, plan.query.clone()
    query[LIVE:] = torch.nan
    plan.launch(padded(plan.step), torch.where(slots < LIVE, slots, -1), query, ROWS)

    alone = Plan()
    alone.launch(alone.step.tile(slice(LIVE)), slots[:LIVE], alone.query, LIVE)
    assert torch.equal(plan.lists[:LIVE], alone.lists[:LIVE])
    assert torch.equal(plan.out[:LIVE], alone.out[:LIVE])
    assert (plan.lists[:LIVE] >= 0).all()
    assert (plan.lists[LIVE:] == -1).all()
    assert plan.out[LIVE:].count_nonzero() == 0
    assert torch.equal(plan.written, alone.written)
