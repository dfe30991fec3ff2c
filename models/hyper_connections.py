"""Manifold-constrained hyper-connections (mHC): the residual of n streams and its delayed mix (SPEC 3).

At a site, the predictor reads the streams before the sublayer and gives three mixes:

    pre   how the NEXT site collapses the streams into its input (delayed by one sublayer)
    post  how much of the sublayer's output each stream receives
    comb  how the old streams mix into the new ones
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dsv41c.models import ops
from dsv41c.models.layers import weight


class HyperConnection(nn.Module):
    """The predictor of one site (SPEC 3.2)."""

    def __init__(self, streams: int, dim: int, iterations: int, sinkhorn_eps: float, norm_eps: float) -> None:
        super().__init__()
        mixes = (2 + streams) * streams
        self.fn = weight(mixes, streams * dim, dtype=torch.float32)
        self.base = weight(mixes, dtype=torch.float32)
        self.scale = weight(3, dtype=torch.float32)
        self.streams = streams
        self.iterations = iterations
        self.sinkhorn_eps = sinkhorn_eps
        self.norm_eps = norm_eps

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mixes of this site.

        Args:
            h: bf16 [T, n, d], the streams before the sublayer.
        Returns:
            pre fp32 [T, n], post fp32 [T, n], comb fp32 [T, n, n] (source by destination).
        """
        return predict(h, self.fn, self.base, self.scale, self.iterations, self.sinkhorn_eps, self.norm_eps)

    def mixes(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The projected statistics fp32 [T, (2 + n) n] to the three mixes."""
        return mixes_of(projected, self.base, self.scale, self.streams, self.iterations, self.sinkhorn_eps)


def predict(
    h: Tensor, fn: Tensor, base: Tensor, scale: Tensor, iterations: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The three mixes of a site from the streams before its sublayer (SPEC 3.2).

    Args:
        h: bf16 [T, n, d]. fn: fp32 [(2 + n) n, n * d]. base: fp32 [(2 + n) n]. scale: fp32 [3].
        iterations, eps: of the Sinkhorn normalization; eps also keeps `pre` from zero. norm_eps: added to the square.
    Returns:
        pre, post fp32 [T, n], comb fp32 [T, n, n].
    """
    v = h.flatten(1)
    # Summed in fp64: every mix enters every channel of the streams, so the order of 20480 fp32 additions shows as
    # flipped bf16 roundings. This way all targets give one result, and it is the golden data's.
    projected = functional.linear(v.to(torch.float64), fn.to(torch.float64)).to(torch.float32)
    # The statistic scales the projection, not the row: one number a token (SPEC 3.2).
    mean_square = v.to(torch.float32).square().mean(-1, keepdim=True)
    projected = projected * torch.rsqrt(mean_square + norm_eps)
    return mixes_of(projected, base, scale, h.shape[1], iterations, eps)


def mixes_of(
    projected: Tensor, base: Tensor, scale: Tensor, streams: int, iterations: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The projected statistics fp32 [T, (2 + n) n] to the three mixes (SPEC 3.2)."""
    n = streams
    pre, post, comb = projected.split([n, n, n * n], dim=-1)
    pre_base, post_base, comb_base = base.split([n, n, n * n])
    pre_scale, post_scale, comb_scale = scale.split([1, 1, 1])
    pre = torch.sigmoid(pre * pre_scale + pre_base) + eps
    post = 2 * torch.sigmoid(post * post_scale + post_base)
    comb = (comb * comb_scale + comb_base).unflatten(-1, (n, n))
    return pre, post, ops.sinkhorn(comb, iterations, eps)


def first_mix(h: Tensor) -> Tensor:
    """The mix of the first site: stream 0 alone (SPEC 3.5). bf16 [T, n, d] to fp32 [T, n]."""
    column = torch.zeros_like(h.select(-1, 0), dtype=torch.float32)
    return torch.cat((column[:, :1] + 1, column[:, 1:]), dim=-1)


def collapse(h: Tensor, pre: Tensor) -> Tensor:
    """The sublayer's input: streams bf16 [T, n, d] weighted by fp32 [T, n], to bf16 [T, d] (SPEC 3.3)."""
    weighted = pre.unsqueeze(-1) * h.to(torch.float32)
    return ops.sum_in_order(weighted, 1).squeeze(1).to(torch.bfloat16)


def expand(y: Tensor, h: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """The new streams: a sublayer's output spread over them, the old ones mixed in (SPEC 3.3).

    Args:
        y: bf16 [T, d]. h: bf16 [T, n, d]. post: fp32 [T, n]. comb: fp32 [T, n, n].
    Returns:
        bf16 [T, n, d].
    """
    mixed = ops.sum_in_order(comb.unsqueeze(-1) * h.to(torch.float32).unsqueeze(2), 1).squeeze(1)
    return (post.unsqueeze(-1) * y.to(torch.float32).unsqueeze(1) + mixed).to(torch.bfloat16)
