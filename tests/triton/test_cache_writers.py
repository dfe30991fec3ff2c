"""Cache writers against models/quant.py, models/pack_ops.py and models/attention.py; bytes are equal to the bit."""

import pytest
import torch
from cost_rules import rule
from interpreter import counted, run
from test_formats import edge_values
from tolerances import TRITON
from torch import Tensor

from dsv41c.compiler.codegen.triton.kernels import cache_rows
from dsv41c.ir.types import CacheType
from dsv41c.models import ops, pack_ops, quant
from dsv41c.models.layers import rms_norm

EPS = 1e-20
ROWS = 16
WIDE_TILE = cache_rows.Tile({"ROWS": 16})  # one program: the interpreter's cost is by program, not by row
PAGE = 4
# Kind, owner and ratio of a cache with rows of a format.
CACHES = {"fp8_e8m0": ("window", 0, 0), "fp4_e4m3": ("main", 2, 2), "fp4_e8m0": ("index", 2, 2)}


def rows_of(channels: int, seed: int = 3) -> Tensor:
    """bf16 [13, channels]: rows of very different sizes, one of zeros, one of edge values."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(13, channels, generator=generator) * 2.0 ** torch.randint(-12, 9, (13, 1), generator=generator)
    x[3] = 0
    edges = edge_values()[100 : 100 + channels].clamp(-1e4, 1e4)
    x[5, : edges.numel()] = edges
    return x.bfloat16()


def rotation(rows: int, rotated: int) -> tuple[Tensor, Tensor]:
    return ops.rotary(torch.arange(rows) * 977, 10000.0 ** (-torch.arange(rotated // 2) / (rotated // 2)))


def give(x: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, cache: Tensor) -> dict[str, Tensor | int | float]:
    weight = torch.linspace(0.5, 1.5, x.shape[1]).bfloat16()
    names = {"x_ptr": x, "cos_ptr": cos, "sin_ptr": sin, "weight_ptr": weight, "slots_ptr": slots, "cache_ptr": cache}
    return {**names, "n_rows": x.shape[0], "eps": EPS}


@pytest.mark.parametrize("fp8_casts", [True, False])
@pytest.mark.parametrize("row_format", list(quant.FORMATS))
def test_quantizer_is_exact(row_format: str, fp8_casts: bool) -> None:
    """Without norm and rotation the writer is `quantize`, edge values included."""
    x = torch.cat([edge_values().bfloat16().view(-1, 512), rows_of(512)])
    width = quant.FORMATS[row_format].row_bytes(512)
    out = torch.full((x.shape[0], width), 7, dtype=torch.uint8)
    kernel = cache_rows.writer("quantize", row_format, 512, 0, False, 1, width, slots=False)
    unused = torch.zeros(1)
    arguments = give(x, unused, unused, torch.zeros(1, dtype=torch.int64), out)
    run(kernel.with_tiles(cache_rows.Tile({"ROWS": 32})), fp8_casts=fp8_casts, **arguments)
    assert torch.equal(out, quant.quantize(x, row_format))


@pytest.mark.parametrize(
    ("row_format", "channels", "norm"), [("fp8_e8m0", 512, True), ("fp4_e4m3", 512, False), ("fp4_e8m0", 128, True)]
)
def test_written_rows_are_exact(row_format: str, channels: int, norm: bool) -> None:
    """Norm, rotation, quantization and the paged store as `write_rows`; slot -1 and the rest of the cache stay."""
    x = rows_of(channels)
    cos, sin = rotation(13, 64)
    slots = torch.tensor([9, -1, 0, 3, 4, 17, 18, 19, 8, 23, -1, 22, 12])
    stride = -(-PAGE * quant.FORMATS[row_format].row_bytes(channels) // 256) * 256
    cache = torch.full((6, stride), 7, dtype=torch.uint8)
    expected = cache.clone()
    arguments = give(x, cos, sin, slots, cache)
    kernel = cache_rows.writer("write", row_format, channels, 64, norm, PAGE, stride)
    with counted() as moved:
        run(kernel.with_tiles(WIDE_TILE), **arguments)
    weight = arguments["weight_ptr"] if norm else None
    pack_ops.write_rows(expected, x, cos, sin, weight, slots, EPS, row_format, PAGE)
    assert torch.equal(cache, expected)
    stored = int((slots >= 0).sum())
    given = CacheType.of(*CACHES[row_format], PAGE, row_format, channels)
    attributes = {"norm_eps": EPS, "row_format": row_format, "page": PAGE}
    cost = rule("write_rows", [given, x, cos, sin, weight, slots], [given], **attributes)
    # The rule counts every row as stored.
    assert moved["stores"] == stored * cost.written // 13
    assert moved["loads"] == cost.read


def test_packed_rows_are_exact() -> None:
    x, (cos, sin) = rows_of(512, seed=8), rotation(13, 64)
    out = torch.empty(13, 528, dtype=torch.uint8)
    kernel = cache_rows.writer("pack", "fp8_e8m0", 512, 64, True, 1, 528, slots=False)
    arguments = give(x, cos, sin, torch.zeros(1, dtype=torch.int64), out)
    run(kernel.with_tiles(WIDE_TILE), **arguments)
    assert torch.equal(out, pack_ops.pack_rows_definition(x, cos, sin, arguments["weight_ptr"], EPS, "fp8_e8m0"))


def test_tail() -> None:
    """Pairs from the batch, from the tail, and rows without a pair; the tail keeps what slot -1 does not overwrite."""
    generator = torch.Generator().manual_seed(2)
    raw, tail = torch.randn(5, 1024, generator=generator) * 3, torch.randn(8, 1024, generator=generator)
    earlier = torch.tensor([[6], [-2], [-1], [-4], [0]])
    before = torch.stack([tail[6], raw[0], torch.zeros(1024), raw[2], tail[0]])
    weight, latent = torch.linspace(0.5, 1.5, 512).bfloat16(), torch.empty(5, 512, dtype=torch.bfloat16)
    slots = torch.tensor([7, 0, -1, 2, 3])
    kernel = cache_rows._pool(512, 2).with_tiles(cache_rows.Tile({"ROWS": 8}))
    arguments = {"raw_ptr": raw, "tail_ptr": tail, "earlier_ptr": earlier, "weight_ptr": weight, "latent_ptr": latent}
    run(kernel, **arguments, n_rows=5, eps=EPS)
    kv, gate = torch.stack([before, raw]).chunk(2, dim=-1)
    pooled = (kv * torch.softmax(gate, 0)).sum(0).bfloat16()
    same_share = (latent == rms_norm(pooled, weight, EPS)).float().mean()
    assert same_share > TRITON["cache_rows tail"].same, same_share
    expected = tail.clone()
    ops.store(expected.view(1, -1), raw, slots, "f32", 8)
    store = cache_rows.store_plain("store_tail", "fp32", 1024).with_tiles(cache_rows.Tile({"ROWS": 8}))
    run(store, rows_ptr=raw, slots_ptr=slots, cache_ptr=tail, n_rows=5)
    assert torch.equal(tail, expected)
