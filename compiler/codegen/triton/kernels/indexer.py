"""The indexer: scores, candidate blocks, and an exact choice of the best (SPEC 4.7-4.10; models/ops.py `index_topk`).

    index_scores         rows of queries against the index keys of their own sequence, and the best score of each block
    index_pool_scores    the same for the entries of each row's candidate blocks, and no others
    select               the k best of every span of a row's scores, in the row's order: where one span is all there is,
                         the list itself, ascending, -1 last

Scores are bf16 numbers, as in the reference, so 16 comparisons find the k-th largest exactly. A row that has more than
one span is chosen from in levels, each from what the spans of the level before kept: a span's k best hold whatever of
it is among the k best of the row. Equal scores go to the lower position at every level; -inf is never chosen.

Scratch is one row of scores for each row of queries that is in work, see `scratch_bytes`; rows are taken in tiles that
keep it under a budget, by giving every pointer with a row to it the address of the tile's first row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dsv41c.compiler.codegen.triton.families import Hole, Kernel, Tile
from dsv41c.compiler.codegen.triton.kernels.paged import fp4_tile, planar_row
from dsv41c.errors import CompileError

if TYPE_CHECKING:
    from dsv41c.models.config import ModelConfig

SPAN = 8192  # scores that one program chooses from
_MAGNITUDE = tl.constexpr(0x7FFF)
_INFINITY_BITS = tl.constexpr(0x7F80)


@triton.jit
def index_scores_kernel(
    query_ptr,
    weights_ptr,
    index_ptr,
    pages_ptr,
    sequence_ptr,
    positions_ptr,
    candidates_ptr,
    scores_ptr,
    blocks_ptr,
    n_rows,
    n_entries,
    n_blocks,
    n_pages,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    RATIO: tl.constexpr,
    PAGE: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    POOL: tl.constexpr,
    PUBLISH: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    """query bf16 [n_rows, HEADS, D] and weights bf16 [n_rows, HEADS] to scores bf16 [n_rows, n_entries].

    index, pages int64 [sequences, n_pages], sequence, positions: as in the reference. A program does ROWS rows and
    ENTRIES entries, KEYS at a time; what no row of it sees is not written, what a row does not see is -inf.
    PUBLISH: blocks bf16 [n_rows, n_blocks], the best score of BLOCK entries, inf for the block of the newest.
    POOL: entries are those of candidates int32 [n_rows, n_blocks], ascending, -1 none; ROWS is 1 and all are written.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first_key = tl.program_id(1) * ENTRIES
    inside = row < n_rows
    address = row.to(tl.int64)
    sequence = tl.load(sequence_ptr + address, mask=inside, other=-1)
    position = tl.load(positions_ptr + address, mask=inside, other=-1)
    visible = ((position + 1) // RATIO).to(tl.int32)

    pair = tl.arange(0, ROWS * PADDED_HEADS)
    pair_row, head = tl.program_id(0) * ROWS + pair // PADDED_HEADS, pair % PADDED_HEADS
    wanted = (pair_row < n_rows) & (head < HEADS)
    at = pair_row.to(tl.int64) * HEADS + head
    query = tl.load(query_ptr + at[:, None] * D + tl.arange(0, D)[None, :], mask=wanted[:, None], other=0.0)
    weights = tl.load(weights_ptr + at, mask=wanted, other=0.0).to(tl.float32)

    for leader in range(ROWS):
        # Rows of one sequence are scored together, when the first of them is the leader.
        led_by = tl.max(tl.where(tl.arange(0, ROWS) == leader, sequence, -1), axis=0)
        own = inside & (sequence == led_by)
        earlier = tl.max((own & (tl.arange(0, ROWS) < leader)).to(tl.int32), axis=0)
        seen = tl.max(tl.where(own, visible, 0), axis=0)
        steps = tl.where(earlier > 0, 0, ENTRIES // KEYS)
        if not POOL:
            steps = tl.minimum(steps, tl.cdiv(tl.maximum(seen - first_key, 0), KEYS))
        for step in range(steps):
            key = first_key + step * KEYS + tl.arange(0, KEYS)
            entry = key
            if POOL:
                block = tl.load(candidates_ptr + address * n_blocks + key // BLOCK, mask=key < n_entries, other=-1)
                entry = tl.where(block >= 0, block * BLOCK + key % BLOCK, -1)
            known = (entry >= 0) & (entry < seen)
            safe = tl.where(known, entry, 0)
            page = tl.load(pages_ptr + led_by * n_pages + safe // PAGE, mask=known, other=0).to(tl.int64)
            data, scale = planar_row(index_ptr, page * PAGE + safe % PAGE, PAGE, STRIDE, D // 2, D // 32)
            keys = fp4_tile(data, scale, known, 0, KEYS, D, 32, False)

            # --- relu, head weights and their sum, with the reference's roundings
            dots = tl.maximum(tl.dot(query, tl.trans(keys)).to(tl.bfloat16).to(tl.float32), 0.0)
            weighted = (dots * weights[:, None]).to(tl.bfloat16).to(tl.float32)
            score = tl.sum(tl.reshape(weighted, (ROWS, PADDED_HEADS, KEYS)), axis=1)
            score = tl.where(known[None, :] & (entry[None, :] < visible[:, None]), score, float("-inf"))
            stored = own[:, None] & (key < n_entries)[None, :]
            tl.store(scores_ptr + address[:, None] * n_entries + key[None, :], score.to(tl.bfloat16), mask=stored)

            # --- the best of each block
            if PUBLISH:
                block = (first_key + step * KEYS) // BLOCK + tl.arange(0, KEYS // BLOCK)
                best = tl.max(tl.reshape(score.to(tl.bfloat16).to(tl.float32), (ROWS, KEYS // BLOCK, BLOCK)), axis=2)
                newest = tl.where(visible > 0, (visible - 1) // BLOCK, -1)
                best = tl.where(block[None, :] == newest[:, None], float("inf"), best)
                stored = own[:, None] & (block < n_blocks)[None, :]
                tl.store(blocks_ptr + address[:, None] * n_blocks + block[None, :], best.to(tl.bfloat16), mask=stored)


@triton.jit
def select_kernel(
    scores_ptr,
    entries_ptr,
    positions_ptr,
    best_ptr,
    list_ptr,
    n_rows,
    n_scores,
    n_spans,
    k,
    ratio,
    per,
    GROUP: tl.constexpr,
    SPAN: tl.constexpr,
):
    """The k best of each span of scores bf16 [n_rows, n_scores] to list int32 [n_rows, n_spans, k], ascending, -1 last.

    best bf16 [n_rows, n_spans, k] gets their scores, -inf where there is none.
    GROUP 0: score p is of entry or block p; a row's scores end with its visible entries, ratio tokens each and per
    entries a score, by positions int64 [n_rows]. Other GROUPs: score p is of entry p % GROUP of the group that entries
    names, int32 [n_rows, n_scores / GROUP]; positions, ratio and per are read by nobody.
    """
    row = tl.program_id(0).to(tl.int64)
    span = tl.program_id(1)
    count = n_scores
    if GROUP == 0:
        visible = ((tl.load(positions_ptr + row) + 1) // ratio).to(tl.int32)
        count = tl.minimum(tl.cdiv(visible, per), n_scores)
    place = span * SPAN + tl.arange(0, SPAN)
    score = tl.load(scores_ptr + row * n_scores + place, mask=place < count, other=float("-inf"))

    # --- bf16 to integers of the same order, zeros of both signs alike and NaN above all
    bits = score.to(tl.uint16, bitcast=True).to(tl.int32)
    magnitude = bits & _MAGNITUDE
    order = tl.where(bits > _MAGNITUDE, 0x8000 - magnitude, 0x8000 + magnitude)
    order = tl.where(order == 0x8000 - _INFINITY_BITS, 0, order)
    order = tl.where(magnitude > _INFINITY_BITS, 0xFFFF, order)

    # --- the k-th largest, from its highest bit down; 0 where there are fewer
    threshold = 0
    for bit in range(16):
        higher = threshold | (0x8000 >> bit)
        threshold = tl.where(tl.sum((order >= higher).to(tl.int32), axis=0) >= k, higher, threshold)

    # --- all above it, and of those that equal it the first
    above = (order > threshold).to(tl.int32)
    equal = ((order == threshold) & (order > 0)).to(tl.int32)
    free = k - tl.sum(above, axis=0)
    before = tl.cumsum(above * 0x10000 + equal, axis=0) - (above * 0x10000 + equal)
    equal_before = before & 0xFFFF
    chosen = (above > 0) | ((equal > 0) & (equal_before < free))
    target = (before >> 16) + tl.minimum(equal_before, free)
    n_chosen = k - free + tl.minimum(tl.sum(equal, axis=0), free)

    entry = place
    if GROUP > 0:
        group = tl.load(entries_ptr + row * (n_scores // GROUP) + place // GROUP, mask=chosen, other=0)
        entry = group * GROUP + place % GROUP
    out = (row * n_spans + span) * k
    tl.store(list_ptr + out + target, entry, mask=chosen)
    tl.store(best_ptr + out + target, score, mask=chosen)
    slot = tl.arange(0, SPAN)
    empty = (slot >= n_chosen) & (slot < k)
    tl.store(list_ptr + out + slot, tl.full((SPAN,), -1, tl.int32), mask=empty)
    tl.store(best_ptr + out + slot, tl.full((SPAN,), float("-inf"), tl.float32), mask=empty)


_SCORES = {
    "query_ptr": "*bf16",
    "weights_ptr": "*bf16",
    "index_ptr": "*u8",
    "pages_ptr": "*i64",
    "sequence_ptr": "*i64",
    "positions_ptr": "*i64",
    "candidates_ptr": "*i32",
    "scores_ptr": "*bf16",
    "blocks_ptr": "*bf16",
    "n_rows": "i32",
    "n_entries": "i32",
    "n_blocks": "i32",
    "n_pages": "i32",
}
_SELECT = {
    "scores_ptr": "*bf16",
    "entries_ptr": "*i32",
    "positions_ptr": "*i64",
    "best_ptr": "*bf16",
    "list_ptr": "*i32",
    "n_rows": "i32",
    "n_scores": "i32",
    "n_spans": "i32",
    "k": "i32",
    "ratio": "i32",
    "per": "i32",
}
ROWS_TOGETHER = 4  # rows of a prefill that share decoded keys
# Rows of a tile may start anywhere in these.
_BY_ROW = ("sequence_ptr", "positions_ptr")


def scores(
    name: str,
    heads: int,
    channels: int,
    ratio: int,
    index: tuple[int, int],
    block: int,
    rows: int = 1,
    pool: bool = False,
    publish: bool = False,
) -> Kernel:
    """A kernel that scores index keys for `heads` heads of `channels` channels.

    Args:
        ratio: tokens an entry. index: rows and bytes a page. block: entries a candidate block.
        rows: rows a program where a target has room; those of one sequence share the keys that it decodes.
        pool: score the entries of candidate blocks, one row a program. publish: give the best score of each block too.
    """
    # Matrix units take no fewer than 16 rows.
    padded = max(16, 1 << (heads - 1).bit_length())
    holes: dict[str, Hole] = {"HEADS": heads, "PADDED_HEADS": padded, "D": channels, "RATIO": ratio, "BLOCK": block}
    holes |= {"PAGE": index[0], "STRIDE": index[1], "POOL": pool, "PUBLISH": publish}
    cuts = [(rows, 64), (rows, 32), *([(1, 32)] if rows > 1 else [])]
    tiles = tuple(Tile({"ROWS": together, "KEYS": keys, "ENTRIES": 512}, stages=1) for together, keys in cuts)
    grid = (("n_rows", "ROWS"), ("n_entries", "ENTRIES"))
    return Kernel(name, "indexer", "index_scores_kernel", _SCORES, holes, tiles, grid, unaligned=_BY_ROW)


def select(name: str, group: int, span: int = SPAN) -> Kernel:
    """A kernel that chooses from spans of `span` scores; `group` as in `select_kernel`."""
    holes: dict[str, Hole] = {"GROUP": group, "SPAN": span}
    grid = (("n_rows", 1), ("n_spans", 1))
    return Kernel(name, "indexer", "select_kernel", _SELECT, holes, (Tile({}, warps=16, stages=1),), grid, _BY_ROW)


def levels(count: int, k: int, span: int = SPAN) -> tuple[int, ...]:
    """The spans of each level that chooses the `k` best of `count` scores; the last has one.

    Raises:
        CompileError: a level would keep all it gets.
    """
    if count > span and 2 * k > span:
        raise CompileError(
            f"no {k} best of {count} scores in spans of {span}: a span must be at least twice as long as what is kept "
            f"of it; raise SPAN to {2 << (k - 1).bit_length()}"
        )
    spans = [-(-count // span)]
    while spans[-1] > 1:
        spans.append(-(-spans[-1] * k // span))
    return tuple(spans)


def scratch_bytes(entries: int, k: int, span: int = SPAN) -> int:
    """What choosing the `k` best of `entries` scores keeps of one row: its scores, and what each level keeps of them.

    The last level's list is the result itself.
    """
    return 2 * entries + sum(6 * spans * k for spans in levels(entries, k, span)) - 4 * k


def kernels(config: ModelConfig) -> tuple[Kernel, ...]:
    """The indexer of a model, for pages of the default size; names end in the rows of a page."""
    # Imported here, so that a process that only compiles does not load torch.
    from dsv41c.models.state import state_specs

    made: dict[str, Kernel] = {}
    block, source = config.candidate_block_size, config.candidate_source_layer_id
    for spec in (spec for spec in state_specs(config) if spec.kind == "index"):
        sizes = (config.index_n_heads, spec.channels, spec.ratio, (spec.page, spec.page_width), block)
        publish = spec.owner == source
        for rows, form in ((ROWS_TOGETHER, "index_scores"), (1, "index_scores_single")):
            name = f"{form}_{spec.page}{'_blocks' * publish}"
            made[name] = scores(name, *sizes, rows, publish=publish)
        if publish:
            name = f"index_pool_scores_{spec.page}"
            made[name] = scores(name, *sizes, pool=True)
    for name, group in (("select", 0), ("select_merge", 1), ("select_pool", block)):
        made[name] = select(name, group)
    return tuple(made.values())
