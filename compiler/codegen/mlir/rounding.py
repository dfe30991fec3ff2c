"""Roundings to bf16 and to e4m3 that no later compiler can take away or get wrong.

IREE's CPU pipeline has a pass that does bf16 arithmetic in f32; on the way it removes `extf(truncf(x))`, and with it a
rounding that is part of the model (measured: an output of a fused region off by 1.7e-3 relative). Its own rounding to
e4m3 gives zero where a value just under the smallest normal number rounds up to it (measured: 0.0155 becomes 0). A
rounding spelled in integers has no truncf to remove or to expand:

    %r = arith.truncf %x : f32 to bf16
      ->  %b = bits of %x;  %e = 0x7FFF + the lowest bit that stays;  %r = the high half of (%b + %e), NaN for NaN
    %r = arith.truncf %x : f32 to f8E4M3FN
      ->  as above with three bits of mantissa that stay; below 2^-6, where codes are multiples of 2^-9, %x + 2^14 does
          the rounding and has the code in its low bits

Round to nearest, ties to even; the result is what torch gives for every f32, one NaN for all NaN.
"""

import re

__all__ = ["explicit_rounding"]

_TRUNCATION = re.compile(r"^(\s*)(%\w+) = arith\.truncf (%\w+) : f32 to (bf16|f8E4M3FN)$", re.MULTILINE)
_BF16_STEPS = """\
{indent}{v}_bits = arith.bitcast {x} : f32 to i32
{indent}{v}_c16 = arith.constant 16 : i32
{indent}{v}_one = arith.constant 1 : i32
{indent}{v}_half = arith.constant 32767 : i32
{indent}{v}_nan = arith.constant 32704 : i16
{indent}{v}_high = arith.shrui {v}_bits, {v}_c16 : i32
{indent}{v}_odd = arith.andi {v}_high, {v}_one : i32
{indent}{v}_bias = arith.addi {v}_odd, {v}_half : i32
{indent}{v}_sum = arith.addi {v}_bits, {v}_bias : i32
{indent}{v}_kept = arith.shrui {v}_sum, {v}_c16 : i32
{indent}{v}_short = arith.trunci {v}_kept : i32 to i16
{indent}{v}_isnan = arith.cmpf uno, {x}, {x} : f32
{indent}{v}_code = arith.select {v}_isnan, {v}_nan, {v}_short : i16
{indent}{result} = arith.bitcast {v}_code : i16 to bf16"""


# 960 = (127 - 7) << 3 takes the exponent from f32's bias to e4m3's; 0x7E is 448, which larger numbers become.
_E4M3_STEPS = """\
{indent}{v}_bits = arith.bitcast {x} : f32 to i32
{indent}{v}_c20 = arith.constant 20 : i32
{indent}{v}_c24 = arith.constant 24 : i32
{indent}{v}_one = arith.constant 1 : i32
{indent}{v}_unsigned = arith.constant 2147483647 : i32
{indent}{v}_signbit = arith.constant 128 : i32
{indent}{v}_half = arith.constant 524287 : i32
{indent}{v}_bias = arith.constant 960 : i32
{indent}{v}_largest = arith.constant 126 : i32
{indent}{v}_nan = arith.constant 127 : i32
{indent}{v}_lift = arith.constant 1.638400e+04 : f32
{indent}{v}_liftbits = arith.constant 1182793728 : i32
{indent}{v}_normal = arith.constant 1.562500e-02 : f32
{indent}{v}_magbits = arith.andi {v}_bits, {v}_unsigned : i32
{indent}{v}_mag = arith.bitcast {v}_magbits : i32 to f32
{indent}{v}_lifted = arith.addf {v}_mag, {v}_lift : f32
{indent}{v}_lowbits = arith.bitcast {v}_lifted : f32 to i32
{indent}{v}_low = arith.subi {v}_lowbits, {v}_liftbits : i32
{indent}{v}_high = arith.shrui {v}_magbits, {v}_c20 : i32
{indent}{v}_odd = arith.andi {v}_high, {v}_one : i32
{indent}{v}_add = arith.addi {v}_odd, {v}_half : i32
{indent}{v}_sum = arith.addi {v}_magbits, {v}_add : i32
{indent}{v}_kept = arith.shrui {v}_sum, {v}_c20 : i32
{indent}{v}_big = arith.subi {v}_kept, {v}_bias : i32
{indent}{v}_isbig = arith.cmpi sgt, {v}_big, {v}_largest : i32
{indent}{v}_capped = arith.select {v}_isbig, {v}_largest, {v}_big : i32
{indent}{v}_islow = arith.cmpf olt, {v}_mag, {v}_normal : f32
{indent}{v}_number = arith.select {v}_islow, {v}_low, {v}_capped : i32
{indent}{v}_isnan = arith.cmpf uno, {x}, {x} : f32
{indent}{v}_code = arith.select {v}_isnan, {v}_nan, {v}_number : i32
{indent}{v}_shifted = arith.shrui {v}_bits, {v}_c24 : i32
{indent}{v}_sign = arith.andi {v}_shifted, {v}_signbit : i32
{indent}{v}_signed = arith.ori {v}_sign, {v}_code : i32
{indent}{v}_byte = arith.trunci {v}_signed : i32 to i8
{indent}{result} = arith.bitcast {v}_byte : i8 to f8E4M3FN"""
_STEPS = {"bf16": _BF16_STEPS, "f8E4M3FN": _E4M3_STEPS}


def explicit_rounding(text: str) -> str:
    """Replaces every scalar truncation from f32 to bf16 or e4m3 in a linalg module's text.

    Args:
        text: a module whose truncations stand in the bodies of linalg ops, as torch-mlir prints them.
    """
    return _TRUNCATION.sub(_steps, text)


def _steps(match: re.Match[str]) -> str:
    indent, result, x, element = match.groups()
    # Numbered names may not carry a suffix, so the steps have names of their own.
    return _STEPS[element].format(indent=indent, v=f"%round{result[1:]}", x=x, result=result)
