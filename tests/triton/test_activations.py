"""Rows between products against models/layers.py, models/ops.py and models/quant.py, bit for bit."""

import pytest
import torch
from interpreter import run
from test_cache_writers import EPS, rotation, rows_of

from dsv41c.compiler.codegen.triton.families import Tile
from dsv41c.compiler.codegen.triton.kernels import activations
from dsv41c.models import quant
from dsv41c.models.layers import rms_norm, rotate

TILE = Tile({"ROWS": 16})


@pytest.mark.parametrize(("channels", "fp8_casts"), [(1280, True), (5120, False)])
def test_norm_and_quantization(channels: int, fp8_casts: bool) -> None:
    """Widths that are no powers of two."""
    x, weight = rows_of(5120)[:, :channels].contiguous(), torch.linspace(0.5, 1.5, channels).bfloat16()
    normalized, quantized = torch.empty_like(x), torch.empty_like(x)
    arguments = {"x_ptr": x, "weight_ptr": weight, "normalized_ptr": normalized, "quantized_ptr": quantized}
    kernel = activations.norm_rows("norm", channels).with_tiles(TILE)
    run(kernel, fp8_casts=fp8_casts, **arguments, n_rows=13, eps=EPS)
    assert torch.equal(normalized, rms_norm(x, weight, EPS))
    assert torch.equal(quantized, quant.fake_quantize(normalized, "fp8_e8m0"))


def test_quantization_alone() -> None:
    x = rows_of(512)
    quantized, untouched = torch.empty_like(x), torch.zeros(1, dtype=torch.bfloat16)
    arguments = {"x_ptr": x, "weight_ptr": untouched, "normalized_ptr": untouched, "quantized_ptr": quantized}
    run(activations.norm_rows("quantize", 512, norm=False).with_tiles(TILE), **arguments, n_rows=13, eps=EPS)
    assert torch.equal(quantized, quant.fake_quantize(x, "fp8_e8m0"))
    assert not untouched.any()


@pytest.mark.parametrize(
    ("channels", "inverse", "quantize"), [(512, False, False), (512, True, False), (128, False, True)]
)
def test_rotation(channels: int, inverse: bool, quantize: bool) -> None:
    """Four tokens of three heads; index queries are quantized behind it."""
    x, (cos, sin) = rows_of(channels)[:12].contiguous(), rotation(4, 64)
    y = torch.empty_like(x)
    kernel = activations.rotate_rows("rotate", channels, 64, inverse, quantize).with_tiles(TILE)
    run(kernel, x_ptr=x, cos_ptr=cos, sin_ptr=sin, y_ptr=y, n_rows=12, n_heads=3)
    expected = rotate(x.view(4, 3, channels), cos, -sin if inverse else sin).flatten(0, 1)
    assert torch.equal(y, quant.fake_quantize(expected, "fp4_e8m0") if quantize else expected)
