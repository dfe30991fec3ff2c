"""The exact number formats of the model: FP8 and FP4 rows with block scales, and the weights that use them.

Everything here is written in integer and comparison arithmetic that a compiler can lower without rounding of its own,
so the same functions are the oracle of the tests and the definitions that the CPU target compiles.

Formats of cache rows (SPEC 2.3, 2.4, 11.1), `D` channels a row:

    name       data                      scales                        used by
    fp8_e8m0   D bytes, e4m3             D/32 bytes, powers of two     window rows, activations
    fp4_e4m3   D/2 bytes, e2m1           D/16 bytes, e4m3              main KV rows
    fp4_e8m0   D/2 bytes, e2m1           D/32 bytes, powers of two     index keys and queries

A packed row holds its data bytes first, then its scale bytes. Two e2m1 codes share a byte, the even channel in the low
half. Scale bytes named ue8m0 mean 2^(byte - 127); 255 is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

E4M3_MAX = 448.0
E2M1_MAX = 6.0
ACTIVATION_FLOOR = 1e-4  # smallest group maximum that act_quant resolves, SPEC 2.3
WEIGHT_BLOCK = 32

_FP32_MANTISSA_BITS = 23
_FP32_MANTISSA_MASK = (1 << _FP32_MANTISSA_BITS) - 1
_FP32_NAN_BITS = 0x7FC00000
_FP32_TWO_TO_MINUS_127_BITS = 1 << 22  # a subnormal: the one power of two whose exponent field is not its byte


@dataclass(frozen=True)
class RowFormat:
    """How one row of `D` channels is packed into bytes.

    Attributes:
        name: the format's name in IR text and manifests.
        codes_per_byte: data codes in one byte.
        group: channels that share one scale byte.
    """

    name: str
    codes_per_byte: int
    group: int

    def data_bytes(self, channels: int) -> int:
        return channels // self.codes_per_byte

    def scale_bytes(self, channels: int) -> int:
        return channels // self.group

    def row_bytes(self, channels: int) -> int:
        return self.data_bytes(channels) + self.scale_bytes(channels)

    def channels(self, row_bytes: int) -> int:
        """The inverse of `row_bytes`."""
        return row_bytes * self.codes_per_byte * self.group // (self.group + self.codes_per_byte)


FORMATS = {
    "fp8_e8m0": RowFormat("fp8_e8m0", codes_per_byte=1, group=32),
    "fp4_e4m3": RowFormat("fp4_e4m3", codes_per_byte=2, group=16),
    "fp4_e8m0": RowFormat("fp4_e8m0", codes_per_byte=2, group=32),
}


def power_of_two_exponent(x: Tensor) -> Tensor:
    """The biased exponent of the smallest power of two that is not below `x`.

    Taken from the bits, since a rounded log2 misplaces exact powers (SPEC 2.2).

    Args:
        x: fp32, positive and normal, any shape.
    Returns:
        int32 of the same shape, in 1..255: ceil(log2 x) + 127.
    """
    bits = x.view(torch.int32)
    mantissa = torch.bitwise_and(bits, _FP32_MANTISSA_MASK)
    return (bits >> _FP32_MANTISSA_BITS) + (mantissa != 0).to(torch.int32)


def decode_ue8m0(scale: Tensor) -> Tensor:
    """Scale bytes to their fp32 powers of two; byte 0 is 2^-127, byte 255 is NaN (SPEC 9)."""
    exponent = scale.to(torch.int32)
    bits = exponent << _FP32_MANTISSA_BITS
    bits = torch.where(exponent == 0, torch.full_like(bits, _FP32_TWO_TO_MINUS_127_BITS), bits)
    bits = torch.where(exponent == 255, torch.full_like(bits, _FP32_NAN_BITS), bits)
    return bits.view(torch.float32)


def encode_e2m1(scaled: Tensor) -> Tensor:
    """Rounds to the nearest e2m1 code, ties to the even code; negative zero keeps its sign (SPEC 2.4).

    Args:
        scaled: fp32, already divided by its scale; magnitudes above 6 become 6.
    Returns:
        int32 codes 0..15, sign in bit 3.
    """
    magnitude = scaled.abs()
    # Each midpoint belongs to its even neighbour: > where the lower code is even, >= where the upper one is.
    above = [magnitude > 0.25, magnitude >= 0.75, magnitude > 1.25, magnitude >= 1.75]
    above += [magnitude > 2.5, magnitude >= 3.5, magnitude > 5.0]
    code = above[0].to(torch.int32)
    for step in above[1:]:
        code = code + step.to(torch.int32)
    negative = scaled.view(torch.int32) < 0
    return code + negative.to(torch.int32) * 8


def decode_e2m1(code: Tensor) -> Tensor:
    """e2m1 codes (int32, 0..15) to fp32: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives (SPEC 2.4)."""
    magnitude = torch.bitwise_and(code, 7)
    # From code 2 on, the two low bits of exponent and the mantissa bit stand where fp32 has its own.
    normal = ((magnitude << 22) + (126 << 23)).view(torch.float32)
    value = torch.where(magnitude < 2, magnitude.to(torch.float32) * 0.5, normal)
    return torch.where(code >= 8, -value, value)


def unpack_e2m1(packed: Tensor) -> Tensor:
    """Packed bytes [..., K/2] to fp32 values [..., K]; the even channel lies in the low half of a byte."""
    byte = packed.to(torch.int32)
    low = decode_e2m1(torch.bitwise_and(byte, 15))
    high = decode_e2m1(byte >> 4)
    return torch.stack((low, high), dim=-1).flatten(-2)


def _grouped(x: Tensor, group: int) -> Tensor:
    return x.unflatten(-1, (x.shape[-1] // group, group))


def _fp8_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 codes [..., groups, 32] and int32 biased scale exponents [..., groups, 1]."""
    groups = _grouped(x.to(torch.float32), 32)
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=ACTIVATION_FLOOR)
    exponent = power_of_two_exponent(amax * (1.0 / E4M3_MAX))
    scaled = groups / (exponent << _FP32_MANTISSA_BITS).view(torch.float32)
    return scaled.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), exponent


def _fp4_power_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """e2m1 codes [..., groups, 32] and int32 biased scale exponents [..., groups, 1]."""
    groups = _grouped(x.to(torch.float32), 32)
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=E2M1_MAX * 2.0**-126)
    exponent = power_of_two_exponent(amax * (1.0 / E2M1_MAX))
    return encode_e2m1(groups / (exponent << _FP32_MANTISSA_BITS).view(torch.float32)), exponent


def _fp4_e4m3_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """e2m1 codes [..., groups, 16] and e4m3 scales [..., groups, 1]."""
    groups = _grouped(x.to(torch.float32), 16)
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=E2M1_MAX * 2.0**-9)
    scale = (amax / E2M1_MAX).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    return encode_e2m1(groups / scale.to(torch.float32)), scale


def _pack_e2m1(codes: Tensor) -> Tensor:
    pairs = codes.unflatten(-1, (codes.shape[-1] // 2, 2))
    return (pairs.select(-1, 0) + pairs.select(-1, 1) * 16).to(torch.uint8)


def quantize(x: Tensor, row_format: str) -> Tensor:
    """Packs rows, data bytes first, scale bytes behind them (SPEC 2.3, 2.4, 11.1).

    Args:
        x: bf16 or fp32 [..., D].
        row_format: a key of `FORMATS`.
    Returns:
        uint8 [..., row_bytes(D)].
    """
    if row_format == "fp8_e8m0":
        codes, exponent = _fp8_groups(x)
        data, scale = codes.view(torch.uint8), exponent.to(torch.uint8)
    elif row_format == "fp4_e8m0":
        codes, exponent = _fp4_power_groups(x)
        data, scale = _pack_e2m1(codes), exponent.to(torch.uint8)
    else:
        codes, e4m3 = _fp4_e4m3_groups(x)
        data, scale = _pack_e2m1(codes), e4m3.view(torch.uint8)
    return torch.cat((data.flatten(-2), scale.flatten(-2)), dim=-1)


def dequantize(rows: Tensor, row_format: str) -> Tensor:
    """Unpacks rows; every value is exact in bf16 (SPEC 15.8).

    Args:
        rows: uint8 [..., row_bytes(D)].
        row_format: a key of `FORMATS`.
    Returns:
        bf16 [..., D].
    """
    form = FORMATS[row_format]
    channels = form.channels(rows.shape[-1])
    data, scale = rows.split([form.data_bytes(channels), form.scale_bytes(channels)], dim=-1)
    return decode_rows(data, scale, row_format).to(torch.bfloat16)


def decode_rows(data: Tensor, scale: Tensor, row_format: str) -> Tensor:
    """`dequantize` in fp32, for rows whose two kinds of bytes lie apart.

    Args:
        data: uint8 [..., data_bytes(D)]. scale: uint8 [..., scale_bytes(D)].
        row_format: a key of `FORMATS`.
    Returns:
        fp32 [..., D].
    """
    form = FORMATS[row_format]
    values = unpack_e2m1(data) if form.codes_per_byte == 2 else data.view(torch.float8_e4m3fn).to(torch.float32)
    scales = scale.view(torch.float8_e4m3fn).to(torch.float32) if row_format == "fp4_e4m3" else decode_ue8m0(scale)
    return (_grouped(values, form.group) * scales.unsqueeze(-1)).flatten(-2)


def fake_quantize(x: Tensor, row_format: str) -> Tensor:
    """`dequantize(quantize(x))` without the bytes in between.

    Args:
        x: bf16 or fp32 [..., D].
        row_format: a key of `FORMATS`.
    Returns:
        bf16 [..., D].
    """
    if row_format == "fp8_e8m0":
        codes, exponent = _fp8_groups(x)
        values = codes.to(torch.float32) * (exponent << _FP32_MANTISSA_BITS).view(torch.float32)
    elif row_format == "fp4_e8m0":
        e2m1, exponent = _fp4_power_groups(x)
        values = decode_e2m1(e2m1) * (exponent << _FP32_MANTISSA_BITS).view(torch.float32)
    else:
        e2m1, scale = _fp4_e4m3_groups(x)
        values = decode_e2m1(e2m1) * scale.to(torch.float32)
    return values.flatten(-2).to(torch.bfloat16)


def dequantize_weight(weight: Tensor, scale: Tensor) -> Tensor:
    """An FP8 weight with one power-of-two scale for each 32 x 32 block, exact in bf16 (SPEC 2.5, 15.7).

    Args:
        weight: float8_e4m3fn [N, K].
        scale: uint8 [ceil(N/32), ceil(K/32)], ue8m0 bytes.
    Returns:
        bf16 [N, K].
    """
    rows, columns = weight.shape
    if rows % WEIGHT_BLOCK or columns % WEIGHT_BLOCK:
        scales = decode_ue8m0(scale).repeat_interleave(WEIGHT_BLOCK, 0).repeat_interleave(WEIGHT_BLOCK, 1)
        return (weight.to(torch.float32) * scales[:rows, :columns]).to(torch.bfloat16)
    blocks = weight.to(torch.float32).view(rows // WEIGHT_BLOCK, WEIGHT_BLOCK, columns // WEIGHT_BLOCK, WEIGHT_BLOCK)
    scales = decode_ue8m0(scale).unsqueeze(1).unsqueeze(-1)
    return (blocks * scales).view(rows, columns).to(torch.bfloat16)


def dequantize_fp4_weight(weight: Tensor, scale: Tensor) -> Tensor:
    """An MXFP4 weight with one power-of-two scale for each row and 32 columns, exact in bf16 (SPEC 2.5, 9).

    Args:
        weight: uint8 [N, K/2], two e2m1 codes a byte.
        scale: uint8 [N, K/32], ue8m0 bytes.
    Returns:
        bf16 [N, K].
    """
    values = _grouped(unpack_e2m1(weight), WEIGHT_BLOCK)
    return (values * decode_ue8m0(scale).unsqueeze(-1)).flatten(-2).to(torch.bfloat16)
