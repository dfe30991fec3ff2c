"""Indexer kernels against models/ops.py: scores, candidate blocks and choices are equal to the bit.

Queries and keys have unit scales and head weights are powers of two, so that every sum of heads is exact in any order,
and so that scores are equal often. Whatever a row must not read holds NaN, which would be chosen first.
"""

from dataclasses import dataclass

import pytest
import torch
from cost_rules import rule
from interpreter import counted, run
from torch import Tensor

from dsv41c.compiler.codegen.triton.kernels import indexer
from dsv41c.errors import CompileError
from dsv41c.ir.types import CacheType
from dsv41c.models import ops, quant

BLOCK = 8
NONE = torch.zeros(1, dtype=torch.int32)  # a list that a kernel does not read


def coarse(*shape: int) -> Tensor:
    """FP4 values under a scale of 1 in every group."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])[torch.randint(0, 8, shape)]
    values = torch.where(torch.rand(shape) < 0.5, -values, values)
    values[..., ::32] = 6
    return values.bfloat16()


@dataclass
class Batch:
    """Rows of several sequences over one index cache; pages behind a sequence's end are all NaN."""

    query: Tensor
    weights: Tensor
    index: Tensor
    pages: Tensor
    sequence: Tensor
    positions: Tensor
    ratio: int
    page: int

    @property
    def entries(self) -> int:
        return self.pages.shape[1] * self.page

    def scores(self, rows: int, candidates: Tensor | None = None, publish: bool = True) -> tuple[Tensor, Tensor]:
        """Scores of the kernel that takes `rows` rows a program, and the best of every block; NaN where not written."""
        tokens, heads, channels = self.query.shape
        pool = candidates is not None
        n_entries = candidates.shape[1] * BLOCK if pool else self.entries
        n_blocks = candidates.shape[1] if pool else -(-self.entries // BLOCK)
        scores = torch.full((tokens, n_entries), torch.nan, dtype=torch.bfloat16)
        blocks = torch.full((tokens, n_blocks), torch.nan, dtype=torch.bfloat16)
        sizes = (heads, channels, self.ratio, (self.page, self.index.shape[1]), BLOCK)
        run(
            indexer.scores("scores", *sizes, rows, pool, publish),
            query_ptr=self.query,
            weights_ptr=self.weights,
            index_ptr=self.index,
            pages_ptr=self.pages,
            sequence_ptr=self.sequence,
            positions_ptr=self.positions,
            candidates_ptr=candidates if pool else NONE,
            scores_ptr=scores,
            blocks_ptr=blocks,
            n_rows=tokens,
            n_entries=n_entries,
            n_blocks=n_blocks,
            n_pages=self.pages.shape[1],
        )
        return scores, blocks

    def tile(self, rows: slice) -> "Batch":
        by_row = (self.query[rows], self.weights[rows], self.index, self.pages)
        return Batch(*by_row, self.sequence[rows], self.positions[rows], self.ratio, self.page)

    def reference(self, k: int, n_blocks: int) -> tuple[Tensor, Tensor]:
        by_row = (self.query, self.weights, self.index, self.pages, self.sequence, self.positions)
        return ops.index_topk(*by_row, None, self.ratio, k, self.page, BLOCK, n_blocks)

    def pool_reference(self, candidates: Tensor, k: int) -> Tensor:
        by_row = (self.query, self.weights, self.index, self.pages, self.sequence, self.positions)
        return ops.index_pool_topk(*by_row, candidates, self.ratio, k, self.page, BLOCK)


def batch(heads: int, channels: int, ratio: int, page: int, n_pages: int, rows: list[tuple[int, int]]) -> Batch:
    """Rows by sequence and position; pages of the sequences lie in random order."""
    torch.manual_seed(3)
    sequence, positions = torch.tensor(rows).t().contiguous()
    n_sequences = int(sequence.max()) + 1
    pages = torch.randperm(n_sequences * n_pages).view(n_sequences, n_pages)
    width = quant.FORMATS["fp4_e8m0"].row_bytes(channels)
    index = torch.full((n_sequences * n_pages, -(-page * width // 256) * 256), 0xFF, dtype=torch.uint8)
    for number in range(n_sequences):
        last = int(positions[sequence == number].max())
        entry = torch.arange((last + 1) // ratio)
        slots = pages[number, entry // page] * page + entry % page
        ops.store(index, quant.quantize(coarse(len(entry), channels), "fp4_e8m0"), slots, "fp4_e8m0", page)
    powers = torch.tensor([-0.5, -0.25, 0.25, 0.5, 1.0])
    weights = powers[torch.randint(0, 5, (len(rows), heads))].bfloat16()
    query = coarse(len(rows), heads, channels)
    return Batch(query, weights, index, pages, sequence, positions, ratio, page)


def choose(
    scores: Tensor, k: int, span: int, positions: Tensor | None, group: int = 0, groups: Tensor = NONE, **sizes: int
) -> Tensor:
    """The k best of every row, level by level, as a plan launches it."""
    rows, count = scores.shape
    for level, spans in enumerate(indexer.levels(count, k, span)):
        best = torch.full((rows, spans * k), torch.nan, dtype=torch.bfloat16)
        chosen = torch.full((rows, spans * k), -7, dtype=torch.int32)
        kernel = indexer.select("select", group if level == 0 else 1, span)
        run(
            kernel,
            scores_ptr=scores,
            entries_ptr=groups,
            positions_ptr=torch.zeros(1, dtype=torch.int64) if positions is None else positions,
            best_ptr=best,
            list_ptr=chosen,
            n_rows=rows,
            n_scores=scores.shape[1],
            n_spans=spans,
            k=k,
            **{"ratio": 1, "per": 1, **sizes},
        )
        scores, groups = best, chosen
    return groups


MIXED = [(0, 300), (0, 301), (0, 302), (1, 16), (1, 0), (2, 389), (2, -1), (0, 303), (0, -1)]


@pytest.mark.parametrize(("ratio", "rows", "tile"), [(2, 4, 9), (1, 4, 4), (1, 1, 3)])
def test_chain_equals_the_reference(ratio: int, rows: int, tile: int) -> None:
    """Ragged rows, padded ones, contexts that end within a page; rows in tiles that leave nothing behind in scratch."""
    given = batch(8, 32, ratio, 64, 7, MIXED)
    k, n_blocks = 24, 5
    found, published = [], []
    for first in range(0, len(MIXED), tile):
        part = given.tile(slice(first, first + tile))
        scores, blocks = part.scores(rows)
        found.append(choose(scores, k, 128, part.positions, ratio=ratio))
        published.append(choose(blocks, n_blocks, 128, part.positions, ratio=ratio, per=BLOCK))
    topk, best_blocks = given.reference(k, n_blocks)
    assert torch.equal(torch.cat(found), topk)
    assert torch.equal(torch.cat(published), best_blocks)
    assert (topk[6] == -1).all()
    assert (topk[4] >= 0).sum() == (1 if ratio == 1 else 0)


def test_released_size_moves_each_key_once() -> None:
    """32 heads of 128: the reference's scores, and four rows of a sequence read a key once."""
    given = batch(32, 128, 2, 64, 16, [(0, 2000 + row) for row in range(4)])
    with counted() as moved:
        scores, _ = given.scores(4, publish=False)
    visible = 1002
    keys = quant.dequantize(ops.load(given.index, _slots(given, visible), "fp4_e8m0", 64, 68), "fp4_e8m0")
    expected = ops.index_scores(given.query, given.weights, keys)
    hidden = torch.arange(visible) >= ((given.positions + 1) // 2).unsqueeze(1)
    assert torch.equal(scores[:, :visible].float(), expected.masked_fill(hidden, float("-inf")))
    programs = -(-given.entries // 512)
    again = given.query.nbytes + given.weights.nbytes + 4 * 16  # of every program: its rows, sequences and positions
    assert moved["loads"] == programs * again + visible * (68 + 8)
    assert moved["stores"] == 4 * 2 * given.entries

    # The op's rule reads full pages once, and a row's queries once; a page's number once, not for each of its keys.
    index = CacheType.of("index", 2, 2, 64, "fp4_e8m0", 128)
    operands = [given.query, given.weights, index, given.pages, given.sequence, given.positions, None]
    chosen = torch.zeros(4, 512, dtype=torch.int32)
    sizes = {"ratio": 2, "k": 512, "page": 64, "block": BLOCK, "n_blocks": 0}
    cost = rule("index_topk", operands, [chosen, chosen[:, :0]], **sizes)
    assert moved["served"] == cost.read + (programs - 1) * again - (given.entries - visible) * 68


def _slots(given: Batch, count: int) -> Tensor:
    entry = torch.arange(count)
    return given.pages[0, entry // given.page] * given.page + entry % given.page


def test_pool_equals_the_reference() -> None:
    """Candidates that end early, that lie behind the visible entries, that are none; a page's rest is never read."""
    given = batch(8, 32, 1, 64, 7, [(0, 300), (1, 40), (1, 389), (0, -1)])
    candidates = torch.full((4, 20), -1, dtype=torch.int32)
    candidates[0, :9] = torch.tensor([0, 3, 4, 11, 20, 36, 37, 38, 50])
    candidates[1, :6] = torch.arange(6)
    candidates[2, 5:] = torch.arange(33, 48)
    candidates[3] = torch.arange(20)
    scores, _ = given.scores(1, candidates, publish=False)
    ours = choose(scores, 16, 64, None, BLOCK, candidates)
    assert torch.equal(ours, given.pool_reference(candidates, 16))
    assert (ours[3] == -1).all()


def test_pool_keeps_what_restricted_scoring_keeps() -> None:
    """The candidate source's own blocks, handed on as it publishes them."""
    given = batch(8, 32, 1, 64, 7, [(0, 300), (1, 389)])
    _, blocks = given.reference(24, 12)
    scores, _ = given.scores(1, blocks, publish=False)
    by_row = (given.query, given.weights, given.index, given.pages, given.sequence, given.positions)
    masked, _ = ops.index_topk(*by_row, blocks, 1, 24, 64, BLOCK, 0)
    assert torch.equal(choose(scores, 24, 64, None, BLOCK, blocks), masked)


@pytest.mark.parametrize("span", [128, 1024])
def test_choice_at_plateaus(span: int) -> None:
    """More ties than places: zeros of both signs, infinities, whole rows of one score; the lower position wins."""
    torch.manual_seed(5)
    count, k = 500, 30
    scores = torch.randint(-2, 3, (8, count)).bfloat16() * 0.5
    scores[0] = 0.0
    scores[0, ::3] = -0.0
    scores[1] = torch.where(torch.rand(count) < 0.9, -0.0, 1e-30).bfloat16()
    scores[2] = float("-inf")
    scores[3] = float("-inf")
    scores[3, 77::100] = -3e38
    scores[4] = float("inf")
    scores[5] = torch.randn(count).bfloat16()
    positions = torch.tensor([499, 499, 499, 499, 499, 499, 12, -1])
    visible = torch.arange(count) <= positions.unsqueeze(1)
    expected = ops._best(torch.where(visible, scores.float(), float("-inf")), k)
    assert torch.equal(choose(scores, k, span, positions), expected.int())
    assert expected[0].tolist() == list(range(k))


def test_fewer_entries_than_wanted() -> None:
    scores = torch.randn(2, 9).bfloat16()
    ours = choose(scores, 12, 64, torch.tensor([8, 3]))
    assert ours.tolist() == [[*range(9), -1, -1, -1], [*range(4), *[-1] * 8]]


def test_three_levels() -> None:
    scores = torch.randint(-2, 3, (1, 500), generator=torch.Generator().manual_seed(2)).bfloat16()
    assert indexer.levels(500, 20, 64) == (8, 3, 1)
    assert torch.equal(choose(scores, 20, 64, torch.tensor([498])), ops._best(scores[:, :499].float(), 20).int())


def test_levels_and_scratch() -> None:
    assert indexer.levels(8192, 512) == (1,)
    assert indexer.levels(8193, 512) == (2, 1)
    assert indexer.levels(2**19, 512) == (64, 4, 1)
    assert indexer.levels(2**16, 2048) == (8, 2, 1)
    assert indexer.scratch_bytes(2**19, 512) == 2 * 2**19 + 6 * 512 * 69 - 4 * 512
    with pytest.raises(CompileError, match=r"no 5000 best of 20000 scores in spans of 8192.*raise SPAN to 16384"):
        indexer.levels(20000, 5000)
