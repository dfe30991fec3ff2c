"""The shared expert's products and activation in one launch, against the ops that it fuses."""

import pytest
import torch
from cost_rules import rule
from interpreter import counted, run
from test_gemm import activations, bytes_of, fp8_weight
from tolerances import TRITON
from torch import Tensor

from dsv41c.compiler.codegen.triton.families import Tile
from dsv41c.compiler.codegen.triton.kernels import shared_expert
from dsv41c.models import ops, quant

LIMIT = 10.0
WHOLE = Tile({"BLOCK_ROWS": 16, "BLOCK_OUTPUTS": 128, "BLOCK_INPUTS": 256, "SLICES": 1})


def hidden_of(x: Tensor, inner: int, few: bool, tile: Tile | None = None, **run_as: bool) -> tuple[Tensor, Tensor]:
    """What the kernel gives, and what the chain of a product each, SwiGLU and quantization gives."""
    weights = [fp8_weight(inner, x.shape[1]) for _ in range(2)]
    weights[1] = (weights[1][0].flip(0), weights[1][1].flip(1))
    (w1, s1), (w3, s3) = weights
    hidden = torch.full((x.shape[0], inner), torch.nan, dtype=torch.bfloat16)
    kernel = shared_expert.shared_up("up", x.shape[1], inner, few)
    given = {"w1_ptr": bytes_of(w1), "s1_ptr": s1, "w3_ptr": bytes_of(w3), "s3_ptr": s3.contiguous()}
    kernel = kernel if tile is None else kernel.with_tiles(tile)
    run(kernel, x_ptr=x, **given, hidden_ptr=hidden, n_rows=x.shape[0], limit=LIMIT, **run_as)
    gate, up = (ops.linear_fp8(x, w, s, 1) for w, s in weights)
    return hidden, quant.fake_quantize(ops.swiglu(gate, up, LIMIT).bfloat16(), "fp8_e8m0")


@pytest.mark.parametrize(("few", "fp8_casts"), [(True, True), (True, False), (False, True)])
def test_hidden_rows(few: bool, fp8_casts: bool) -> None:
    """Rows, inputs and outputs that no tile divides; gates beyond the limit on both sides."""
    hidden, expected = hidden_of(activations(21, 480), 96, few, fp8_casts=fp8_casts)
    bound = TRITON["experts"]
    assert (hidden == expected).float().mean() > bound.same
    error = (hidden.double() - expected.double()).norm(dim=1) / expected.double().norm(dim=1)
    assert error.max() < bound.relative


def test_moves_weights_and_rows_once() -> None:
    """One tile of outputs: two products that read x together, and nothing between them in memory."""
    x = activations(13, 256)
    with counted() as moved:
        hidden, _ = hidden_of(x, 128, few=True, tile=WHOLE)
    (w, scale), y = fp8_weight(128, 256), torch.empty(13, 128, dtype=torch.bfloat16)
    cost = rule("linears", [x, w, scale, w, scale], [y, y], groups=1, quantize=0)
    assert moved["served"] == cost.read
    assert moved["stores"] == hidden.nbytes
