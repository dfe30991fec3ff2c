"""The model's number formats inside kernels: e2m1, e4m3 and power-of-two scales, as models/quant.py defines them.

Integers and comparisons wherever a target could round in its own way. FP8_CASTS says whether the target casts e4m3; the
shifts that stand in for the cast give the same bytes and values.
"""

import triton
import triton.language as tl

_FP32_MANTISSA_BITS = tl.constexpr(23)
_FP32_MANTISSA_MASK = tl.constexpr((1 << 23) - 1)
_E4M3_MAX = tl.constexpr(448.0)
_E4M3_SMALLEST_NORMAL = tl.constexpr(2.0**-6)
# fp32 numbers from here to twice as much lie 2^-9 apart: adding it rounds to a multiple of e4m3's smallest step.
_E4M3_STEP_SHIFTER = tl.constexpr(2.0**14)
_E4M3_STEP_SHIFTER_BITS = tl.constexpr((127 + 14) << 23)
_ACTIVATION_FLOOR = tl.constexpr(1e-4)
_ONE_BY_448 = tl.constexpr(1.0 / 448.0)
_E2M1_MAX = tl.constexpr(6.0)
_ONE_BY_6 = tl.constexpr(1.0 / 6.0)
_E2M1_POWER_FLOOR = tl.constexpr(6.0 * 2.0**-126)
_E2M1_E4M3_FLOOR = tl.constexpr(6.0 * 2.0**-9)
_GROUP = tl.constexpr(32)  # channels that share one power-of-two scale


@triton.jit
def power_of_two_exponent(x):
    """The biased exponent of the smallest power of two that is not below x, fp32 and normal, as int32 (SPEC 2.2)."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits >> _FP32_MANTISSA_BITS) + ((bits & _FP32_MANTISSA_MASK) != 0).to(tl.int32)


@triton.jit
def power_of_two(exponent):
    """2^(exponent - 127) of int32 exponents from 1 to 254, as fp32."""
    return (exponent << _FP32_MANTISSA_BITS).to(tl.float32, bitcast=True)


@triton.jit
def decode_ue8m0(byte):
    """Scale bytes to fp32: 2^(byte - 127); byte 0 is a subnormal, byte 255 is NaN (SPEC 9)."""
    exponent = byte.to(tl.int32)
    bits = tl.where(exponent == 0, 1 << 22, exponent << _FP32_MANTISSA_BITS)
    return tl.where(exponent == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def encode_e2m1(scaled):
    """fp32, divided by its scale, to e2m1 codes in int32: nearest, ties to the even code, -0 kept (SPEC 2.4)."""
    magnitude = tl.abs(scaled)
    # Each midpoint belongs to its even neighbour: > where the lower code is even, >= where the upper one is.
    code = (magnitude > 0.25).to(tl.int32) + (magnitude >= 0.75).to(tl.int32)
    code += (magnitude > 1.25).to(tl.int32) + (magnitude >= 1.75).to(tl.int32)
    code += (magnitude > 2.5).to(tl.int32) + (magnitude >= 3.5).to(tl.int32) + (magnitude > 5.0).to(tl.int32)
    return code + tl.where(scaled.to(tl.int32, bitcast=True) < 0, 8, 0)


@triton.jit
def decode_e2m1(code):
    """e2m1 codes 0 to 15 in int32 to fp32 (SPEC 2.4)."""
    magnitude = code & 7
    # From code 2 on, the two low bits of exponent and the mantissa bit stand where fp32 has its own.
    bits = tl.where(magnitude < 2, magnitude * 0x3F000000, (magnitude << 22) + (126 << 23))
    return (bits | ((code & 8) << 28)).to(tl.float32, bitcast=True)


@triton.jit
def encode_e4m3(x, FP8_CASTS: tl.constexpr):
    """fp32 within +-448 or NaN to e4m3 bytes in uint8, nearest, ties to even."""
    if FP8_CASTS:
        return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    # Twenty mantissa bits go: round to nearest even on the integer, then move the exponent's bias from 127 to 7.
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    shifted = (tl.abs(x) + _E4M3_STEP_SHIFTER).to(tl.int32, bitcast=True)
    code = tl.where(tl.abs(x) < _E4M3_SMALLEST_NORMAL, shifted - _E4M3_STEP_SHIFTER_BITS, normal)
    code = tl.where(x != x, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def decode_e4m3(byte, FP8_CASTS: tl.constexpr):
    """e4m3 bytes in uint8 to fp32; bytes 127 and 255 are NaN."""
    if FP8_CASTS:
        return byte.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    code = byte.to(tl.int32)
    magnitude = code & 0x7F
    normal = ((magnitude << 20) + ((127 - 7) << 23)).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 8, magnitude.to(tl.float32) * (2.0**-9), normal)
    bits = tl.where(magnitude == 0x7F, 0x7FC00000, value.to(tl.int32, bitcast=True))
    return (bits | ((code & 0x80) << 24)).to(tl.float32, bitcast=True)


@triton.jit
def e4m3_group_exponent(amax):
    """The biased scale exponent of FP8 groups with these largest magnitudes (SPEC 2.3)."""
    return power_of_two_exponent(tl.maximum(amax, _ACTIVATION_FLOOR) * _ONE_BY_448)


@triton.jit
def clamp_e4m3(x):
    """fp32 to within the range of e4m3; NaN stays NaN, since a broken row must not pass for a number."""
    return tl.clamp(x, -_E4M3_MAX, _E4M3_MAX, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def largest_magnitude(x, y):
    """The largest magnitude of two fp32 tensors and of their last axis; NaN where there is one.

    Magnitudes are ordered as their bits are, and NaN lies above infinity; a maximum of floats would skip it.
    """
    bits = tl.maximum(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, y.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    return tl.max(bits, axis=-1).to(tl.float32, bitcast=True)


@triton.jit
def e2m1_group_exponent(amax):
    """The biased scale exponent of FP4 groups with power-of-two scales (SPEC 2.4 a)."""
    return power_of_two_exponent(tl.maximum(amax, _E2M1_POWER_FLOOR) * _ONE_BY_6)


@triton.jit
def e2m1_group_scale(amax, FP8_CASTS: tl.constexpr):
    """The e4m3 scale byte of FP4 groups with e4m3 scales (SPEC 2.4 b); NaN for a group with NaN: e2m1 has no code."""
    floored = tl.maximum(amax, _E2M1_E4M3_FLOOR, propagate_nan=tl.PropagateNan.ALL)
    return encode_e4m3(clamp_e4m3(tl.div_rn(floored, tl.full(amax.shape, _E2M1_MAX, tl.float32))), FP8_CASTS)


@triton.jit
def fake_quantize_e4m3(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FP8_CASTS: tl.constexpr):
    """bf16 to the bf16 values that its fp8 form holds, in groups of 32 columns (SPEC 2.3)."""
    groups = tl.reshape(x.to(tl.float32), (ROWS, COLUMNS // _GROUP, _GROUP))
    exponent = e4m3_group_exponent(tl.max(tl.abs(groups), axis=2))[:, :, None]
    codes = encode_e4m3(clamp_e4m3(groups * power_of_two(254 - exponent)), FP8_CASTS)
    values = decode_e4m3(codes, FP8_CASTS) * power_of_two(exponent)
    return tl.reshape(values, (ROWS, COLUMNS)).to(tl.bfloat16)


@triton.jit
def fake_quantize_e2m1(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """bf16 to the bf16 values of its FP4 form with power-of-two scales, in groups of 32 columns (SPEC 2.4 a)."""
    groups = tl.reshape(x.to(tl.float32), (ROWS, COLUMNS // _GROUP, _GROUP))
    exponent = e2m1_group_exponent(tl.max(tl.abs(groups), axis=2))[:, :, None]
    values = decode_e2m1(encode_e2m1(groups * power_of_two(254 - exponent))) * power_of_two(exponent)
    return tl.reshape(values, (ROWS, COLUMNS)).to(tl.bfloat16)
