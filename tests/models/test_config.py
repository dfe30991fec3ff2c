"""The config: the three golden files read as they are, and every wrong one is refused by the names of its keys."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from dsv41c.errors import ConfigError
from dsv41c.models.config import ModelConfig
from dsv41c.models.primes import engram_primes

GOLDEN = Path(__file__).parents[1] / "golden"
MINI6 = json.loads((GOLDEN / "mini6" / "config.json").read_text())
RELEASED = json.loads((GOLDEN / "released" / "config.json").read_text())


def changed(document: dict[str, Any], **values: Any) -> dict[str, Any]:
    """A copy with text keys set; a key that is no text key is set at the top."""
    document = copy.deepcopy(document)
    for key, value in values.items():
        section = document["text_config"] if key in document["text_config"] else document
        section[key] = value
    return document


def refused(document: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dict(document)
    return str(caught.value)


# ---------------------------------------------------------------------- what is read


@pytest.mark.parametrize("name", ["mini6", "sched40", "released"])
def test_golden_configs_round_trip(name: str) -> None:
    config = ModelConfig.from_json(GOLDEN / name)
    assert ModelConfig.from_json(GOLDEN / name / "config.json") == config
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_json()))) == config


def test_released_schedule() -> None:
    config = ModelConfig.from_dict(RELEASED)
    modes = [config.layer_mode(layer) for layer in range(config.total_layers)]
    assert [layer for layer, mode in enumerate(modes) if mode == "full"] == [2, 8, 14, 20]
    assert [layer for layer, mode in enumerate(modes) if mode == "reindex"] == [24, 28, 32, 36]
    assert [layer for layer, mode in enumerate(modes) if mode == "swa"] == [0, 1, 40, 41, 42]
    assert modes.count("reuse") == 30
    assert [config.kv_source(layer) for layer in (1, 2, 7, 13, 39, 40)] == [None, 2, 2, 8, 20, None]
    assert [config.index_source(layer) for layer in (1, 2, 7, 23, 24, 39)] == [None, 2, 2, 20, 24, 36]
    assert [layer for layer in range(43) if config.uses_candidates(layer)] == [24, 28, 32, 36]
    assert config.vision is not None
    assert config.vision["hidden_size"] == 1024


def test_other_groupings_follow_from_the_lists() -> None:
    """Sources [1, 4], ratios 4 and 1, two reindex layers in a row, a source without followers."""
    config = ModelConfig.from_dict(
        changed(
            MINI6,
            num_hidden_layers=9,
            compress_ratios=[0, 4, 4, 0, 1, 1, 1, 1, 2, 0, 0],
            kv_source_layer_ids=[1, 4, 8],
            index_source_layer_ids=[1, 4, 5, 6, 8],
            candidate_source_layer_id=8,
            dspark_target_layer_ids=[3, 8],
        )
    )
    modes = [config.layer_mode(layer) for layer in range(9)]
    assert modes == ["swa", "full", "reuse", "swa", "full", "reindex", "reindex", "reuse", "full"]
    assert [config.kv_source(layer) for layer in range(9)] == [None, 1, 1, None, 4, 4, 4, 4, 8]
    assert [config.index_source(layer) for layer in range(9)] == [None, 1, 1, None, 4, 5, 6, 6, 8]
    assert not any(config.uses_candidates(layer) for layer in range(9))


def test_optional_keys_have_the_documented_defaults() -> None:
    document = copy.deepcopy(RELEASED)
    del document["text_config"]["rope_scaling"]["beta_fast"]
    del document["text_config"]["rope_scaling"]["beta_slow"]
    del document["vision_config"]["max_image_tokens"]
    del document["vision_config"]["max_wh_ratio"]
    assert ModelConfig.from_dict(document) == ModelConfig.from_dict(RELEASED)


def test_dtype_under_either_name() -> None:
    document = copy.deepcopy(MINI6)
    document["dtype"] = document.pop("torch_dtype")
    assert ModelConfig.from_dict(document) == ModelConfig.from_dict(MINI6)


def test_consistency_is_checked_for_replaced_fields_too() -> None:
    with pytest.raises(ConfigError, match="'o_groups' must divide"):
        dataclasses.replace(ModelConfig.from_dict(MINI6), o_groups=3, o_lora_rank=32)


def test_primes_are_consecutive_and_never_used_twice() -> None:
    primes = [p for layer in engram_primes(2, 4, 2, 1) for size in layer for p in size]
    assert primes == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37]


# ---------------------------------------------------------------------- what is refused


def test_unknown_key_suggests_the_near_one() -> None:
    document = changed(MINI6)
    document["text_config"]["sliding_windows"] = 16
    assert refused(document) == ("unknown config key 'text_config.sliding_windows'; did you mean 'sliding_window'?")


def test_unknown_key_of_the_reference_names_the_released_one() -> None:
    assert "'n_layers'; the released config calls it 'num_hidden_layers'" in refused(changed(MINI6, n_layers=6))


def test_unknown_key_names_the_section_it_belongs_in() -> None:
    document = {**changed(MINI6), "hidden_size": 128}
    assert "unknown config key 'hidden_size'; it belongs in 'text_config'" in refused(document)


@pytest.mark.parametrize("section", ["quantization_config", "vision_config", "rope_scaling"])
def test_unknown_key_in_every_section(section: str) -> None:
    document = copy.deepcopy(RELEASED)
    target = document["text_config"] if section == "rope_scaling" else document
    target[section]["surprise"] = 1
    assert f"{section}.surprise'" in refused(document)


@pytest.mark.parametrize("key", sorted(set(MINI6["text_config"]) - {"tie_word_embeddings"}))
def test_missing_text_key(key: str) -> None:
    document = changed(MINI6)
    del document["text_config"][key]
    assert refused(document) == f"config key 'text_config.{key}' is missing"


@pytest.mark.parametrize("key", sorted(set(MINI6) - {"torch_dtype"}))
def test_missing_top_key(key: str) -> None:
    document = changed(MINI6)
    del document[key]
    assert refused(document) == f"config key '{key}' is missing"


def test_missing_dtype() -> None:
    document = changed(MINI6)
    del document["torch_dtype"]
    assert "config key 'dtype' is missing" in refused(document)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("architectures", ["DeepseekV4ForCausalLM"]),
        ("model_type", "deepseek_v4"),
        ("num_key_value_heads", 2),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("attention_bias", 0),
        ("n_shared_experts", 2),
        ("n_shared_experts", True),
        ("scoring_func", "sigmoid"),
        ("topk_method", "greedy"),
        ("norm_topk_prob", False),
        ("tie_word_embeddings", True),
        ("torch_dtype", "float16"),
    ],
)
def test_value_outside_the_architecture(key: str, value: Any) -> None:
    document = changed(MINI6)
    section = document["text_config"] if key in document["text_config"] and key != "model_type" else document
    section[key] = value
    message = refused(document)
    assert f"{key}' is {value!r}; this architecture has only" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quant_method", "awq"),
        ("activation_scheme", "static"),
        ("weight_block_size", [128, 128]),
        ("scale_fmt", "float"),
        ("expert_dtype", "fp8"),
    ],
)
def test_quantization_outside_the_architecture(key: str, value: Any) -> None:
    document = changed(MINI6)
    document["quantization_config"][key] = value
    assert f"'quantization_config.{key}' is {value!r}" in refused(document)


def test_rope_type_outside_the_architecture() -> None:
    document = changed(MINI6)
    document["text_config"]["rope_scaling"]["rope_type"] = "linear"
    assert "'text_config.rope_scaling.rope_type' is 'linear'" in refused(document)


@pytest.mark.parametrize("value", [0, -1, 1.5, "128", None, True])
def test_integer_of_the_wrong_kind(value: Any) -> None:
    message = refused(changed(MINI6, hidden_size=value))
    assert f"'text_config.hidden_size' must be an integer of at least 1, found {value!r}" in message


@pytest.mark.parametrize("value", [0, float("nan"), float("inf"), 10**400, "1e-20", True])
def test_number_of_the_wrong_kind(value: Any) -> None:
    assert "'text_config.rms_norm_eps' must be a finite number above 0" in refused(changed(MINI6, rms_norm_eps=value))


@pytest.mark.parametrize("value", [3, "3", [1.0], [-1], [True], None])
def test_list_of_the_wrong_kind(value: Any) -> None:
    message = refused(changed(MINI6, kv_source_layer_ids=value))
    assert "'text_config.kv_source_layer_ids' must be a list of integers" in message


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"head_dim": 48}, ["'head_dim' must be a multiple of 32"]),
        ({"hidden_size": 100}, ["'hidden_size' must be a multiple of 32"]),
        ({"moe_intermediate_size": 65}, ["'moe_intermediate_size' must be a multiple of 32"]),
        ({"q_lora_rank": 40}, ["'q_lora_rank' must be a multiple of 32"]),
        ({"index_head_dim": 16}, ["'index_head_dim' must be a multiple of 32"]),
        ({"engram_head_dim": 33}, ["'engram_head_dim' must be a multiple of 32"]),
        ({"o_lora_rank": 8}, ["'o_groups' x 'o_lora_rank'"]),
        ({"o_groups": 3, "o_lora_rank": 32}, ["'o_groups' must divide 'num_attention_heads'"]),
        ({"qk_rope_head_dim": 15}, ["'qk_rope_head_dim'", "even"]),
        ({"qk_rope_head_dim": 66}, ["'qk_rope_head_dim'", "'head_dim'"]),
        ({"qk_rope_head_dim": 48}, ["'qk_rope_head_dim'", "'index_head_dim'"]),
        ({"num_experts_per_tok": 9}, ["'num_experts_per_tok'", "'n_routed_experts'"]),
        ({"dspark_num_experts_per_tok": 5}, ["'dspark_num_experts_per_tok'", "'dspark_n_routed_experts'"]),
        ({"candidate_topk_blocks": 2}, ["'candidate_topk_blocks'", "'candidate_block_size'", "'index_topk'"]),
        ({"image_token_id": 512}, ["'image_token_id' is 512", "'vocab_size' 512"]),
        ({"dspark_noise_token_id": 600}, ["'dspark_noise_token_id' is 600", "'vocab_size'"]),
        ({"engram_compressed_vocab_size": 513}, ["'engram_compressed_vocab_size'", "'vocab_size'"]),
        ({"compress_ratios": [0, 2, 2, 1, 1, 1, 0]}, ["'compress_ratios' has 7", "'num_nextn_predict_layers'"]),
        ({"compress_ratios": [0, 2, 2, 1, 1, 1, 0, 1]}, ["'compress_ratios'", "draft"]),
        ({"kv_source_layer_ids": [3, 1]}, ["'kv_source_layer_ids'", "ascending"]),
        ({"kv_source_layer_ids": [1, 1, 3]}, ["'kv_source_layer_ids'", "each once"]),
        ({"kv_source_layer_ids": [1, 6]}, ["'kv_source_layer_ids' names layers [6]", "'num_hidden_layers'"]),
        ({"kv_source_layer_ids": [0, 1, 3]}, ["'kv_source_layer_ids' names layers [0]", "'compress_ratios'"]),
        ({"index_source_layer_ids": [0, 1, 3]}, ["'index_source_layer_ids' names layers [0]", "'compress_ratios'"]),
        ({"index_source_layer_ids": [3, 5]}, ["'kv_source_layer_ids' has [1]", "'index_source_layer_ids'"]),
        (
            {"kv_source_layer_ids": [3], "index_source_layer_ids": [3, 5]},
            ["'compress_ratios' compresses layer 1", "'kv_source_layer_ids'", "no source"],
        ),
        (
            {"kv_source_layer_ids": [1]},
            ["'compress_ratios' gives layer 3 the ratio 1", "'kv_source_layer_ids', layer 1, has 2"],
        ),
        ({"candidate_source_layer_id": 4}, ["'candidate_source_layer_id' is 4", "'index_source_layer_ids'"]),
        ({"candidate_source_layer_id": 1}, ["'candidate_source_layer_id' (1)", "'compress_ratios'", "[3, 5]"]),
        ({"engram_layer_ids": [0, 1, 2]}, ["'engram_num_embeddings' has 2", "'engram_layer_ids' 3"]),
        ({"engram_num_embeddings": [630, 833]}, ["'engram_num_embeddings' gives layer 1 833 rows", "sum to 834"]),
        ({"engram_layer_ids": [0, 7]}, ["'engram_layer_ids' names layers [7]", "'num_hidden_layers'"]),
        ({"engram_max_ngram_size": 1}, ["'engram_max_ngram_size'"]),
        ({"engram_vocab_size": 2**31}, ["'engram_vocab_size'", "2^31"]),
        ({"engram_n_heads": 10**9}, ["'engram_n_heads'", "1024"]),
        ({"dspark_target_layer_ids": [4, 6]}, ["'dspark_target_layer_ids' names layers [6]", "'num_hidden_layers'"]),
        ({"dspark_target_layer_ids": []}, ["'dspark_target_layer_ids'"]),
        ({"num_nextn_predict_layers": 0}, ["'text_config.num_nextn_predict_layers' must be an integer of at least 1"]),
    ],
)
def test_keys_that_contradict_each_other(values: dict[str, Any], parts: list[str]) -> None:
    message = refused(changed(MINI6, **values))
    for part in parts:
        assert part in message


def test_vision_heads_must_divide() -> None:
    document = copy.deepcopy(RELEASED)
    document["vision_config"]["num_attention_heads"] = 15
    assert "vision_config: 'num_attention_heads' must divide 'hidden_size'" in refused(document)


@pytest.mark.parametrize("document", [[], None, {**MINI6, "text_config": [1]}])
def test_not_an_object(document: Any) -> None:
    assert "must be a JSON object" in refused(document)


def test_key_given_twice(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"bos_token_id": 0, "bos_token_id": 1}')
    with pytest.raises(ConfigError, match="'bos_token_id' is given twice"):
        ModelConfig.from_json(tmp_path)


@pytest.mark.parametrize("text", ["{", "\ufeff{}", "[" * 100_000])
def test_not_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match="is not a JSON document"):
        ModelConfig.from_json(tmp_path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the config .*config\.json: No such file"):
        ModelConfig.from_json(tmp_path)
