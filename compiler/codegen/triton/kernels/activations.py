"""Rows between two products: norm, rotation, SwiGLU, and the values that quantization leaves (SPEC 2.1-2.6, 6.2).

    norm_rows      RMS norm and fp8 activation quantization; both results, or one of them
    rotate_rows    RoPE of heads, or its inverse, and for index queries FP4 quantization
    quantize_rows  FP4 values with power-of-two scales, in groups of 32 columns
    swiglu         the activation of an expert
    angles         cos and sin of positions

A quantized row is bf16: the values that its fp8 or FP4 form holds, which is what the products take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dsv41c.compiler.codegen.triton.families import Hole, Kernel, Tile
from dsv41c.compiler.codegen.triton.kernels.formats import fake_quantize_e2m1, fake_quantize_e4m3
from dsv41c.compiler.codegen.triton.kernels.rows import inverse_root, rotate_pairs, sum_in_chains

if TYPE_CHECKING:
    from dsv41c.models.config import ModelConfig


@triton.jit
def norm_rows_kernel(
    x_ptr,
    weight_ptr,
    normalized_ptr,
    quantized_ptr,
    n_rows,
    eps,
    D: tl.constexpr,
    PADDED: tl.constexpr,
    HAS_NORM: tl.constexpr,
    ROWS: tl.constexpr,
    FP8_CASTS: tl.constexpr,
):
    """x bf16 [n_rows, D] to its norm and that norm's fp8 values, bf16 [n_rows, D]; weight bf16 [D].

    Without HAS_NORM only `quantized` is written, from x as it is. PADDED: the power of two from D on.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, PADDED)[None, :]
    wanted = (row < n_rows)[:, None] & (channel < D)
    at = row.to(tl.int64)[:, None] * D + channel
    x = tl.load(x_ptr + at, mask=wanted, other=0.0)
    if HAS_NORM:
        wide = x.to(tl.float32)
        factor = inverse_root(sum_in_chains(wide * wide, ROWS, PADDED), D, eps)
        weight = tl.load(weight_ptr + channel, mask=channel < D, other=0.0).to(tl.float32)
        x = (weight * (wide * factor[:, None])).to(tl.bfloat16)
        tl.store(normalized_ptr + at, x, mask=wanted)
    tl.store(quantized_ptr + at, fake_quantize_e4m3(x, ROWS, PADDED, FP8_CASTS), mask=wanted)


@triton.jit
def rotate_rows_kernel(
    x_ptr,
    cos_ptr,
    sin_ptr,
    y_ptr,
    n_rows,
    n_heads,
    D: tl.constexpr,
    ROTATED: tl.constexpr,
    INVERSE: tl.constexpr,
    QUANTIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The last ROTATED channels of x bf16 [n_rows, D] turn; row r is head r % n_heads of token r // n_heads.

    cos, sin fp32 [tokens, ROTATED / 2]; INVERSE turns back. QUANTIZE: y holds the FP4 values of what was turned.
    """
    PAIRS: tl.constexpr = D // 2
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (row < n_rows)[:, None]
    at = row.to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    turned = (tl.arange(0, PAIRS) - (PAIRS - ROTATED // 2))[None, :]
    angle = (row // n_heads).to(tl.int64)[:, None] * (ROTATED // 2) + turned
    cos = tl.load(cos_ptr + angle, mask=inside & (turned >= 0), other=1.0)
    sin = tl.load(sin_ptr + angle, mask=inside & (turned >= 0), other=0.0)
    if INVERSE:
        sin = -sin
    even, odd = tl.split(tl.reshape(x, (ROWS, PAIRS, 2)))
    even, odd = rotate_pairs(even, odd, cos, sin, turned >= 0)
    y = tl.reshape(tl.join(even, odd), (ROWS, D)).to(tl.bfloat16)
    if QUANTIZE:
        y = fake_quantize_e2m1(y, ROWS, D)
    tl.store(y_ptr + at, y, mask=inside)


@triton.jit
def quantize_rows_kernel(x_ptr, y_ptr, n_rows, D: tl.constexpr, ROWS: tl.constexpr):
    """x bf16 [n_rows, D] to the values of its FP4 form with power-of-two scales, bf16 [n_rows, D]; D a power of two."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = row.to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
    x = tl.load(x_ptr + at, mask=(row < n_rows)[:, None], other=0.0)
    tl.store(y_ptr + at, fake_quantize_e2m1(x, ROWS, D), mask=(row < n_rows)[:, None])


@triton.jit
def angles_kernel(
    positions_ptr,
    frequencies_ptr,
    cos_ptr,
    sin_ptr,
    n_rows,
    PAIRS: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    """cos and sin fp32 [n_rows, PAIRS] of positions int64 [n_rows] times frequencies fp32 [PAIRS] (SPEC 2.6).

    PADDED: the power of two from PAIRS on.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pair = tl.arange(0, PADDED)
    wanted = (row < n_rows)[:, None] & (pair < PAIRS)[None, :]
    position = tl.load(positions_ptr + row, mask=row < n_rows, other=0).to(tl.float32)
    angle = position[:, None] * tl.load(frequencies_ptr + pair, mask=pair < PAIRS, other=0.0)[None, :]
    at = row.to(tl.int64)[:, None] * PAIRS + pair[None, :]
    tl.store(cos_ptr + at, tl.cos(angle), mask=wanted)
    tl.store(sin_ptr + at, tl.sin(angle), mask=wanted)


@triton.jit
def swiglu(gate, up, limit):
    """silu(min(gate, limit)) * clamp(up, -limit, limit) of fp32, silu as a quotient (SPEC 6.2)."""
    gate = tl.minimum(gate, limit)
    return tl.div_rn(gate, 1.0 + tl.exp(-gate)) * tl.minimum(tl.maximum(up, -limit), limit)


_WIDE = (Tile({"ROWS": 1}, warps=8), Tile({"ROWS": 1}, warps=4))
_HEADS = (Tile({"ROWS": 8}), Tile({"ROWS": 2}))


def norm_rows(name: str, dim: int, norm: bool = True) -> Kernel:
    """A norm and the quantization behind it, or the quantization alone."""
    names = ("x_ptr", "weight_ptr", "normalized_ptr", "quantized_ptr")
    arguments = {**dict.fromkeys(names, "*bf16"), "n_rows": "i32", "eps": "fp32"}
    holes: dict[str, Hole] = {"D": dim, "PADDED": triton.next_power_of_2(dim), "HAS_NORM": norm, "FP8_CASTS": True}
    return Kernel(name, "activations", "norm_rows_kernel", arguments, holes, _WIDE, (("n_rows", "ROWS"),))


def rotate_rows(name: str, dim: int, rotated: int, inverse: bool = False, quantize: bool = False) -> Kernel:
    """RoPE of heads of `dim` channels."""
    arguments = {"x_ptr": "*bf16", "cos_ptr": "*fp32", "sin_ptr": "*fp32", "y_ptr": "*bf16"}
    arguments |= {"n_rows": "i32", "n_heads": "i32"}
    holes: dict[str, Hole] = {"D": dim, "ROTATED": rotated, "INVERSE": inverse, "QUANTIZE": quantize}
    return Kernel(name, "activations", "rotate_rows_kernel", arguments, holes, _HEADS, (("n_rows", "ROWS"),))


def quantize_rows(name: str, dim: int) -> Kernel:
    """FP4 values of rows of `dim` channels."""
    arguments = {"x_ptr": "*bf16", "y_ptr": "*bf16", "n_rows": "i32"}
    return Kernel(name, "activations", "quantize_rows_kernel", arguments, {"D": dim}, _HEADS, (("n_rows", "ROWS"),))


def angles(name: str, pairs: int) -> Kernel:
    """The angles that RoPE turns `pairs` pairs of channels by."""
    arguments = {"positions_ptr": "*i64", **dict.fromkeys(("frequencies_ptr", "cos_ptr", "sin_ptr"), "*fp32")}
    holes: dict[str, Hole] = {"PAIRS": pairs, "PADDED": triton.next_power_of_2(pairs)}
    grid = (("n_rows", "ROWS"),)
    return Kernel(name, "activations", "angles_kernel", {**arguments, "n_rows": "i32"}, holes, _HEADS, grid)


def kernels(config: ModelConfig) -> tuple[Kernel, ...]:
    """The rows between the products of a model's layers."""
    rotated = config.qk_rope_head_dim
    return (
        norm_rows("norm_query", config.q_lora_rank),
        norm_rows("quantize_input", config.hidden_size, norm=False),
        norm_rows("quantize_output", config.o_groups * config.o_lora_rank, norm=False),
        rotate_rows("rotate_query", config.head_dim, rotated),
        rotate_rows("rotate_back", config.head_dim, rotated, inverse=True),
        rotate_rows("rotate_index_query", config.index_head_dim, rotated, quantize=True),
    )
