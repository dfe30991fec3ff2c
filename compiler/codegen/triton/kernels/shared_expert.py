"""The shared expert's first launch (SPEC 6.2; models/moe.py): two products, their activation, its quantization.

    shared_up    gate and up projections, SwiGLU, and the fp8 values that the down projection reads

The down projection is a product of `gemm`, and `combine` of `experts` adds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dsv41c.compiler.codegen.triton.families import Hole, Kernel, Tile
from dsv41c.compiler.codegen.triton.kernels.activations import swiglu
from dsv41c.compiler.codegen.triton.kernels.formats import fake_quantize_e4m3
from dsv41c.compiler.codegen.triton.kernels.gemm import (
    add_product,
    input_tile,
    no_product,
    store_tile,
    sum_slices,
    weight_tile,
)

if TYPE_CHECKING:
    from dsv41c.models.config import ModelConfig


@triton.jit
def shared_up_kernel(
    x_ptr,
    w1_ptr,
    s1_ptr,
    w3_ptr,
    s3_ptr,
    hidden_ptr,
    n_rows,
    limit,
    D: tl.constexpr,
    INNER: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    SLICES: tl.constexpr,
    FP8_CASTS: tl.constexpr,
):
    """x bf16 [n_rows, D], fp8 values, to hidden bf16 [n_rows, INNER], fp8 values.

    w1, w3 e4m3 [INNER, D] with scales s1, s3 [INNER / 32, D / 32]. SLICES: as in `gemm.add_product`.
    """
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    output = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    inside = row < n_rows
    x_row = x_ptr + row.to(tl.int64) * D

    # --- w1 and w3
    gate = no_product(SLICES, BLOCK_ROWS, BLOCK_OUTPUTS)
    up = no_product(SLICES, BLOCK_ROWS, BLOCK_OUTPUTS)
    for start in range(0, D, BLOCK_INPUTS):
        x = input_tile(x_row, inside, start, D, BLOCK_INPUTS)
        w1 = weight_tile(w1_ptr, s1_ptr, output, start, INNER, D, "fp8", BLOCK_OUTPUTS, BLOCK_INPUTS, FP8_CASTS)
        gate = add_product(x, w1, gate, SLICES)
        w3 = weight_tile(w3_ptr, s3_ptr, output, start, INNER, D, "fp8", BLOCK_OUTPUTS, BLOCK_INPUTS, FP8_CASTS)
        up = add_product(x, w3, up, SLICES)

    # --- SwiGLU
    gate = sum_slices(gate, SLICES).to(tl.bfloat16).to(tl.float32)
    up = sum_slices(up, SLICES).to(tl.bfloat16).to(tl.float32)
    hidden = swiglu(gate, up, limit).to(tl.bfloat16)

    # --- quantization
    hidden = fake_quantize_e4m3(hidden, BLOCK_ROWS, BLOCK_OUTPUTS, FP8_CASTS)
    store_tile(hidden_ptr, hidden, row, inside, output, INNER)


_MANY = (
    Tile({"BLOCK_ROWS": 64, "BLOCK_OUTPUTS": 64, "BLOCK_INPUTS": 64, "SLICES": 1}, warps=4, stages=2),
    Tile({"BLOCK_ROWS": 64, "BLOCK_OUTPUTS": 64, "BLOCK_INPUTS": 64, "SLICES": 1}, warps=8, stages=2),
    Tile({"BLOCK_ROWS": 32, "BLOCK_OUTPUTS": 32, "BLOCK_INPUTS": 64, "SLICES": 1}, warps=4, stages=2),
)
# No program has fewer outputs: a group of 32 shares a scale.
_FEW = (
    Tile({"BLOCK_ROWS": 16, "BLOCK_OUTPUTS": 32, "BLOCK_INPUTS": 256, "SLICES": 4}, warps=4, stages=3),
    Tile({"BLOCK_ROWS": 16, "BLOCK_OUTPUTS": 32, "BLOCK_INPUTS": 128, "SLICES": 4}, warps=4, stages=2),
)


def shared_up(name: str, dim: int, inner: int, few: bool = False) -> Kernel:
    """The first two projections with their activation, for few rows or for many."""
    arguments = {"x_ptr": "*bf16", **dict.fromkeys(("w1_ptr", "s1_ptr", "w3_ptr", "s3_ptr"), "*u8")}
    arguments |= {"hidden_ptr": "*bf16", "n_rows": "i32", "limit": "fp32"}
    holes: dict[str, Hole] = {"D": dim, "INNER": inner, "FP8_CASTS": True}
    grid = ((inner, "BLOCK_OUTPUTS"), ("n_rows", "BLOCK_ROWS"))
    tiles = _FEW if few else _MANY
    return Kernel(name, "shared_expert", "shared_up_kernel", arguments, holes, tiles, grid)


def kernels(config: ModelConfig) -> tuple[Kernel, ...]:
    """The shared expert of a model, which has the width of a routed one."""
    dim, inner = config.hidden_size, config.moe_intermediate_size
    return tuple(shared_up(f"shared_up_{rows}", dim, inner, rows == "few") for rows in ("few", "many"))
