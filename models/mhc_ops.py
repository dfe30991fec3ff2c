"""The sites of mHC as single ops: what stands between two sublayers, in one pass over the streams (SPEC 3.7).

    mhc_site    expand, predictor, collapse with the mix of the site before, norm
    mhc_enter   the same without expand: the streams come from the embedding or from Engram
    mhc_leave   the same without predictor: the last site, at the rows that are wanted

Each is defined by the functions of the network, so its values are theirs bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

from dsv41c.models.hyper_connections import collapse, expand, predict
from dsv41c.models.layers import rms_norm

Mixes = tuple[Tensor, Tensor, Tensor, Tensor]


def mhc_site_definition(
    y: Tensor,
    h: Tensor,
    post: Tensor,
    comb: Tensor,
    pre: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    weight: Tensor,
    iterations: int,
    eps: float,
    mix_eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """From a sublayer's output to the next sublayer's input (SPEC 3.2-3.4).

    Args:
        y: bf16 [T, d], the sublayer's output. h: bf16 [T, n, d], the streams before it.
        post: fp32 [T, n], comb: fp32 [T, n, n], pre: fp32 [T, n], the mixes of the site before.
        fn: fp32 [(2 + n) n, n * d], base: fp32 [(2 + n) n], scale: fp32 [3], this site's predictor.
        weight: bf16 [d], the norm's.
        iterations, eps: of Sinkhorn. mix_eps: added to the mean square of the streams. norm_eps: to that of the input.
    Returns:
        streams bf16 [T, n, d]; the next input x bf16 [T, d], normalized; pre, post fp32 [T, n], comb fp32 [T, n, n].
    """
    streams = expand(y, h, post, comb)
    return streams, *mhc_enter_definition(streams, pre, fn, base, scale, weight, iterations, eps, mix_eps, norm_eps)


def mhc_enter_definition(
    h: Tensor,
    pre: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    weight: Tensor,
    iterations: int,
    eps: float,
    mix_eps: float,
    norm_eps: float,
) -> Mixes:
    """A sublayer's input and the mixes from streams as they stand; arguments and results as `mhc_site_definition`."""
    new_pre, post, comb = predict(h, fn, base, scale, iterations, eps, mix_eps)
    return rms_norm(collapse(h, pre), weight, norm_eps), new_pre, post, comb


def mhc_leave_definition(
    y: Tensor, h: Tensor, post: Tensor, comb: Tensor, pre: Tensor, weight: Tensor, rows: Tensor | None, norm_eps: float
) -> Tensor:
    """What the last sublayer leaves, collapsed and normalized.

    Args:
        rows: int64 [R], the rows that are wanted, None for all; the others as `mhc_site_definition`.
    Returns:
        bf16 [R, d].
    """
    if rows is not None:
        # Gathered first: every later op works on each row for itself, and few rows are wanted.
        y, h, post, comb, pre = y[rows], h[rows], post[rows], comb[rows], pre[rows]
    return rms_norm(collapse(expand(y, h, post, comb), pre), weight, norm_eps)


@custom_op("dsv41::mhc_site", mutates_args=())
def mhc_site(
    y: Tensor,
    h: Tensor,
    post: Tensor,
    comb: Tensor,
    pre: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    weight: Tensor,
    iterations: int,
    eps: float,
    mix_eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`mhc_site_definition` as one op."""
    return mhc_site_definition(y, h, post, comb, pre, fn, base, scale, weight, iterations, eps, mix_eps, norm_eps)


@mhc_site.register_fake
def _(
    y: Tensor,
    h: Tensor,
    post: Tensor,
    comb: Tensor,
    pre: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    weight: Tensor,
    iterations: int,
    eps: float,
    mix_eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return torch.empty_like(h), y.new_empty(y.shape), *_fake_mixes(h)


@custom_op("dsv41::mhc_enter", mutates_args=())
def mhc_enter(
    h: Tensor,
    pre: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    weight: Tensor,
    iterations: int,
    eps: float,
    mix_eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`mhc_enter_definition` as one op."""
    return mhc_enter_definition(h, pre, fn, base, scale, weight, iterations, eps, mix_eps, norm_eps)


@mhc_enter.register_fake
def _(
    h: Tensor,
    pre: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    weight: Tensor,
    iterations: int,
    eps: float,
    mix_eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return h.new_empty((h.shape[0], h.shape[2])), *_fake_mixes(h)


@custom_op("dsv41::mhc_leave", mutates_args=())
def mhc_leave(
    y: Tensor, h: Tensor, post: Tensor, comb: Tensor, pre: Tensor, weight: Tensor, rows: Tensor | None, norm_eps: float
) -> Tensor:
    """`mhc_leave_definition` as one op."""
    return mhc_leave_definition(y, h, post, comb, pre, weight, rows, norm_eps)


@mhc_leave.register_fake
def _(
    y: Tensor, h: Tensor, post: Tensor, comb: Tensor, pre: Tensor, weight: Tensor, rows: Tensor | None, norm_eps: float
) -> Tensor:
    return y.new_empty((y.shape[0] if rows is None else rows.shape[0], y.shape[1]))


def _fake_mixes(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, streams = h.shape[:2]
    mix = h.new_empty((rows, streams), dtype=torch.float32)
    return mix, torch.empty_like(mix), h.new_empty((rows, streams, streams), dtype=torch.float32)
