"""Products with packed weights against the golden data and models/ops.py."""

from pathlib import Path

import pytest
import torch
from cost_rules import rule
from interpreter import counted, run
from safetensors.torch import load_file
from tolerances import FP32_SUM, TRITON
from torch import Tensor

from dsv41c.compiler.codegen.triton.families import Kernel, Tile
from dsv41c.compiler.codegen.triton.kernels import gemm
from dsv41c.models import ops, quant

GOLDEN = load_file(Path(__file__).parents[1] / "golden" / "kernels.safetensors")
TILE = Tile({"BLOCK_ROWS": 16, "BLOCK_OUTPUTS": 64, "BLOCK_INPUTS": 128, "SLICES": 1})
BOUND = TRITON["gemm"]


def product(kernel: Kernel, x: Tensor, w: Tensor, scale: Tensor | None, parts: int = 1, **run_as: bool) -> Tensor:
    """The product by a kernel, and by `sum_parts` where the kernel leaves parts."""
    rows, outputs = x.shape[0], w.shape[0]
    inputs = x.shape[1] // int(kernel.holes["GROUPS"])
    y = torch.empty(rows, outputs, dtype=torch.float32 if kernel.arguments["y_ptr"] == "*fp32" else torch.bfloat16)
    into = torch.empty(parts, rows, outputs) if kernel.holes["IN_PARTS"] else y
    scale = torch.zeros(1, dtype=torch.uint8) if scale is None else scale
    arguments = {"x_ptr": x, "w_ptr": w, "scale_ptr": scale, "y_ptr": into, "n_rows": rows}
    own = kernel if "BLOCK_OUTPUTS" in kernel.holes else kernel.with_tiles(TILE)
    run(own, **arguments, n_inputs=inputs, n_outputs=outputs, n_parts=parts, **run_as)
    if not kernel.holes["IN_PARTS"]:
        return y
    y = torch.empty(rows, outputs, dtype=torch.bfloat16)
    run(gemm.sum_parts("sum"), parts_ptr=into, y_ptr=y, n_values=y.numel(), n_parts=parts)
    return y


def assert_rounded(ours: Tensor, exact: Tensor) -> None:
    """Within one bf16 rounding of the exact result, with fp32 sums' own error beside it."""
    exact = exact.double()
    bound = exact.abs() * BOUND.relative + exact.abs().mean() * FP32_SUM
    assert ((ours.double() - exact).abs() <= bound).all(), (ours.double() - exact).abs().max()


def bytes_of(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize("fp8_casts", [True, False])
@pytest.mark.parametrize(("name", "form"), [("fp8_gemm", "fp8"), ("fp8_gemm_m1", "fp8"), ("fp4_gemm", "fp4")])
def test_golden_products(name: str, form: str, fp8_casts: bool) -> None:
    """Outputs and inputs that no tile divides."""
    x = quant.fake_quantize(GOLDEN[f"{name}.x"], "fp8_e8m0")
    w = bytes_of(GOLDEN[f"{name}.w_packed" if form == "fp4" else f"{name}.w"])
    scale = bytes_of(GOLDEN[f"{name}.w_scale"])
    y = product(gemm.gemm("golden", form), x, w, scale, fp8_casts=fp8_casts)
    assert_rounded(y, GOLDEN[f"{name}.y"])
    assert (y == GOLDEN[f"{name}.y"]).float().mean() > BOUND.same


def fp8_weight(outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    w = torch.randn(outputs, inputs, generator=generator).to(torch.float8_e4m3fn)
    return w, torch.randint(118, 124, (-(-outputs // 32), inputs // 32), generator=generator, dtype=torch.uint8)


def activations(rows: int, inputs: int) -> Tensor:
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(6)).bfloat16()
    return quant.fake_quantize(x, "fp8_e8m0")


@pytest.mark.parametrize(("width", "parts"), [*((width, 1) for width in gemm.WIDTHS), (16, 3)])
def test_few_rows_of_the_released_width(width: int, parts: int) -> None:
    """5120 inputs in slices; parts of unequal size, and a sum that is theirs in order."""
    x, (w, scale) = activations(3, 5120), fp8_weight(96, 5120)
    kernel = gemm.gemm("few", "fp8", width=width, in_parts=parts > 1)
    y = product(kernel, x, bytes_of(w), scale, parts=parts)
    exact = x.double() @ quant.dequantize_weight(w, scale).double().T
    assert_rounded(y, exact)
    assert (y == ops.linear_fp8(x, w, scale, 1)).float().mean() > BOUND.same


def test_groups() -> None:
    """Two groups of inputs, each with its own outputs, as the output projection has them."""
    x, (w, scale) = activations(5, 2 * 256), fp8_weight(128, 256)
    y = product(gemm.gemm("groups", "fp8", 2, 64), x, bytes_of(w), scale)
    assert (y == ops.linear_fp8(x, w, scale, 2)).float().mean() > BOUND.same
    assert_rounded(y, ops.linear_definition(x.double(), quant.dequantize_weight(w, scale).double(), 2))


def test_moves_what_its_rule_says() -> None:
    """Weights once for all rows of a tile, inputs once for each tile of outputs."""
    x, (w, scale) = activations(13, 320), fp8_weight(160, 320)
    with counted() as moved:
        y = product(gemm.gemm("tiled", "fp8"), x, bytes_of(w), scale)
    cost = rule("linears", [x, w, scale], [y], groups=1, quantize=0)
    tiles = -(-160 // int(TILE.holes["BLOCK_OUTPUTS"]))
    assert moved["served"] == cost.read + (tiles - 1) * x.nbytes
    assert moved["stores"] == cost.written


def test_a_pair_is_its_products_and_moves_what_they_do() -> None:
    """Bit for bit, the other's outputs in a tile that they do not fill; every tile of outputs reads x once, and the two
    of the first weight the scales that they share."""
    x, weights = activations(5, 512), [fp8_weight(outputs, 512) for outputs in (32, 8)]
    ys = [torch.full((5, len(w)), torch.nan, dtype=torch.bfloat16) for w, _ in weights]
    (w, scale), (other, other_scale) = weights
    kernel = gemm.gemm_pair("pair", "fp8", width=16)
    given = {"w_ptr": bytes_of(w), "scale_ptr": scale, "y_ptr": ys[0], "other_w_ptr": bytes_of(other)}
    given |= {"other_scale_ptr": other_scale, "other_y_ptr": ys[1]}
    sizes = {"n_rows": 5, "n_inputs": 512, "n_outputs": 32, "n_other_outputs": 8}
    with counted() as moved:
        run(kernel, x_ptr=x, **given, **sizes, n_columns=gemm.pair_columns(kernel, 32, 8))
    for y, weight in zip(ys, weights, strict=True):
        assert torch.equal(y, product(gemm.gemm("one", "fp8", width=16), x, bytes_of(weight[0]), weight[1]))
    cost = rule("linears", [x, w, scale, other, other_scale], ys, groups=1, quantize=0)
    assert moved["served"] == cost.read + 2 * x.nbytes + scale.nbytes
    assert moved["stores"] == cost.written


def test_no_tile_lies_in_two_groups() -> None:
    for outputs, widths in ((1024, [128, 64]), (192, [64]), (48, [16])):
        tiles = gemm.gemm("groups", "fp8", 8, outputs).tiles
        assert [tile.holes["BLOCK_OUTPUTS"] for tile in tiles] == widths
        assert outputs % int(gemm.gemm("few", "fp8", 8, outputs, 64).holes["BLOCK_OUTPUTS"]) == 0


@pytest.mark.parametrize("width", [0, 16])
def test_bf16_weight_to_fp32(width: int) -> None:
    """As the router and the head multiply: bf16 by bf16, kept in fp32; neither rows nor outputs fill the last tile."""
    x, w = activations(17, 160), torch.randn(40, 160, generator=torch.Generator().manual_seed(1)).bfloat16()
    y = product(gemm.gemm("head", "bf16", width=width, result="fp32"), x, w, None)
    torch.testing.assert_close(y.double(), x.double() @ w.double().T, rtol=FP32_SUM, atol=FP32_SUM)
