"""Routed experts without a sort and without the host (SPEC 6.2; models/ops.py `experts`).

    select_experts  the experts with the largest scores of a row, best first
    route_experts   a router behind its product: scores, the same choice, and the weights of the chosen
    route           for each expert, the (row, choice) pairs that chose it, in order, and where its list starts
    experts_up      gate and up projections, SwiGLU, routing weight, and the fp8 values that the down projection reads
    experts_down    the down projection of every pair
    combine         the pairs of a row added in expert order, as the reference adds them, then the shared expert

A program of the projections belongs to one expert and one tile of its outputs, and walks the rows of its expert: grids
do not depend on what was chosen, and an expert that nobody chose costs nothing. Pair p is choice p % n_choices of
row p // n_choices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dsv41c.compiler.codegen.triton.families import Hole, Kernel, Tile
from dsv41c.compiler.codegen.triton.kernels import row_math
from dsv41c.compiler.codegen.triton.kernels.activations import swiglu
from dsv41c.compiler.codegen.triton.kernels.formats import fake_quantize_e4m3
from dsv41c.compiler.codegen.triton.kernels.gemm import input_tile, weight_tile

if TYPE_CHECKING:
    from dsv41c.models.config import ModelConfig

_GROUP = tl.constexpr(32)
_ROUTE_EPS = tl.constexpr(1e-20)  # added to the sum of a row's scores (SPEC 6.1)
_LINEAR = tl.constexpr(20.0)  # from where on torch's softplus is its argument


@triton.jit
def select_experts_kernel(
    scores_ptr,
    ids_ptr,
    n_rows,
    n_experts,
    CHOICES: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    """scores fp32 [n_rows, n_experts] to ids int64 [n_rows, CHOICES], best first; equal scores go to the lower expert.

    PADDED: a power of two from n_experts on.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < n_rows
    address = row.to(tl.int64)
    expert = tl.arange(0, PADDED)[None, :]
    wanted = inside[:, None] & (expert < n_experts)
    scores = tl.load(scores_ptr + address[:, None] * n_experts + expert, mask=wanted, other=float("-inf"))
    free = expert < n_experts
    for choice in tl.static_range(CHOICES):
        chosen = _best(scores, free, expert, PADDED)
        tl.store(ids_ptr + address[:, None] * CHOICES + choice, chosen.to(tl.int64), mask=inside[:, None])
        free = free & (expert != chosen)


@triton.jit
def route_experts_kernel(
    logits_ptr,
    bias_ptr,
    ids_ptr,
    weights_ptr,
    n_rows,
    scale,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    CHOICES: tl.constexpr,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """logits fp32 [n_rows, EXPERTS] and bias fp32 [EXPERTS] to ids int64 and weights fp32, both [n_rows, CHOICES].

    ids as `select_experts`; a row's weights add up to scale. PADDED, SLOTS: EXPERTS and CHOICES, to powers of two.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    inside = row < n_rows
    logits_ptr += row.to(tl.int64) * EXPERTS

    # --- scores, and their choice with the bias
    expert = tl.arange(0, PADDED)[None, :]
    free = expert < EXPERTS
    bias = tl.load(bias_ptr + expert, mask=free, other=0.0)
    biased = _route_score(tl.load(logits_ptr + expert, mask=inside & free, other=0.0)) + bias
    slot = tl.arange(0, SLOTS)[None, :]
    ids = tl.zeros((ROWS, SLOTS), tl.int32)
    for choice in tl.static_range(CHOICES):
        chosen = _best(biased, free, expert, PADDED)
        ids = tl.where(slot == choice, chosen, ids)
        free = free & (expert != chosen)
    wanted = inside & (slot < CHOICES)
    at = row.to(tl.int64) * CHOICES + slot
    tl.store(ids_ptr + at, ids.to(tl.int64), mask=wanted)

    # --- weights, from the logits of the chosen: to read them again is cheaper than to find them among the threads
    found = wanted & (ids < EXPERTS)
    weight = tl.where(found, _route_score(tl.load(logits_ptr + ids, mask=found, other=0.0)), 0.0)
    total = tl.sum(weight, axis=1, keep_dims=True) + _ROUTE_EPS
    tl.store(weights_ptr + at, row_math.divide(weight, total) * scale, mask=wanted)


@triton.jit
def _route_score(logits):
    return row_math.square_root(row_math.softplus(logits, _LINEAR))


@triton.jit
def _best(scores, free, expert, PADDED: tl.constexpr):
    """The first of a row's free experts that have its largest score, [ROWS, 1]; PADDED where a score is no number."""
    best = tl.max(tl.where(free, scores, float("-inf")), axis=1, keep_dims=True)
    return tl.min(tl.where(free & (scores == best), expert, PADDED), axis=1, keep_dims=True)


@triton.jit
def route_kernel(ids_ptr, starts_ptr, counts_ptr, order_ptr, n_pairs, BLOCK: tl.constexpr):
    """ids int64 [n_pairs], -1 for none, to starts and counts int32 [experts] and order int32 [n_pairs].

    Expert e's pairs are order[starts[e] : starts[e] + counts[e]], ascending. One program an expert: each counts
    the pairs of lower experts itself, so none waits for another.
    """
    expert = tl.program_id(0)
    start = tl.zeros((), tl.int32)
    for first in range(0, n_pairs, BLOCK):
        pair = first + tl.arange(0, BLOCK)
        chosen = tl.load(ids_ptr + pair, mask=pair < n_pairs, other=-1)
        start += tl.sum(((chosen >= 0) & (chosen < expert)).to(tl.int32), axis=0)
    count = tl.zeros((), tl.int32)
    for first in range(0, n_pairs, BLOCK):
        pair = first + tl.arange(0, BLOCK)
        mine = tl.load(ids_ptr + pair, mask=pair < n_pairs, other=-1) == expert
        rank = tl.cumsum(mine.to(tl.int32), axis=0) - 1
        tl.store(order_ptr + start + count + tl.where(mine, rank, 0), pair, mask=mine)
        count += tl.sum(mine.to(tl.int32), axis=0)
    tl.store(starts_ptr + expert, start)
    tl.store(counts_ptr + expert, count)


@triton.jit
def experts_up_kernel(
    x_ptr,
    weights_ptr,
    starts_ptr,
    counts_ptr,
    order_ptr,
    w1_ptr,
    s1_ptr,
    w3_ptr,
    s3_ptr,
    hidden_ptr,
    n_choices,
    limit,
    D: tl.constexpr,
    INNER: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    FP8_CASTS: tl.constexpr,
):
    """x bf16 [rows, D], fp8 values, to hidden bf16 [pairs, INNER], fp8 values.

    weights fp32 [pairs]; w1, w3 e2m1 [experts, INNER, D / 2] with scales s1, s3 [experts, INNER, D / 32].
    """
    expert = tl.program_id(1).to(tl.int64)
    count = tl.load(counts_ptr + expert)
    start = tl.load(starts_ptr + expert)
    output = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    w1_ptr += expert * (INNER * (D // 2))
    w3_ptr += expert * (INNER * (D // 2))
    s1_ptr += expert * (INNER * (D // _GROUP))
    s3_ptr += expert * (INNER * (D // _GROUP))
    for first in range(0, count, BLOCK_ROWS):
        place = first + tl.arange(0, BLOCK_ROWS)
        inside = place < count
        pair = tl.load(order_ptr + start + place, mask=inside, other=0).to(tl.int64)

        # --- w1 and w3
        gate = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), tl.float32)
        up = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), tl.float32)
        for column in range(0, D, BLOCK_INPUTS):
            x = input_tile(x_ptr + (pair // n_choices) * D, inside, column, D, BLOCK_INPUTS)
            w1 = weight_tile(w1_ptr, s1_ptr, output, column, INNER, D, "fp4", BLOCK_OUTPUTS, BLOCK_INPUTS, FP8_CASTS)
            gate = tl.dot(x, tl.trans(w1), gate)
            w3 = weight_tile(w3_ptr, s3_ptr, output, column, INNER, D, "fp4", BLOCK_OUTPUTS, BLOCK_INPUTS, FP8_CASTS)
            up = tl.dot(x, tl.trans(w3), up)

        # --- SwiGLU and the routing weight
        weight = tl.load(weights_ptr + pair, mask=inside, other=0.0)
        hidden = swiglu(gate.to(tl.bfloat16).to(tl.float32), up.to(tl.bfloat16).to(tl.float32), limit)
        hidden = hidden * weight[:, None]

        # --- quantization
        hidden = fake_quantize_e4m3(hidden.to(tl.bfloat16), BLOCK_ROWS, BLOCK_OUTPUTS, FP8_CASTS)
        wanted = inside[:, None] & (output < INNER)[None, :]
        tl.store(hidden_ptr + pair[:, None] * INNER + output[None, :], hidden, mask=wanted)


@triton.jit
def experts_down_kernel(
    hidden_ptr,
    starts_ptr,
    counts_ptr,
    order_ptr,
    w2_ptr,
    s2_ptr,
    y_ptr,
    D: tl.constexpr,
    INNER: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    FP8_CASTS: tl.constexpr,
):
    """hidden bf16 [pairs, INNER] to y bf16 [pairs, D]; w2 e2m1 [experts, D, INNER / 2], s2 [experts, D, INNER / 32]."""
    expert = tl.program_id(1).to(tl.int64)
    count = tl.load(counts_ptr + expert)
    start = tl.load(starts_ptr + expert)
    output = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    w2_ptr += expert * (D * (INNER // 2))
    s2_ptr += expert * (D * (INNER // _GROUP))
    for first in range(0, count, BLOCK_ROWS):
        place = first + tl.arange(0, BLOCK_ROWS)
        inside = place < count
        pair = tl.load(order_ptr + start + place, mask=inside, other=0).to(tl.int64)
        y = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), tl.float32)
        for column in range(0, INNER, BLOCK_INPUTS):
            hidden = input_tile(hidden_ptr + pair * INNER, inside, column, INNER, BLOCK_INPUTS)
            w2 = weight_tile(w2_ptr, s2_ptr, output, column, D, INNER, "fp4", BLOCK_OUTPUTS, BLOCK_INPUTS, FP8_CASTS)
            y = tl.dot(hidden, tl.trans(w2), y)
        wanted = inside[:, None] & (output < D)[None, :]
        tl.store(y_ptr + pair[:, None] * D + output[None, :], y.to(tl.bfloat16), mask=wanted)


@triton.jit
def combine_kernel(
    y_ptr,
    ids_ptr,
    shared_ptr,
    total_ptr,
    D: tl.constexpr,
    CHOICES: tl.constexpr,
    PADDED: tl.constexpr,
    HAS_SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y bf16 [rows, CHOICES, D] and ids int64 [rows, CHOICES] to their sum [rows, D], in the type of total.

    HAS_SHARED: the shared expert's output, bf16 [rows, D], is added last. PADDED: CHOICES, to a power of two.
    """
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    choice = tl.arange(0, PADDED)
    ids = tl.load(ids_ptr + row * CHOICES + choice, mask=choice < CHOICES, other=-1)
    valid = ids >= 0
    # A choice's turn: how many valid choices of this row have a lower expert.
    turn = tl.sum((valid[None, :] & (ids[None, :] < ids[:, None])).to(tl.int32), axis=1)
    at = (row * CHOICES + choice)[:, None] * D + channel[None, :]
    y = tl.load(y_ptr + at, mask=valid[:, None] & (channel < D)[None, :], other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for step in tl.static_range(CHOICES):
        total += tl.sum(tl.where((valid & (turn == step))[:, None], y, 0.0), axis=0)
    if HAS_SHARED:
        total += tl.load(shared_ptr + row * D + channel, mask=channel < D, other=0.0).to(tl.float32)
    tl.store(total_ptr + row * D + channel, total.to(total_ptr.dtype.element_ty), mask=channel < D)


_LISTS = dict.fromkeys(("starts_ptr", "counts_ptr", "order_ptr"), "*i32")
_MANY = (
    Tile({"BLOCK_ROWS": 64, "BLOCK_OUTPUTS": 64, "BLOCK_INPUTS": 64}, warps=4, stages=2),
    Tile({"BLOCK_ROWS": 64, "BLOCK_OUTPUTS": 64, "BLOCK_INPUTS": 64}, warps=8, stages=2),
    Tile({"BLOCK_ROWS": 32, "BLOCK_OUTPUTS": 32, "BLOCK_INPUTS": 64}, warps=4, stages=2),
)
_FEW = (
    Tile({"BLOCK_ROWS": 16, "BLOCK_OUTPUTS": 32, "BLOCK_INPUTS": 128}, warps=4, stages=2),
    Tile({"BLOCK_ROWS": 16, "BLOCK_OUTPUTS": 32, "BLOCK_INPUTS": 64}, warps=4, stages=1),
)


def select_experts(name: str, count: int, choices: int) -> Kernel:
    """The choice of a router among `count` experts."""
    arguments = {"scores_ptr": "*fp32", "ids_ptr": "*i64", "n_rows": "i32", "n_experts": "i32"}
    holes: dict[str, Hole] = {"CHOICES": choices, "PADDED": triton.next_power_of_2(count)}
    tiles = (Tile({"ROWS": 4}), Tile({"ROWS": 1}))
    return Kernel(name, "experts", "select_experts_kernel", arguments, holes, tiles, (("n_rows", "ROWS"),))


def route_experts(name: str, count: int, choices: int) -> Kernel:
    """A router behind its product."""
    arguments = {"logits_ptr": "*fp32", "bias_ptr": "*fp32", "ids_ptr": "*i64", "weights_ptr": "*fp32"}
    arguments |= {"n_rows": "i32", "scale": "fp32"}
    holes: dict[str, Hole] = {"EXPERTS": count, "PADDED": triton.next_power_of_2(count)}
    holes |= {"CHOICES": choices, "SLOTS": triton.next_power_of_2(choices)}
    # A row in one warp: its many small reductions then need no barrier.
    tiles = (Tile({"ROWS": 1}, warps=1), Tile({"ROWS": 1}))
    return Kernel(name, "experts", "route_experts_kernel", arguments, holes, tiles, (("n_rows", "ROWS"),))


def route() -> Kernel:
    """The lists of each expert's pairs."""
    arguments = {"ids_ptr": "*i64", **_LISTS, "n_pairs": "i32"}
    tiles = (Tile({"BLOCK": 1024}),)
    return Kernel("route", "experts", "route_kernel", arguments, {}, tiles, (("n_experts", 1),), sizes=("n_experts",))


def up(name: str, dim: int, inner: int, few: bool = False) -> Kernel:
    """The first two projections, for few rows an expert or for many."""
    arguments = {"x_ptr": "*bf16", "weights_ptr": "*fp32", **_LISTS}
    arguments |= {**dict.fromkeys(("w1_ptr", "s1_ptr", "w3_ptr", "s3_ptr"), "*u8"), "hidden_ptr": "*bf16"}
    arguments |= {"n_choices": "i32", "limit": "fp32"}
    return _projection(name, "experts_up_kernel", arguments, dim, inner, inner, few)


def down(name: str, dim: int, inner: int, few: bool = False) -> Kernel:
    """The last projection."""
    arguments = {"hidden_ptr": "*bf16", **_LISTS, "w2_ptr": "*u8", "s2_ptr": "*u8", "y_ptr": "*bf16"}
    return _projection(name, "experts_down_kernel", arguments, dim, inner, dim, few)


def _projection(
    name: str, function: str, arguments: dict[str, str], dim: int, inner: int, outputs: int, few: bool
) -> Kernel:
    holes: dict[str, Hole] = {"D": dim, "INNER": inner, "FP8_CASTS": True}
    grid = ((outputs, "BLOCK_OUTPUTS"), ("n_experts", 1))
    tiles = _FEW if few else _MANY
    return Kernel(name, "experts", function, arguments, holes, tiles, grid, sizes=("n_experts",))


def combine(name: str, dim: int, choices: int, shared: bool = False) -> Kernel:
    """The sum over a row's choices as fp32; with the shared expert added it is rounded to bf16."""
    arguments = {"y_ptr": "*bf16", "ids_ptr": "*i64", "shared_ptr": "*bf16"}
    arguments |= {"total_ptr": "*bf16" if shared else "*fp32"}
    holes: dict[str, Hole] = {"D": dim, "CHOICES": choices, "PADDED": triton.next_power_of_2(choices)}
    holes |= {"HAS_SHARED": shared}
    tiles = (Tile({"BLOCK": 512}), Tile({"BLOCK": 128}))
    grid = (("n_rows", 1), (dim, "BLOCK"))
    return Kernel(name, "experts", "combine_kernel", arguments, holes, tiles, grid, sizes=("n_rows",))


def kernels(config: ModelConfig) -> tuple[Kernel, ...]:
    """The experts of a model: its layers and its draft layers differ in how many there are, which only grids know."""
    dim, inner = config.hidden_size, config.moe_intermediate_size
    router = route_experts("route_experts", config.n_routed_experts, config.num_experts_per_tok)
    made = [router, route(), combine("combine", dim, config.num_experts_per_tok)]
    made.append(combine("combine_draft", dim, config.dspark_num_experts_per_tok))
    for rows in ("few", "many"):
        few = rows == "few"
        made += [up(f"experts_up_{rows}", dim, inner, few), down(f"experts_down_{rows}", dim, inner, few)]
    return tuple(made)
