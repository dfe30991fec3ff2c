"""`index_topk` and `index_pool_topk`: score the index keys of a row, keep the best, span by span.

The first scores all keys that a row may see. The second scores those of its candidate blocks, so that its work does not
grow with the context; in a context no longer than the pool the blocks hold all keys, and it takes the first one's way.
Neither ever holds a row's scores of a whole context: a tile of rows goes over the entries in spans and keeps the best
of what it has seen, so that what a call allocates grows with neither rows nor context (`scratch`).

Order among equal scores is part of the result: relu makes many scores exactly zero, and a zero may carry either sign.
A score and its position are therefore packed into one integer, larger for a higher score, then for a lower position;
all keys of a row differ, so any top-k gives one answer, and so does a top-k of parts' top-k (SPEC 4.10).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv41c.models import quant
from dsv41c.runtime.kernels.binding import LaunchContext, Results, Run
from dsv41c.runtime.kernels.planes import planes

SCRATCH_BYTES = 40 << 20  # a span's keys, products and scores, unless a single page or block takes more
TILE_ROWS = 32  # rows that share a span's decoded keys
MERGED = 4  # times k: what is kept is cut to k again at this width
_FORMAT = "fp4_e8m0"
_LIST = torch.int32
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


@dataclass(frozen=True)
class _Rows:
    """Rows of one sequence.

    Attributes:
        query: bf16 [t, Hi, Di]. weights: bf16 [t, Hi].
        visible: int64 [t], entries that each may see.
        pool: int32 [t, C], candidate blocks, -1 none; None for all.
    """

    query: Tensor
    weights: Tensor
    visible: Tensor
    pool: Tensor | None

    def __getitem__(self, own: slice | Tensor) -> _Rows:
        pool = None if self.pool is None else self.pool[own]
        return _Rows(self.query[own], self.weights[own], self.visible[own], pool)


# The best entries int32 [t, k] and blocks int32 [t, n_blocks] of a tile of rows that all see something.
_Select = Callable[["_Rows", "_SequenceKeys", Selection], tuple[Tensor, Tensor]]


def bind(context: LaunchContext) -> Run:
    """Arguments of the call: query, weights, index cache, pages, sequence, positions, candidates or None.

    Results: topk int32 [T, k] and blocks int32 [T, n_blocks], both ascending, -1 last.
    """
    return _bind(context, _select)


def bind_pool(context: LaunchContext) -> Run:
    """Arguments as in `bind`, with candidates. Result: topk int32 [T, k], ascending, -1 last."""
    run = _bind(context, _select_from_pool)
    return lambda args: run(args)[:1]


def _bind(context: LaunchContext, select: _Select) -> Run:
    cache: Tensor = context.constants[2]
    rule = Selection(**context.attrs)

    def run(args: list[Any]) -> Results:
        query, weights, _, pages, sequence, positions, candidates = args
        rows = _Rows(query, weights, (positions + 1) // rule.ratio, candidates)
        topk = torch.full((positions.shape[0], rule.k), -1, dtype=_LIST)
        blocks = torch.full((positions.shape[0], rule.n_blocks), -1, dtype=_LIST)
        for b, tile in _tiles(sequence, rows.visible):
            keys = _SequenceKeys(cache, pages[b], rule.page, query.shape[-1])
            topk[tile], blocks[tile] = select(rows[tile], keys, rule)
        return topk, blocks

    return run


def _tiles(sequence: Tensor, visible: Tensor) -> Iterator[tuple[int, slice | Tensor]]:
    """Rows of one sequence that see anything, few at a time; slices where nothing else is in the batch: no copies."""
    seeing = visible > 0
    if not bool(seeing.any()):
        return
    present = torch.unique(sequence[seeing]).tolist()
    if len(present) == 1 and bool(seeing.all()):
        yield from ((present[0], slice(at, at + TILE_ROWS)) for at in range(0, visible.shape[0], TILE_ROWS))
        return
    for b in present:
        own = torch.where((sequence == b) & seeing)[0]
        yield from ((b, part) for part in own.split(TILE_ROWS))


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


def _select(rows: _Rows, keys: _SequenceKeys, rule: Selection) -> tuple[Tensor, Tensor]:
    longest = int(rows.visible.max())
    if rows.pool is None and _nothing_is_dropped(longest, rule):
        return _ascending(rows.visible, rule.k), _ascending(-(-rows.visible // rule.block), rule.n_blocks)
    return _dense(rows, keys, longest, rule)


def _select_from_pool(rows: _Rows, keys: _SequenceKeys, rule: Selection) -> tuple[Tensor, Tensor]:
    """As `_select`, by the entries of each row's candidate blocks alone (SPEC 4.9)."""
    assert rows.pool is not None, "index_pool_topk has candidates"
    if int(rows.visible.max()) <= rows.pool.shape[1] * rule.block:
        return _select(rows, keys, rule)
    count = rows.visible.shape[0]
    topk = torch.empty((count, rule.k), dtype=_LIST)
    tile = pool_tile(rows.pool.shape[1] * rule.block, *rows.query.shape[1:])
    for own in (slice(at, at + tile) for at in range(0, count, tile)):
        topk[own] = _from_pool(rows[own], keys, rule)
    return topk, topk.new_empty((count, 0))


def dense_span(rows: int, heads: int, channels: int, page: int, block: int) -> int:
    """Entries that are scored together by `rows` rows: whole pages and blocks, so that none of them straddles spans."""
    step = math.lcm(page, block)
    return max(step, SCRATCH_BYTES // (rows * row_bytes(heads) + key_bytes(channels)) // step * step)


def pool_tile(entries: int, heads: int, channels: int) -> int:
    """Rows that are scored together over `entries` entries of their pools each."""
    return max(1, min(TILE_ROWS, SCRATCH_BYTES // ((row_bytes(heads) + key_bytes(channels)) * entries)))


def pool_span(heads: int, channels: int, block: int) -> int:
    """Candidate blocks of a row that are scored together."""
    return max(1, SCRATCH_BYTES // ((row_bytes(heads) + key_bytes(channels)) * block))


def key_bytes(channels: int) -> int:
    """What a key takes while it is decoded: packed twice, values, values times scales; then the values in fp32."""
    return 10 * channels + 64


def row_bytes(heads: int) -> int:
    """What a row takes for each entry while it is scored: fp32 dots, bf16 products and fp32 ones, sums, packed keys."""
    return 10 * heads + 64


def _nothing_is_dropped(longest: int, rule: Selection) -> bool:
    """Whether the visible entries themselves are the answer, so that no score is needed."""
    return longest <= rule.k and (rule.n_blocks == 0 or longest <= rule.n_blocks * rule.block)


def _ascending(counts: Tensor, width: int) -> Tensor:
    """0, 1, ..., count - 1, then -1, for each row: int32 [t, width]."""
    ramp = torch.arange(width, dtype=_LIST)
    return torch.where(ramp < counts.unsqueeze(-1), ramp, -1)


def _dense(rows: _Rows, keys: _SequenceKeys, longest: int, rule: Selection) -> tuple[Tensor, Tensor]:
    count, heads, channels = rows.query.shape
    query = rows.query.to(torch.float32)
    member = None if rows.pool is None else _members(rows.pool, longest, rule.block)
    entries, blocks = Best(count, rule.k), Best(count, rule.n_blocks)
    span = dense_span(count, heads, channels, rule.page, rule.block)
    for start in range(0, longest, span):
        end = min(start + span, longest)
        scores = score(torch.matmul(query, keys.span(start, end).t()), rows.weights)
        own = torch.arange(start, end)
        scores.masked_fill_(own >= rows.visible.unsqueeze(-1), _NEG_INF)
        if member is not None:
            scores.masked_fill_(~member.index_select(1, own // rule.block), _NEG_INF)
        entries.add(scores, own)
        if rule.n_blocks:
            blocks.add(*block_scores(scores, rows.visible, start, rule.block))
    return entries.chosen(), blocks.chosen()


def score(dots: Tensor, weights: Tensor) -> Tensor:
    """Rounds as the reference does: the dot, its weighted product and the sum over heads (SPEC 4.7).

    Args:
        dots: fp32 [t, Hi, n]. weights: bf16 [t, Hi].
    Returns:
        fp32 [t, n] of bf16 values.
    """
    products = dots.to(torch.bfloat16).relu_().mul_(weights.unsqueeze(-1))
    return products.to(torch.float32).sum(1).to(torch.bfloat16).to(torch.float32)


def _members(pool: Tensor, longest: int, block: int) -> Tensor:
    """bool [t, blocks + 1]: which blocks of `longest` entries are in a row's pool; the last column means nothing."""
    count = -(-longest // block)
    # Column `count` takes the -1 entries and blocks that lie beyond what any row of this tile sees.
    member = torch.zeros((pool.shape[0], count + 1), dtype=torch.bool)
    return member.scatter_(1, torch.where((pool < 0) | (pool > count), count, pool).to(torch.int64), True)


def _from_pool(rows: _Rows, keys: _SequenceKeys, rule: Selection) -> Tensor:
    """A tile of rows, each on its own candidate blocks up to what it sees itself (SPEC 13.21): int32 [t, k]."""
    assert rows.pool is not None
    count, heads, channels = rows.query.shape
    query = rows.query.to(torch.float32)
    best = Best(count, rule.k)
    for pool in rows.pool.split(pool_span(heads, channels, rule.block), dim=1):
        entries = (pool.to(torch.int64).unsqueeze(-1) * rule.block + torch.arange(rule.block)).flatten(1)
        hidden = (entries < 0) | (entries >= rows.visible.unsqueeze(-1))
        own = keys.gather(torch.where(hidden, 0, entries))
        scores = score(torch.matmul(query, own.transpose(1, 2)), rows.weights)
        best.add(scores.masked_fill_(hidden, _NEG_INF), entries)
    return best.chosen()


class Best:
    """The k highest scores of each row among all that are added: higher score first, then lower entry.

    Args:
        rows: how many. k: how many of each; -inf is never chosen.
    """

    def __init__(self, rows: int, k: int) -> None:
        self._rows, self._k = rows, k
        self._parts: list[Tensor] = []

    def add(self, scores: Tensor, entries: Tensor) -> None:
        """Scores fp32 [t, n], no NaN, of entries int64 [n] or [t, n] that differ from all that were added."""
        self._parts.append(self._cut(_packed(scores, entries)))
        # Few and large merges: each costs as much for what it knew before as for what is new.
        if sum(part.shape[1] for part in self._parts) >= MERGED * self._k:
            self._parts = [self._cut(torch.cat(self._parts, dim=1))]

    def chosen(self) -> Tensor:
        """int32 [t, k] entries, ascending, -1 last."""
        if not self._parts:
            return torch.full((self._rows, self._k), -1, dtype=_LIST)
        packed = self._parts[0] if len(self._parts) == 1 else self._cut(torch.cat(self._parts, dim=1))
        # A hidden key's low bits are zero: it becomes the largest position and sorts last.
        found = (_POSITION_MASK - (packed & _POSITION_MASK)).to(_LIST).sort(dim=1).values
        found.masked_fill_(found == _POSITION_MASK, -1)
        return torch.nn.functional.pad(found, (0, self._k - found.shape[1]), value=-1)

    def _cut(self, packed: Tensor) -> Tensor:
        return packed if packed.shape[1] <= self._k else packed.topk(self._k, dim=1, sorted=False).values


def _packed(scores: Tensor, entries: Tensor) -> Tensor:
    """int64 [t, n], greater for a higher score, then for a lower entry; least for -inf."""
    # Adding zero makes -0 into +0, which must tie; then fp32 bits order like integers once negative ones are flipped.
    bits = (scores + 0.0).view(torch.int32)
    ordered = bits.bitwise_xor_((bits >> 31).bitwise_and_(0x7FFFFFFF)).to(torch.int64)
    packed = ordered.bitwise_left_shift_(_POSITION_BITS).bitwise_or_(_POSITION_MASK - entries)
    return packed.masked_fill_(scores == _NEG_INF, _HIDDEN)


def block_scores(scores: Tensor, visible: Tensor, start: int, block: int) -> tuple[Tensor, Tensor]:
    """Each block's highest visible score; the block of the newest visible entry is above all others (SPEC 4.9).

    Args:
        scores: fp32 [t, n] of the entries from `start` on, a block's first; -inf where not visible.
        visible: int64 [t], positive.
    Returns:
        fp32 [t, m], and the blocks int64 [m].
    """
    count = -(-scores.shape[1] // block)
    blocks = torch.arange(start // block, start // block + count)
    padded = torch.nn.functional.pad(scores, (0, count * block - scores.shape[1]), value=_NEG_INF)
    found = padded.view(-1, count, block).amax(-1)
    return found.masked_fill_(blocks == ((visible - 1) // block).unsqueeze(-1), float("inf")), blocks
