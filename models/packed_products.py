"""Products with packed weights in the form that is fastest on the CPU for one row (docs/cpu-target.md).

They hold for any number of rows, but many rows are better served by weights that are dequantized once. Each weight is
decoded where it is multiplied, once, so that a row costs one pass over the packed bytes. The products are those of the
dequantized weights, which are exact in fp32; sums are fp32 with one rounding, in another order.

A code's fields are shifted to where fp16 has them. The fp16 number is the value times a power of two, since fp16 has
other exponents, and that power goes into the scale. NaN codes of e4m3, which no checkpoint has, become +-480.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.models.ops import expert_activation, linear_definition
from dsv41c.models.quant import WEIGHT_BLOCK, decode_ue8m0, dequantize_weight

_E4M3_SHIFT = 2.0**8
_E2M1_SHIFT = 2.0**14


def linear_fp8_by_rows(x: Tensor, weight: Tensor, scale: Tensor, groups: int) -> Tensor:
    """`ops.linear_fp8`, row by row.

    Args:
        x: bf16 [T, groups * K]. weight: float8_e4m3fn [N, K]. scale: uint8 [N/32, K/32].
        groups: see `ops.linear_definition`.
    Returns:
        bf16 [T, N].
    """
    outputs, inputs = weight.shape
    own = outputs // groups
    if own % WEIGHT_BLOCK or inputs % WEIGHT_BLOCK:
        return linear_definition(x, dequantize_weight(weight, scale), groups)
    rows, columns = own // WEIGHT_BLOCK, inputs // WEIGHT_BLOCK
    packed = weight.view(groups, rows, WEIGHT_BLOCK, columns, WEIGHT_BLOCK)
    scales = (decode_ue8m0(scale) * _E4M3_SHIFT).view(groups, rows, 1, columns, 1)
    spread = x.to(torch.float32).view(x.shape[0], groups, 1, 1, columns, WEIGHT_BLOCK)
    return (_e4m3_by_shifts(packed) * scales * spread).sum((4, 5)).flatten(1).to(torch.bfloat16)


def linear_fp4_by_rows(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """A linear with MXFP4 weights, row by row.

    Args:
        x: bf16 [T, K]. weight: uint8 [N, K/2]. scale: uint8 [N, K/32].
    Returns:
        bf16 [T, N].
    """
    outputs, columns = scale.shape
    half = WEIGHT_BLOCK // 2
    packed = weight.view(outputs, columns, half)
    # One tensor of even, then odd columns: read with stride 2 inside the sum, x would cost five times the time.
    pairs = x.to(torch.float32).view(x.shape[0], columns, half, 2)
    spread = torch.cat((pairs.select(-1, 0).unsqueeze(0), pairs.select(-1, 1).unsqueeze(0)), dim=0)
    scales = (decode_ue8m0(scale) * _E2M1_SHIFT).unsqueeze(-1)
    even = _e2m1_by_shifts(packed, 12) * scales * spread[0].unsqueeze(1)
    odd = _e2m1_by_shifts(packed, 8) * scales * spread[1].unsqueeze(1)
    return (even + odd).sum((2, 3)).to(torch.bfloat16)


def expert_by_rows(
    x: Tensor, weights: Tensor, w1: Tensor, s1: Tensor, w3: Tensor, s3: Tensor, w2: Tensor, s2: Tensor, limit: float
) -> Tensor:
    """`ops.expert_definition`, row by row."""
    gate, up = linear_fp4_by_rows(x, w1, s1), linear_fp4_by_rows(x, w3, s3)
    return linear_fp4_by_rows(expert_activation(gate, up, weights, limit), w2, s2)


def _e4m3_by_shifts(codes: Tensor) -> Tensor:
    """e4m3 codes to fp32, 2^-8 times their value."""
    # Sign-extended and shifted, bits 15 and 14 both hold the sign; bit 14 is the exponent's and must be 0.
    bits = torch.bitwise_and(codes.view(torch.int8).to(torch.int16) << 7, ~0x4000)
    return bits.view(torch.float16).to(torch.float32)


def _e2m1_by_shifts(codes: Tensor, shift: int) -> Tensor:
    """The low (shift 12) or high (shift 8) codes of packed bytes to fp32, 2^-14 times their value."""
    top = codes.view(torch.int8).to(torch.int16) << shift  # the code is now bits 15..12, the sign on top
    bits = torch.bitwise_and(top >> 3, 0x8E00 - 0x10000)
    return bits.view(torch.float16).to(torch.float32)
