"""Every tensor of a checkpoint, by its released name: shape and dtype as they follow from the config (SPEC 9)."""

import math
import re
from dataclasses import dataclass

from dsv41c.models.config import ModelConfig
from dsv41c.models.config_checks import GROUP

_BYTES = {"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "BF16": 2, "F32": 4}

_VISION = "read by the vision program, which is not compiled yet"
_UNREAD = (
    (re.compile(r"(vision|aligner)\..+|image_(start|end|newline)"), _VISION),
    # Only a config with a vision part has image positions to route; then it is among the expected tensors.
    (
        re.compile(r"(layers|mtp)\.\d+\.ffn\.gate\.bias_vl"),
        "routes image positions, and the config has no vision_config",
    ),
)


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype (safetensors' spelling) of one tensor."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Size of the data."""
        return math.prod(self.shape) * _BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


Specs = dict[str, TensorSpec]


def expected_tensors(config: ModelConfig) -> Specs:
    """The tensors the backbone and the drafts read; all of them must be there.

    Args:
        config: the model.
    Returns: specs by released name, in model order.
    Source: SPEC 9.
    """
    specs = _bf16("embed.weight", config.vocab_size, config.hidden_size)
    for layer in range(config.num_hidden_layers):
        prefix = f"layers.{layer}"
        specs |= _layer(config, prefix, config.n_routed_experts)
        specs |= _sources(config, layer, f"{prefix}.attn")
        if config.is_engram(layer):
            specs |= _engram(config, layer, f"{prefix}.engram")
    specs |= _bf16("norm.weight", config.hidden_size)
    specs |= _bf16("head.weight", config.vocab_size, config.hidden_size)
    return specs | _drafts(config)


def vision_tensors(config: ModelConfig) -> Specs:
    """The tensors of the image tower and its aligner; empty without a `vision_config`.

    Args:
        config: the model.
    Returns: specs by released name. They are not read yet, so a checkpoint may lack them.
    Source: SPEC 9, 8.2-8.4.
    """
    if config.vision is None:
        return {}
    v, dim = config.vision, config.hidden_size
    size, inner = v["hidden_size"], v["intermediate_size"]
    specs = _biased("vision.patch_embed.proj", size, 3 * v["patch_size"] ** 2)
    for block in range(v["num_hidden_layers"]):
        prefix = f"vision.blocks.{block}"
        specs |= _bf16(f"{prefix}.norm1.weight", size)
        specs |= _bf16(f"{prefix}.norm2.weight", size)
        specs |= _biased(f"{prefix}.attn.wqkv", 3 * size, size)
        specs |= _biased(f"{prefix}.attn.wo", size, size)
        specs |= _bf16(f"{prefix}.mlp.w1.weight", 2 * inner, size)
        specs |= _bf16(f"{prefix}.mlp.w2.weight", size, inner)
    specs |= _bf16("vision.norm.weight", size)
    specs |= _biased("aligner.w1", dim, size * v["downsample_ratio"] ** 2)
    specs |= _biased("aligner.w2", dim, dim)
    for name in ("image_start", "image_end", "image_newline"):
        specs |= _bf16(name, dim)
    return specs


def unread_reason(name: str) -> str | None:
    """Why a tensor that is not expected may still be in a checkpoint; None when it may not."""
    return next((reason for pattern, reason in _UNREAD if pattern.fullmatch(name)), None)


# ---------------------------------------------------------------------- parts of the model


def _layer(c: ModelConfig, prefix: str, experts: int) -> Specs:
    """What every layer has, backbone or draft: attention, mixers of the streams, norms, experts."""
    dim, heads = c.hidden_size, c.num_attention_heads
    attn, group = f"{prefix}.attn", heads // c.o_groups * c.head_dim
    mixes = (2 + c.hc_mult) * c.hc_mult
    specs = _fp8(f"{attn}.wq_a", c.q_lora_rank, dim)
    specs |= _bf16(f"{attn}.q_norm.weight", c.q_lora_rank)
    specs |= _fp8(f"{attn}.wq_b", heads * c.head_dim, c.q_lora_rank)
    specs |= _fp8(f"{attn}.wkv", c.head_dim, dim)
    specs |= _bf16(f"{attn}.kv_norm.weight", c.head_dim)
    specs |= _fp8(f"{attn}.wo_a", c.o_groups * c.o_lora_rank, group)
    specs |= _fp8(f"{attn}.wo_b", dim, c.o_groups * c.o_lora_rank)
    specs |= _f32(f"{attn}.attn_sink", heads)
    for site in ("attn", "ffn"):
        specs |= _bf16(f"{prefix}.{site}_norm.weight", dim)
        specs |= _f32(f"{prefix}.hc_{site}_fn", mixes, c.hc_mult * dim)
        specs |= _f32(f"{prefix}.hc_{site}_base", mixes)
        specs |= _f32(f"{prefix}.hc_{site}_scale", 3)
    return specs | _experts(c, f"{prefix}.ffn", experts)


def _experts(c: ModelConfig, prefix: str, experts: int) -> Specs:
    dim, inner = c.hidden_size, c.moe_intermediate_size
    specs = _bf16(f"{prefix}.gate.weight", experts, dim)
    specs |= _f32(f"{prefix}.gate.bias", experts)
    if c.vision is not None:
        specs |= _f32(f"{prefix}.gate.bias_vl", experts)
    for expert in range(experts):
        specs |= _fp4(f"{prefix}.experts.{expert}.w1", inner, dim)
        specs |= _fp4(f"{prefix}.experts.{expert}.w3", inner, dim)
        specs |= _fp4(f"{prefix}.experts.{expert}.w2", dim, inner)
    specs |= _fp8(f"{prefix}.shared_experts.w1", inner, dim)
    specs |= _fp8(f"{prefix}.shared_experts.w3", inner, dim)
    specs |= _fp8(f"{prefix}.shared_experts.w2", dim, inner)
    return specs


def _sources(c: ModelConfig, layer: int, prefix: str) -> Specs:
    """Compressor and index keys of kv sources, index queries of index sources."""
    specs: Specs = {}
    if layer in c.kv_source_layer_ids:
        specs |= _bf16(f"{prefix}.compressor.wkv.weight", c.head_dim, c.hidden_size)
        # A group of one token needs no weights to pool it.
        if c.ratio(layer) > 1:
            specs |= _bf16(f"{prefix}.compressor.wgate.weight", c.head_dim, c.hidden_size)
        specs |= _bf16(f"{prefix}.compressor.norm.weight", c.head_dim)
        specs |= _bf16(f"{prefix}.indexer.wk.weight", c.index_head_dim, c.head_dim)
        specs |= _bf16(f"{prefix}.indexer.k_norm.weight", c.index_head_dim)
    if layer in c.index_source_layer_ids:
        specs |= _fp8(f"{prefix}.indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank)
        specs |= _bf16(f"{prefix}.indexer.weights_proj.weight", c.index_n_heads, c.hidden_size)
    return specs


def _engram(c: ModelConfig, layer: int, prefix: str) -> Specs:
    rows, size = c.engram_num_embeddings[c.engram_layer_ids.index(layer)], c.engram_head_dim
    specs = {
        f"{prefix}.embed.weight": TensorSpec((rows, size), "F8_E4M3"),
        # One scale a row and group, not a 32 x 32 tile: rows are looked up one by one.
        f"{prefix}.embed.scale": TensorSpec((rows, size // GROUP), "F8_E8M0"),
    }
    specs |= _fp8(f"{prefix}.wkv", (c.hc_mult + 1) * c.hidden_size, c.engram_columns * size)
    specs |= _bf16(f"{prefix}.q_weight", c.hc_mult, c.hidden_size)
    specs |= _bf16(f"{prefix}.k_weight", c.hc_mult, c.hidden_size)
    return specs


def _drafts(c: ModelConfig) -> Specs:
    dim, rank = c.hidden_size, c.dspark_markov_rank
    specs: Specs = {}
    for draft in range(c.num_nextn_predict_layers):
        specs |= _layer(c, f"mtp.{draft}", c.dspark_n_routed_experts)
    specs |= _fp8("mtp.0.main_proj", dim, len(c.dspark_target_layer_ids) * dim)
    specs |= _bf16("mtp.0.main_norm.weight", dim)
    last = f"mtp.{c.num_nextn_predict_layers - 1}"
    specs |= _bf16(f"{last}.norm.weight", dim)
    specs |= _bf16(f"{last}.markov_head.embed.weight", c.vocab_size, rank)
    specs |= _bf16(f"{last}.markov_head.head.weight", c.vocab_size, rank)
    specs |= _bf16(f"{last}.confidence_head.proj.weight", 1, dim + rank)
    return specs


# ---------------------------------------------------------------------- one module


def _bf16(name: str, *shape: int) -> Specs:
    return {name: TensorSpec(shape, "BF16")}


def _f32(name: str, *shape: int) -> Specs:
    return {name: TensorSpec(shape, "F32")}


def _biased(name: str, out: int, inputs: int) -> Specs:
    return _bf16(f"{name}.weight", out, inputs) | _bf16(f"{name}.bias", out)


def _fp8(name: str, out: int, inputs: int) -> Specs:
    """A linear in FP8 with one scale for each 32 x 32 tile."""
    return {
        f"{name}.weight": TensorSpec((out, inputs), "F8_E4M3"),
        f"{name}.scale": TensorSpec((-(-out // GROUP), -(-inputs // GROUP)), "F8_E8M0"),
    }


def _fp4(name: str, out: int, inputs: int) -> Specs:
    """A linear in FP4, two codes a byte, with one scale for each row and 32 inputs."""
    return {
        f"{name}.weight": TensorSpec((out, inputs // 2), "I8"),
        f"{name}.scale": TensorSpec((out, inputs // GROUP), "F8_E8M0"),
    }
