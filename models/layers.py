"""The small modules that every sublayer is made of: norms, linears by weight format, rotary positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from dsv41c.models import ops
from dsv41c.models.config import RopeScaling
from dsv41c.models.quant import WEIGHT_BLOCK


def weight(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """An uninitialized weight; a checkpoint or the meta device gives it its meaning."""
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


def act_quant(x: Tensor) -> Tensor:
    """FP8 activation quantization in groups of 32, as the bf16 values that it leaves (SPEC 2.3)."""
    return ops.fake_quantize(x, "fp8_e8m0")


class RMSNorm(nn.Module):
    """Root mean square norm with one rounding, at the end (SPEC 2.1)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = weight(dim, dtype=torch.bfloat16)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] to bf16 [..., dim]."""
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[..., dim] and bf16 [dim] to bf16 [..., dim], rounded once (SPEC 2.1)."""
    x = x.to(torch.float32)
    normalized = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (weight.to(torch.float32) * normalized).to(torch.bfloat16)


class Linear(nn.Module):
    """A bf16 linear without bias (SPEC 2.5)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = weight(outputs, inputs, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        """bf16 [T, inputs] to bf16 [T, outputs]."""
        return functional.linear(x, self.weight)


class Fp32Linear(nn.Module):
    """A linear that is stored in bf16 and computed in fp32 (SPEC 2.5, 9 "Loading promotions")."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = weight(outputs, inputs, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        """[T, inputs] to fp32 [T, outputs]."""
        return functional.linear(x.to(torch.float32), self.weight.to(torch.float32))


class Fp8Linear(nn.Module):
    """A linear with FP8 weights in 32 x 32 blocks, on inputs that `act_quant` already rounded (SPEC 2.5)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = weight(outputs, inputs, dtype=torch.float8_e4m3fn)
        self.scale = weight(-(-outputs // WEIGHT_BLOCK), -(-inputs // WEIGHT_BLOCK), dtype=torch.uint8)

    def forward(self, quantized: Tensor) -> Tensor:
        """bf16 [T, inputs] to bf16 [T, outputs]; products are exact, sums are fp32, one rounding."""
        return functional.linear(quantized, self.dequantized())

    def dequantized(self) -> Tensor:
        """The weight as bf16 [outputs, inputs], exact."""
        return ops.dequantize_weight(self.weight, self.scale)


def inverse_frequencies(dim: int, base: float, scaling: RopeScaling | None) -> Tensor:
    """Rotary frequencies, stretched by YaRN where `scaling` is given; at all positions (SPEC 2.6).

    Returns:
        fp32 [dim / 2].
    """
    frequencies = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    if scaling is None:
        return frequencies

    def channel_of(rotations: float) -> float:
        original = scaling.original_max_position_embeddings
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(channel_of(scaling.beta_fast)), 0)
    high = min(math.ceil(channel_of(scaling.beta_slow)), dim - 1)
    span = high - low if high != low else 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    kept = 1 - ramp
    return frequencies / scaling.factor * (1 - kept) + frequencies * kept


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates adjacent pairs of the last channels, in fp32 with one rounding (SPEC 2.6).

    Args:
        x: bf16 [T, ..., D]; the last 2 * h of D channels are rotated.
        cos, sin: fp32 [T, h]; pass -sin for the inverse rotation.
    Returns:
        bf16 like x.
    """
    width = 2 * cos.shape[-1]
    rest, rotated = x.split([x.shape[-1] - width, width], dim=-1)
    for _ in range(x.dim() - 2):
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    pairs = rotated.to(torch.float32).unflatten(-1, (width // 2, 2))
    even, odd = pairs.select(-1, 0), pairs.select(-1, 1)
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return torch.cat((rest, turned.to(torch.bfloat16)), dim=-1)
