"""The two halves of the MoE sublayer as ops (SPEC 6).

    route_experts  from the router's product to the chosen experts and their weights
    moe            routed experts, the shared expert, their sum

They are defined by the functions of the network, so their values are theirs. The shared expert's parts, `unpack_shared`
and `shared_activation`, are what a kernel leaves to compiled code between its products.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op
from torch.nn import functional

from dsv41c.models import ops, quant

ROUTE_EPS = 1e-20  # SPEC 6.1; not the eps of the norms


def route_experts_definition(logits: Tensor, bias: Tensor, k: int, scale: float) -> tuple[Tensor, Tensor]:
    """The k experts of each row with the largest sqrt(softplus) scores; the bias only chooses, it never weighs.

    Args:
        logits: fp32 [T, E]. bias: fp32 [E].
        scale: what the weights of a row add up to.
    Returns:
        ids int64 [T, k], best first, and weights fp32 [T, k].
    """
    scores = torch.sqrt(functional.softplus(logits))
    ids = ops.select_experts(scores + bias, k)
    chosen = scores.gather(1, ids)
    return ids, chosen / (chosen.sum(-1, keepdim=True) + ROUTE_EPS) * scale


@custom_op("dsv41::route_experts", mutates_args=())
def route_experts(logits: Tensor, bias: Tensor, k: int, scale: float) -> tuple[Tensor, Tensor]:
    """`route_experts_definition`."""
    return route_experts_definition(logits, bias, k, scale)


@route_experts.register_fake
def _(logits: Tensor, bias: Tensor, k: int, scale: float) -> tuple[Tensor, Tensor]:
    size = (logits.shape[0], k)
    return logits.new_empty(size, dtype=torch.int64), logits.new_empty(size)


def moe_definition(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w1: Tensor,
    s1: Tensor,
    w3: Tensor,
    s3: Tensor,
    w2: Tensor,
    s2: Tensor,
    shared_w1: Tensor,
    shared_s1: Tensor,
    shared_w3: Tensor,
    shared_s3: Tensor,
    shared_w2: Tensor,
    shared_s2: Tensor,
    limit: float,
) -> Tensor:
    """`models.moe.MoE` from the quantized input and the router's choice on.

    Args:
        x: bf16 [T, d], already quantized to fp8 values.
        ids: int64 [T, k]; -1 rows belong to no expert. weights: fp32 [T, k].
        w1, s1, w3, s3, w2, s2: the routed experts' packed weights, as `ops.experts` takes them.
        shared_w1, shared_w3: float8_e4m3fn [I, d], shared_w2: [d, I]; shared_s1, shared_s3, shared_s2: their block
            scales, as `ops.dequantize_weight` takes them.
        limit: of gate and up projection, in both kinds of expert.
    Returns:
        bf16 [T, d]: the fp32 sum of the routed experts and the shared one, rounded once.
    """
    linear, unpack = torch.nn.functional.linear, ops.dequantize_weight
    routed = ops.experts(x, ids, weights, w1, s1, w3, s3, w2, s2, limit)
    gate, up = linear(x, unpack(shared_w1, shared_s1)), linear(x, unpack(shared_w3, shared_s3))
    hidden = ops.fake_quantize(ops.swiglu(gate, up, limit).to(torch.bfloat16), "fp8_e8m0")
    return moe_sum(routed, linear(hidden, unpack(shared_w2, shared_s2)))


def unpack_shared(
    w1: Tensor, s1: Tensor, w3: Tensor, s3: Tensor, w2: Tensor, s2: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The shared expert's three weights as bf16, exact: w1, w3 [I, d] and w2 [d, I]."""
    unpack = quant.dequantize_weight
    return unpack(w1, s1), unpack(w3, s3), unpack(w2, s2)


def shared_activation(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """What the shared expert's down projection reads: bf16 [M, I] of fp8 values, from gate, up bf16 [M, I]."""
    return quant.fake_quantize(ops.swiglu(gate, up, limit).to(torch.bfloat16), "fp8_e8m0")


def moe_sum(routed: Tensor, shared: Tensor) -> Tensor:
    """fp32 [T, d] of the routed experts and bf16 [T, d] of the shared one to bf16 [T, d], rounded once."""
    return (routed + shared.to(torch.float32)).to(torch.bfloat16)


@custom_op("dsv41::moe", mutates_args=())
def moe(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w1: Tensor,
    s1: Tensor,
    w3: Tensor,
    s3: Tensor,
    w2: Tensor,
    s2: Tensor,
    shared_w1: Tensor,
    shared_s1: Tensor,
    shared_w3: Tensor,
    shared_s3: Tensor,
    shared_w2: Tensor,
    shared_s2: Tensor,
    limit: float,
) -> Tensor:
    """`moe_definition`."""
    routed = (w1, s1, w3, s3, w2, s2)
    shared = (shared_w1, shared_s1, shared_w3, shared_s3, shared_w2, shared_s2)
    return moe_definition(x, ids, weights, *routed, *shared, limit)


@moe.register_fake
def _(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w1: Tensor,
    s1: Tensor,
    w3: Tensor,
    s3: Tensor,
    w2: Tensor,
    s2: Tensor,
    shared_w1: Tensor,
    shared_s1: Tensor,
    shared_w3: Tensor,
    shared_s3: Tensor,
    shared_w2: Tensor,
    shared_s2: Tensor,
    limit: float,
) -> Tensor:
    return torch.empty_like(x)
