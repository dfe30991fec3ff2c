"""The model's configuration: the released nested `config.json`, read strictly.

A key that is not known, a value outside the architecture and lists that contradict each other are refused by name. Nothing
here depends on layer numbers of the released model: which layers compress, at which ratio, which own keys and which pick
positions comes from the lists alone. A ratio r >= 1 pools r consecutive tokens into one compressed entry; ratio 0 is a
layer with a sliding window only.
"""

import dataclasses
import difflib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsv41c.errors import ConfigError
from dsv41c.models.engram_tables import engram_primes

# Channels that share one scale in FP8 activations and in both weight formats (SPEC 2.3, 2.5).
GROUP = 32

_TOP_CONSTANTS: dict[str, Any] = {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41"}
_TOP_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id")
_TOP_SECTIONS = ("quantization_config", "text_config", "vision_config")
_DTYPE_KEYS = ("dtype", "torch_dtype")
_DTYPE = "bfloat16"

_QUANTIZATION: dict[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [GROUP, GROUP],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}

_TEXT_CONSTANTS: dict[str, Any] = {
    "model_type": "deepseek_v41_text",
    "num_key_value_heads": 1,
    "hidden_act": "silu",
    "attention_bias": False,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
}
# Keys that some writers leave out; only this value is supported.
_TEXT_DEFAULTS: dict[str, Any] = {"tie_word_embeddings": False, "gate_temp": 1.0}

_TEXT_INTEGERS = (
    "vocab_size",
    "hidden_size",
    "moe_intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "head_dim",
    "qk_rope_head_dim",
    "q_lora_rank",
    "o_lora_rank",
    "o_groups",
    "max_position_embeddings",
    "n_routed_experts",
    "num_experts_per_tok",
    "sliding_window",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "candidate_source_layer_id",
    "candidate_topk_blocks",
    "candidate_block_size",
    "hc_mult",
    "hc_sinkhorn_iters",
    "engram_max_ngram_size",
    "engram_vocab_size",
    "engram_n_heads",
    "engram_head_dim",
    "engram_pad_token_id",
    "engram_compressed_vocab_size",
    "num_nextn_predict_layers",
    "dspark_block_size",
    "dspark_noise_token_id",
    "dspark_markov_rank",
    "dspark_n_routed_experts",
    "dspark_num_experts_per_tok",
)
_TEXT_NUMBERS = (
    "swiglu_limit",
    "rms_norm_eps",
    "rope_theta",
    "compress_rope_theta",
    "routed_scaling_factor",
    "hc_eps",
)
_TEXT_LISTS = (
    "compress_ratios",
    "kv_source_layer_ids",
    "index_source_layer_ids",
    "engram_layer_ids",
    "engram_num_embeddings",
    "dspark_target_layer_ids",
)
_TEXT_KEYS = (*_TEXT_CONSTANTS, *_TEXT_INTEGERS, *_TEXT_NUMBERS, *_TEXT_LISTS, "rope_scaling", *_TEXT_DEFAULTS)

_ROPE_DEFAULTS: dict[str, float] = {"beta_fast": 32.0, "beta_slow": 1.0}
_ROPE_KEYS = ("rope_type", "factor", *_ROPE_DEFAULTS, "original_max_position_embeddings")

_VISION_CONSTANTS: dict[str, Any] = {"model_type": "deepseek_v41_vision"}
_VISION_INTEGERS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "patch_size",
    "downsample_ratio",
    "min_pixels",
)
_VISION_DEFAULTS: dict[str, Any] = {"max_image_tokens": 1024, "max_wh_ratio": None}
_VISION_KEYS = (*_VISION_CONSTANTS, *_VISION_INTEGERS, "rope_theta", *_VISION_DEFAULTS)

# Positive is the rule for integers; these count from zero.
_FROM_ZERO = frozenset(
    {*_TOP_TOKENS, "engram_pad_token_id", "dspark_noise_token_id", "candidate_source_layer_id"},
)

# What other writers call the same thing (SPEC 1, name map); only used to say what to write instead.
_OTHER_NAMES = {
    "dim": "hidden_size",
    "moe_inter_dim": "moe_intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_mtp_layers": "num_nextn_predict_layers",
    "n_heads": "num_attention_heads",
    "n_activated_experts": "num_experts_per_tok",
    "score_func": "scoring_func",
    "route_scale": "routed_scaling_factor",
    "rope_head_dim": "qk_rope_head_dim",
    "norm_eps": "rms_norm_eps",
    "window_size": "sliding_window",
    "kv_source_layers": "kv_source_layer_ids",
    "index_source_layers": "index_source_layer_ids",
    "original_seq_len": "rope_scaling.original_max_position_embeddings",
    "rope_factor": "rope_scaling.factor",
    "candidate_source_layer": "candidate_source_layer_id",
    "engram_pad_id": "engram_pad_token_id",
    "dspark_n_activated_experts": "dspark_num_experts_per_tok",
}


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """YaRN parameters of the compressed layers (SPEC 2.6)."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """One model of the architecture, checked when built; field names are the released keys.

    Sizes are counts of channels, rows or layers; `compress_ratios` has one entry for each backbone layer and then one for
    each draft layer. Layers are numbered from 0, draft layers follow the backbone. Source: SPEC 1.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    swiglu_limit: float
    rms_norm_eps: float
    sliding_window: int
    max_position_embeddings: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: RopeScaling
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    image_token_id: int
    vision: Mapping[str, Any] | None = dataclasses.field(default=None, hash=False)

    def __post_init__(self) -> None:
        _check_dimensions(self)
        _check_tokens(self)
        _check_layers(self)
        _check_engram(self)
        _check_drafts(self)

    # ------------------------------------------------------------------ reading and writing

    @classmethod
    def from_json(cls, path: str | Path) -> "ModelConfig":
        """Reads a `config.json`.

        Args:
            path: the file, or the folder that holds it under this name.
        Errors: ConfigError when it cannot be read, is not JSON, repeats a key, or is refused by `from_dict`.
        """
        path = Path(path)
        file = path / "config.json" if path.is_dir() else path
        try:
            document = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_refuse_repeated_keys)
        except OSError as error:
            raise ConfigError(f"cannot read the config {file}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{file} is not a JSON document: {error}") from error
        return cls.from_dict(document)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "ModelConfig":
        """Builds the config from the released nested keys.

        Args:
            document: the parsed `config.json`.
        Errors: ConfigError that names the key: unknown, missing, mistyped, outside the architecture, or in contradiction
            with another key.
        """
        top = _Section("", document)
        top.known((*_TOP_CONSTANTS, *_DTYPE_KEYS, *_TOP_TOKENS, *_TOP_SECTIONS))
        _check_dtype(top)
        for key, value in _TOP_CONSTANTS.items():
            top.constant(key, value)
        quantization = top.section("quantization_config")
        quantization.known(_QUANTIZATION)
        for key, value in _QUANTIZATION.items():
            quantization.constant(key, value)
        values = _read_text(top.section("text_config"))
        values.update({key: top.integer(key) for key in _TOP_TOKENS})
        if document.get("vision_config") is not None:
            values["vision"] = _read_vision(top.section("vision_config"))
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """The released nested keys, ready for `json.dumps`; `from_dict` of it gives an equal config."""
        text: dict[str, Any] = dict(_TEXT_CONSTANTS)
        text.update({key: getattr(self, key) for key in (*_TEXT_INTEGERS, *_TEXT_NUMBERS)})
        text.update({key: list(getattr(self, key)) for key in _TEXT_LISTS})
        text["rope_scaling"] = {"rope_type": "yarn", **dataclasses.asdict(self.rope_scaling)}
        document = {
            **_TOP_CONSTANTS,
            "dtype": _DTYPE,
            **{key: getattr(self, key) for key in _TOP_TOKENS},
            "quantization_config": dict(_QUANTIZATION),
            "text_config": text,
        }
        if self.vision is not None:
            document["vision_config"] = dict(self.vision)
        return document

    # ------------------------------------------------------------------ what a layer is

    @property
    def total_layers(self) -> int:
        """Backbone layers plus draft layers."""
        return self.num_hidden_layers + self.num_nextn_predict_layers

    @property
    def engram_columns(self) -> int:
        """Table rows one Engram layer looks up for a token: (n-gram sizes) x heads."""
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads

    def ratio(self, layer: int) -> int:
        """Tokens pooled into one compressed entry; 0 for a layer with a sliding window only."""
        return self.compress_ratios[layer]

    def layer_mode(self, layer: int) -> str:
        """The attention kind of a layer, as the report names it (SPEC 0).

        Returns: "swa" (window only), "full" (own compressor, index keys and top-k), "reindex" (own top-k over its source's
            keys) or "reuse" (the top-k and keys of its sources).
        """
        if self.compress_ratios[layer] == 0:
            return "swa"
        if layer in self.kv_source_layer_ids:
            return "full"
        return "reindex" if layer in self.index_source_layer_ids else "reuse"

    def kv_source(self, layer: int) -> int | None:
        """The layer whose main KV and index keys this layer reads (itself for a full layer), None for a window layer."""
        if self.compress_ratios[layer] == 0:
            return None
        return max((source for source in self.kv_source_layer_ids if source <= layer), default=None)

    def index_source(self, layer: int) -> int | None:
        """The layer whose top-k list this layer reads (itself for full and reindex), None for a window layer."""
        if self.compress_ratios[layer] == 0:
            return None
        return max((source for source in self.index_source_layer_ids if source <= layer), default=None)

    def uses_candidates(self, layer: int) -> bool:
        """Whether this layer's own top-k is restricted to the candidate pool: index sources above its source (SPEC 4.9)."""
        return layer in self.index_source_layer_ids and layer > self.candidate_source_layer_id

    def is_candidate_source(self, layer: int) -> bool:
        """Whether this layer publishes the candidate pool, and whether anyone reads it decides no one else."""
        return layer == self.candidate_source_layer_id

    def is_engram(self, layer: int) -> bool:
        """Whether an Engram module adds to the stream before this layer's attention."""
        return layer in self.engram_layer_ids

    def is_target(self, layer: int) -> bool:
        """Whether the stream entering this layer is part of `main_hidden`, the drafts' input (SPEC 10.1)."""
        return layer in self.dspark_target_layer_ids


# ---------------------------------------------------------------------- one section of the document


class _Section:
    """A JSON object at a path of the config, with readers that name the key in every refusal."""

    def __init__(self, path: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise ConfigError(f"config {path or 'document'} must be a JSON object, found {type(value).__name__}")
        self.path = path
        self.value = value

    def name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def known(self, keys: Iterable[str]) -> None:
        keys = tuple(keys)
        unknown = [key for key in self.value if key not in keys]
        if unknown:
            raise ConfigError("; ".join(f"unknown config key '{self.name(k)}'{_hint(k, keys)}" for k in unknown))

    def get(self, key: str) -> Any:
        if key not in self.value:
            raise ConfigError(f"config key '{self.name(key)}' is missing")
        return self.value[key]

    def section(self, key: str) -> "_Section":
        return _Section(self.name(key), self.get(key))

    def constant(self, key: str, supported: Any) -> None:
        found = self.get(key)
        # JSON true equals 1 in Python, so the types are compared as well.
        if found != supported or isinstance(found, bool) != isinstance(supported, bool):
            raise ConfigError(f"config key '{self.name(key)}' is {found!r}; this architecture supports only {supported!r}")

    def integer(self, key: str) -> int:
        found = self.get(key)
        least = 0 if key in _FROM_ZERO else 1
        if not _is_integer(found) or found < least:
            raise ConfigError(f"config key '{self.name(key)}' must be an integer of at least {least}, found {found!r}")
        return int(found)

    def number(self, key: str) -> float:
        found = self.get(key)
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found) or found <= 0:
            raise ConfigError(f"config key '{self.name(key)}' must be a finite number above 0, found {found!r}")
        return float(found)

    def integers(self, key: str) -> tuple[int, ...]:
        found = self.get(key)
        if not isinstance(found, Sequence) or isinstance(found, str) or not all(_is_integer(x) and x >= 0 for x in found):
            raise ConfigError(f"config key '{self.name(key)}' must be a list of integers of at least 0, found {found!r}")
        return tuple(found)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _hint(key: str, keys: Sequence[str]) -> str:
    """What the writer of an unknown key probably meant."""
    if key in _OTHER_NAMES:
        return f"; the released config calls it '{_OTHER_NAMES[key]}'"
    for section, section_keys in (("text_config", _TEXT_KEYS), ("quantization_config", tuple(_QUANTIZATION))):
        if key in section_keys:
            return f"; it belongs in '{section}'"
    close = difflib.get_close_matches(key, keys, n=1)
    return f"; did you mean '{close[0]}'?" if close else "; remove it, or check that this is a config of this architecture"


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        names = [key for key, _ in pairs]
        repeated = sorted({key for key in names if names.count(key) > 1})
        raise ConfigError(f"config key {', '.join(map(repr, repeated))} is given twice in one object; keep one of them")
    return document


def _check_dtype(top: _Section) -> None:
    given = [key for key in _DTYPE_KEYS if key in top.value]
    if not given:
        raise ConfigError("config key 'dtype' is missing (the older name 'torch_dtype' is accepted too)")
    for key in given:
        top.constant(key, _DTYPE)


def _read_text(text: _Section) -> dict[str, Any]:
    text.known(_TEXT_KEYS)
    for key, value in _TEXT_CONSTANTS.items():
        text.constant(key, value)
    for key, value in _TEXT_DEFAULTS.items():
        if key in text.value:
            text.constant(key, value)
    values: dict[str, Any] = {key: text.integer(key) for key in _TEXT_INTEGERS}
    values.update({key: text.number(key) for key in _TEXT_NUMBERS})
    values.update({key: text.integers(key) for key in _TEXT_LISTS})
    values["rope_scaling"] = _read_rope_scaling(text.section("rope_scaling"))
    return values


def _read_rope_scaling(rope: _Section) -> RopeScaling:
    rope.known(_ROPE_KEYS)
    rope.constant("rope_type", "yarn")
    betas = {key: rope.number(key) if key in rope.value else value for key, value in _ROPE_DEFAULTS.items()}
    original = rope.integer("original_max_position_embeddings")
    return RopeScaling(factor=rope.number("factor"), original_max_position_embeddings=original, **betas)


def _read_vision(vision: _Section) -> dict[str, Any]:
    vision.known(_VISION_KEYS)
    for key, value in _VISION_CONSTANTS.items():
        vision.constant(key, value)
    values: dict[str, Any] = {**_VISION_CONSTANTS, **_VISION_DEFAULTS}
    values.update({key: vision.integer(key) for key in _VISION_INTEGERS})
    values["rope_theta"] = vision.number("rope_theta")
    if "max_image_tokens" in vision.value:
        values["max_image_tokens"] = vision.integer("max_image_tokens")
    if vision.value.get("max_wh_ratio") is not None:
        values["max_wh_ratio"] = vision.number("max_wh_ratio")
    _require(
        values["hidden_size"] % values["num_attention_heads"] == 0,
        "vision_config: 'num_attention_heads' must divide 'hidden_size', "
        f"found {values['num_attention_heads']} and {values['hidden_size']}",
    )
    return values


# ---------------------------------------------------------------------- what must hold between keys


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)


def _check_dimensions(c: ModelConfig) -> None:
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
    _require(c.qk_rope_head_dim % 2 == 0, f"'qk_rope_head_dim' rotates pairs and must be even, found {c.qk_rope_head_dim}")
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


def _check_tokens(c: ModelConfig) -> None:
    for key in (*_TOP_TOKENS, "engram_pad_token_id", "dspark_noise_token_id"):
        token = getattr(c, key)
        _require(0 <= token < c.vocab_size, f"'{key}' is {token}, outside 'vocab_size' {c.vocab_size}")
    _require(
        c.engram_compressed_vocab_size <= c.vocab_size,
        f"'engram_compressed_vocab_size' ({c.engram_compressed_vocab_size}) must not exceed 'vocab_size' ({c.vocab_size})",
    )


def _check_layer_ids(c: ModelConfig, key: str) -> None:
    ids = getattr(c, key)
    _require(list(ids) == sorted(set(ids)), f"'{key}' must list layers in ascending order, each once, found {list(ids)}")
    outside = [layer for layer in ids if layer >= c.num_hidden_layers]
    _require(
        not outside, f"'{key}' names layers {outside}, but 'num_hidden_layers' is {c.num_hidden_layers} (counted from 0)"
    )


def _check_layers(c: ModelConfig) -> None:
    _require(
        len(c.compress_ratios) == c.total_layers,
        f"'compress_ratios' has {len(c.compress_ratios)} entries, but 'num_hidden_layers' + 'num_nextn_predict_layers' is "
        f"{c.num_hidden_layers} + {c.num_nextn_predict_layers}",
    )
    drafts = c.compress_ratios[c.num_hidden_layers :]
    _require(
        not any(drafts),
        f"the last 'num_nextn_predict_layers' ({c.num_nextn_predict_layers}) entries of 'compress_ratios' are the draft "
        f"layers and must be 0 (sliding window only), found {list(drafts)}",
    )
    for key in ("kv_source_layer_ids", "index_source_layer_ids"):
        _check_layer_ids(c, key)
        window = [layer for layer in getattr(c, key) if c.compress_ratios[layer] == 0]
        _require(not window, f"'{key}' names layers {window}, which 'compress_ratios' makes window layers (ratio 0)")
    extra = sorted(set(c.kv_source_layer_ids) - set(c.index_source_layer_ids))
    _require(
        not extra,
        f"every kv source picks its own positions: 'kv_source_layer_ids' has {extra}, missing in 'index_source_layer_ids'",
    )
    for layer in range(c.num_hidden_layers):
        _check_source(c, layer)
    _check_candidates(c)


def _check_source(c: ModelConfig, layer: int) -> None:
    ratio = c.compress_ratios[layer]
    if ratio == 0:
        return
    source = c.kv_source(layer)
    if source is None:
        raise ConfigError(
            f"'compress_ratios' compresses layer {layer}, but 'kv_source_layer_ids' ({list(c.kv_source_layer_ids)}) has no "
            "source at or before it"
        )
    _require(
        c.compress_ratios[source] == ratio,
        f"'compress_ratios' gives layer {layer} the ratio {ratio}, but its source by 'kv_source_layer_ids', layer {source}, "
        f"has {c.compress_ratios[source]}",
    )


def _check_candidates(c: ModelConfig) -> None:
    source = c.candidate_source_layer_id
    _require(
        source in c.index_source_layer_ids,
        f"'candidate_source_layer_id' is {source}, which is not in 'index_source_layer_ids' {list(c.index_source_layer_ids)}",
    )
    # Candidate blocks are numbers of entries; they mean the same tokens only at the same ratio.
    ratio = c.compress_ratios[source]
    other = [layer for layer in c.index_source_layer_ids if layer > source and c.compress_ratios[layer] != ratio]
    _require(
        not other,
        f"'index_source_layer_ids' after 'candidate_source_layer_id' ({source}) choose among its candidates and need its "
        f"ratio {ratio} in 'compress_ratios'; layers {other} have another",
    )


def _check_engram(c: ModelConfig) -> None:
    _check_layer_ids(c, "engram_layer_ids")
    _require(c.engram_max_ngram_size >= 2, f"'engram_max_ngram_size' must be at least 2, found {c.engram_max_ngram_size}")
    _require(
        len(c.engram_num_embeddings) == len(c.engram_layer_ids),
        f"'engram_num_embeddings' has {len(c.engram_num_embeddings)} entries and 'engram_layer_ids' "
        f"{len(c.engram_layer_ids)}; each Engram layer has one table",
    )
    # Row numbers are carried as int32 by kernels; it also bounds the search for primes.
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
            f"'engram_num_embeddings' gives layer {layer} {rows} rows, but the primes that follow from 'engram_vocab_size' "
            f"({c.engram_vocab_size}), 'engram_n_heads' ({c.engram_n_heads}) and 'engram_max_ngram_size' "
            f"({c.engram_max_ngram_size}) sum to {total}",
        )


def _check_drafts(c: ModelConfig) -> None:
    _check_layer_ids(c, "dspark_target_layer_ids")
    _require(bool(c.dspark_target_layer_ids), "'dspark_target_layer_ids' must name at least one layer, found none")
