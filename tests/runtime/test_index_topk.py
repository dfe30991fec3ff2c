"""`index_topk` against a slow oracle that compares Python numbers one by one, and against the model's own reference."""

from itertools import pairwise

import pytest
import torch
from hand_made import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor

from dsv41c.models import ops, quant
from dsv41c.runtime.kernels import index_topk
from dsv41c.runtime.kernels.binding import LaunchContext

_HEADS, _DIM, _PAGE = 8, 32, 4


def run(args: list[object], **attrs: int) -> tuple[Tensor, Tensor]:
    constants = tuple(args[2] if i == 2 else None for i in range(7))
    topk, blocks = index_topk.bind(LaunchContext(attrs, constants))(list(args))
    return topk, blocks


def slow_best(scores: list[float], k: int) -> list[int]:
    ranked = sorted((j for j, s in enumerate(scores) if s != float("-inf")), key=lambda j: (-scores[j], j))
    kept = sorted(ranked[:k])
    return kept + [-1] * (k - len(kept))


def slow_blocks(scores: list[float], visible: int, block: int, n: int) -> list[int]:
    starts = range(0, len(scores), block)
    best = [max(scores[i : i + block]) for i in starts]
    if visible:
        best[(visible - 1) // block] = float("inf")
    return slow_best(best, n)


def select(
    scores: Tensor, visible: Tensor, spans: list[tuple[int, int]], k: int, block: int, n_blocks: int
) -> tuple[Tensor, Tensor]:
    """The kernel's choice of entries and blocks from scores that come in spans."""
    best, blocks = index_topk.Best(scores.shape[0], k), index_topk.Best(scores.shape[0], n_blocks)
    for start, end in spans:
        best.add(scores[:, start:end], torch.arange(start, end))
        blocks.add(*index_topk.block_scores(scores[:, start:end], visible, start, block))
    return best.chosen(), blocks.chosen()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_selection_from_scores(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 30))
    # Few values, zeros of both signs among them: nearly every cut falls on a tie.
    value = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 3.0e38, -3.0e38, 1e-40])
    scores = data.draw(st.lists(value, min_size=n, max_size=n))
    visible = data.draw(st.integers(1, n))
    masked = [s if j < visible else float("-inf") for j, s in enumerate(scores)]
    k, block, n_blocks = data.draw(st.integers(1, 35)), data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    cuts = data.draw(st.sets(st.integers(1, 29).map(lambda at: at * block)))
    spans = list(pairwise([0, *sorted(cut for cut in cuts if cut < n), n]))
    topk, blocks = select(torch.tensor([masked]), torch.tensor([visible]), spans, k, block, n_blocks)
    assert topk.tolist() == [slow_best(masked, k)]
    assert blocks.tolist() == [slow_blocks(masked, visible, block, n_blocks)]


def make_batch(seed: int, lengths: list[int], ratio: int, plateau: bool) -> list[Tensor]:
    """Query, weights, cache, pages, sequence, positions of sequences whose last rows are in the batch."""
    rng = torch.Generator().manual_seed(seed)
    n_pages = sum(-(-(length // ratio) // _PAGE) + 1 for length in lengths)
    width = quant.FORMATS["fp4_e8m0"].row_bytes(_DIM)
    cache = torch.full((n_pages, _PAGE * width + 12), 0x7F, dtype=torch.uint8)
    order = torch.randperm(n_pages, generator=rng).tolist()
    pages = torch.full((len(lengths), max(lengths) // ratio // _PAGE + 1), -1)
    sequence, positions = [], []
    for b, length in enumerate(lengths):
        entries = length // ratio
        own = [order.pop() for _ in range(-(-entries // _PAGE))]
        pages[b, : len(own)] = torch.tensor(own, dtype=torch.int64)
        keys = torch.randn(entries, _DIM, generator=rng).to(torch.bfloat16)
        if plateau:
            keys = keys.abs().round()
        entry = torch.arange(entries)
        slots = pages[b, entry // _PAGE] * _PAGE + entry % _PAGE
        ops.store(cache, quant.quantize(keys, "fp4_e8m0"), slots, "fp4_e8m0", _PAGE)
        rows = list(range(max(0, length - 9), length))
        sequence += [b] * len(rows) + [0]
        positions += [*rows, -1]
    t = len(positions)
    query = torch.randn(t, _HEADS, _DIM, generator=rng)
    # All dots negative: every score is a zero, of the sign of its weights.
    query = (-query.abs() if plateau else query).to(torch.bfloat16)
    weights = torch.randn(t, _HEADS, generator=rng).to(torch.bfloat16)
    return [query, weights, cache, pages, torch.tensor(sequence), torch.tensor(positions)]


def slow(args: list[Tensor], pool: Tensor | None, ratio: int, k: int, block: int, n_blocks: int) -> tuple[list, list]:
    query, weights, cache, pages, sequence, positions = args
    width = quant.FORMATS["fp4_e8m0"].row_bytes(_DIM)
    topk, blocks = [], []
    for t in range(query.shape[0]):
        visible = (int(positions[t]) + 1) // ratio
        slots = torch.tensor([int(pages[sequence[t], j // _PAGE]) * _PAGE + j % _PAGE for j in range(visible)])
        packed = ops.load_definition(cache, slots.long(), "fp4_e8m0", _PAGE, width)
        keys = quant.dequantize(packed, "fp4_e8m0").double()
        total = torch.zeros(visible)
        for h in range(_HEADS):
            dot = (keys * query[t, h].double()).sum(-1).to(torch.bfloat16).float()
            total += (dot.clamp(min=0) * weights[t, h].float()).to(torch.bfloat16).float()
        allowed = [pool is None or j // block in pool[t].tolist() for j in range(visible)]
        rounded = total.to(torch.bfloat16).tolist()
        scores = [score if kept else float("-inf") for score, kept in zip(rounded, allowed, strict=True)]
        topk.append(slow_best(scores, k))
        blocks.append(slow_blocks(scores, visible, block, n_blocks))
    return topk, blocks


@pytest.fixture(params=["one tile", "small tiles"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that hold all rows and a span of all entries; or tiles of four rows and spans of a single block or page."""
    if request.param == "small tiles":
        monkeypatch.setattr(index_topk, "SCRATCH_BYTES", 2048)
        monkeypatch.setattr(index_topk, "TILE_ROWS", 4)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("plateau", [False, True])
@pytest.mark.parametrize("lengths", [[1], [40], [3, 33, 18]])
def test_against_oracle(ratio: int, plateau: bool, lengths: list[int]) -> None:
    args = make_batch(len(lengths), lengths, ratio, plateau)
    for k, n_blocks in [(5, 3), (64, 2), (64, 40), (5, 0)]:
        topk, blocks = run([*args, None], ratio=ratio, k=k, page=_PAGE, block=4, n_blocks=n_blocks)
        want_topk, want_blocks = slow(args, None, ratio, k, 4, n_blocks)
        assert topk.tolist() == want_topk
        assert blocks.tolist() == want_blocks
        for mine, theirs in zip((topk, blocks), ops.index_topk(*args, None, ratio, k, _PAGE, 4, n_blocks), strict=True):
            assert torch.equal(mine, theirs)


def make_pool(args: list[Tensor], blocks: int, block: int, ratio: int, seed: int) -> Tensor:
    """For each row random blocks of what its sequence has, its own newest one among them; ascending, -1 last."""
    rng = torch.Generator().manual_seed(seed)
    pool = torch.full((args[5].shape[0], blocks), -1, dtype=torch.int32)
    for row, position in enumerate(args[5].tolist()):
        count = -(-((position + 1) // ratio) // block)
        if count == 0:
            continue
        others = torch.randperm(count - 1, generator=rng)[: blocks - 1].tolist()
        chosen = torch.tensor(sorted([*others, count - 1]))
        pool[row, : len(chosen)] = chosen
    return pool


def run_pool(args: list[Tensor], pool: Tensor, **attrs: int) -> Tensor:
    constants = tuple(args[2] if i == 2 else None for i in range(7))
    (topk,) = index_topk.bind_pool(LaunchContext(attrs, constants))([*args, pool])
    return topk


def one_row(args: list[Tensor], row: int) -> list[Tensor]:
    """The batch of a single one of its rows."""
    return [args[0][row : row + 1], args[1][row : row + 1], *args[2:4], args[4][row : row + 1], args[5][row : row + 1]]


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("plateau", [False, True])
@pytest.mark.parametrize("lengths", [[1], [7], [50, 44], [3, 90, 33]])
def test_candidates_restrict(ratio: int, plateau: bool, lengths: list[int]) -> None:
    """Blocks of five that straddle pages of four; rows whose pools hold all they see, and rows whose pools do not."""
    args = make_batch(4, lengths, ratio, plateau)
    for blocks in (1, 3, 40):
        pool = make_pool(args, blocks, 5, ratio, seed=blocks)
        for k in (5, 30):
            attrs = {"ratio": ratio, "k": k, "page": _PAGE, "block": 5}
            want = slow(args, pool, ratio, k, 5, 0)[0]
            assert run([*args, pool], **attrs, n_blocks=0)[0].tolist() == want
            assert run_pool(args, pool, **attrs).tolist() == want
            assert ops.index_pool_topk(*args, pool, *attrs.values()).tolist() == want
            for row in range(len(want)):
                alone = run_pool(one_row(args, row), pool[row : row + 1], **attrs)
                assert alone.tolist() == want[row : row + 1]


def test_a_masked_selection_still_publishes_blocks() -> None:
    args = make_batch(4, [50, 44], 1, False)
    pool = torch.tensor([[0, 3, 7, -1]], dtype=torch.int32).repeat(args[0].shape[0], 1)
    got = run([*args, pool], ratio=1, k=5, page=_PAGE, block=4, n_blocks=2)
    assert (got[0].tolist(), got[1].tolist()) == slow(args, pool, 1, 5, 4, 2)


@pytest.mark.parametrize("rows", [1, 5])
def test_a_pool_costs_the_same_at_any_context(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Counted, not timed: keys that are decoded and scores that are computed, at contexts from 6 to 96 pools."""
    counts = {"pool": [], "mask": []}
    decode, score = index_topk._decode, index_topk.score

    def counting_decode(data: Tensor, scale: Tensor) -> Tensor:
        work["keys"] += data.numel() // data.shape[-1]
        return decode(data, scale)

    def counting_score(dots: Tensor, weights: Tensor) -> Tensor:
        work["scores"] += dots.shape[0] * dots.shape[-1]
        return score(dots, weights)

    monkeypatch.setattr(index_topk, "_decode", counting_decode)
    monkeypatch.setattr(index_topk, "score", counting_score)
    pool_entries = 3 * 4
    for length in (72, 144, 288, 1152):
        args = make_batch(5, [length], 1, False)
        args = [args[0][:rows], args[1][:rows], *args[2:4], args[4][:rows], args[5][:rows]]
        pool = make_pool(args, 3, 4, 1, seed=length)
        work = {"keys": 0, "scores": 0}
        run_pool(args, pool, ratio=1, k=5, page=_PAGE, block=4)
        assert work["scores"] == rows * pool_entries
        assert work["keys"] <= rows * pool_entries
        counts["pool"].append(work)
        work = {"keys": 0, "scores": 0}
        run([*args, pool], ratio=1, k=5, page=_PAGE, block=4, n_blocks=0)
        counts["mask"].append(work)
    assert len({work["scores"] for work in counts["pool"]}) == 1
    assert counts["mask"][-1]["scores"] >= 15 * counts["mask"][0]["scores"]


def test_padding_alone() -> None:
    args = make_batch(1, [20], 1, False)
    args[5][:] = -1
    topk, blocks = run([*args, None], ratio=1, k=3, page=_PAGE, block=4, n_blocks=2)
    assert topk.unique().tolist() == [-1]
    pool = torch.zeros(args[0].shape[0], 2, dtype=torch.int32)
    assert run_pool(args, pool, ratio=1, k=3, page=_PAGE, block=4).unique().tolist() == [-1]
    assert blocks.unique().tolist() == [-1]


@pytest.mark.parametrize(
    "name", ["cand_r1", "cand_r2", "cand_few", "cand_dec1", "cand_dec4", "cand_dec17", "cand_dec50"]
)
def test_golden_candidate_masks(name: str) -> None:
    with safe_open(GOLDEN / "kernels.safetensors", "pt") as golden:
        scores, mask = golden.get_tensor(f"{name}.scores"), golden.get_tensor(f"{name}.mask").bool()
        decode = name.startswith("cand_dec")
        n_blocks, block = (4, 4) if decode else golden.get_tensor(f"{name}.param").tolist()
        lens = torch.tensor([scores.shape[1]]) if decode else golden.get_tensor(f"{name}.lens").long()
    seen = lens > 0
    scores = scores.masked_fill(torch.arange(scores.shape[1]) >= lens.unsqueeze(1), float("-inf"))
    _, blocks = select(scores[seen], lens[seen], [(0, scores.shape[1])], 1, block, n_blocks)
    entries = torch.arange(scores.shape[1]) // block
    assert torch.equal((blocks.unsqueeze(-1) == entries).any(1), mask[seen])
