"""Products as single ops: one input with several packed weights, and products with bf16 weights (SPEC 2.5)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

from dsv41c.models import quant
from dsv41c.models.ops import linear_definition


def linears_definition(x: Tensor, packed: list[Tensor], groups: int, quantize: int) -> list[Tensor]:
    """Linears that read one input, each with its own FP8 weight.

    Args:
        x: bf16 [T, groups * K].
        packed: weight and scales of one linear behind the other, each pair as `quant.dequantize_weight` takes it:
            float8_e4m3fn [N, K] and uint8 [ceil(N/32), ceil(K/32)].
        groups: see `ops.linear_definition`.
        quantize: 1 rounds x to fp8_e8m0 values first, as `quant.fake_quantize`; 0 takes it as it is.
    Returns:
        bf16 [T, N] of each weight.
    """
    rows = quant.fake_quantize(x, "fp8_e8m0") if quantize else x
    pairs = zip(packed[::2], packed[1::2], strict=True)
    return [linear_definition(rows, quant.dequantize_weight(*pair), groups).contiguous() for pair in pairs]


@custom_op("dsv41::linears", mutates_args=())
def linears(x: Tensor, packed: list[Tensor], groups: int, quantize: int) -> list[Tensor]:
    """`linears_definition` as one op."""
    return linears_definition(x, packed, groups, quantize)


@linears.register_fake
def _(x: Tensor, packed: list[Tensor], groups: int, quantize: int) -> list[Tensor]:
    return [x.new_empty((x.shape[0], weight.shape[0])) for weight in packed[::2]]


@custom_op("dsv41::linear_bf16", mutates_args=())
def linear_bf16(x: Tensor, weight: Tensor, wide: int) -> Tensor:
    """A linear with a bf16 weight, summed in fp32.

    Args:
        x: bf16 [T, K]. weight: bf16 [N, K].
        wide: 1 gives the sums as they are, 0 rounds them to bf16.
    Returns:
        fp32 or bf16 [T, N].
    """
    if wide:
        return torch.nn.functional.linear(x.to(torch.float32), weight.to(torch.float32))
    return torch.nn.functional.linear(x, weight)


@linear_bf16.register_fake
def _(x: Tensor, weight: Tensor, wide: int) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]), dtype=torch.float32 if wide else torch.bfloat16)
