"""Attention over window rows and selected main rows with a sink (SPEC 4.11; models/ops.py `tiled_attention`).

    attend_*          prefill: one program for a row and a block of heads
    attend_*_split    decode: the keys of a row shared out over programs, each with a softmax of its own
    combine           the splits of a row to its output

Heads are the M of both products, so a key is decoded once for all heads of a program. Keys come in tiles of 64, as in
the reference: probabilities are rounded to bf16 against the running maximum of their tile. A split starts from the
seed of that maximum, so its roundings differ from the unsplit kernel's where an earlier tile had a higher maximum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dsv41c.compiler.codegen.triton.families import Hole, Kernel, Tile
from dsv41c.compiler.codegen.triton.kernels.paged import fp4_tile, fp8_tile, planar_row
from dsv41c.errors import CompileError

if TYPE_CHECKING:
    from dsv41c.models.config import ModelConfig

_TILE = tl.constexpr(64)  # keys that share one running maximum
_MASKED = tl.constexpr(-1e30)  # finite seed of the running maximum
_WINDOW, _BOTH, _MAIN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # which keys a tile holds


@triton.jit
def attend_kernel(
    query_ptr,
    window_ptr,
    fresh_ptr,
    window_index_ptr,
    main_ptr,
    main_slots_ptr,
    sink_ptr,
    out_ptr,
    maximum_ptr,
    total_ptr,
    n_rows,
    n_splits,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    SCALE: tl.constexpr,
    WINDOW: tl.constexpr,
    WINDOW_PAGE: tl.constexpr,
    WINDOW_STRIDE: tl.constexpr,
    SELECTED: tl.constexpr,
    MAIN_PAGE: tl.constexpr,
    MAIN_STRIDE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    CHUNKS: tl.constexpr,
    HELD: tl.constexpr,
    FP8_CASTS: tl.constexpr,
):
    """query bf16 [n_rows, HEADS, D] to out: bf16 of its shape, or fp32 [n_rows, n_splits, HEADS, D] where SPLIT.

    window, fresh, window_index [n_rows, WINDOW], main, main_slots [n_rows, SELECTED], sink: as in the reference, D a
    power of two. Without SELECTED keys, main and main_slots are read by nobody; without SPLIT, n_splits is 1 and
    maximum and total, both fp32 [n_rows, n_splits, HEADS], are written by nobody; with SPLIT, sink is read by nobody.
    HELD: queries are read once and kept, else they are read again for every tile, which takes fewer registers.
    """
    WIDTH: tl.constexpr = D // CHUNKS
    WHOLE: tl.constexpr = WINDOW // _TILE
    FIRST_MAIN: tl.constexpr = (WINDOW + _TILE - 1) // _TILE
    TILES: tl.constexpr = (WINDOW + SELECTED + _TILE - 1) // _TILE
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    split = tl.program_id(2)
    is_head = head < HEADS
    first, last = 0, TILES
    if SPLIT:
        share = tl.cdiv(TILES, n_splits)
        first = split * share
        last = tl.minimum(first + share, TILES)

    query = query_ptr + (row * HEADS + head)[:, None] * D + tl.arange(0, WIDTH)[None, :]
    queries, outs = tl.tuple([]), tl.tuple([])
    for chunk in tl.static_range(CHUNKS):
        if HELD:
            queries += (tl.load(query + chunk * WIDTH, mask=is_head[:, None], other=0.0),)
        outs += (tl.zeros((BLOCK_HEADS, WIDTH), tl.float32),)
    maximum = tl.full((BLOCK_HEADS,), _MASKED, tl.float32)
    total = tl.zeros((BLOCK_HEADS,), tl.float32)

    # --- tiles of window rows, at most one of both kinds, tiles of main rows
    for tile in range(first, tl.minimum(last, WHOLE)):
        keys, valid = _keys(
            _WINDOW, row, tile, window_ptr, fresh_ptr, window_index_ptr, main_ptr, main_slots_ptr,
            D, WINDOW, WINDOW_PAGE, WINDOW_STRIDE, SELECTED, MAIN_PAGE, MAIN_STRIDE, CHUNKS, FP8_CASTS,
        )  # fmt: skip
        read = is_head & (tile < last)
        outs, maximum, total = _attend(queries, query, read, keys, valid, outs, maximum, total, SCALE, CHUNKS, HELD)
    if WHOLE < FIRST_MAIN:
        for tile in range(tl.maximum(first, WHOLE), tl.minimum(last, FIRST_MAIN)):
            keys, valid = _keys(
                _BOTH, row, tile, window_ptr, fresh_ptr, window_index_ptr, main_ptr, main_slots_ptr,
                D, WINDOW, WINDOW_PAGE, WINDOW_STRIDE, SELECTED, MAIN_PAGE, MAIN_STRIDE, CHUNKS, FP8_CASTS,
            )  # fmt: skip
            read = is_head & (tile < last)
            outs, maximum, total = _attend(queries, query, read, keys, valid, outs, maximum, total, SCALE, CHUNKS, HELD)
    if FIRST_MAIN < TILES:
        for tile in range(tl.maximum(first, FIRST_MAIN), last):
            keys, valid = _keys(
                _MAIN, row, tile, window_ptr, fresh_ptr, window_index_ptr, main_ptr, main_slots_ptr,
                D, WINDOW, WINDOW_PAGE, WINDOW_STRIDE, SELECTED, MAIN_PAGE, MAIN_STRIDE, CHUNKS, FP8_CASTS,
            )  # fmt: skip
            read = is_head & (tile < last)
            outs, maximum, total = _attend(queries, query, read, keys, valid, outs, maximum, total, SCALE, CHUNKS, HELD)

    # --- the sink, or what `combine` needs
    part = (row * n_splits + split) * HEADS + head
    out = out_ptr + part[:, None] * D + tl.arange(0, WIDTH)[None, :]
    if SPLIT:
        tl.store(maximum_ptr + part, maximum, mask=is_head)
        tl.store(total_ptr + part, total, mask=is_head)
        for chunk in tl.static_range(CHUNKS):
            tl.store(out + chunk * WIDTH, outs[chunk], mask=is_head[:, None])
    else:
        sink = tl.load(sink_ptr + head, mask=is_head, other=0.0)
        for chunk in tl.static_range(CHUNKS):
            tl.store(out + chunk * WIDTH, _normalized(outs[chunk], maximum, total, sink), mask=is_head[:, None])


@triton.jit
def combine_kernel(
    part_ptr,
    maximum_ptr,
    total_ptr,
    sink_ptr,
    out_ptr,
    n_rows,
    n_splits,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    """The parts of `attend_kernel` and sink fp32 [HEADS] to out bf16 [n_rows, HEADS, D]."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    is_head = head < HEADS
    column = tl.arange(0, D)[None, :]
    maximum = tl.full((BLOCK_HEADS,), _MASKED, tl.float32)
    total = tl.zeros((BLOCK_HEADS,), tl.float32)
    out = tl.zeros((BLOCK_HEADS, D), tl.float32)
    for split in range(n_splits):
        part = (row * n_splits + split) * HEADS + head
        own = tl.load(maximum_ptr + part, mask=is_head, other=_MASKED)
        higher = tl.maximum(maximum, own)
        rescale, weight = tl.exp(maximum - higher), tl.exp(own - higher)
        total = total * rescale + tl.load(total_ptr + part, mask=is_head, other=0.0) * weight
        values = tl.load(part_ptr + part[:, None] * D + column, mask=is_head[:, None], other=0.0)
        out = out * rescale[:, None] + values * weight[:, None]
        maximum = higher
    sink = tl.load(sink_ptr + head, mask=is_head, other=0.0)
    at = (row * HEADS + head)[:, None] * D + column
    tl.store(out_ptr + at, _normalized(out, maximum, total, sink), mask=is_head[:, None])


@triton.jit
def _keys(
    KIND: tl.constexpr,
    row,
    tile,
    window_ptr,
    fresh_ptr,
    window_index_ptr,
    main_ptr,
    main_slots_ptr,
    D: tl.constexpr,
    WINDOW: tl.constexpr,
    WINDOW_PAGE: tl.constexpr,
    WINDOW_STRIDE: tl.constexpr,
    SELECTED: tl.constexpr,
    MAIN_PAGE: tl.constexpr,
    MAIN_STRIDE: tl.constexpr,
    CHUNKS: tl.constexpr,
    FP8_CASTS: tl.constexpr,
):
    """The keys of a tile, a tuple of bf16 [64, D / CHUNKS], and which of them exist, bool [64]."""
    WIDTH: tl.constexpr = D // CHUNKS
    key = tile * _TILE + tl.arange(0, _TILE)
    keys = tl.tuple([])
    if KIND == _WINDOW:
        index = tl.load(window_index_ptr + row * WINDOW + key, mask=key < WINDOW, other=-1)
        valid = index != -1
        data, scale = _window_rows(window_ptr, fresh_ptr, index, D, WINDOW_PAGE, WINDOW_STRIDE)
        for chunk in tl.static_range(CHUNKS):
            keys += (fp8_tile(data, scale, valid, chunk, _TILE, WIDTH, FP8_CASTS),)
    elif KIND == _MAIN:
        entry = key - WINDOW
        slot = tl.load(main_slots_ptr + row * SELECTED + entry, mask=entry < SELECTED, other=-1)
        valid = slot >= 0
        data, scale = planar_row(
            main_ptr, tl.where(valid, slot, 0).to(tl.int64), MAIN_PAGE, MAIN_STRIDE, D // 2, D // 16
        )
        for chunk in tl.static_range(CHUNKS):
            keys += (fp4_tile(data, scale, valid, chunk, _TILE, WIDTH, 16, FP8_CASTS),)
    else:
        index = tl.load(window_index_ptr + row * WINDOW + key, mask=key < WINDOW, other=-1)
        in_window = index != -1
        data, scale = _window_rows(window_ptr, fresh_ptr, index, D, WINDOW_PAGE, WINDOW_STRIDE)
        valid = in_window
        if SELECTED > 0:
            entry = key - WINDOW
            inside = (entry >= 0) & (entry < SELECTED)
            slot = tl.load(main_slots_ptr + row * SELECTED + entry, mask=inside, other=-1)
            in_main = slot >= 0
            slot = tl.where(in_main, slot, 0).to(tl.int64)
            main_data, main_scale = planar_row(main_ptr, slot, MAIN_PAGE, MAIN_STRIDE, D // 2, D // 16)
            valid = in_window | in_main
        for chunk in tl.static_range(CHUNKS):
            tile_keys = fp8_tile(data, scale, in_window, chunk, _TILE, WIDTH, FP8_CASTS)
            if SELECTED > 0:
                main = fp4_tile(main_data, main_scale, in_main, chunk, _TILE, WIDTH, 16, FP8_CASTS)
                tile_keys = tl.where(in_window[:, None], tile_keys, main)
            keys += (tile_keys,)
    return keys, valid


@triton.jit
def _window_rows(window_ptr, fresh_ptr, index, D: tl.constexpr, PAGE: tl.constexpr, STRIDE: tl.constexpr):
    """Where the rows of a window index stand: i >= 0 in slot i, i <= -2 in row -2 - i of fresh, -1 anywhere."""
    ALIGNED: tl.constexpr = D // 32 if D < 512 else 16
    slot = tl.where(index >= 0, index, 0).to(tl.int64)
    data, scale = planar_row(window_ptr, slot, PAGE, STRIDE, D, D // 32)
    fresh = fresh_ptr + tl.where(index <= -2, -2 - index, 0).to(tl.int64) * (D + D // 32)
    data = tl.where(index <= -2, fresh, data)
    scale = tl.where(index <= -2, fresh + D, scale)
    # A choice of pointers hides from the compiler what both have in common.
    return tl.multiple_of(data, ALIGNED), tl.multiple_of(scale, ALIGNED)


@triton.jit
def _attend(
    queries,
    query,
    read,
    keys,
    valid,
    outs,
    maximum,
    total,
    SCALE: tl.constexpr,
    CHUNKS: tl.constexpr,
    HELD: tl.constexpr,
):
    """One tile of the online softmax: new outs, maximum and total.

    Where queries are not HELD, `read` says which heads there are in terms of the tile: of a mask that is the same for
    every tile, a compiler makes a load before the loop.
    """
    WIDTH: tl.constexpr = keys[0].shape[1]
    logits = tl.zeros((query.shape[0], _TILE), tl.float32)
    for chunk in tl.static_range(CHUNKS):
        part = queries[chunk] if HELD else tl.load(query + chunk * WIDTH, mask=read[:, None], other=0.0)
        logits = tl.dot(part, tl.trans(keys[chunk]), logits)
    logits = tl.where(valid[None, :], logits * SCALE, _MASKED)
    higher = tl.maximum(maximum, tl.max(logits, axis=1))
    # A masked logit must weigh nothing even while the maximum is still the seed, where exp(0) would be 1.
    weights = tl.where(valid[None, :], tl.exp(logits - higher[:, None]), 0.0)
    rescale = tl.exp(maximum - higher)
    total = total * rescale + tl.sum(weights, axis=1)
    rounded = weights.to(tl.bfloat16)
    updated = tl.tuple([])
    for chunk in tl.static_range(CHUNKS):
        updated += (tl.dot(rounded, keys[chunk], outs[chunk] * rescale[:, None]),)
    return updated, higher, total


@triton.jit
def _normalized(out, maximum, total, sink):
    """out fp32 over the softmax's denominator, as bf16; 0 where there was no key."""
    # Without a key the maximum is the seed, too far below any sink for its exponential.
    denominator = total + tl.exp(tl.where(total > 0, sink - maximum, 0.0))
    quotient = tl.div_rn(out, tl.broadcast_to(denominator[:, None], out.shape))
    return tl.where((total > 0)[:, None], quotient, 0.0).to(tl.bfloat16)


_ARGUMENTS = {
    "query_ptr": "*bf16",
    "window_ptr": "*u8",
    "fresh_ptr": "*u8",
    "window_index_ptr": "*i32",
    "main_ptr": "*u8",
    "main_slots_ptr": "*i32",
    "sink_ptr": "*fp32",
    "out_ptr": "*bf16",
    "maximum_ptr": "*fp32",
    "total_ptr": "*fp32",
    "n_rows": "i32",
    "n_splits": "i32",
}
_COMBINED = {
    "part_ptr": "*fp32",
    "maximum_ptr": "*fp32",
    "total_ptr": "*fp32",
    "sink_ptr": "*fp32",
    "out_ptr": "*bf16",
    "n_rows": "i32",
    "n_splits": "i32",
}
_GRID = (("n_rows", 1), ("HEADS", "BLOCK_HEADS"))
_CHUNK = 64  # channels that are decoded at a time: with more of them, registers spill
# Targets whose shared memory takes 32 heads of 512 channels, and those that hold queries of 16; without matrix
# instructions for bf16, on sm_75, whatever is held spills. Tiles that cannot fit would only cost time to compile.
_ROOM = ("cuda:sm_80", "cuda:sm_90", "cuda:sm_10")
_HOLDING = ("cuda:sm_8", "cuda:sm_9", "cuda:sm_1")


def attend(
    name: str, heads: int, channels: int, window: tuple[int, int, int], main: tuple[int, int, int], split: bool = False
) -> Kernel:
    """A kernel for `heads` heads of `channels` channels.

    Args:
        window, main: keys a row, rows a page, bytes a page; no keys of a cache that is not read.
        split: the splits of `combine` instead of the output.

    Raises:
        CompileError: no tile takes so many channels.
    """
    if channels < 32 or channels & (channels - 1):
        raise CompileError(
            f"sparse attention takes heads of 32, 64, 128, ... channels, not {channels}: its tiles are powers of two; "
            "change 'head_dim'"
        )
    holes: dict[str, Hole] = {"HEADS": heads, "D": channels, "SCALE": channels**-0.5, "SPLIT": split, "FP8_CASTS": True}
    holes |= dict(zip(("WINDOW", "WINDOW_PAGE", "WINDOW_STRIDE"), window, strict=True))
    holes |= dict(zip(("SELECTED", "MAIN_PAGE", "MAIN_STRIDE"), main, strict=True))
    arguments = {**_ARGUMENTS, "out_ptr": "*fp32"} if split else _ARGUMENTS
    return Kernel(
        name,
        "sparse_attention",
        "attend_kernel",
        arguments,
        holes,
        _tiles(heads, channels, window[0]),
        (*_GRID, ("n_splits", 1)),
    )


def combine(name: str, heads: int, channels: int) -> Kernel:
    """A kernel that makes the output of the splits of `attend`."""
    tiles = tuple(Tile({"BLOCK_HEADS": block}, stages=1) for block in (8, 1))
    return Kernel(name, "sparse_attention", "combine_kernel", _COMBINED, {"HEADS": heads, "D": channels}, tiles, _GRID)


def _tiles(heads: int, channels: int, window: int) -> tuple[Tile, ...]:
    """Blocks of heads as large as there are heads for, and never under 16: matrix units take no fewer rows."""
    chunks = max(1, channels // _CHUNK)
    # With a tile of both kinds of keys, 32 heads were seen to spill on sm_80, sm_90 and sm_100.
    blocks = (32, 16) if heads >= 32 and window % _TILE.value == 0 else (16,)
    held = [{"BLOCK_HEADS": block, "CHUNKS": chunks, "HELD": True} for block in blocks]
    cuda = [Tile(holes, 8, 1, _ROOM if holes["BLOCK_HEADS"] == 32 else _HOLDING) for holes in held]
    # What is left: sm_86 and sm_89 spill held queries in a tile of both kinds.
    cuda.append(_again(chunks, 8, "cuda:"))
    return (*cuda, _again(max(1, chunks // 4), 4, "hip:gfx9"), _again(max(1, chunks // 2), 8, "hip:gfx1"))


def _again(chunks: int, warps: int, targets: str) -> Tile:
    holes = {"BLOCK_HEADS": 16, "CHUNKS": chunks, "HELD": False}
    return Tile(holes, warps=warps, stages=1, targets=(targets,))


def kernels(config: ModelConfig) -> tuple[Kernel, ...]:
    """Attention of a model's layers and draft block, for pages of the default size; names end in the rows of a page."""
    # Imported here, so that a process that only compiles does not load torch.
    from dsv41c.models.state import state_specs

    heads, channels, width = config.num_attention_heads, config.head_dim, config.sliding_window
    made = {"combine": combine("attend_combine", heads, channels)}
    ring = next(spec for spec in state_specs(config) if spec.kind == "window")
    mains = {(spec.page, spec.page_width) for spec in state_specs(config) if spec.kind == "main"}
    variants = {"window": (width, (0, 1, 0))}
    if config.num_nextn_predict_layers:
        variants["draft"] = (width + config.dspark_block_size, (0, 1, 0))
    for page, stride in sorted(mains):
        variants[f"main_{page}"] = (width, (config.index_topk, page, stride))
    for variant, (keys, main) in variants.items():
        # The window alone is too few keys to share out.
        for split in (False, True) if main[0] else (False,):
            name = f"attend_{variant}{'_split' * split}"
            made[name] = attend(name, heads, channels, (keys, ring.page, ring.page_width), main, split)
    return tuple(made.values())
