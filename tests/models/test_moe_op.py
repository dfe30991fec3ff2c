"""The MoE sublayer as one op: the network's own values, bit for bit."""

import pytest
import torch
from comparisons import assert_bits, assert_layer
from golden_model import DEEP, golden
from torch import Tensor

from dsv41c.models import moe_ops
from dsv41c.models.layers import act_quant
from dsv41c.models.moe import MoE


def one_op(moe: MoE, x: Tensor) -> Tensor:
    """A sublayer with everything behind its router as one op."""
    ids, weights = moe.gate(x)
    stacks = (moe.experts.w1, moe.experts.w3, moe.experts.w2)
    shared = (moe.shared_experts.w1, moe.shared_experts.w3, moe.shared_experts.w2)
    packed = [tensor for part in (*stacks, *shared) for tensor in (part.weight, part.scale)]
    return moe_ops.moe(act_quant(x), ids, weights, *packed, moe.experts.limit)


def small(dim: int, inner: int, experts: int, k: int, seed: int) -> MoE:
    """A sublayer with random weights, large enough that the limit cuts some values off."""
    moe = MoE(dim, inner, experts, k, 1.5, 2.0)
    rng = torch.Generator().manual_seed(seed)
    for name, weight in moe.named_parameters():
        if name.endswith("scale"):
            weight.copy_(torch.randint(120, 128, weight.shape, generator=rng).to(torch.uint8))
        elif weight.dtype == torch.uint8:
            weight.copy_(torch.randint(0, 256, weight.shape, generator=rng).to(torch.uint8))
        else:
            weight.copy_(torch.randn(weight.shape, generator=rng).to(weight.dtype))
    return moe


@pytest.mark.parametrize(("dim", "inner", "experts", "k"), [(64, 32, 3, 1), (96, 160, 7, 3), (32, 64, 2, 2)])
@pytest.mark.parametrize("rows", [1, 2, 19])
def test_the_op_is_the_sublayer(dim: int, inner: int, experts: int, k: int, rows: int) -> None:
    moe = small(dim, inner, experts, k, seed=rows + dim)
    x = torch.randn(rows, dim, generator=torch.Generator().manual_seed(rows)).to(torch.bfloat16)
    assert_bits(one_op(moe, x), moe(x))


def test_golden_sublayers() -> None:
    """Every layer of mini6 on the reference's own rows."""
    model, prompt = golden("mini6"), DEEP["mini6"]
    deep = model.under(f"{prompt}.deep")
    for number, layer in enumerate(model.backbone.layers):
        x, moe = deep[f"layers.{number}.ffn_in"], layer.get_submodule("ffn")
        assert isinstance(moe, MoE)
        found = one_op(moe, x)
        assert_bits(found, moe(x))
        assert_layer(found, deep[f"layers.{number}.ffn_out"], f"layer {number}")
