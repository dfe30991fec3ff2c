"""Mixture of experts: router, routed MXFP4 experts, one shared FP8 expert (SPEC 6)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dsv41c.models import moe_ops, ops
from dsv41c.models.layers import Fp8Linear, act_quant, weight
from dsv41c.models.quant import WEIGHT_BLOCK


class Router(nn.Module):
    """Chooses experts by sqrt(softplus) scores; the bias only chooses, it never weighs (SPEC 6.1)."""

    def __init__(self, dim: int, experts: int, k: int, scale: float) -> None:
        super().__init__()
        self.weight = weight(experts, dim, dtype=torch.bfloat16)
        self.bias = weight(experts, dtype=torch.float32)
        self.k, self.scale = k, scale

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """bf16 [T, d] to expert ids int64 [T, k], best first, and routing weights fp32 [T, k]."""
        logits = functional.linear(x.to(torch.float32), self.weight.to(torch.float32))
        return moe_ops.route_experts_definition(logits, self.bias, self.k, self.scale)


class ExpertStack(nn.Module):
    """One projection of all routed experts: MXFP4 codes and scales, stacked over experts.

    A checkpoint holds one tensor an expert (`experts.7.w1.weight`); the stack is how the traced program names them all.
    """

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = weight(experts, outputs, inputs // 2, dtype=torch.uint8)
        self.scale = weight(experts, outputs, inputs // WEIGHT_BLOCK, dtype=torch.uint8)


class RoutedExperts(nn.Module):
    """The routed experts of one layer (SPEC 6.2)."""

    def __init__(self, dim: int, inner: int, experts: int, limit: float) -> None:
        super().__init__()
        self.w1 = ExpertStack(experts, dim, inner)
        self.w2 = ExpertStack(experts, inner, dim)
        self.w3 = ExpertStack(experts, dim, inner)
        self.limit = limit

    def forward(self, quantized: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """bf16 [T, d] (fp8 values), ids int64 [T, k], weights fp32 [T, k] to the fp32 sum [T, d]."""
        w1, w2, w3 = self.w1, self.w2, self.w3
        packed = (w1.weight, w1.scale, w3.weight, w3.scale, w2.weight, w2.scale)
        return ops.experts(quantized, ids, weights, *packed, self.limit)


class SharedExpert(nn.Module):
    """The expert that every token passes (SPEC 6.2, 6.3)."""

    def __init__(self, dim: int, inner: int, limit: float) -> None:
        super().__init__()
        self.w1 = Fp8Linear(dim, inner)
        self.w2 = Fp8Linear(inner, dim)
        self.w3 = Fp8Linear(dim, inner)
        self.limit = limit

    def forward(self, quantized: Tensor) -> Tensor:
        """bf16 [T, d] (fp8 values) to bf16 [T, d]."""
        hidden = ops.swiglu(self.w1(quantized), self.w3(quantized), self.limit).to(torch.bfloat16)
        return self.w2(act_quant(hidden))


class MoE(nn.Module):
    """Routed experts plus the shared one, summed in fp32 with one rounding (SPEC 6.2)."""

    def __init__(self, dim: int, inner: int, experts: int, k: int, scale: float, limit: float) -> None:
        super().__init__()
        self.gate = Router(dim, experts, k, scale)
        self.experts = RoutedExperts(dim, inner, experts, limit)
        self.shared_experts = SharedExpert(dim, inner, limit)

    def forward(self, x: Tensor) -> Tensor:
        """bf16 [T, d], normalized, to bf16 [T, d]."""
        ids, weights = self.gate(x)
        quantized = act_quant(x)
        routed = self.experts(quantized, ids, weights)
        return (routed + self.shared_experts(quantized).to(torch.float32)).to(torch.bfloat16)
