"""Elementary functions and products as torch computes them, so that a plan and the eager model agree bit for bit.

A float of a mix enters every channel of the streams. One that differs from torch's in its last bit flips a bf16
rounding now and then, and forty layers make another result of that. IREE has its own polynomials for exp, an
approximation for rsqrt, and its LLVM backend contracts a product and a sum into one rounding; none is wrong, and none
is torch's. Written out in steps that have one rounding each, they are:

    math.exp    the polynomial that torch's vectorized exp uses (SLEEF's expf_u10), with its fused steps as math.fma
    math.rsqrt  1 / sqrt(x)
    %y = a * b  in a body that only multiplies: followed by a step that keeps the product from being contracted
"""

import re

__all__ = ["torch_arithmetic"]

_EXP = re.compile(r"^(\s*)(%\w+) = math\.exp (%\w+) : f32$", re.MULTILINE)
_RSQRT = re.compile(r"^(\s*)(%\w+) = math\.rsqrt (%\w+) : f32$", re.MULTILINE)
_PRODUCT = re.compile(r"^(\s*)(%\w+) = arith\.mulf (%\w+), (%\w+) : f32\n(\s*linalg\.yield )\2 : f32$", re.MULTILINE)

# Below -104 the result is 0, above 100 it is infinite, as there.
_EXP_STEPS = """\
{log2e} = arith.constant 0x3FB8AA3B : f32
{ln2_high} = arith.constant 0xBF317200 : f32
{ln2_low} = arith.constant 0xB5BFBE8E : f32
{c0} = arith.constant 0x39502BDA : f32
{c1} = arith.constant 0x3AB696C9 : f32
{c2} = arith.constant 0x3C0888A6 : f32
{c3} = arith.constant 0x3D2AAA7A : f32
{c4} = arith.constant 0x3E2AAAAB : f32
{half} = arith.constant 0x3F000000 : f32
{one} = arith.constant 0x3F800000 : f32
{low} = arith.constant 0xC2D00000 : f32
{high} = arith.constant 0x42C80000 : f32
{zero} = arith.constant 0x00000000 : f32
{inf} = arith.constant 0x7F800000 : f32
{bias} = arith.constant 127 : i32
{shift} = arith.constant 23 : i32
{i1} = arith.constant 1 : i32
{above} = arith.cmpf ogt, {x}, {high} : f32
{below} = arith.cmpf olt, {x}, {low} : f32
{floored} = arith.select {below}, {low}, {x} : f32
{clamped} = arith.select {above}, {high}, {floored} : f32
{scaled} = arith.mulf {clamped}, {log2e} : f32
{whole} = math.roundeven {scaled} : f32
{s0} = math.fma {whole}, {ln2_high}, {clamped} : f32
{s} = math.fma {whole}, {ln2_low}, {s0} : f32
{u0} = math.fma {c0}, {s}, {c1} : f32
{u1} = math.fma {u0}, {s}, {c2} : f32
{u2} = math.fma {u1}, {s}, {c3} : f32
{u3} = math.fma {u2}, {s}, {c4} : f32
{u4} = math.fma {u3}, {s}, {half} : f32
{square} = arith.mulf {s}, {s} : f32
{u5} = math.fma {square}, {u4}, {s} : f32
{u} = arith.addf {u5}, {one} : f32
{q} = arith.fptosi {whole} : f32 to i32
{q0} = arith.shrsi {q}, {i1} : i32
{q1} = arith.subi {q}, {q0} : i32
{e0} = arith.addi {q0}, {bias} : i32
{e1} = arith.addi {q1}, {bias} : i32
{b0} = arith.shli {e0}, {shift} : i32
{b1} = arith.shli {e1}, {shift} : i32
{p0} = arith.bitcast {b0} : i32 to f32
{p1} = arith.bitcast {b1} : i32 to f32
{r0} = arith.mulf {u}, {p0} : f32
{r1} = arith.mulf {r0}, {p1} : f32
{r2} = arith.select {below}, {zero}, {r1} : f32
{result} = arith.select {above}, {inf}, {r2} : f32"""
_RSQRT_STEPS = """\
{root} = math.sqrt {x} : f32
{one} = arith.constant 1.000000e+00 : f32
{result} = arith.divf {one}, {root} : f32"""
# A product that is no number stays one: the select changes no value, and the backend does not look behind it.
_PRODUCT_STEPS = """\
{product} = arith.mulf {a}, {b} : f32
{nan} = arith.constant 0x7FC00000 : f32
{isnan} = arith.cmpf uno, {product}, {product} : f32
{result} = arith.select {isnan}, {nan}, {product} : f32"""
_HOLE = re.compile(r"\{(\w+)\}")


def torch_arithmetic(text: str) -> str:
    """Replaces exp, rsqrt and products in the bodies of a linalg module's ops by the steps that torch takes.

    Args:
        text: a module as torch-mlir prints it; only scalar f32 ops change.
    """
    text = _EXP.sub(lambda m: _steps(_EXP_STEPS, m[1], m[2], x=m[3]), text)
    text = _RSQRT.sub(lambda m: _steps(_RSQRT_STEPS, m[1], m[2], x=m[3]), text)
    return _PRODUCT.sub(_held_product, text)


def _held_product(match: re.Match[str]) -> str:
    indent, result, a, b, end = match.groups()
    return f"{_steps(_PRODUCT_STEPS, indent, result, a=a, b=b)}\n{end}{result} : f32"


def _steps(template: str, indent: str, result: str, **operands: str) -> str:
    """The template's lines; a hole that is no operand is a value of its own, named after the result."""
    # Numbered names may not carry a suffix, so the steps have names of their own.
    named = operands | {"result": result}
    filled = _HOLE.sub(lambda hole: named.get(hole[1], f"%by{result[1:]}_{hole[1]}"), template)
    return "\n".join(indent + line for line in filled.splitlines())
