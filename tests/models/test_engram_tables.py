"""Constants of the Engram hash: equal to the golden values for the tiny and the released parameters."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer

from dsv41c.errors import CheckpointError
from dsv41c.models.config import ModelConfig
from dsv41c.models.engram_tables import compressed_token_ids, engram_multipliers, engram_tables, read_tokenizer
from dsv41c.models.primes import engram_primes

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def golden() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "engram_hash.safetensors")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return read_tokenizer(GOLDEN)


@pytest.fixture(scope="module")
def mini6() -> ModelConfig:
    return ModelConfig.from_json(GOLDEN / "mini6")


def test_tiny_tables(golden: dict[str, torch.Tensor], tokenizer: Tokenizer, mini6: ModelConfig) -> None:
    tables = engram_tables(mini6, tokenizer)
    assert torch.equal(tables.token_map, golden["tiny.token_map"])
    assert torch.equal(tables.primes, golden["tiny.primes"].flatten(1))
    assert torch.equal(tables.offsets, golden["tiny.offsets"])
    assert torch.equal(tables.multipliers, golden["tiny.multipliers"])
    assert tables.pad == golden["tiny.pad_compressed"].item()


def test_token_map_file(tokenizer: Tokenizer, mini6: ModelConfig) -> None:
    expected = json.loads((GOLDEN / "engram_token_map.json").read_text())
    ids = compressed_token_ids(tokenizer, mini6)
    assert ids.tolist() == expected["map"]
    assert len(set(ids.tolist())) == expected["n_compressed"]


def test_sched40_multipliers_depend_on_the_layer(mini6: ModelConfig) -> None:
    sched40 = ModelConfig.from_json(GOLDEN / "sched40")
    ours, theirs = engram_multipliers(sched40), engram_multipliers(mini6)
    assert torch.equal(ours[0], theirs[1])  # both layer 1
    assert not torch.equal(ours[1], theirs[0])


def test_released_constants(golden: dict[str, torch.Tensor]) -> None:
    released = ModelConfig.from_json(GOLDEN / "released")
    primes = torch.tensor(engram_primes(2, 4, 8, 16_000_000))
    assert torch.equal(engram_multipliers(released), golden["released.multipliers"])
    assert torch.equal(primes, golden["released.primes"])
    assert primes.sum((1, 2)).tolist() == list(released.engram_num_embeddings) == [384006168, 384016682]
    flat = primes.flatten(1)
    assert torch.equal(flat.cumsum(1) - flat, golden["released.offsets"])


def test_no_engram_layers(tokenizer: Tokenizer, mini6: ModelConfig) -> None:
    tables = engram_tables(dataclasses.replace(mini6, engram_layer_ids=(), engram_num_embeddings=()), tokenizer)
    assert tables.primes.shape == (0, 6)
    assert tables.multipliers.shape == (0, 4)


def test_padding_of_the_vocabulary_maps_as_pad(tokenizer: Tokenizer, mini6: ModelConfig) -> None:
    ids = compressed_token_ids(tokenizer, dataclasses.replace(mini6, vocab_size=520))
    assert ids[:512].tolist() == compressed_token_ids(tokenizer, mini6).tolist()
    assert ids[512:].tolist() == [ids[2].item()] * 8


def test_another_tokenizer_is_refused(mini6: ModelConfig) -> None:
    other = read_tokenizer(GOLDEN)
    other.add_tokens([AddedToken("quite another token")])
    with pytest.raises(CheckpointError) as caught:
        compressed_token_ids(other, mini6)
    assert str(caught.value) == (
        "the tokenizer gives 386 compressed token ids, but the config's 'engram_compressed_vocab_size' is 385; "
        "use the tokenizer.json that belongs to this checkpoint"
    )


def test_missing_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no tokenizer at"):
        read_tokenizer(tmp_path)


def test_damaged_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": 1')
    with pytest.raises(CheckpointError, match="is not a tokenizer"):
        read_tokenizer(tmp_path)
