"""Symptom: NaN turns into 480 or -0 (vllm#49077, review; triton#10745; intel-xpu-backend-for-triton#7029).

Cause: e4m3 has one NaN code a sign and no infinity, and a decoder in software reads that code as one more exponent.

Why this input: the bytes 0x7F, 0xFF and 0x80, which are NaN, NaN and -0, through the cast and through the shifts that
stand in for it; and rows with NaN, both infinities and values just beyond the largest, through every quantizer.
"""

import pytest
import torch
from interpreter import run
from test_formats import decode_kernel
from torch import Tensor

from dsv41c.compiler.codegen.triton.kernels import cache_rows
from dsv41c.models import quant


@pytest.mark.parametrize("fp8_casts", [True, False])
def test_codes_that_are_no_numbers(fp8_casts: bool) -> None:
    byte = torch.tensor([0x7F, 0xFF, 0x80, 0x7E, 0xFE, 0x01, 0x00, 0x81], dtype=torch.uint8)
    value = torch.empty(8)
    decode_kernel[(1,)](byte, value, 8, "e4m3", fp8_casts)
    assert value[:2].isnan().all()
    assert value[2:].tolist() == [0.0, 448.0, -448.0, 2.0**-9, 0.0, -(2.0**-9)]
    assert value[[2, 6]].signbit().tolist() == [True, False]


def packed(x: Tensor, row_format: str, fp8_casts: bool) -> Tensor:
    width = quant.FORMATS[row_format].row_bytes(x.shape[1])
    out, unused = torch.zeros(len(x), width, dtype=torch.uint8), torch.zeros(1)
    kernel = cache_rows.writer("pack", row_format, x.shape[1], 0, False, 1, width, slots=False)
    arguments = {"x_ptr": x, "cos_ptr": unused, "sin_ptr": unused, "weight_ptr": torch.zeros(1).bfloat16()}
    slots = torch.zeros(1, dtype=torch.int64)
    run(kernel, fp8_casts=fp8_casts, **arguments, slots_ptr=slots, cache_ptr=out, n_rows=len(x), eps=0.0)
    return out


@pytest.mark.parametrize("fp8_casts", [True, False])
def test_values_just_beyond_the_largest(fp8_casts: bool) -> None:
    """Under a scale of one, 449 becomes 448 and not NaN; 449 in a group of its own gets a scale of two."""
    x = torch.zeros(2, 32)
    x[0, :4], x[1, :2] = torch.tensor([448.0, -448.0, 447.0, 0.5]), torch.tensor([450.0, -450.0])
    found = quant.dequantize(packed(x.bfloat16(), "fp8_e8m0", fp8_casts), "fp8_e8m0")
    assert found[0, :4].tolist() == [448.0, -448.0, 448.0, 0.5]
    assert found[1, :2].tolist() == [448.0, -448.0]
    assert found.isfinite().all()


@pytest.mark.parametrize("fp8_casts", [True, False])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("row_format", list(quant.FORMATS))
def test_a_row_that_is_broken_breaks_no_other(row_format: str, value: float, fp8_casts: bool) -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(4)).bfloat16()
    whole = quant.quantize(x, row_format)
    x[1, 40] = value
    ours = packed(x, row_format, fp8_casts)
    assert torch.equal(ours[[0, 2]], whole[[0, 2]])
    groups = 32 // quant.FORMATS[row_format].group
    scales = quant.FORMATS[row_format].data_bytes(64)
    assert torch.equal(ours[1, scales : scales + groups], whole[1, scales : scales + groups])


@pytest.mark.parametrize("fp8_casts", [True, False])
@pytest.mark.parametrize("row_format", ["fp8_e8m0", "fp4_e4m3"])
def test_nan_stays_visible(row_format: str, fp8_casts: bool) -> None:
    """In the value's own code, or in the scale of its group where codes have no NaN."""
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(5)).bfloat16()
    x[1, 40], x[1, 41] = torch.nan, -torch.nan
    ours = packed(x, row_format, fp8_casts)
    assert quant.dequantize(ours, row_format)[1, 40:42].isnan().all()
    if row_format == "fp4_e4m3":
        scales = quant.FORMATS[row_format].data_bytes(64)
        assert torch.equal(ours[:, scales:], quant.quantize(x, row_format)[:, scales:])
