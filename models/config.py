"""The model's configuration: the released nested `config.json`, read strictly.

A key that is not known, a value outside the architecture and lists that contradict each other are refused by name.
Nothing here depends on layer numbers of the released model: which layers compress, at which ratio, which own keys and
which pick positions comes from the lists alone. A ratio r >= 1 pools r consecutive tokens into one compressed entry;
ratio 0 is a layer with a sliding window only.
"""

import dataclasses
import difflib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsv41c.errors import ConfigError
from dsv41c.models.config_checks import GROUP, check_consistency

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
_FROM_ZERO = frozenset({*_TOP_TOKENS, "engram_pad_token_id", "dspark_noise_token_id", "candidate_source_layer_id"})

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

    Sizes are counts of channels, rows or layers; `compress_ratios` has one entry for each backbone layer and then one
    for each draft layer. Layers are numbered from 0, draft layers follow the backbone. Source: SPEC 1.
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
        check_consistency(self)

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
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{file} is not a JSON document: {error}") from error
        return cls.from_dict(document)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "ModelConfig":
        """Builds the config from the released nested keys.

        Args:
            document: the parsed `config.json`.
        Errors: ConfigError that names the key: unknown, missing, mistyped, outside the architecture, or in
            contradiction with another key.
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

        Returns: "swa" (window only), "full" (own compressor, index keys and top-k), "reindex" (own top-k over its
            source's keys) or "reuse" (the top-k and keys of its sources).
        """
        if self.compress_ratios[layer] == 0:
            return "swa"
        if layer in self.kv_source_layer_ids:
            return "full"
        return "reindex" if layer in self.index_source_layer_ids else "reuse"

    def kv_source(self, layer: int) -> int | None:
        """The layer whose main KV and index K this layer reads: itself for a full layer, None for a window layer."""
        if self.compress_ratios[layer] == 0:
            return None
        return max((source for source in self.kv_source_layer_ids if source <= layer), default=None)

    def index_source(self, layer: int) -> int | None:
        """The layer whose top-k list this layer reads (itself for full and reindex), None for a window layer."""
        if self.compress_ratios[layer] == 0:
            return None
        return max((source for source in self.index_source_layer_ids if source <= layer), default=None)

    def uses_candidates(self, layer: int) -> bool:
        """Whether this layer's own top-k is restricted to the candidate pool (SPEC 4.9)."""
        return layer in self.index_source_layer_ids and layer > self.candidate_source_layer_id

    def is_candidate_source(self, layer: int) -> bool:
        """Whether this layer publishes the candidate pool (SPEC 4.9)."""
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
            raise ConfigError(f"config key '{self.name(key)}' is {found!r}; this architecture has only {supported!r}")

    def integer(self, key: str) -> int:
        found = self.get(key)
        least = 0 if key in _FROM_ZERO else 1
        if not _is_integer(found) or found < least:
            raise ConfigError(f"config key '{self.name(key)}' must be an integer of at least {least}, found {found!r}")
        return int(found)

    def number(self, key: str) -> float:
        found = self.get(key)
        # The upper bound also refuses infinity and integers too large for a float.
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found <= sys.float_info.max:
            raise ConfigError(f"config key '{self.name(key)}' must be a finite number above 0, found {found!r}")
        return float(found)

    def integers(self, key: str) -> tuple[int, ...]:
        found = self.get(key)
        if not isinstance(found, list | tuple) or not all(_is_integer(x) and x >= 0 for x in found):
            raise ConfigError(f"config key '{self.name(key)}' must be a list of integers from 0 up, found {found!r}")
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
    return f"; did you mean '{close[0]}'?" if close else "; this architecture has no such key, remove it"


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
    heads, size = values["num_attention_heads"], values["hidden_size"]
    if size % heads:
        raise ConfigError(f"vision_config: 'num_attention_heads' must divide 'hidden_size', found {heads} and {size}")
    return values
