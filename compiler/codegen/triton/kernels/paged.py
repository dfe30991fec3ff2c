"""Tiles of packed rows inside kernels: where a slot's bytes lie in planar pages, and what they hold (SPEC 11.3).

Slots are tested before they get here: a row that is not `valid` may have any address, and is read as zeros.
"""

import triton
import triton.language as tl

from dsv41c.compiler.codegen.triton.kernels.formats import decode_e2m1, decode_e4m3, decode_ue8m0


@triton.jit
def planar_row(cache_ptr, slot, PAGE: tl.constexpr, STRIDE: tl.constexpr, DATA: tl.constexpr, SCALE: tl.constexpr):
    """Where the data and the scales of slots int64 stand: pages of STRIDE bytes, rows of DATA and SCALE bytes."""
    page = cache_ptr + slot // PAGE * STRIDE
    offset = slot % PAGE
    return page + offset * DATA, page + PAGE * DATA + offset * SCALE


@triton.jit
def fp8_tile(data, scale, valid, CHUNK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, FP8_CASTS: tl.constexpr):
    """Channels CHUNK * WIDTH on of fp8_e8m0 rows, bf16 [ROWS, WIDTH]."""
    byte = _bytes(data, valid, CHUNK, WIDTH)
    power = decode_ue8m0(_bytes(scale, valid, CHUNK, WIDTH // 32))
    # By halves as in `fp4_tile`: decoded as one chain, a compiler decodes once for every layout that reads the tile.
    even, odd = tl.split(tl.reshape(byte, (ROWS, WIDTH // 2, 2)))
    values = tl.interleave(decode_e4m3(even, FP8_CASTS), decode_e4m3(odd, FP8_CASTS))
    return _scaled(values, power, ROWS, WIDTH, 32)


@triton.jit
def fp4_tile(
    data,
    scale,
    valid,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    FP8_CASTS: tl.constexpr,
):
    """Channels CHUNK * WIDTH on of FP4 rows, bf16 [ROWS, WIDTH]: GROUP 16 is fp4_e4m3, GROUP 32 is fp4_e8m0."""
    byte = _bytes(data, valid, CHUNK, WIDTH // 2).to(tl.int32)
    code = _bytes(scale, valid, CHUNK, WIDTH // GROUP)
    factor = decode_e4m3(code, FP8_CASTS) if GROUP == 16 else decode_ue8m0(code)
    values = tl.interleave(decode_e2m1(byte & 15), decode_e2m1(byte >> 4))
    return _scaled(values, factor, ROWS, WIDTH, GROUP)


@triton.jit
def _bytes(start, valid, CHUNK: tl.constexpr, COUNT: tl.constexpr):
    return tl.load(start[:, None] + CHUNK * COUNT + tl.arange(0, COUNT)[None, :], mask=valid[:, None], other=0)


@triton.jit
def _scaled(values, factor, ROWS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr):
    grouped = tl.reshape(values, (ROWS, WIDTH // GROUP, GROUP)) * factor[:, :, None]
    return tl.reshape(grouped, (ROWS, WIDTH)).to(tl.bfloat16)
