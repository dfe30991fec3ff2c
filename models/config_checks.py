"""What must hold between the keys of a config: sizes that divide, token ids in range, layer lists that agree.

Each check raises ConfigError naming the keys that contradict each other and the values found.
"""

from typing import TYPE_CHECKING

from dsv41c.errors import ConfigError
from dsv41c.models.primes import engram_primes

if TYPE_CHECKING:
    from dsv41c.models.config import ModelConfig

# Channels that share one scale in FP8 activations and in both weight formats (SPEC 2.3, 2.5).
GROUP = 32

_TOKENS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "image_token_id",
    "engram_pad_token_id",
    "dspark_noise_token_id",
)


def check_consistency(config: "ModelConfig") -> None:
    """Refuses a config whose keys contradict each other or leave the architecture.

    Args:
        config: all fields set, each of the right type.
    Errors: ConfigError that names every key involved and what was found.
    """
    _check_dimensions(config)
    _check_tokens(config)
    _check_layers(config)
    _check_engram(config)
    _check_drafts(config)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)


def _check_dimensions(c: "ModelConfig") -> None:
    grouped = ("hidden_size", "moe_intermediate_size", "q_lora_rank", "head_dim", "index_head_dim", "engram_head_dim")
    for key in grouped:
        size = getattr(c, key)
        _require(size % GROUP == 0, f"config key '{key}' must be a multiple of {GROUP} (one scale group), found {size}")
    _require(
        c.o_groups * c.o_lora_rank % GROUP == 0,
        f"'o_groups' x 'o_lora_rank' must be a multiple of {GROUP}, found {c.o_groups} x {c.o_lora_rank}",
    )
    _require(
        c.num_attention_heads % c.o_groups == 0,
        f"'o_groups' must divide 'num_attention_heads', found {c.o_groups} and {c.num_attention_heads}",
    )
    _require(
        c.qk_rope_head_dim % 2 == 0, f"'qk_rope_head_dim' rotates pairs and must be even, not {c.qk_rope_head_dim}"
    )
    for key in ("head_dim", "index_head_dim"):
        _require(
            c.qk_rope_head_dim <= getattr(c, key),
            f"'qk_rope_head_dim' must not exceed '{key}', found {c.qk_rope_head_dim} and {getattr(c, key)}",
        )
    for chosen, total in (
        ("num_experts_per_tok", "n_routed_experts"),
        ("dspark_num_experts_per_tok", "dspark_n_routed_experts"),
    ):
        _require(
            getattr(c, chosen) <= getattr(c, total),
            f"'{chosen}' must not exceed '{total}', found {getattr(c, chosen)} and {getattr(c, total)}",
        )
    # A smaller pool could leave fewer visible candidates than top-k wants while others are masked: a tie at -inf.
    pool, least = c.candidate_topk_blocks * c.candidate_block_size, c.index_topk + c.candidate_block_size
    _require(
        pool >= least,
        f"the candidate pool ('candidate_topk_blocks' x 'candidate_block_size' = {pool}) must hold at least "
        f"'index_topk' + 'candidate_block_size' = {least} entries",
    )


def _check_tokens(c: "ModelConfig") -> None:
    for key in _TOKENS:
        token = getattr(c, key)
        _require(0 <= token < c.vocab_size, f"'{key}' is {token}, outside 'vocab_size' {c.vocab_size}")
    _require(
        c.engram_compressed_vocab_size <= c.vocab_size,
        f"'engram_compressed_vocab_size' must not exceed 'vocab_size', found {c.engram_compressed_vocab_size} and "
        f"{c.vocab_size}",
    )


def _check_layer_ids(c: "ModelConfig", key: str) -> None:
    ids = getattr(c, key)
    _require(list(ids) == sorted(set(ids)), f"'{key}' must list layers ascending, each once, found {list(ids)}")
    outside = [layer for layer in ids if layer >= c.num_hidden_layers]
    _require(
        not outside,
        f"'{key}' names layers {outside}, but 'num_hidden_layers' is {c.num_hidden_layers} (counted from 0)",
    )


def _check_layers(c: "ModelConfig") -> None:
    _require(
        len(c.compress_ratios) == c.total_layers,
        f"'compress_ratios' has {len(c.compress_ratios)} entries, but 'num_hidden_layers' + 'num_nextn_predict_layers' "
        f"is {c.num_hidden_layers} + {c.num_nextn_predict_layers}",
    )
    drafts = c.compress_ratios[c.num_hidden_layers :]
    _require(
        not any(drafts),
        f"the last 'num_nextn_predict_layers' ({c.num_nextn_predict_layers}) entries of 'compress_ratios' are the "
        f"draft layers and must be 0 (sliding window only), found {list(drafts)}",
    )
    for key in ("kv_source_layer_ids", "index_source_layer_ids"):
        _check_layer_ids(c, key)
        window = [layer for layer in getattr(c, key) if c.compress_ratios[layer] == 0]
        _require(not window, f"'{key}' names layers {window}, which 'compress_ratios' makes window layers (ratio 0)")
    extra = sorted(set(c.kv_source_layer_ids) - set(c.index_source_layer_ids))
    _require(
        not extra,
        f"every kv source picks its own positions: 'kv_source_layer_ids' has {extra}, which 'index_source_layer_ids' "
        "lacks",
    )
    for layer in range(c.num_hidden_layers):
        _check_source(c, layer)
    _check_candidates(c)


def _check_source(c: "ModelConfig", layer: int) -> None:
    ratio = c.compress_ratios[layer]
    if ratio == 0:
        return
    source = c.kv_source(layer)
    if source is None:
        raise ConfigError(
            f"'compress_ratios' compresses layer {layer}, but 'kv_source_layer_ids' {list(c.kv_source_layer_ids)} has "
            "no source at or before it"
        )
    _require(
        c.compress_ratios[source] == ratio,
        f"'compress_ratios' gives layer {layer} the ratio {ratio}, but its source by 'kv_source_layer_ids', layer "
        f"{source}, has {c.compress_ratios[source]}",
    )


def _check_candidates(c: "ModelConfig") -> None:
    source = c.candidate_source_layer_id
    _require(
        source in c.index_source_layer_ids,
        f"'candidate_source_layer_id' is {source}, which is not in 'index_source_layer_ids' "
        f"{list(c.index_source_layer_ids)}",
    )
    # Candidate blocks are numbers of entries; they mean the same tokens only at the same ratio.
    ratio = c.compress_ratios[source]
    other = [layer for layer in c.index_source_layer_ids if layer > source and c.compress_ratios[layer] != ratio]
    _require(
        not other,
        f"'index_source_layer_ids' after 'candidate_source_layer_id' ({source}) choose among its candidates and need "
        f"its ratio {ratio} in 'compress_ratios'; layers {other} have another",
    )


def _check_engram(c: "ModelConfig") -> None:
    _check_layer_ids(c, "engram_layer_ids")
    _require(c.engram_max_ngram_size >= 2, f"'engram_max_ngram_size' must be at least 2, not {c.engram_max_ngram_size}")
    _require(
        len(c.engram_num_embeddings) == len(c.engram_layer_ids),
        f"'engram_num_embeddings' has {len(c.engram_num_embeddings)} entries and 'engram_layer_ids' "
        f"{len(c.engram_layer_ids)}; each Engram layer has one table",
    )
    # Both bound the search for primes; row numbers are also carried as int32 by kernels.
    _require(
        c.engram_columns <= 1024,
        f"'engram_n_heads' x n-gram sizes up to 'engram_max_ngram_size' must be at most 1024, found {c.engram_columns}",
    )
    _require(
        c.engram_vocab_size * c.engram_columns < 2**31,
        f"'engram_vocab_size' x (n-gram sizes x 'engram_n_heads') must stay below 2^31, "
        f"found {c.engram_vocab_size} x {c.engram_columns}",
    )
    primes = engram_primes(len(c.engram_layer_ids), c.engram_max_ngram_size, c.engram_n_heads, c.engram_vocab_size)
    for layer, table, rows in zip(c.engram_layer_ids, primes, c.engram_num_embeddings, strict=True):
        total = sum(map(sum, table))
        _require(
            total == rows,
            f"'engram_num_embeddings' gives layer {layer} {rows} rows, but the primes that follow from "
            f"'engram_vocab_size' ({c.engram_vocab_size}), 'engram_n_heads' ({c.engram_n_heads}) and "
            f"'engram_max_ngram_size' ({c.engram_max_ngram_size}) sum to {total}",
        )


def _check_drafts(c: "ModelConfig") -> None:
    _check_layer_ids(c, "dspark_target_layer_ids")
    _require(bool(c.dspark_target_layer_ids), "'dspark_target_layer_ids' must name at least one layer, found none")
