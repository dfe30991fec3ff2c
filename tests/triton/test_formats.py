"""The corrected interpreter casts as torch, and the kernels' own formats are those of models/quant.py, bit for bit."""

import pytest
import torch
import triton
import triton.language as tl
from tolerances import FP32_SUM
from torch import Tensor

from dsv41c.compiler.codegen.triton.kernels import formats
from dsv41c.models import quant


@triton.jit
def cast_kernel(x_ptr, y_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y_ptr + at, tl.load(x_ptr + at).to(y_ptr.dtype.element_ty))


@triton.jit
def dot_kernel(a_ptr, b_ptr, c_ptr, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at)))


@triton.jit
def encode_e4m3_kernel(x_ptr, y_ptr, N: tl.constexpr, FP8_CASTS: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y_ptr + at, formats.encode_e4m3(formats.clamp_e4m3(tl.load(x_ptr + at)), FP8_CASTS))


@triton.jit
def decode_kernel(x_ptr, y_ptr, N: tl.constexpr, FORMAT: tl.constexpr, FP8_CASTS: tl.constexpr):
    at = tl.arange(0, N)
    byte = tl.load(x_ptr + at)
    if FORMAT == "e4m3":
        value = formats.decode_e4m3(byte, FP8_CASTS)
    elif FORMAT == "ue8m0":
        value = formats.decode_ue8m0(byte)
    else:
        value = formats.decode_e2m1(byte.to(tl.int32) & 15)
    tl.store(y_ptr + at, value)


def edge_values() -> Tensor:
    """4096 fp32 values: of every size that matters, midpoints of e4m3 and e2m1 with both signs, zeros of both signs."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    midpoints = (codes[1:] + codes[:-1]) / 2
    nearby = torch.cat(
        [midpoints, midpoints.nextafter(torch.tensor(torch.inf)), midpoints.nextafter(torch.tensor(0.0))]
    )
    edges = torch.cat([codes, nearby, torch.tensor([0.0, 1e-8, 1e-40, 447.9, 464.0, 1e30, 0.25, 0.75, 2.5, 5.0])])
    generator = torch.Generator().manual_seed(5)
    count = 4096 - 2 * edges.numel()
    random = torch.randn(count, generator=generator) * 2.0 ** torch.randint(-20, 12, (count,), generator=generator)
    return torch.cat([edges, -edges, random])


def same(ours: Tensor, theirs: Tensor) -> None:
    """Equal to the bit; any NaN is any other."""
    assert ours.dtype == theirs.dtype
    both_nan = ours.float().isnan() & theirs.float().isnan()
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[ours.element_size()]
    different = (ours.view(width) != theirs.view(width)) & ~both_nan
    assert not different.any(), (ours[different][:8], theirs[different][:8])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_interpreter_casts_as_torch(dtype: torch.dtype) -> None:
    x = edge_values()
    narrow = torch.empty(4096, dtype=dtype)
    cast_kernel[(1,)](x, narrow, 4096)
    same(narrow, x.to(dtype))
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    wide = torch.empty(codes.numel())
    cast_kernel[(1,)](codes, wide, codes.numel())
    same(wide, codes.float())


def test_interpreter_multiplies_bf16() -> None:
    a, b = (torch.randn(32, 32, generator=torch.Generator().manual_seed(n)).bfloat16() for n in (1, 2))
    c = torch.empty(32, 32)
    dot_kernel[(1,)](a, b, c, 32)
    assert torch.allclose(c.double(), a.double() @ b.double(), rtol=FP32_SUM, atol=FP32_SUM)


@pytest.mark.parametrize("fp8_casts", [True, False])
def test_e4m3(fp8_casts: bool) -> None:
    x = edge_values()
    codes = torch.empty(4096, dtype=torch.uint8)
    encode_e4m3_kernel[(1,)](x, codes, 4096, fp8_casts)
    assert torch.equal(codes, x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))
    every = torch.arange(256, dtype=torch.uint8)
    values = torch.empty(256)
    decode_kernel[(1,)](every, values, 256, "e4m3", fp8_casts)
    same(values, every.view(torch.float8_e4m3fn).float())


def test_scales_and_e2m1() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    values = torch.empty(256)
    decode_kernel[(1,)](every, values, 256, "ue8m0", True)
    same(values, quant.decode_ue8m0(every))
    decode_kernel[(1,)](every, values, 256, "e2m1", True)
    same(values, quant.decode_e2m1((every & 15).int()))
