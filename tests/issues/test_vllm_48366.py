"""Symptom: a row of NaN when the first block of keys is fully masked (vllm#48366, flashinfer#5197).

Cause: the running maximum starts at -inf, and -inf minus itself is no number.

Why this input: 640 selections in tiles of 64 keys; the first tile, then all but the last, then all are -1. A row
without a key gives 0, whatever the sink; a row with one valid key in the last tile gives that key.
"""

import pytest
import torch
from torch import Tensor

from dsv41c.models import ops, quant

HEADS, DIM, WINDOW, KEYS, PAGE = 2, 64, 16, 640, 64


def attended(valid: Tensor, sink: float) -> Tensor:
    """One query over selected entries alone: which of them are valid bool [640]; gives bf16 [H, D]."""
    rng = torch.Generator().manual_seed(7)
    entries = quant.quantize(torch.randn(KEYS, DIM, generator=rng).bfloat16(), "fp4_e4m3")
    main = torch.full((KEYS // PAGE, PAGE * entries.shape[1]), 0xFF, dtype=torch.uint8)
    ops.store(main, entries, torch.arange(KEYS), "fp4_e4m3", PAGE)
    width = quant.FORMATS["fp8_e8m0"].row_bytes(DIM)
    window = torch.full((1, WINDOW * width), 0xFF, dtype=torch.uint8)
    slots = torch.where(valid, torch.arange(KEYS), -1).to(torch.int32).unsqueeze(0)
    query = torch.randn(1, HEADS, DIM, generator=rng).bfloat16()
    nothing = torch.full((1, WINDOW), -1, dtype=torch.int32)
    fresh = torch.full((1, width), 0xFF, dtype=torch.uint8)
    sinks = torch.full((HEADS,), sink)
    return ops.sparse_attention(query, window, fresh, nothing, main, slots, sinks, DIM**-0.5, WINDOW, PAGE)[0]


@pytest.mark.parametrize("sink", [-30.0, 0.0, 30.0])
def test_a_row_without_a_key_is_zero(sink: float) -> None:
    assert torch.equal(attended(torch.zeros(KEYS, dtype=torch.bool), sink), torch.zeros(HEADS, DIM).bfloat16())


@pytest.mark.parametrize("first", [64, 65, 576, 639])
def test_masked_tiles_before_a_valid_key(first: int) -> None:
    """Finite where a masked tile comes first; and one valid key behind masked tiles is the result itself."""
    found = attended(torch.arange(KEYS) >= first, 0.0)
    assert torch.isfinite(found).all()
    assert found.abs().max() > 0
    alone = attended(torch.arange(KEYS) == first, -100.0)
    key = quant.dequantize(_entry(first), "fp4_e4m3")
    assert torch.allclose(alone.float(), key.float().expand(HEADS, DIM), rtol=1e-2)


def _entry(number: int) -> Tensor:
    rng = torch.Generator().manual_seed(7)
    return quant.quantize(torch.randn(KEYS, DIM, generator=rng).bfloat16(), "fp4_e4m3")[number]
