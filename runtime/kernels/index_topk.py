"""`index_topk` and `index_pool_topk`: score the index keys of a row, keep the best, in tiles of rows under a budget.

The first scores all keys that a row may see. The second scores those of its candidate blocks, so that its work does not
grow with the context; in a context no longer than the pool the blocks hold all keys, and it takes the first one's way.

Order among equal scores is part of the result: relu makes many scores exactly zero, and a zero may carry either sign.
A score and its position are therefore packed into one integer, larger for a higher score, then for a lower position;
all keys of a row differ, so any top-k gives one answer (SPEC 4.10).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv41c.models import quant
from dsv41c.runtime.kernels.binding import LaunchContext, Results, Run
from dsv41c.runtime.kernels.planes import planes

SCRATCH_BYTES = 64 << 20  # no intermediate of a tile is larger, unless a single row's is
# Rows of pools share no work, so a tile is no larger than what stays in the processor's cache (bench/cpu_index.py).
_CACHE_BYTES = 8 << 20
_FORMAT = "fp4_e8m0"
_POSITION_BITS = 31
_POSITION_MASK = (1 << _POSITION_BITS) - 1
_HIDDEN = torch.iinfo(torch.int64).min
_NEG_INF = float("-inf")


@dataclass(frozen=True)
class Selection:
    """The op's attributes; see `models.ops.index_topk`."""

    ratio: int
    k: int
    page: int
    block: int
    n_blocks: int = 0


# Query, weights, keys, visible, pool, rule of one sequence's rows; see `_select`.
_Select = Callable[[Tensor, Tensor, "_SequenceKeys", Tensor, "Tensor | None", Selection], tuple[Tensor, Tensor]]


def bind(context: LaunchContext) -> Run:
    """Arguments of the call: query, weights, index cache, pages, sequence, positions, candidates or None.

    Results: topk int64 [T, k] and blocks int64 [T, n_blocks], both ascending, -1 last.
    """
    return _bind(context, _select)


def bind_pool(context: LaunchContext) -> Run:
    """Arguments as in `bind`, with candidates. Result: topk int64 [T, k], ascending, -1 last."""
    run = _bind(context, _select_from_pool)
    return lambda args: run(args)[:1]


def _bind(context: LaunchContext, select: _Select) -> Run:
    cache: Tensor = context.constants[2]
    rule = Selection(**context.attrs)

    def run(args: list[Any]) -> Results:
        query, weights, _, pages, sequence, positions, candidates = args
        rows = positions.shape[0]
        visible = (positions + 1) // rule.ratio
        if rows == 1 and int(visible) > 0:  # decode: nothing to gather
            keys = _SequenceKeys(cache, pages[int(sequence)], rule.page, query.shape[-1])
            pool = None if candidates is None else candidates.to(torch.int64)
            topk, blocks = select(query, weights, keys, visible, pool, rule)
            return topk.to(torch.int32), blocks.to(torch.int32)
        topk = torch.full((rows, rule.k), -1, dtype=torch.int32)
        blocks = torch.full((rows, rule.n_blocks), -1, dtype=torch.int32)
        for b, own in _rows_by_sequence(sequence, visible):
            keys = _SequenceKeys(cache, pages[b], rule.page, query.shape[-1])
            pool = None if candidates is None else candidates[own].to(torch.int64)
            found = select(query[own], weights[own], keys, visible[own], pool, rule)
            topk[own], blocks[own] = (part.to(torch.int32) for part in found)
        return topk, blocks

    return run


def _rows_by_sequence(sequence: Tensor, visible: Tensor) -> list[tuple[int, Any]]:
    """Each sequence's rows that see anything; a slice where it owns the whole batch, which needs no gather."""
    seeing = visible > 0
    if not bool(seeing.any()):
        return []
    present = torch.unique(sequence[seeing]).tolist()
    if len(present) == 1 and bool(seeing.all()):
        return [(present[0], slice(None))]
    return [(b, torch.where((sequence == b) & seeing)[0]) for b in present]


class _SequenceKeys:
    """The index keys of one sequence, by entry.

    Args:
        cache: the index cache. pages: int64 [P], the sequence's block table. page: rows a page. channels: of a key.
    """

    def __init__(self, cache: Tensor, pages: Tensor, page: int, channels: int) -> None:
        self._cache, self._pages, self._page = cache, pages, page
        form = quant.FORMATS[_FORMAT]
        self._data_bytes, self._scale_bytes = form.data_bytes(channels), form.scale_bytes(channels)

    def span(self, start: int, end: int) -> Tensor:
        """The keys of entries start..end-1 as fp32 [end - start, channels]; start lies on a page boundary."""
        first = start // self._page
        own = self._cache.index_select(0, self._pages[first : -(-end // self._page)])
        split = self._page * self._data_bytes
        data = own[:, :split].reshape(-1, self._data_bytes)
        scale = own[:, split : split + self._page * self._scale_bytes].reshape(-1, self._scale_bytes)
        return _decode(data[: end - start], scale[: end - start])

    def gather(self, entries: Tensor) -> Tensor:
        """The keys of given entries as fp32 [*entries.shape, channels]."""
        index = (self._pages[entries // self._page], entries % self._page)
        data, scale = planes(self._cache, _FORMAT, self._page, self._data_bytes + self._scale_bytes)
        return _decode(data[index], scale[index])  # type: ignore[index]  # a packed format has scales


def _pair_table() -> Tensor:
    """Both fp32 values of every packed byte: [256, 2]."""
    return quant.unpack_e2m1(torch.arange(256, dtype=torch.uint8).unsqueeze(-1))


def _scale_table() -> Tensor:
    return quant.decode_ue8m0(torch.arange(256, dtype=torch.uint8))


_PAIRS = _pair_table()
_SCALES = _scale_table()


def _decode(data: Tensor, scale: Tensor) -> Tensor:
    """Packed rows to fp32 by table; every value is exact in bf16, so no rounding is left out (SPEC 15.8)."""
    values = _PAIRS.index_select(0, data.reshape(-1).to(torch.int32))
    scales = _SCALES.index_select(0, scale.reshape(-1).to(torch.int32))
    grouped = values.view(*scale.shape, quant.FORMATS[_FORMAT].group)
    return (grouped * scales.view(*scale.shape, 1)).flatten(-2)


def _select(
    query: Tensor, weights: Tensor, keys: _SequenceKeys, visible: Tensor, pool: Tensor | None, rule: Selection
) -> tuple[Tensor, Tensor]:
    """One sequence's rows.

    Args:
        query: bf16 [t, Hi, Di]. weights: bf16 [t, Hi]. visible: int64 [t], all positive. pool: int64 [t, C] or None.
    Returns:
        topk int64 [t, k], blocks int64 [t, n_blocks].
    """
    longest = int(visible.max())
    if pool is None and _nothing_is_dropped(longest, rule):
        return _ascending(visible, rule.k), _ascending(-(-visible // rule.block), rule.n_blocks)
    return _tiled(
        dense_tile(longest),
        visible.shape[0],
        lambda own: _dense(
            query[own], weights[own], keys, visible[own], longest, None if pool is None else pool[own], rule
        ),
    )


def _select_from_pool(
    query: Tensor, weights: Tensor, keys: _SequenceKeys, visible: Tensor, pool: Tensor | None, rule: Selection
) -> tuple[Tensor, Tensor]:
    """As `_select`, by the entries of each row's candidate blocks alone (SPEC 4.9)."""
    assert pool is not None, "index_pool_topk has candidates"
    if int(visible.max()) <= pool.shape[1] * rule.block:
        return _select(query, weights, keys, visible, pool, rule)
    return _tiled(
        pool_tile(pool.shape[1] * rule.block, *query.shape[1:]),
        visible.shape[0],
        lambda own: _from_pool(query[own], weights[own], keys, visible[own], pool[own], rule),
    )


def _tiled(tile: int, rows: int, select: Callable[[slice], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    parts = [select(slice(start, start + tile)) for start in range(0, rows, tile)]
    return torch.cat([topk for topk, _ in parts]), torch.cat([blocks for _, blocks in parts])


def dense_tile(longest: int) -> int:
    """Rows that are scored together over `longest` entries each."""
    # Per row and entry: the packed score key (8 bytes) and a few fp32 temporaries of the selection.
    return max(1, SCRATCH_BYTES // (24 * longest))


def dense_span(rows: int, heads: int, channels: int, page: int) -> int:
    """Entries that are scored together by `rows` rows: whole pages, so that each span starts on one."""
    # Per entry: the products of all heads in bf16 and fp32, or the key while it is decoded.
    return max(page, SCRATCH_BYTES // max(8 * rows * heads, 16 * channels) // page * page)


def pool_tile(entries: int, heads: int, channels: int) -> int:
    """Rows that are scored together over `entries` entries of their pools each."""
    # Per row and entry: the key in fp32, the products of its heads in bf16 and fp32, the packed score key.
    return max(1, min(SCRATCH_BYTES, _CACHE_BYTES) // (max(4 * channels, 8 * heads, 24) * entries))


def _nothing_is_dropped(longest: int, rule: Selection) -> bool:
    """Whether the visible entries themselves are the answer, so that no score is needed."""
    return longest <= rule.k and (rule.n_blocks == 0 or longest <= rule.n_blocks * rule.block)


def _ascending(counts: Tensor, width: int) -> Tensor:
    """0, 1, ..., count - 1, then -1, for each row: int64 [t, width]."""
    ramp = torch.arange(width)
    return torch.where(ramp < counts.unsqueeze(-1), ramp, -1)


def _dense(
    query: Tensor,
    weights: Tensor,
    keys: _SequenceKeys,
    visible: Tensor,
    longest: int,
    pool: Tensor | None,
    rule: Selection,
) -> tuple[Tensor, Tensor]:
    scores = _dense_scores(query, weights, keys, longest, rule.page)
    entries = torch.arange(longest)
    scores.masked_fill_(entries >= visible.unsqueeze(-1), _NEG_INF)
    if pool is not None:
        scores.masked_fill_(~_in_pool(pool, longest, rule.block), _NEG_INF)
    blocks = candidate_blocks(scores, visible, rule.block, rule.n_blocks)
    return best(scores, rule.k), blocks


def _dense_scores(query: Tensor, weights: Tensor, keys: _SequenceKeys, longest: int, page: int) -> Tensor:
    """Scores of every entry, fp32 [t, longest]; the per-head products exist for one span of entries at a time."""
    rows, heads, channels = query.shape
    span = dense_span(rows, heads, channels, page)
    flat = query.to(torch.float32)
    if longest <= span:
        return score(torch.matmul(flat, keys.span(0, longest).t()), weights)
    scores = torch.empty((rows, longest))
    for start in range(0, longest, span):
        end = min(start + span, longest)
        scores[:, start:end] = score(torch.matmul(flat, keys.span(start, end).t()), weights)
    return scores


def score(dots: Tensor, weights: Tensor) -> Tensor:
    """Rounds as the reference does: the dot, its weighted product and the sum over heads (SPEC 4.7).

    Args:
        dots: fp32 [t, Hi, n]. weights: bf16 [t, Hi].
    Returns:
        fp32 [t, n] of bf16 values.
    """
    products = dots.to(torch.bfloat16).relu_().mul_(weights.unsqueeze(-1))
    return products.to(torch.float32).sum(1).to(torch.bfloat16).to(torch.float32)


def _in_pool(pool: Tensor, longest: int, block: int) -> Tensor:
    """bool [t, longest]: whether an entry lies in one of its row's candidate blocks."""
    count = -(-longest // block)
    # Column `count` takes the -1 entries and blocks that lie beyond what any row of this tile sees.
    member = torch.zeros((pool.shape[0], count + 1), dtype=torch.bool)
    member.scatter_(1, torch.where((pool < 0) | (pool > count), count, pool), True)
    return member[:, :count].repeat_interleave(block, 1)[:, :longest]


def _from_pool(
    query: Tensor, weights: Tensor, keys: _SequenceKeys, visible: Tensor, pool: Tensor, rule: Selection
) -> tuple[Tensor, Tensor]:
    """A tile of rows, each on its own candidate blocks up to what it sees itself (SPEC 13.21)."""
    entries = (pool.unsqueeze(-1) * rule.block + torch.arange(rule.block)).flatten(1)
    hidden = (entries < 0) | (entries >= visible.unsqueeze(-1))
    own = keys.gather(torch.where(hidden, 0, entries))
    scores = score(torch.matmul(query.to(torch.float32), own.transpose(1, 2)), weights)
    scores.masked_fill_(hidden, _NEG_INF)
    return best(scores, rule.k, entries), entries.new_empty((entries.shape[0], 0))


def best(scores: Tensor, k: int, entries: Tensor | None = None) -> Tensor:
    """The k highest scores of each row: higher score first, then lower entry; -inf is never chosen.

    Args:
        scores: fp32 [t, n], no NaN. entries: int64 [n] or [t, n], the entry of each column; its number if absent.
    Returns:
        int64 [t, k] entries, ascending, -1 last.
    """
    columns = torch.arange(scores.shape[1]) if entries is None else entries
    # Adding zero makes -0 into +0, which must tie; then fp32 bits order like integers once negative ones are flipped.
    bits = (scores + 0.0).view(torch.int32)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
    packed = (ordered << _POSITION_BITS) | (_POSITION_MASK - columns)
    packed.masked_fill_(scores == _NEG_INF, _HIDDEN)
    if packed.shape[1] > k:
        packed = packed.topk(k, dim=1, sorted=False).values
    chosen = _POSITION_MASK - (packed & _POSITION_MASK)
    # A hidden key's low bits are zero: it becomes the largest position and sorts last.
    chosen = chosen.sort(dim=1).values
    chosen = torch.where(chosen == _POSITION_MASK, -1, chosen)
    return torch.nn.functional.pad(chosen, (0, k - chosen.shape[1]), value=-1)


def candidate_blocks(scores: Tensor, visible: Tensor, block: int, n_blocks: int) -> Tensor:
    """The blocks with the highest visible score; the newest visible entry's block is always among them (SPEC 4.9).

    Args:
        scores: fp32 [t, n], -inf where not visible. visible: int64 [t], positive.
    Returns:
        int64 [t, n_blocks] block ids, ascending, -1 last.
    """
    if n_blocks == 0:
        return visible.new_empty((visible.shape[0], 0))
    count = -(-scores.shape[1] // block)
    padded = torch.nn.functional.pad(scores, (0, count * block - scores.shape[1]), value=_NEG_INF)
    block_scores = padded.view(-1, count, block).amax(-1)
    block_scores.scatter_(1, ((visible - 1) // block).unsqueeze(-1), float("inf"))
    return best(block_scores, n_blocks)
