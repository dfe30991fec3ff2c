"""Products with packed weights (SPEC 2.5, 15.6-15.8; models/ops.py `linear`, `linear_fp8`, `expert_definition`).

    gemm         x bf16 by a weight in fp8, fp4 or bf16, one program a tile, or a part of the inputs of a tile
    gemm_pair    two products of one input
    sum_parts    the parts of a split product added in order and rounded once

Every fp8 and fp4 value times its power of two is exact in bf16, so tiles are decoded to bf16 and multiplied by matrix
units of any target: the products are the reference's, sums are fp32, and there is one rounding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dsv41c.compiler.codegen.triton.families import Hole, Kernel, Tile
from dsv41c.compiler.codegen.triton.kernels.formats import decode_e2m1, decode_e4m3, decode_ue8m0

if TYPE_CHECKING:
    from dsv41c.models.config import ModelConfig

WEIGHT_BLOCK = 32
_BLOCK = tl.constexpr(WEIGHT_BLOCK)
_ONE = tl.constexpr(127)  # the scale byte of 1


@triton.jit
def gemm_kernel(
    x_ptr,
    w_ptr,
    scale_ptr,
    y_ptr,
    n_rows,
    n_inputs,
    n_outputs,
    n_parts,
    FORMAT: tl.constexpr,
    GROUPS: tl.constexpr,
    IN_PARTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    SLICES: tl.constexpr,
    FP8_CASTS: tl.constexpr,
):
    """x bf16 [n_rows, GROUPS * n_inputs] by w [n_outputs, n_inputs]: each group of inputs has its own outputs.

    FORMAT and what w and scale hold: "fp8", e4m3 bytes and a scale byte for each 32 x 32 block; "fp4", two e2m1 codes a
    byte and a scale byte for each 32 inputs of a row; "bf16", no scale. y [n_rows, n_outputs] is bf16 or fp32; with
    IN_PARTS it is fp32 [n_parts, n_rows, n_outputs], one part of the inputs each. n_inputs is divisible by 32, and
    n_outputs / GROUPS by BLOCK_OUTPUTS where there are groups. SLICES: as in `add_product`.
    """
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    output = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    part = tl.program_id(2)
    inside = row < n_rows
    if GROUPS > 1:
        group = tl.program_id(0) * BLOCK_OUTPUTS // (n_outputs // GROUPS)
        x_ptr += group.to(tl.int64) * n_inputs
    x_row = x_ptr + row.to(tl.int64) * (GROUPS * n_inputs)
    blocks = tl.cdiv(n_inputs, BLOCK_INPUTS)
    per_part = tl.cdiv(blocks, n_parts)
    first, last = part * per_part, tl.minimum(part * per_part + per_part, blocks)
    total = product_tile(
        x_row,
        inside,
        w_ptr,
        scale_ptr,
        output,
        first,
        last,
        n_outputs,
        n_inputs,
        FORMAT,
        BLOCK_ROWS,
        BLOCK_OUTPUTS,
        BLOCK_INPUTS,
        SLICES,
        FP8_CASTS,
    )
    if IN_PARTS:
        y_ptr += part.to(tl.int64) * n_rows * n_outputs
    store_tile(y_ptr, total, row, inside, output, n_outputs)


@triton.jit
def gemm_pair_kernel(
    x_ptr,
    w_ptr,
    scale_ptr,
    y_ptr,
    other_w_ptr,
    other_scale_ptr,
    other_y_ptr,
    n_rows,
    n_inputs,
    n_outputs,
    n_other_outputs,
    FORMAT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    SLICES: tl.constexpr,
    FP8_CASTS: tl.constexpr,
):
    """Two products of one input, the tiles of the other's outputs behind those of the first; else as `gemm_kernel`."""
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    inside = row < n_rows
    tile = tl.program_id(0)
    tiles = tl.cdiv(n_outputs, BLOCK_OUTPUTS)
    is_other = tile >= tiles
    w_ptr = tl.where(is_other, other_w_ptr, w_ptr)
    scale_ptr = tl.where(is_other, other_scale_ptr, scale_ptr)
    y_ptr = tl.where(is_other, other_y_ptr, y_ptr)
    n_outputs = tl.where(is_other, n_other_outputs, n_outputs)
    output = (tile - tl.where(is_other, tiles, 0)) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    x_row, blocks = x_ptr + row.to(tl.int64) * n_inputs, tl.cdiv(n_inputs, BLOCK_INPUTS)
    total = product_tile(
        x_row,
        inside,
        w_ptr,
        scale_ptr,
        output,
        0,
        blocks,
        n_outputs,
        n_inputs,
        FORMAT,
        BLOCK_ROWS,
        BLOCK_OUTPUTS,
        BLOCK_INPUTS,
        SLICES,
        FP8_CASTS,
    )
    store_tile(y_ptr, total, row, inside, output, n_outputs)


@triton.jit
def product_tile(
    x_row,
    inside,
    w_ptr,
    scale_ptr,
    output,
    first,
    last,
    n_outputs,
    n_inputs,
    FORMAT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    SLICES: tl.constexpr,
    FP8_CASTS: tl.constexpr,
):
    """fp32 [BLOCK_ROWS, BLOCK_OUTPUTS]: the blocks of inputs from first on, up to last but without it."""
    total = no_product(SLICES, BLOCK_ROWS, BLOCK_OUTPUTS)
    for block in range(first, last):
        start = block * BLOCK_INPUTS
        x = input_tile(x_row, inside, start, n_inputs, BLOCK_INPUTS)
        w = weight_tile(
            w_ptr, scale_ptr, output, start, n_outputs, n_inputs, FORMAT, BLOCK_OUTPUTS, BLOCK_INPUTS, FP8_CASTS
        )
        total = add_product(x, w, total, SLICES)
    return sum_slices(total, SLICES)


@triton.jit
def store_tile(y_ptr, values, row, inside, output, n_outputs):
    """A tile [rows, outputs] into y [.., n_outputs], rounded to its type, where row and output are inside of it."""
    at = row.to(tl.int64)[:, None] * n_outputs + output[None, :]
    wanted = inside[:, None] & (output < n_outputs)[None, :]
    tl.store(y_ptr + at, values.to(y_ptr.dtype.element_ty), mask=wanted)


@triton.jit
def no_product(SLICES: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr):
    """What `add_product` starts from."""
    if SLICES == 1:
        return tl.zeros((ROWS, OUTPUTS), tl.float32)
    else:
        return tl.zeros((SLICES, ROWS, OUTPUTS), tl.float32)


@triton.jit
def add_product(x, w, total, SLICES: tl.constexpr):
    """total and x [rows, inputs] by w [outputs, inputs], the inputs in slices side by side.

    With few outputs each warp takes a slice of its own: warps side by side along the outputs would all read the same
    rows of x out of shared memory, which are then more bytes than the weight's.
    """
    if SLICES == 1:
        return tl.dot(x, tl.trans(w), total)
    else:
        INPUTS: tl.constexpr = x.shape[1] // SLICES
        x = tl.permute(tl.reshape(x, (x.shape[0], SLICES, INPUTS)), (1, 0, 2))
        w = tl.permute(tl.reshape(w, (w.shape[0], SLICES, INPUTS)), (1, 2, 0))
        return tl.dot(x, w, total)


@triton.jit
def sum_slices(total, SLICES: tl.constexpr):
    """fp32 [rows, outputs] of what `add_product` added."""
    if SLICES == 1:
        return total
    else:
        return tl.sum(total, axis=0)


@triton.jit
def sum_parts_kernel(parts_ptr, y_ptr, n_values, n_parts, BLOCK: tl.constexpr):
    """parts fp32 [n_parts, n_values] to their sum, first to last, rounded once to y's type."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    wanted = at < n_values
    total = tl.zeros((BLOCK,), tl.float32)
    part_ptr = parts_ptr + at
    for _ in range(n_parts):
        total += tl.load(part_ptr, mask=wanted, other=0.0)
        part_ptr += n_values
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=wanted)


@triton.jit
def input_tile(row_ptr, inside, start, n_inputs, BLOCK_INPUTS: tl.constexpr):
    """BLOCK_INPUTS columns of bf16 rows from start on; rows that are not inside and columns beyond the last are 0."""
    column = start + tl.arange(0, BLOCK_INPUTS)
    wanted = inside[:, None] & (column < n_inputs)[None, :]
    return tl.load(row_ptr[:, None] + column[None, :], mask=wanted, other=0.0)


@triton.jit
def weight_tile(
    w_ptr,
    scale_ptr,
    output,
    start,
    n_outputs,
    n_inputs,
    FORMAT: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    FP8_CASTS: tl.constexpr,
):
    """A tile of a weight as bf16 [BLOCK_OUTPUTS, BLOCK_INPUTS], exact; FORMAT as in `gemm_kernel`."""
    inside = (output < n_outputs)[:, None]
    row = output.to(tl.int64)[:, None]
    column = start + tl.arange(0, BLOCK_INPUTS)[None, :]
    if FORMAT == "bf16":
        return tl.load(w_ptr + row * n_inputs + column, mask=inside & (column < n_inputs), other=0.0)
    scale_columns = n_inputs // _BLOCK
    block = start // _BLOCK + tl.arange(0, BLOCK_INPUTS // _BLOCK)[None, :]
    scale_row = row // _BLOCK if FORMAT == "fp8" else row
    scale = tl.load(scale_ptr + scale_row * scale_columns + block, mask=inside & (block < scale_columns), other=_ONE)
    if FORMAT == "fp8":
        byte = tl.load(w_ptr + row * n_inputs + column, mask=inside & (column < n_inputs), other=0)
        values = decode_e4m3(byte, FP8_CASTS)
    else:
        pair = start // 2 + tl.arange(0, BLOCK_INPUTS // 2)[None, :]
        byte = tl.load(w_ptr + row * (n_inputs // 2) + pair, mask=inside & (pair < n_inputs // 2), other=0)
        codes = byte.to(tl.int32)
        values = tl.join(decode_e2m1(codes & 15), decode_e2m1(codes >> 4))
    values = tl.reshape(values, (BLOCK_OUTPUTS, BLOCK_INPUTS // _BLOCK, _BLOCK)) * decode_ue8m0(scale)[:, :, None]
    return tl.reshape(values, (BLOCK_OUTPUTS, BLOCK_INPUTS)).to(tl.bfloat16)


_SIZES = dict.fromkeys(("n_rows", "n_inputs", "n_outputs", "n_parts"), "i32")
_GRID = (("n_outputs", "BLOCK_OUTPUTS"), ("n_rows", "BLOCK_ROWS"), ("n_parts", 1))
_TILED = (
    Tile({"BLOCK_ROWS": 128, "BLOCK_OUTPUTS": 128, "BLOCK_INPUTS": 64, "SLICES": 1}, warps=8, stages=2),
    Tile({"BLOCK_ROWS": 64, "BLOCK_OUTPUTS": 64, "BLOCK_INPUTS": 64, "SLICES": 1}, warps=4, stages=2),
)
# Outputs of a program with few rows, and (inputs, stages) of its tiles. Fewer outputs read longer pieces of each row of
# the weight, so that every program has as many bytes on their way: what fills a GPU is the sum of those.
_SKINNY = {64: ((128, 3), (128, 2)), 32: ((256, 3), (128, 2)), 16: ((512, 3), (256, 4), (128, 2))}
WIDTHS = tuple(_SKINNY)


def gemm(
    name: str,
    form: str,
    groups: int = 1,
    group_outputs: int = 0,
    width: int = 0,
    result: str = "bf16",
    in_parts: bool = False,
) -> Kernel:
    """A product with weights of a format.

    Args:
        group_outputs: outputs of a group, where there is more than one: no tile may lie in two groups.
        width: for few rows, one of `WIDTHS`: outputs of a program. A kernel for many rows has tiles of its own.
        in_parts: whether it leaves fp32 parts of the inputs behind.
    """
    weight = "*bf16" if form == "bf16" else "*u8"
    arguments = {"x_ptr": "*bf16", "w_ptr": weight, "scale_ptr": "*u8", "y_ptr": f"*{'fp32' if in_parts else result}"}
    holes: dict[str, Hole] = {"FORMAT": form, "GROUPS": groups, "IN_PARTS": in_parts, "FP8_CASTS": True}
    tiles: tuple[Tile, ...] = _TILED
    if width:
        # Not a tile's: a choice that was measured for other widths is none for this one.
        holes["BLOCK_OUTPUTS"] = min(width, group_outputs & -group_outputs) if groups > 1 else width
        tiles = _skinny_tiles(width)
    elif groups > 1:
        tiles = _tiles_within(tiles, group_outputs)
    multiples = ("n_inputs", "n_outputs")
    return Kernel(
        name, "gemm", "gemm_kernel", {**arguments, **_SIZES}, holes, tiles, _GRID, fp_fusion=True, multiples=multiples
    )


def gemm_pair(name: str, form: str, width: int = 0, result: str = "bf16") -> Kernel:
    """Two products of one input, with weights of one format; arguments as of `gemm`."""
    one = gemm(name, form, width=width, result=result)
    arguments = {key: kind for key, kind in one.arguments.items() if key.endswith("_ptr")}
    arguments |= {f"other_{key}": arguments[key] for key in ("w_ptr", "scale_ptr", "y_ptr")}
    arguments |= dict.fromkeys(("n_rows", "n_inputs", "n_outputs", "n_other_outputs"), "i32")
    holes = {key: hole for key, hole in one.holes.items() if key not in ("GROUPS", "IN_PARTS")}
    return replace(
        one,
        function="gemm_pair_kernel",
        arguments=arguments,
        holes=holes,
        grid=(("n_columns", "BLOCK_OUTPUTS"), ("n_rows", "BLOCK_ROWS")),
        multiples=("n_inputs", "n_outputs", "n_other_outputs"),
        sizes=("n_columns",),
    )


def pair_columns(kernel: Kernel, *outputs: int) -> int:
    """The outputs of both weights of a pair, each in whole tiles: what its grid covers."""
    width = max(int({**kernel.holes, **tile.holes}["BLOCK_OUTPUTS"]) for tile in kernel.tiles)
    return sum(-(-count // width) * width for count in outputs)


def _skinny_tiles(width: int) -> tuple[Tile, ...]:
    """Tiles of 16 rows, the fewest that matrix units multiply, with a slice of the inputs for each warp."""
    holes = {"BLOCK_ROWS": 16, "SLICES": 4}
    return tuple(Tile({**holes, "BLOCK_INPUTS": inputs}, warps=4, stages=stages) for inputs, stages in _SKINNY[width])


def _tiles_within(tiles: tuple[Tile, ...], outputs: int) -> tuple[Tile, ...]:
    """The tiles that divide a group's outputs; narrower ones where none does."""
    whole = tuple(tile for tile in tiles if outputs % int(tile.holes["BLOCK_OUTPUTS"]) == 0)
    widest = outputs & -outputs
    return whole or tuple(replace(tile, holes={**tile.holes, "BLOCK_OUTPUTS": widest}) for tile in tiles[-1:])


def sum_parts(name: str, result: str = "bf16") -> Kernel:
    """What follows a skinny product."""
    arguments = {"parts_ptr": "*fp32", "y_ptr": f"*{result}", "n_values": "i32", "n_parts": "i32"}
    tiles = (Tile({"BLOCK": 1024}), Tile({"BLOCK": 256}))
    grid = (("n_values", "BLOCK"),)
    return Kernel(name, "gemm", "sum_parts_kernel", arguments, {}, tiles, grid, multiples=("n_values",))


def kernels(config: ModelConfig) -> tuple[Kernel, ...]:
    """The products of a model: sizes are arguments, so one kernel serves all linears of a format."""
    groups = (config.o_groups, config.o_lora_rank)
    made = [gemm(f"gemm_{form}_tiled", form) for form in ("fp8", "fp4", "bf16")]
    made += [gemm(f"gemm_fp8_few_{width}", "fp8", width=width) for width in WIDTHS]
    made.append(gemm_pair("gemm_fp8_pair_tiled", "fp8"))
    made += [gemm_pair(f"gemm_fp8_pair_few_{width}", "fp8", width) for width in (64, 16)]
    made += [gemm("gemm_fp4_few_64", "fp4", width=64), gemm("gemm_bf16_few_16", "bf16", width=16)]
    made += [gemm("gemm_fp8_groups_tiled", "fp8", *groups), gemm("gemm_fp8_groups_few_64", "fp8", *groups, width=64)]
    made.append(gemm("gemm_bf16_fp32_tiled", "bf16", result="fp32"))
    made += [gemm(f"gemm_bf16_fp32_few_{width}", "bf16", width=width, result="fp32") for width in (64, 16)]
    made.append(gemm("gemm_bf16_parts", "bf16", width=16, in_parts=True))
    return (*made, sum_parts("sum_parts"), sum_parts("sum_parts_fp32", "fp32"))
