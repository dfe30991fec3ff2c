"""Symptom: a kernel writes scores past a row's end, or reads keys that nobody stored (vllm#47629, review).

Cause: entries behind the context are masked by page or block, and not by the row's own length.

Why this input: two sequences with contexts of 130 and 67 tokens, four new rows each (a draft is verified), pages of 64:
every row ends inside a page and sees another number of entries. All bytes behind the context are 0xFF, scales of NaN,
as are all pages of nobody; the row's own newest entry is the best of all for it, so that a length too short shows too.
"""

import pytest
import torch
from torch import Tensor

from dsv41c.models import ops, quant
from dsv41c.runtime.kernels import index_topk
from dsv41c.runtime.kernels.binding import LaunchContext

PAGE, DIM, BLOCK, K, NEXT = 64, 32, 8, 5, 4
CONTEXTS = (130, 67)


def batch() -> list[Tensor]:
    """Keys grow with their entry, so a row's best entries are its newest."""
    width = quant.FORMATS["fp4_e8m0"].row_bytes(DIM)
    cache = torch.full((8, PAGE * width), 0xFF, dtype=torch.uint8)
    pages = torch.tensor([[5, 2, 7], [1, 4, -1]])
    for b, context in enumerate(CONTEXTS):
        keys = torch.zeros(context, DIM, dtype=torch.bfloat16)
        keys[:, 0] = torch.exp2(torch.arange(context) // 2 - 40.0)
        keys[:, 1] = keys[:, 0] * 0.5 * (torch.arange(context) % 2)
        entry = torch.arange(context)
        slots = pages[b, entry // PAGE] * PAGE + entry % PAGE
        ops.store(cache, quant.quantize(keys, "fp4_e8m0"), slots, "fp4_e8m0", PAGE)
    rows = len(CONTEXTS) * NEXT
    query = torch.zeros(rows, 1, DIM, dtype=torch.bfloat16)
    query[:, :, :2] = 1.0
    weights = torch.ones(rows, 1, dtype=torch.bfloat16)
    sequence = torch.arange(len(CONTEXTS)).repeat_interleave(NEXT)
    positions = torch.cat([torch.arange(context - NEXT, context) for context in CONTEXTS])
    return [query, weights, cache, pages, sequence, positions]


def pools(arguments: list[Tensor], blocks: int) -> Tensor:
    """The newest blocks of each row by its own length, ascending."""
    newest = (arguments[5] // BLOCK).to(torch.int32)
    return torch.stack([newest - back for back in range(blocks - 1, -1, -1)], dim=1)


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("scratch", [index_topk.SCRATCH_BYTES, 4096])
def test_rows_end_where_their_own_context_ends(monkeypatch: pytest.MonkeyPatch, pooled: bool, scratch: int) -> None:
    monkeypatch.setattr(index_topk, "SCRATCH_BYTES", scratch)
    arguments = batch()
    constants = tuple(arguments[2] if i == 2 else None for i in range(7))
    expected = [list(range(position - K + 1, position + 1)) for position in arguments[5].tolist()]
    attributes = {"ratio": 1, "k": K, "page": PAGE, "block": BLOCK}
    if pooled:
        pool = pools(arguments, 2)
        kernel = index_topk.bind_pool(LaunchContext(attributes, constants))([*arguments, pool])[0]
        reference = ops.index_pool_topk(*arguments, pool, *attributes.values())
    else:
        attributes["n_blocks"] = 3
        kernel, blocks = index_topk.bind(LaunchContext(attributes, constants))([*arguments, None])
        reference, known = ops.index_topk(*arguments, None, *attributes.values())
        assert torch.equal(blocks, known)
        assert blocks.tolist() == pools(arguments, 3).tolist(), "the newest block is the row's own"
    assert kernel.tolist() == expected
    assert reference.tolist() == expected
