"""Cache rows: norm, RoPE, quantization, packing and the paged store in one program, for every packed row format.

    write_rows    models/pack_ops.py `write_rows`; without slots `pack_rows`; without norm and rotation `quantize`
    pool_tail     models/attention.py `Compressor`: the latent of a group of tokens, from this batch's rows and the tail
    store_packed  models/ops.py `store` of rows that are packed already
    store_plain   the same of rows that are not packed: the compressor tail and the token history
    load_plain    models/ops.py `load` of such rows

A pack without slots is a store into pages of one row: data bytes first, scale bytes behind them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dsv41c.compiler.codegen.triton.families import Hole, Kernel, Tile
from dsv41c.compiler.codegen.triton.kernels.formats import (
    clamp_e4m3,
    decode_e4m3,
    e2m1_group_exponent,
    e2m1_group_scale,
    e4m3_group_exponent,
    encode_e2m1,
    encode_e4m3,
    largest_magnitude,
    power_of_two,
)
from dsv41c.compiler.codegen.triton.kernels.rows import inverse_root, rotate_pairs, sum_in_chains

if TYPE_CHECKING:
    from dsv41c.models.config import ModelConfig


@triton.jit
def write_rows_kernel(
    x_ptr,
    cos_ptr,
    sin_ptr,
    weight_ptr,
    slots_ptr,
    cache_ptr,
    n_rows,
    eps,
    FORMAT: tl.constexpr,
    D: tl.constexpr,
    ROTATED: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    PAGE: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    FP8_CASTS: tl.constexpr,
):
    """x bf16 [n_rows, D], cos and sin fp32 [n_rows, ROTATED / 2], weight bf16 [D], slots int64 [n_rows] to packed rows.

    FORMAT: a row format of models/quant.py. ROTATED: channels at the end that turn, 0 for none. STRIDE: bytes a page.
    """
    PAIRS: tl.constexpr = D // 2
    GROUP: tl.constexpr = 16 if FORMAT == "fp4_e4m3" else 32
    GROUPS: tl.constexpr = D // GROUP
    DATA: tl.constexpr = D if FORMAT == "fp8_e8m0" else PAIRS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < n_rows
    address = row.to(tl.int64)
    channel = tl.arange(0, D)
    x = tl.load(x_ptr + address[:, None] * D + channel[None, :], mask=inside[:, None], other=0.0).to(tl.float32)

    # --- norm
    if HAS_NORM:
        factor = inverse_root(sum_in_chains(x * x, ROWS, D), D, eps)
        weight = tl.load(weight_ptr + channel).to(tl.float32)
        x = (weight[None, :] * (x * factor[:, None])).to(tl.bfloat16).to(tl.float32)
    even, odd = tl.split(tl.reshape(x, (ROWS, PAIRS, 2)))

    # --- RoPE
    if ROTATED > 0:
        turned = tl.arange(0, PAIRS) - (PAIRS - ROTATED // 2)
        angle = address[:, None] * (ROTATED // 2) + turned[None, :]
        wanted = inside[:, None] & (turned >= 0)[None, :]
        cos = tl.load(cos_ptr + angle, mask=wanted, other=1.0)
        sin = tl.load(sin_ptr + angle, mask=wanted, other=0.0)
        even, odd = rotate_pairs(even, odd, cos, sin, (turned >= 0)[None, :])

    # --- quantize and pack
    even = tl.reshape(even, (ROWS, GROUPS, GROUP // 2))
    odd = tl.reshape(odd, (ROWS, GROUPS, GROUP // 2))
    amax = largest_magnitude(even, odd)
    if FORMAT == "fp8_e8m0":
        exponent = e4m3_group_exponent(amax)
        # Dividing by a power of two is multiplying by its inverse, exactly.
        inverse = power_of_two(254 - exponent)[:, :, None]
        low = encode_e4m3(clamp_e4m3(even * inverse), FP8_CASTS)
        high = encode_e4m3(clamp_e4m3(odd * inverse), FP8_CASTS)
        data = tl.reshape(tl.join(low, high), (ROWS, DATA))
        scale = exponent.to(tl.uint8)
    elif FORMAT == "fp4_e8m0":
        exponent = e2m1_group_exponent(amax)
        inverse = power_of_two(254 - exponent)[:, :, None]
        codes = encode_e2m1(even * inverse) + encode_e2m1(odd * inverse) * 16
        data = tl.reshape(codes, (ROWS, DATA)).to(tl.uint8)
        scale = exponent.to(tl.uint8)
    else:
        scale = e2m1_group_scale(amax, FP8_CASTS)
        divisor = tl.broadcast_to(decode_e4m3(scale, FP8_CASTS)[:, :, None], (ROWS, GROUPS, GROUP // 2))
        codes = encode_e2m1(tl.div_rn(even, divisor)) + encode_e2m1(tl.div_rn(odd, divisor)) * 16
        data = tl.reshape(codes, (ROWS, DATA)).to(tl.uint8)

    # --- store
    slot = tl.load(slots_ptr + address, mask=inside, other=-1) if HAS_SLOTS else tl.where(inside, address, -1)
    kept = slot >= 0
    slot = tl.where(kept, slot, 0)
    page = (slot // PAGE) * STRIDE
    offset = slot % PAGE
    data_at = page + offset * DATA
    scale_at = page + PAGE * DATA + offset * GROUPS
    tl.store(cache_ptr + data_at[:, None] + tl.arange(0, DATA)[None, :], data, mask=kept[:, None])
    tl.store(cache_ptr + scale_at[:, None] + tl.arange(0, GROUPS)[None, :], scale, mask=kept[:, None])


@triton.jit
def pool_tail_kernel(
    raw_ptr,
    tail_ptr,
    earlier_ptr,
    weight_ptr,
    latent_ptr,
    n_rows,
    eps,
    RATIO: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Pools each row with the RATIO - 1 rows before it and normalizes the latent (SPEC 4.3).

    raw fp32 [n_rows, 2 * D], the kv and gate of each row; tail fp32 [slots, 2 * D]; earlier int64 [n_rows, RATIO - 1],
    oldest first: i >= 0 is tail slot i, i <= -2 is row -2 - i of raw, -1 is no row; weight bf16 [D]; latent bf16
    [n_rows, D]. It only reads the tail: the rows that it needs may be those that this batch overwrites.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < n_rows
    address = row.to(tl.int64)
    channel = tl.arange(0, D)[None, :]
    own = address[:, None] * (2 * D) + channel
    highest = tl.load(raw_ptr + own + D, mask=inside[:, None], other=0.0)
    for back in tl.static_range(RATIO - 1):
        gate = _earlier(raw_ptr + D, tail_ptr + D, earlier_ptr + address * (RATIO - 1) + back, inside, channel, D)
        highest = tl.maximum(highest, gate)
    total = tl.zeros((ROWS, D), tl.float32)
    for back in tl.static_range(RATIO - 1):
        gate = _earlier(raw_ptr + D, tail_ptr + D, earlier_ptr + address * (RATIO - 1) + back, inside, channel, D)
        total += tl.exp(gate - highest)
    own_share = tl.exp(tl.load(raw_ptr + own + D, mask=inside[:, None], other=0.0) - highest)
    total += own_share
    pooled = tl.zeros((ROWS, D), tl.float32)
    for back in tl.static_range(RATIO - 1):
        before = earlier_ptr + address * (RATIO - 1) + back
        gate = _earlier(raw_ptr + D, tail_ptr + D, before, inside, channel, D)
        kv = _earlier(raw_ptr, tail_ptr, before, inside, channel, D)
        pooled += kv * tl.div_rn(tl.exp(gate - highest), total)
    pooled += tl.load(raw_ptr + own, mask=inside[:, None], other=0.0) * tl.div_rn(own_share, total)
    pooled = pooled.to(tl.bfloat16).to(tl.float32)
    factor = inverse_root(sum_in_chains(pooled * pooled, ROWS, D), D, eps)
    weight = tl.load(weight_ptr + channel).to(tl.float32)
    latent = (weight * (pooled * factor[:, None])).to(tl.bfloat16)
    tl.store(latent_ptr + address[:, None] * D + channel, latent, mask=inside[:, None])


@triton.jit
def _earlier(raw_ptr, tail_ptr, earlier_ptr, inside, channel, D: tl.constexpr):
    """One half of earlier rows, fp32 [ROWS, D]; pointers stand at the half that is wanted."""
    where = tl.load(earlier_ptr, mask=inside, other=-1)
    stored = where >= 0
    fresh = where <= -2
    in_tail = tl.where(stored, where, 0)[:, None] * (2 * D) + channel
    in_raw = tl.where(fresh, -2 - where, 0)[:, None] * (2 * D) + channel
    from_tail = tl.load(tail_ptr + in_tail, mask=stored[:, None], other=0.0)
    return tl.where(fresh[:, None], tl.load(raw_ptr + in_raw, mask=fresh[:, None], other=0.0), from_tail)


@triton.jit
def store_plain_kernel(rows_ptr, slots_ptr, cache_ptr, n_rows, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """rows [n_rows, WIDTH] into cache [slots, WIDTH] of the same type; slot -1 writes nothing. WIDTH a power of two."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < n_rows
    address = row.to(tl.int64)
    slot = tl.load(slots_ptr + address, mask=inside, other=-1)
    kept = slot >= 0
    column = tl.arange(0, WIDTH)[None, :]
    values = tl.load(rows_ptr + address[:, None] * WIDTH + column, mask=kept[:, None], other=0)
    tl.store(cache_ptr + tl.where(kept, slot, 0)[:, None] * WIDTH + column, values, mask=kept[:, None])


@triton.jit
def store_packed_kernel(
    rows_ptr,
    slots_ptr,
    cache_ptr,
    n_rows,
    DATA: tl.constexpr,
    SCALE: tl.constexpr,
    PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Rows of DATA and SCALE bytes, uint8 [n_rows, DATA + SCALE], into planar pages of PAGE rows and STRIDE bytes.

    slots int64 [n_rows], -1 writes nothing. PADDED: the power of two from a row's bytes on.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    address = row.to(tl.int64)
    slot = tl.load(slots_ptr + address, mask=row < n_rows, other=-1)
    column = tl.arange(0, PADDED)[None, :]
    kept = (slot >= 0)[:, None] & (column < DATA + SCALE)
    slot = tl.where(slot >= 0, slot, 0)[:, None]
    byte = tl.load(rows_ptr + address[:, None] * (DATA + SCALE) + column, mask=kept, other=0)
    offset = slot % PAGE
    at = tl.where(column < DATA, offset * DATA + column, PAGE * DATA + offset * SCALE + column - DATA)
    tl.store(cache_ptr + slot // PAGE * STRIDE + at, byte, mask=kept)


@triton.jit
def load_plain_kernel(cache_ptr, slots_ptr, rows_ptr, n_rows, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """The rows of slots int64 [n_rows] of cache [slots, WIDTH]; slot -1 reads row 0. WIDTH a power of two."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (row < n_rows)[:, None]
    slot = tl.load(slots_ptr + row, mask=row < n_rows, other=0)
    column = tl.arange(0, WIDTH)[None, :]
    values = tl.load(cache_ptr + tl.where(slot >= 0, slot, 0)[:, None] * WIDTH + column, mask=inside, other=0)
    tl.store(rows_ptr + row.to(tl.int64)[:, None] * WIDTH + column, values, mask=inside)


_ROW_TILES = (Tile({"ROWS": 4}), Tile({"ROWS": 1}))
_ROW_GRID = (("n_rows", "ROWS"),)
# Packed caches by whether their writer normalizes: latents come normalized, since index keys are made of them first.
_NORMALIZES = {"window": True, "main": False, "index": True}
_WRITER = {
    "x_ptr": "*bf16",
    "cos_ptr": "*fp32",
    "sin_ptr": "*fp32",
    "weight_ptr": "*bf16",
    "slots_ptr": "*i64",
    "cache_ptr": "*u8",
    "n_rows": "i32",
    "eps": "fp32",
}


def writer(
    name: str, row_format: str, channels: int, rotated: int, norm: bool, page: int, stride: int, slots: bool = True
) -> Kernel:
    """A kernel that writes rows of `channels` into a cache of pages of `page` rows and `stride` bytes."""
    holes: dict[str, Hole] = {"FORMAT": row_format, "D": channels, "ROTATED": rotated, "HAS_NORM": norm}
    holes |= {"HAS_SLOTS": slots, "PAGE": page, "STRIDE": stride, "FP8_CASTS": True}
    return Kernel(name, "cache_rows", "write_rows_kernel", _WRITER, holes, _ROW_TILES, _ROW_GRID)


def kernels(config: ModelConfig) -> tuple[Kernel, ...]:
    """The cache writers of a model, for pages of the default size; names end in the rows of a page."""
    # Imported here, so that a process that only compiles does not load torch.
    from dsv41c.models.state import state_specs

    made: dict[str, Kernel] = {}
    for spec in state_specs(config):
        if spec.kind in _NORMALIZES:
            name, form, norm = f"{spec.kind}_{spec.page}", spec.row_format, _NORMALIZES[spec.kind]
            sizes = (form, spec.channels, config.qk_rope_head_dim, norm)
            made[f"write_{name}"] = writer(f"write_{name}", *sizes, spec.page, spec.page_width)
            made[f"pack_{spec.kind}"] = writer(f"pack_{spec.kind}", *sizes, 1, spec.row_width, slots=False)
        elif spec.kind == "tail":
            made["pool_tail"] = _pool(config.head_dim, spec.ratio)
            made["store_tail"] = store_plain("store_tail", "fp32", spec.row_width)
    return tuple(made.values())


def store_plain(name: str, kind: str, width: int) -> Kernel:
    """A kernel that stores rows of `width` fp32 or i32 columns."""
    arguments = {"rows_ptr": f"*{kind}", "slots_ptr": "*i64", "cache_ptr": f"*{kind}", "n_rows": "i32"}
    return Kernel(name, "cache_rows", "store_plain_kernel", arguments, {"WIDTH": width}, _ROW_TILES, _ROW_GRID)


def store_packed(name: str, data: int, scale: int, page: int, stride: int) -> Kernel:
    """A kernel that stores packed rows of `data` and `scale` bytes in pages of `page` rows and `stride` bytes."""
    arguments = {"rows_ptr": "*u8", "slots_ptr": "*i64", "cache_ptr": "*u8", "n_rows": "i32"}
    holes: dict[str, Hole] = {"DATA": data, "SCALE": scale, "PADDED": triton.next_power_of_2(data + scale)}
    holes |= {"PAGE": page, "STRIDE": stride}
    return Kernel(name, "cache_rows", "store_packed_kernel", arguments, holes, _ROW_TILES, _ROW_GRID)


def load_plain(name: str, kind: str, width: int) -> Kernel:
    """A kernel that loads rows of `width` fp32 or i32 columns."""
    arguments = {"cache_ptr": f"*{kind}", "slots_ptr": "*i64", "rows_ptr": f"*{kind}", "n_rows": "i32"}
    return Kernel(name, "cache_rows", "load_plain_kernel", arguments, {"WIDTH": width}, _ROW_TILES, _ROW_GRID)


def _pool(channels: int, ratio: int) -> Kernel:
    arguments = {"raw_ptr": "*fp32", "tail_ptr": "*fp32", "earlier_ptr": "*i64", "weight_ptr": "*bf16"}
    arguments |= {"latent_ptr": "*bf16", "n_rows": "i32", "eps": "fp32"}
    holes = {"RATIO": ratio, "D": channels}
    return Kernel("pool_tail", "cache_rows", "pool_tail_kernel", arguments, holes, _ROW_TILES, _ROW_GRID)
