"""Rounding to bf16 that no later compiler can take away.

IREE's CPU pipeline has a pass that does bf16 arithmetic in f32; on the way it removes `extf(truncf(x))`, and with it a
rounding that is part of the model (measured: an output of a fused region off by 1.7e-3 relative). A rounding spelled in
integers has no truncf to remove:

    %r = arith.truncf %x : f32 to bf16
      ->  %b = bits of %x;  %e = 0x7FFF + the lowest bit that stays;  %r = the high half of (%b + %e), NaN for NaN

Round to nearest, ties to even; the result is what truncf gives for every f32, one NaN for all NaN.
"""

import re

__all__ = ["explicit_bf16_rounding"]

_TRUNCATION = re.compile(r"^(\s*)(%\w+) = arith\.truncf (%\w+) : f32 to bf16$", re.MULTILINE)
_STEPS = """\
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


def explicit_bf16_rounding(text: str) -> str:
    """Replaces every scalar truncation from f32 to bf16 in a linalg module's text.

    Args:
        text: a module whose truncations stand in the bodies of linalg ops, as torch-mlir prints them.
    """
    return _TRUNCATION.sub(_steps, text)


def _steps(match: re.Match[str]) -> str:
    indent, result, x = match.groups()
    # Numbered names may not carry a suffix, so the steps have names of their own.
    return _STEPS.format(indent=indent, v=f"%round{result[1:]}", x=x, result=result)
