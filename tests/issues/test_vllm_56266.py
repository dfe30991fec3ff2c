"""Symptom: the router's assertion fails, or collectives do (vllm#56266).

Cause: hidden rows of padding are NaN, and reach the router; what follows mixes rows, or counts ids that are none.

Why this input: seven rows of which the last two are padding, NaN in every channel and with no expert. Through norm,
product, router lists, experts and the streams' mixing, the five rows are those of a call of five rows, to the bit.
"""

import torch
from interpreter import run
from test_experts import LIMIT, TILE, lists, weights
from test_gemm import TILE as PRODUCT_TILE
from test_mhc import by_pointer, inputs
from torch import Tensor

from dsv41c.compiler.codegen.triton.families import Tile
from dsv41c.compiler.codegen.triton.kernels import activations, experts, gemm, mhc

ROWS, LIVE, DIM, INNER, COUNT, CHOICES = 7, 5, 64, 32, 5, 2


def poisoned(x: Tensor) -> Tensor:
    x = x.clone()
    x[LIVE:] = torch.nan
    return x


def normalized(x: Tensor) -> Tensor:
    out, quantized = torch.zeros_like(x), torch.zeros_like(x)
    arguments = {"x_ptr": x, "weight_ptr": torch.ones(DIM).bfloat16(), "normalized_ptr": out}
    kernel = activations.norm_rows("norm", DIM).with_tiles(Tile({"ROWS": 8}))
    run(kernel, **arguments, quantized_ptr=quantized, n_rows=len(x), eps=1e-6)
    return quantized


def gate_logits(x: Tensor) -> Tensor:
    """The router's product: bf16 weights, fp32 results."""
    w = torch.randn(COUNT, DIM, generator=torch.Generator().manual_seed(2)).bfloat16()
    y = torch.zeros(len(x), COUNT)
    kernel = gemm.gemm("router", "bf16", result="fp32").with_tiles(PRODUCT_TILE)
    scale = torch.zeros(1, dtype=torch.uint8)
    sizes = {"n_rows": len(x), "n_inputs": DIM, "n_outputs": COUNT, "n_parts": 1}
    run(kernel, x_ptr=x, w_ptr=w, scale_ptr=scale, y_ptr=y, **sizes)
    return y


def routed(x: Tensor, ids: Tensor) -> Tensor:
    made = lists(ids, COUNT)
    (w1, s1), (w3, s3), (w2, s2) = (
        weights(COUNT, *shape) for shape in ((INNER, DIM, 1), (INNER, DIM, 2), (DIM, INNER, 3))
    )
    hidden, y = (torch.full((len(x) * CHOICES, width), torch.nan).bfloat16() for width in (INNER, DIM))
    route_weights = torch.rand(ids.shape, generator=torch.Generator().manual_seed(3))
    packed = {"w1_ptr": w1, "s1_ptr": s1, "w3_ptr": w3, "s3_ptr": s3, "hidden_ptr": hidden}
    sizes = {"n_choices": CHOICES, "limit": LIMIT, "n_experts": COUNT}
    up = experts.up("up", DIM, INNER).with_tiles(TILE)
    run(up, x_ptr=x, weights_ptr=route_weights, **made, **packed, **sizes)
    down = experts.down("down", DIM, INNER).with_tiles(TILE)
    run(down, hidden_ptr=hidden, **made, w2_ptr=w2, s2_ptr=s2, y_ptr=y, n_experts=COUNT)
    total = torch.full((len(x), DIM), torch.nan)
    combine = experts.combine("combine", DIM, CHOICES).with_tiles(Tile({"BLOCK": 64}))
    run(combine, y_ptr=y, ids_ptr=ids, shared_ptr=y, total_ptr=total, n_rows=len(x))
    return total


def test_router_and_experts() -> None:
    x = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(1)).bfloat16()
    quantized = normalized(poisoned(x))
    assert torch.equal(quantized[:LIVE], normalized(x[:LIVE].contiguous()))
    assert quantized[LIVE:].isnan().all(), "padding is poisoned up to the router"
    logits = gate_logits(quantized)
    alone = gate_logits(quantized[:LIVE].contiguous())
    assert torch.equal(logits[:LIVE], alone)
    ids = alone.topk(CHOICES).indices
    padded_ids = torch.cat([ids, torch.full((ROWS - LIVE, CHOICES), -1)])
    total = routed(quantized, padded_ids)
    assert torch.equal(total[:LIVE], routed(quantized[:LIVE].contiguous(), ids))
    assert total[LIVE:].count_nonzero() == 0


def test_streams() -> None:
    """Rows share a tile of the matrix units there."""
    given = inputs(DIM, ROWS)
    by_row = ("y", "h", "post", "comb", "pre")

    def site(rows: int, values: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        streams, x = torch.zeros(rows, 4, DIM).bfloat16(), torch.zeros(rows, DIM).bfloat16()
        parts = torch.zeros(1, rows, mhc.PART_WIDTH)
        kernel = mhc.site("site", DIM, True, 1).with_tiles(Tile({"ROWS": 16, "BLOCK": 64}))
        results = {"streams_ptr": streams, "x_ptr": x, "parts_ptr": parts}
        run(kernel, **by_pointer(values, *by_row, "fn"), **results, n_rows=rows)
        return streams, x, parts[0]

    padded = site(ROWS, {**given, **{name: poisoned(given[name]) for name in by_row}})
    alone = site(LIVE, {**given, **{name: given[name][:LIVE].contiguous() for name in by_row}})
    for ours, theirs in zip(padded, alone, strict=True):
        assert torch.equal(ours[:LIVE], theirs)
        assert theirs.isfinite().all()
