"""Symptom: fluent but wrong answers at long context, a wrong top-k (comments at vllm#40991 and #50576, 1Cat-vLLM#250,
vllm#56700).

Cause: index keys are written page by page, all data before all scales, and read token by token, data and scale side by
side. Both take the same bytes, so nothing fails.

Why this input: 65 keys of 128 channels in pages of 64, so that one page is full and another holds one key, with scales
from 2^-6 to 2^6. Token 1 and token 64 lie elsewhere in the other order; token 1 is the best of all for the query.
"""

import torch
from interpreter import run
from test_indexer import Batch, choose
from torch import Tensor

from dsv41c.compiler.codegen.triton.kernels import cache_rows
from dsv41c.models import ops, quant
from dsv41c.runtime.kernels import index_topk
from dsv41c.runtime.kernels.binding import LaunchContext

TOKENS, DIM, PAGE, K, NEEDLE = 65, 128, 64, 8, 1
FORMAT = "fp4_e8m0"
WIDTH = quant.FORMATS[FORMAT].row_bytes(DIM)


def keys() -> Tensor:
    """bf16 [65, 128], every group of 32 under a scale of its own; the needle is large in channel 0."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(TOKENS, DIM // 32, 32, generator=generator).clamp(-1, 1)
    x = (x * 2.0 ** torch.randint(-6, 7, (TOKENS, DIM // 32, 1), generator=generator)).flatten(1)
    x[:, 0] = torch.linspace(-2, 2, TOKENS)
    x[NEEDLE, 0] = 64.0
    return x.bfloat16()


def written() -> Tensor:
    """The pages as the kernel writes them; what no key takes is NaN."""
    x = keys()
    cache = torch.full((3, PAGE * WIDTH), 0xFF, dtype=torch.uint8)
    slots = torch.arange(TOKENS) + PAGE  # pages 1 and 2
    unused = torch.zeros(1)
    arguments = {"x_ptr": x, "cos_ptr": unused, "sin_ptr": unused, "weight_ptr": torch.zeros(1).bfloat16()}
    kernel = cache_rows.writer("write", FORMAT, DIM, 0, False, PAGE, PAGE * WIDTH)
    run(
        kernel.with_tiles(cache_rows.Tile({"ROWS": 128})),
        **arguments,
        slots_ptr=slots,
        cache_ptr=cache,
        n_rows=TOKENS,
        eps=0.0,
    )
    return cache


def test_written_and_stored_pages_are_the_same_bytes() -> None:
    stored = torch.full((3, PAGE * WIDTH), 0xFF, dtype=torch.uint8)
    ops.store(stored, quant.quantize(keys(), FORMAT), torch.arange(TOKENS) + PAGE, FORMAT, PAGE)
    assert torch.equal(written(), stored)


def test_single_tokens_through_the_loader() -> None:
    found = ops.load(written(), torch.tensor([PAGE + NEEDLE, PAGE + 64]), FORMAT, PAGE, WIDTH)
    assert torch.equal(found, quant.quantize(keys()[[NEEDLE, 64]], FORMAT))


def test_every_reader_finds_the_needle() -> None:
    """More keys than are chosen; the reference, the CPU's kernel, and scores and choice of the GPU's."""
    cache, pages = written(), torch.tensor([[1, 2]])
    query = torch.zeros(1, 16, DIM, dtype=torch.bfloat16)
    query[:, :, 0] = 1.0
    weights = torch.full((1, 16), 0.5, dtype=torch.bfloat16)
    rows = (query, weights, cache, pages, torch.tensor([0]), torch.tensor([TOKENS - 1]))
    attributes = {"ratio": 1, "k": K, "page": PAGE, "block": 8, "n_blocks": 0}
    expected = ops.index_topk(*rows, None, *attributes.values())[0][0]
    constants = tuple(cache if number == 2 else None for number in range(7))
    on_cpu = index_topk.bind(LaunchContext(attributes, constants))([*rows, None])[0][0]
    scores, _ = Batch(*rows, 1, PAGE).scores(1, publish=False)
    on_gpu = choose(scores, K, 128, rows[-1])[0]
    exact = quant.dequantize(quant.quantize(keys(), FORMAT), FORMAT)[:, 0].float().clamp(min=0) * 8
    assert torch.equal(scores[0, :TOKENS].float(), exact)
    assert expected[0] == NEEDLE
    assert expected.tolist() == on_cpu.tolist() == on_gpu.tolist()
