"""Engram kernels against models/ops.py and models/engram.py."""

import pytest
import torch
from cost_rules import rule
from interpreter import counted, run
from tolerances import TRITON

from dsv41c.compiler.codegen.triton.families import Tile
from dsv41c.compiler.codegen.triton.kernels import engram
from dsv41c.models import ops, quant
from dsv41c.models.engram import Engram

DIM, STREAMS, EPS = 5120, 4, 1e-20


@pytest.mark.parametrize(("quantize", "fp8_casts"), [(False, True), (True, True), (True, False)])
def test_gather(quantize: bool, fp8_casts: bool) -> None:
    """Rows of the released width; the last row of the table, a row that occurs twice, and no row at all."""
    generator = torch.Generator().manual_seed(7)
    table = torch.randn(50, 256, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.randint(100, 130, (50, 8), generator=generator, dtype=torch.uint8)
    rows = torch.tensor([49, 3, 3, 0, -1, 17, 48])
    out = torch.full((7, 256), torch.nan, dtype=torch.bfloat16)
    kernel = engram.gather("gather", 256, quantize)
    arguments = {"table_ptr": table.view(torch.uint8), "scale_ptr": scale, "rows_ptr": rows, "out_ptr": out}
    with counted() as moved:
        run(kernel, fp8_casts=fp8_casts, **arguments, n_lookups=7)
    expected = ops.lookup_definition(table, scale, rows.clamp(min=0).unsqueeze(-1))
    expected[4] = 0
    assert torch.equal(out, quant.fake_quantize(expected, "fp8_e8m0") if quantize else expected)
    cost = rule("lookup", [table, scale, rows.unsqueeze(-1)], [out])
    assert (moved["loads"], moved["stores"]) == (cost.read - 264, cost.written), "a row of -1 is not read"


def test_gate() -> None:
    """Streams of the released width; a stream of zeros, and gates near both ends and the middle."""
    rows, generator = 3, torch.Generator().manual_seed(8)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    h, kv = normal(rows, STREAMS, DIM), normal(rows, (STREAMS + 1) * DIM)
    h[1, 2] = 0
    kv[0, :DIM], kv[0, DIM : 2 * DIM] = h[0, 0], -h[0, 1]
    q_weight, k_weight = normal(STREAMS, DIM).abs(), normal(STREAMS, DIM).abs()
    out = torch.empty_like(h)
    kernel = engram.gate("gate", DIM, STREAMS)
    arguments = {"h_ptr": h, "kv_ptr": kv, "q_weight_ptr": q_weight, "k_weight_ptr": k_weight, "out_ptr": out}
    run(kernel.with_tiles(Tile({})), **arguments, eps=EPS, root=DIM**-0.5, n_rows=rows)

    module = Engram.__new__(Engram)
    torch.nn.Module.__init__(module)
    module.q_weight, module.k_weight = (torch.nn.Parameter(w, requires_grad=False) for w in (q_weight, k_weight))
    module.dim, module.eps = DIM, EPS
    keys, value = kv.float().split([STREAMS * DIM, DIM], dim=-1)
    gate = module._gate(h.float(), keys.unflatten(-1, (STREAMS, DIM)))
    assert gate[0, 0] > 0.7
    assert gate[0, 1] < 0.3
    expected = (h.float() + gate.unsqueeze(-1) * value.unsqueeze(1)).bfloat16()
    bound = TRITON["engram gate"]
    assert (out == expected).float().mean() > bound.same
    torch.testing.assert_close(out, expected, rtol=bound.relative, atol=0)
