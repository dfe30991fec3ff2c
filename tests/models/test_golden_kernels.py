"""Single ops on the golden inputs: formats, products, mHC, attention, candidates, rotary, norm, router, hash.

Not here: the router with an image mask. Its second bias serves image positions, which the text model does not have.
"""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from comparisons import assert_absolute, assert_bits, assert_relative, assert_ulps
from safetensors.torch import load_file
from tolerances import FP32_RELATIVE, ROTARY_ABSOLUTE, SINKHORN_RELATIVE
from torch import Tensor, nn
from torch.nn import functional

from dsv41c.models import ops, quant
from dsv41c.models.backbone import RotaryTables
from dsv41c.models.config import ModelConfig
from dsv41c.models.engram import LookBack
from dsv41c.models.hyper_connections import HyperConnection, collapse, expand
from dsv41c.models.layers import Fp8Linear, RMSNorm, inverse_frequencies, rotate
from dsv41c.models.moe import Router
from dsv41c.models.rows import Chunk, Rows, step_inputs
from dsv41c.models.state import HISTORY_ROWS

GOLDEN = Path(__file__).parents[1] / "golden"
FORMATS = {"fp8_e8m0": "act_quant", "fp4_e8m0": "fp4_e8m0_b32", "fp4_e4m3": "fp4_e4m3_b16"}
NORM_EPS = 1e-20  # of both golden models
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def kernels() -> Tensors:
    return load_file(GOLDEN / "kernels.safetensors")


@pytest.fixture(scope="module")
def hashes() -> Tensors:
    return load_file(GOLDEN / "engram_hash.safetensors")


def give(module: nn.Module, **weights: Tensor) -> None:
    for name, value in weights.items():
        setattr(module, name, nn.Parameter(value, requires_grad=False))


# --- formats and products -------------------------------------------------------------------------------------------


def packed_rows(kernels: Tensors, name: str) -> Tensor:
    data = kernels[f"{name}.q" if f"{name}.q" in kernels else f"{name}.packed"]
    return torch.cat((data.view(torch.uint8), kernels[f"{name}.scale"].view(torch.uint8)), dim=1)


@pytest.mark.parametrize("row_format", FORMATS)
def test_formats(kernels: Tensors, row_format: str) -> None:
    name = FORMATS[row_format]
    x, rows, values = kernels[f"{name}.x"], packed_rows(kernels, name), kernels[f"{name}.dequant"]
    assert_bits(quant.quantize(x, row_format), rows)
    assert_bits(quant.dequantize(rows, row_format), values)
    assert_bits(quant.fake_quantize(x, row_format), values)


@pytest.mark.parametrize("name", ["fp8_gemm", "fp8_gemm_m1"])
def test_fp8_product(kernels: Tensors, name: str) -> None:
    weight, scale = kernels[f"{name}.w"], kernels[f"{name}.w_scale"].view(torch.uint8)
    linear = Fp8Linear(weight.shape[1], weight.shape[0])
    give(linear, weight=weight, scale=scale)
    assert_ulps(linear(quant.fake_quantize(kernels[f"{name}.x"], "fp8_e8m0")), kernels[f"{name}.y"])


def test_fp4_product(kernels: Tensors) -> None:
    packed, scale = (kernels[f"fp4_gemm.w_{part}"].view(torch.uint8) for part in ("packed", "scale"))
    x = quant.fake_quantize(kernels["fp4_gemm.x"], "fp8_e8m0")
    assert_ulps(functional.linear(x, quant.dequantize_fp4_weight(packed, scale)), kernels["fp4_gemm.y"])


# --- mHC, norm, router ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [1, 2, 20])
def test_mixes(kernels: Tensors, iterations: int) -> None:
    site = HyperConnection(4, 6, iterations, 1e-6, NORM_EPS)
    give(site, base=kernels["sinkhorn.base"], scale=kernels["sinkhorn.scale"])
    for name, ours in zip(("pre", "post", "comb"), site.mixes(kernels["sinkhorn.mixes"]), strict=True):
        assert_relative(ours, kernels[f"sinkhorn.it{iterations}.{name}"], SINKHORN_RELATIVE, name)


def test_streams(kernels: Tensors) -> None:
    residual = kernels["hc.residual"]
    assert_ulps(collapse(residual, kernels["hc.pre"]), kernels["hc.pre_out"])
    assert_ulps(expand(kernels["hc.x"], residual, kernels["hc.post"], kernels["hc.comb"]), kernels["hc.post_out"])


def test_norm(kernels: Tensors) -> None:
    norm = RMSNorm(128, NORM_EPS)
    give(norm, weight=kernels["rmsnorm.w"])
    assert_ulps(norm(kernels["rmsnorm.x"]), kernels["rmsnorm.y"])


def test_router(kernels: Tensors) -> None:
    k, scale = kernels["gate.param"].tolist()
    experts, dim = kernels["gate.w"].shape
    router = Router(dim, experts, int(k), scale)
    give(router, weight=kernels["gate.w"], bias=kernels["gate.bias"])
    ids, weights = router(kernels["gate.x"])
    assert torch.equal(ids, kernels["gate.experts"].long())
    assert_relative(weights, kernels["gate.weights"], FP32_RELATIVE)


# --- attention ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sparse_attn", "sparse_attn_short", "sparse_attn_long"])
def test_sparse_attention(kernels: Tensors, name: str) -> None:
    query, index = kernels[f"{name}.q"], kernels[f"{name}.idx"].long()
    keys = kernels[f"{name}.kv"][index.clamp(min=0)]
    ours = ops.tiled_attention(query, keys, index >= 0, kernels[f"{name}.sink"], query.shape[-1] ** -0.5)
    assert_ulps(ours, kernels[f"{name}.o"])
    assert torch.all(ours[0] == 0), "row 0 has no key"


def pool_mask(blocks: Tensor, entries: int, block: int) -> Tensor:
    return (blocks.unsqueeze(-1) == torch.arange(entries) // block).any(1)


@pytest.mark.parametrize("name", ["cand_r1", "cand_r2", "cand_few"])
def test_candidates_of_a_prefill(kernels: Tensors, name: str) -> None:
    scores, visible = kernels[f"{name}.scores"], kernels[f"{name}.lens"].long()
    n_blocks, block = kernels[f"{name}.param"].tolist()
    entries = scores.shape[1]
    scores = torch.where(torch.arange(entries) < visible.unsqueeze(-1), scores, float("-inf"))
    blocks = ops.candidate_blocks(scores, visible, block, n_blocks)
    assert torch.equal(pool_mask(blocks, entries, block), kernels[f"{name}.mask"].bool())


@pytest.mark.parametrize("visible", [1, 4, 5, 17, 50])
def test_candidates_of_a_decode_step(kernels: Tensors, visible: int) -> None:
    blocks = ops.candidate_blocks(kernels[f"cand_dec{visible}.scores"], torch.tensor([visible]), 4, 4)
    assert torch.equal(pool_mask(blocks, visible, 4), kernels[f"cand_dec{visible}.mask"].bool())


@pytest.mark.parametrize(("kind", "prompt"), [("mini6", "p33"), ("sched40", "p17")])
def test_selection_on_golden_scores(kind: str, prompt: str) -> None:
    config = ModelConfig.from_json(GOLDEN / kind)
    outputs = load_file(GOLDEN / kind / "outputs.safetensors")
    source = config.candidate_source_layer_id
    for layer in config.index_source_layer_ids:
        scores = outputs[f"{prompt}.index_score.layers.{layer}"].float()
        expected = outputs[f"{prompt}.topk.layers.{layer}"].to(ops.LIST)
        assert torch.equal(ops._best(scores, config.index_topk)[:, : expected.shape[1]], expected)
    scores = outputs[f"{prompt}.index_score.layers.{source}"].float()
    visible, block = torch.arange(scores.shape[0]) + 1, config.candidate_block_size
    blocks = ops.candidate_blocks(scores, visible, block, config.candidate_topk_blocks)
    expected = outputs[f"{prompt}.cand.layers.{source}"].bool()
    assert torch.equal(pool_mask(blocks, scores.shape[1], block), expected)


# --- rotary ---------------------------------------------------------------------------------------------------------


ROTARY = [("rel", "released"), ("mini", "mini6"), ("sched", "sched40")]


@pytest.mark.parametrize(("name", "model"), ROTARY)
def test_rotary_tables(kernels: Tensors, name: str, model: str) -> None:
    tables = RotaryTables(ModelConfig.from_json(GOLDEN / model))
    for part, frequencies in (("window", tables.window), ("compress", tables.compressed)):
        key = f"rope_{name}_{part}"
        if f"{key}.pos" not in kernels:  # the golden data has no window table of sched40
            continue
        assert_relative(frequencies, kernels[f"{key}.inv_freq"], FP32_RELATIVE, key)
        cos, sin = ops.rotary(kernels[f"{key}.pos"].long(), frequencies)
        assert_absolute(cos, kernels[f"{key}.cos"], ROTARY_ABSOLUTE, key)
        assert_absolute(sin, kernels[f"{key}.sin"], ROTARY_ABSOLUTE, key)


def test_rotation_and_its_inverse(kernels: Tensors) -> None:
    config = ModelConfig.from_json(GOLDEN / "mini6")
    frequencies = inverse_frequencies(config.qk_rope_head_dim, config.compress_rope_theta, config.rope_scaling)
    cos, sin = ops.rotary(kernels["rope_apply.pos"].long(), frequencies)
    assert_ulps(rotate(kernels["rope_apply.x"], cos, sin), kernels["rope_apply.y"])
    assert_ulps(rotate(kernels["rope_apply.x"], cos, -sin), kernels["rope_apply.y_inverse"])


# --- Engram hash ----------------------------------------------------------------------------------------------------


def look_back(config: ModelConfig, hashes: Tensors) -> LookBack:
    module = LookBack(config)
    module.token_map, module.pad = hashes["tiny.token_map"], hashes["tiny.pad_compressed"]
    return module


def compressed(module: LookBack, chunks: list[Chunk], history: Tensor) -> Tensor:
    inputs = step_inputs(chunks, [])
    tokens = inputs.pop("tokens")
    del inputs["logit_rows"]
    return module(tokens, Rows.of_batch(**inputs), history)


@pytest.mark.parametrize("cut", [None, 1, 3, 17])
def test_tiny_hash(hashes: Tensors, cut: int | None) -> None:
    """Two sequences in one batch, whole or in two chunks: a continuation hashes as the whole does."""
    module = look_back(ModelConfig.from_json(GOLDEN / "mini6"), hashes)
    rows, length = hashes["tiny.ids"].tolist(), hashes["tiny.ids"].shape[1]
    history = torch.full((len(rows), HISTORY_ROWS), 7, dtype=torch.int32)
    bounds = [0, length] if cut is None else [0, cut, length]
    parts = []
    for start, end in pairwise(bounds):
        chunks = [Chunk(row[start:end], start, ring, [0]) for ring, row in enumerate(rows)]
        parts.append(compressed(module, chunks, history).unflatten(0, (len(rows), end - start)))
    ids = torch.cat(parts, dim=1).flatten(0, 1)
    for layer in range(2):
        constants = (hashes[f"tiny.{name}"][layer].flatten() for name in ("multipliers", "primes", "offsets"))
        ours = ops.ngram_hash_definition(ids, *constants)
        assert torch.equal(ours, hashes["tiny.hash"][:, :, layer].flatten(0, 1))


def test_released_hash(hashes: Tensors) -> None:
    ids, size = hashes["released.compressed_ids"][0], hashes["released.multipliers"].shape[1]
    padded = torch.cat((hashes["released.pad_compressed"].expand(size - 1), ids))
    back = padded.unfold(0, size, 1).flip(1)
    for layer in range(2):
        constants = (hashes[f"released.{name}"][layer].flatten() for name in ("multipliers", "primes", "offsets"))
        assert torch.equal(ops.ngram_hash_definition(back, *constants), hashes["released.hash"][0, :, layer])
