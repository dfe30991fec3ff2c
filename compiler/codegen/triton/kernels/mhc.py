"""The sites of mHC in one pass over the streams (SPEC 3.2-3.7; models/mhc_ops.py).

    mhc_site     expand, collapse with the mix of the site before, and the predictor's partial products: every channel
                 is read once and written once, n + 1 and n + 1 of them a token: the bound 2n + 2
    mhc_enter    the same without expand: the streams stand as they are
    mhc_finish   the partial products to the site's mixes (sigmoid, Sinkhorn), and the norm of the collapsed input
    mhc_leave    the last site: expand, collapse, norm, at the rows that are wanted

A predictor row has 24 products of 20480 channels. Streams are bf16 and `fn` splits into three bf16 parts without a
rest, so matrix units give exact products; a tile's fp32 sums are added in fp64, as the reference's are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dsv41c.compiler.codegen.triton.families import Hole, Kernel, Tile
from dsv41c.compiler.codegen.triton.kernels.rows import inverse_root, sum_in_chains
from dsv41c.errors import CompileError

if TYPE_CHECKING:
    from dsv41c.models.config import ModelConfig

STREAMS = 4
MIXES = (2 + STREAMS) * STREAMS
PART_WIDTH = 32  # columns of a row of partial results: the products, then the sum of squares, then nothing
_N = tl.constexpr(STREAMS)
_MIXES = tl.constexpr(MIXES)
_WIDTH = tl.constexpr(PART_WIDTH)


@triton.jit
def mhc_site_kernel(
    y_ptr,
    h_ptr,
    post_ptr,
    comb_ptr,
    pre_ptr,
    fn_ptr,
    streams_ptr,
    x_ptr,
    parts_ptr,
    n_rows,
    D: tl.constexpr,
    EXPAND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """y bf16 [n_rows, D] and h bf16 [n_rows, 4, D] to the new streams, the collapsed input x, and partial products.

    post, pre fp32 [n_rows, 4] and comb fp32 [n_rows, 4, 4] are the mixes of the site before; fn fp32 [24, 4 * D].
    x bf16 [n_rows, D] is not normalized yet; parts fp32 [SPLIT, n_rows, 32]. Program (i, s) does rows i and a SPLIT-th
    of the channels.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    inside = row < n_rows
    address = row.to(tl.int64)
    pre = _mixes(pre_ptr, address, inside, _N)
    if EXPAND:
        post = _mixes(post_ptr, address, inside, _N)
        comb = _mixes(comb_ptr, address, inside, _N * _N)
    total = tl.zeros((_WIDTH, ROWS), tl.float64)
    squares = tl.zeros((ROWS,), tl.float64)
    BLOCKS: tl.constexpr = (D + BLOCK - 1) // BLOCK
    PER: tl.constexpr = (BLOCKS + SPLIT - 1) // SPLIT
    # Bounds that no compiler knows: an unrolled loop would hold the tiles of all its rounds at once.
    for block in range(split * PER, tl.minimum(split * PER + PER, BLOCKS)):
        channel = block * BLOCK + tl.arange(0, BLOCK)
        wanted = inside[:, None] & (channel < D)[None, :]
        at = address[:, None] * (_N * D) + channel[None, :]

        # --- expand
        h0 = tl.load(h_ptr + at, mask=wanted, other=0.0)
        h1 = tl.load(h_ptr + at + D, mask=wanted, other=0.0)
        h2 = tl.load(h_ptr + at + 2 * D, mask=wanted, other=0.0)
        h3 = tl.load(h_ptr + at + 3 * D, mask=wanted, other=0.0)
        if EXPAND:
            y = tl.load(y_ptr + address[:, None] * D + channel[None, :], mask=wanted, other=0.0)
            h0, h1, h2, h3 = expand(y, h0, h1, h2, h3, post, comb)
            tl.store(streams_ptr + at, h0, mask=wanted)
            tl.store(streams_ptr + at + D, h1, mask=wanted)
            tl.store(streams_ptr + at + 2 * D, h2, mask=wanted)
            tl.store(streams_ptr + at + 3 * D, h3, mask=wanted)

        # --- collapse
        x = _weighted(h0, h1, h2, h3, pre, 0, 1).to(tl.bfloat16)
        tl.store(x_ptr + address[:, None] * D + channel[None, :], x, mask=wanted)

        # --- predictor
        product = _project(h0, fn_ptr, channel, D, ROWS)
        product += _project(h1, fn_ptr + D, channel, D, ROWS)
        product += _project(h2, fn_ptr + 2 * D, channel, D, ROWS)
        product += _project(h3, fn_ptr + 3 * D, channel, D, ROWS)
        total += product.to(tl.float64)
        squares += (tl.sum(_square(h0) + _square(h1) + _square(h2) + _square(h3), axis=1)).to(tl.float64)
    column = tl.arange(0, _WIDTH)
    part = tl.where((column == _MIXES)[:, None], squares[None, :], total).to(tl.float32)
    part_at = (split.to(tl.int64) * n_rows + address)[None, :] * _WIDTH + column[:, None]
    tl.store(parts_ptr + part_at, part, mask=inside[None, :] & (column <= _MIXES)[:, None])


@triton.jit
def mhc_finish_kernel(
    parts_ptr,
    x_ptr,
    base_ptr,
    scale_ptr,
    weight_ptr,
    normalized_ptr,
    pre_ptr,
    post_ptr,
    comb_ptr,
    n_rows,
    eps,
    mix_eps,
    norm_eps,
    D: tl.constexpr,
    PADDED: tl.constexpr,
    ITERATIONS: tl.constexpr,
    SPLIT: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Partial products to pre, post fp32 [n_rows, 4] and comb fp32 [n_rows, 4, 4]; x to its norm, bf16 [n_rows, D].

    base fp32 [24], scale fp32 [3], weight bf16 [D]. eps: of Sinkhorn; mix_eps, norm_eps: added to the mean squares.
    PADDED, PARTS: the powers of two from D and SPLIT on.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < n_rows
    address = row.to(tl.int64)

    # --- the predictor's statistic scales its products, not the streams
    stride = n_rows.to(tl.int64) * _WIDTH
    squares = _sum_parts(parts_ptr + address * _WIDTH + _MIXES, stride, inside, SPLIT, PARTS)
    factor = inverse_root(squares, _N * D, mix_eps)

    # --- pre and post
    vector = tl.arange(0, 2 * _N)[None, :]
    products = _sum_parts(parts_ptr + address[:, None] * _WIDTH + vector, stride, inside[:, None], SPLIT, PARTS)
    mixed = products * factor[:, None] * tl.load(scale_ptr + vector // _N) + tl.load(base_ptr + vector)
    gate = tl.div_rn(tl.full(mixed.shape, 1.0, tl.float32), 1.0 + tl.exp(-mixed))
    is_pre = vector < _N
    at = address[:, None] * _N + vector % _N
    tl.store(pre_ptr + at, gate + eps, mask=inside[:, None] & is_pre)
    tl.store(post_ptr + at, 2 * gate, mask=inside[:, None] & (vector >= _N))

    # --- comb: source stream by destination stream
    entry = tl.arange(0, _N)[:, None] * _N + tl.arange(0, _N)[None, :]
    entry = entry[None, :, :]
    wanted = inside[:, None, None]
    products = _sum_parts(parts_ptr + address[:, None, None] * _WIDTH + 2 * _N + entry, stride, wanted, SPLIT, PARTS)
    mixed = products * factor[:, None, None] * tl.load(scale_ptr + 2) + tl.load(base_ptr + 2 * _N + entry)
    comb = sinkhorn(mixed, eps, ITERATIONS)
    tl.store(comb_ptr + address[:, None, None] * (_N * _N) + entry, comb, mask=wanted)

    # --- the norm of the next input
    channel = tl.arange(0, PADDED)[None, :]
    wanted = inside[:, None] & (channel < D)
    x = tl.load(x_ptr + address[:, None] * D + channel, mask=wanted, other=0.0).to(tl.float32)
    _store_normalized(x, weight_ptr, normalized_ptr, address, wanted, channel, norm_eps, D, PADDED, ROWS)


@triton.jit
def mhc_leave_kernel(
    y_ptr,
    h_ptr,
    post_ptr,
    comb_ptr,
    pre_ptr,
    weight_ptr,
    rows_ptr,
    out_ptr,
    n_rows,
    norm_eps,
    D: tl.constexpr,
    PADDED: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The last site at the rows int64 [n_rows], or at all: bf16 [n_rows, D], normalized; else as `mhc_site_kernel`."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < n_rows
    place = row.to(tl.int64)
    address = tl.load(rows_ptr + place, mask=inside, other=0) if HAS_ROWS else place
    channel = tl.arange(0, PADDED)[None, :]
    wanted = inside[:, None] & (channel < D)
    at = address[:, None] * (_N * D) + channel
    y = tl.load(y_ptr + address[:, None] * D + channel, mask=wanted, other=0.0)
    h0 = tl.load(h_ptr + at, mask=wanted, other=0.0)
    h1 = tl.load(h_ptr + at + D, mask=wanted, other=0.0)
    h2 = tl.load(h_ptr + at + 2 * D, mask=wanted, other=0.0)
    h3 = tl.load(h_ptr + at + 3 * D, mask=wanted, other=0.0)
    post = _mixes(post_ptr, address, inside, _N)
    comb = _mixes(comb_ptr, address, inside, _N * _N)
    h0, h1, h2, h3 = expand(y, h0, h1, h2, h3, post, comb)
    x = _weighted(h0, h1, h2, h3, _mixes(pre_ptr, address, inside, _N), 0, 1).to(tl.bfloat16).to(tl.float32)
    _store_normalized(x, weight_ptr, out_ptr, place, wanted, channel, norm_eps, D, PADDED, ROWS)


@triton.jit
def expand(y, h0, h1, h2, h3, post, comb):
    """The four new streams, bf16: a sublayer's output y spread over them, the old ones mixed in (SPEC 3.3)."""
    y = y.to(tl.float32)
    return (
        (_mix(post, 0) * y + _weighted(h0, h1, h2, h3, comb, 0, _N)).to(tl.bfloat16),
        (_mix(post, 1) * y + _weighted(h0, h1, h2, h3, comb, 1, _N)).to(tl.bfloat16),
        (_mix(post, 2) * y + _weighted(h0, h1, h2, h3, comb, 2, _N)).to(tl.bfloat16),
        (_mix(post, 3) * y + _weighted(h0, h1, h2, h3, comb, 3, _N)).to(tl.bfloat16),
    )


@triton.jit
def sinkhorn(logits, eps, ITERATIONS: tl.constexpr):
    """Row softmax, then columns and rows normalized in turn, columns last (SPEC 3.2); fp32 [rows, n, n]."""
    power = tl.exp(logits - tl.max(logits, axis=2, keep_dims=True))
    mix = _divided(power, tl.sum(power, axis=2, keep_dims=True)) + eps
    mix = _divided(mix, tl.sum(mix, axis=1, keep_dims=True) + eps)
    for _ in range(ITERATIONS - 1):
        mix = _divided(mix, tl.sum(mix, axis=2, keep_dims=True) + eps)
        mix = _divided(mix, tl.sum(mix, axis=1, keep_dims=True) + eps)
    return mix


@triton.jit
def _divided(a, b):
    return tl.div_rn(a, tl.broadcast_to(b, a.shape))


@triton.jit
def _mixes(pointer, address, inside, COUNT: tl.constexpr):
    """The mixes of a site, fp32 [ROWS, COUNT]."""
    at = address[:, None] * COUNT + tl.arange(0, COUNT)[None, :]
    return tl.load(pointer + at, mask=inside[:, None], other=0.0)


@triton.jit
def _mix(mixes, INDEX: tl.constexpr):
    """One column of the mixes, [ROWS, 1].

    A sum over one value and zeros. Loaded as a column instead, it would let the compiler compute whole streams a second
    time in the layout of the products, in every warp.
    """
    chosen = tl.arange(0, mixes.shape[1])[None, :] == INDEX
    return tl.sum(tl.where(chosen, mixes, 0.0), axis=1)[:, None]


@triton.jit
def _weighted(h0, h1, h2, h3, mixes, FIRST: tl.constexpr, STEP: tl.constexpr):
    """The streams weighted by every STEP-th mix from FIRST on, and added first to last, in fp32."""
    first = _mix(mixes, FIRST) * h0.to(tl.float32) + _mix(mixes, FIRST + STEP) * h1.to(tl.float32)
    third = first + _mix(mixes, FIRST + 2 * STEP) * h2.to(tl.float32)
    return third + _mix(mixes, FIRST + 3 * STEP) * h3.to(tl.float32)


@triton.jit
def _square(h):
    wide = h.to(tl.float32)
    return wide * wide


@triton.jit
def _project(h, fn_ptr, channel, D: tl.constexpr, ROWS: tl.constexpr):
    """One stream's part of the 24 products: h bf16 [ROWS, BLOCK] by fn fp32, in three bf16 parts; fp32 [32, ROWS]."""
    mix = tl.arange(0, _WIDTH)
    wanted = (channel < D)[None, :] & (mix < _MIXES)[:, None]
    fn = tl.load(fn_ptr + mix[:, None] * (_N * D) + channel[None, :], mask=wanted, other=0.0)
    high = fn.to(tl.bfloat16)
    rest = fn - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    turned = tl.trans(h)
    return tl.dot(high, turned, tl.dot(middle, turned, tl.dot(low, turned)))


@triton.jit
def _sum_parts(pointer, stride, wanted, SPLIT: tl.constexpr, PARTS: tl.constexpr):
    """The sum over the splits, in fp64, as fp32; all are loaded at once, since a loop would wait for each."""
    split = tl.arange(0, PARTS)
    at = tl.expand_dims(pointer, -1) + split * stride
    parts = tl.load(at, mask=tl.expand_dims(wanted, -1) & (split < SPLIT), other=0.0)
    return tl.sum(parts.to(tl.float64), axis=-1).to(tl.float32)


@triton.jit
def _store_normalized(
    x, weight_ptr, out_ptr, place, wanted, channel, eps, D: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr
):
    """RMS norm of fp32 rows [ROWS, PADDED] that are zero beyond D, stored as bf16 (SPEC 2.1)."""
    factor = inverse_root(sum_in_chains(x * x, ROWS, PADDED), D, eps)
    weight = tl.load(weight_ptr + channel, mask=channel < D, other=0.0).to(tl.float32)
    tl.store(out_ptr + place[:, None] * D + channel, (weight * (x * factor[:, None])).to(tl.bfloat16), mask=wanted)


_SITE = dict.fromkeys(("y_ptr", "h_ptr"), "*bf16") | dict.fromkeys(("post_ptr", "comb_ptr", "pre_ptr"), "*fp32")
_SITE_ARGUMENTS = {**_SITE, "fn_ptr": "*fp32", "streams_ptr": "*bf16", "x_ptr": "*bf16", "parts_ptr": "*fp32"}
_FINISH_ARGUMENTS = {
    "parts_ptr": "*fp32",
    "x_ptr": "*bf16",
    "base_ptr": "*fp32",
    "scale_ptr": "*fp32",
    "weight_ptr": "*bf16",
    "normalized_ptr": "*bf16",
    **dict.fromkeys(("pre_ptr", "post_ptr", "comb_ptr"), "*fp32"),
    "n_rows": "i32",
    **dict.fromkeys(("eps", "mix_eps", "norm_eps"), "fp32"),
}
_LEAVE_ARGUMENTS = {**_SITE, "weight_ptr": "*bf16", "rows_ptr": "*i64", "out_ptr": "*bf16", "n_rows": "i32"}
# Few rows leave most of a GPU without work unless the channels are split; many rows need no split.
SPLITS = {"few": 80, "many": 1}


def site(name: str, dim: int, expands: bool, split: int) -> Kernel:
    """The pass over the streams at one site, the channels cut into `split` parts."""
    holes = {"D": dim, "EXPAND": expands, "SPLIT": split}
    # Wider blocks hold four tiles of `fn` in registers at once, and spill.
    tiles = (Tile({"ROWS": 16, "BLOCK": 32}, warps=4, stages=2), Tile({"ROWS": 16, "BLOCK": 32}, warps=4, stages=1))
    grid = (("n_rows", "ROWS"), ("SPLIT", 1))
    return Kernel(name, "mhc", "mhc_site_kernel", {**_SITE_ARGUMENTS, "n_rows": "i32"}, holes, tiles, grid)


def finish(name: str, dim: int, iterations: int, split: int) -> Kernel:
    """The mixes and the norm after a `site` with the same split."""
    holes = {"D": dim, "PADDED": triton.next_power_of_2(dim), "ITERATIONS": iterations}
    holes |= {"SPLIT": split, "PARTS": triton.next_power_of_2(split)}
    tiles = (Tile({"ROWS": 1}, warps=8),)
    return Kernel(name, "mhc", "mhc_finish_kernel", _FINISH_ARGUMENTS, holes, tiles, (("n_rows", "ROWS"),))


def leave(name: str, dim: int, has_rows: bool = True) -> Kernel:
    """The last site."""
    holes: dict[str, Hole] = {"D": dim, "PADDED": triton.next_power_of_2(dim), "HAS_ROWS": has_rows}
    arguments = {**_LEAVE_ARGUMENTS, "norm_eps": "fp32"}
    tiles = (Tile({"ROWS": 1}, warps=8),)
    return Kernel(name, "mhc", "mhc_leave_kernel", arguments, holes, tiles, (("n_rows", "ROWS"),))


def kernels(config: ModelConfig) -> tuple[Kernel, ...]:
    """The mHC kernels of a model.

    Raises:
        CompileError: the model does not have four streams.
    """
    if config.hc_mult != STREAMS:
        raise CompileError(
            f"the mHC kernels take 'hc_mult' {STREAMS}, not {config.hc_mult}: streams are spelled out in mhc.py"
        )
    dim, made = config.hidden_size, []
    for rows, split in SPLITS.items():
        made += [site(f"mhc_site_{rows}", dim, True, split), site(f"mhc_enter_{rows}", dim, False, split)]
        made.append(finish(f"mhc_finish_{rows}", dim, config.hc_sinkhorn_iters, split))
    return (*made, leave("mhc_leave", dim))
