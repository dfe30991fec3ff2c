"""The checkpoint reader: the golden checkpoints whole or in shards, and each kind of damage with its message."""

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dsv41c.errors import CheckpointError
from dsv41c.models.checkpoint import Checkpoint, read_header
from dsv41c.models.checkpoint_tensors import expected_tensors, vision_tensors
from dsv41c.models.config import ModelConfig

GOLDEN = Path(__file__).parents[1] / "golden"
Entries = dict[str, tuple[str, list[int], bytes]]


def encode(entries: Entries, pad: int = 0) -> bytes:
    """A safetensors file; `pad` spaces after the header shift all tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, data) in entries.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    return join(json.dumps(header).encode() + b" " * pad, b"".join(data for _, _, data in entries.values()))


def join(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def decode(path: Path) -> Entries:
    data = path.read_bytes()
    _, tensors = read_header(path)
    return {t.name: (t.dtype, list(t.shape), data[t.offset : t.offset + t.bytes]) for t in tensors}


@pytest.fixture(scope="module")
def mini6() -> Entries:
    return decode(GOLDEN / "mini6" / "model.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint folder with mini6's config and no weights yet."""
    shutil.copyfile(GOLDEN / "mini6" / "config.json", tmp_path / "config.json")
    return tmp_path


def shard(folder: Path, entries: Entries, parts: int = 3) -> dict[str, str]:
    """Writes `parts` shards and the index; gives the weight map."""
    names = list(entries)
    weight_map = {}
    for part in range(parts):
        file = f"model-{part + 1:05}-of-{parts:05}.safetensors"
        chosen = names[part::parts]
        (folder / file).write_bytes(encode({name: entries[name] for name in chosen}))
        weight_map.update(dict.fromkeys(chosen, file))
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def refused(action: Callable[[], Any]) -> str:
    with pytest.raises(CheckpointError) as caught:
        action()
    return str(caught.value)


def same_bytes(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return torch.equal(ours.reshape(-1).view(torch.uint8), theirs.reshape(-1).view(torch.uint8))


# ---------------------------------------------------------------------- what is read


@pytest.mark.parametrize("name", ["mini6", "sched40"])
def test_golden_checkpoint(name: str) -> None:
    checkpoint = Checkpoint.open(GOLDEN / name)
    assert checkpoint.verify() == {}
    golden = load_file(GOLDEN / name / "model.safetensors")
    assert set(checkpoint.tensors) == set(golden)
    for tensor, value in golden.items():
        assert same_bytes(checkpoint.tensor(tensor), value), tensor
        assert list(checkpoint.tensor(tensor).shape) == list(value.shape)


def test_dtypes_and_zero_copy() -> None:
    checkpoint = Checkpoint.open(GOLDEN / "mini6")
    assert checkpoint.tensor("embed.weight").dtype == torch.bfloat16
    assert checkpoint.tensor("layers.0.attn.attn_sink").dtype == torch.float32
    assert checkpoint.tensor("layers.0.attn.wq_a.weight").dtype == torch.float8_e4m3fn
    assert checkpoint.tensor("layers.0.attn.wq_a.scale").dtype == torch.uint8
    assert checkpoint.tensor("layers.0.ffn.experts.0.w1.weight").dtype == torch.uint8
    file = checkpoint.mapped("model.safetensors")
    assert file.data_ptr() % 4096 == 0
    for name in ("embed.weight", "layers.0.attn.wq_a.weight"):
        offset = checkpoint.tensors[name].offset
        assert checkpoint.tensor(name).data_ptr() == file.data_ptr() + offset


def test_released_list_has_the_known_size() -> None:
    config = ModelConfig.from_json(GOLDEN / "released")
    specs = {**expected_tensors(config), **vision_tensors(config)}
    assert len(specs) == 96_085
    assert sum(spec.bytes for spec in specs.values()) == 510_286_023_000


def test_identity() -> None:
    data = (GOLDEN / "mini6" / "model.safetensors").read_bytes()
    header = data[: 8 + int.from_bytes(data[:8], "little")]
    assert Checkpoint.open(GOLDEN / "mini6").identity() == {
        "model.safetensors": {"bytes": len(data), "header_sha256": hashlib.sha256(header).hexdigest()}
    }


def test_shards(folder: Path, mini6: Entries) -> None:
    weight_map = shard(folder, mini6)
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.verify() == {}
    assert {name: tensor.file for name, tensor in checkpoint.tensors.items()} == weight_map
    assert sorted(checkpoint.identity()) == sorted(set(weight_map.values()))
    whole = Checkpoint.open(GOLDEN / "mini6")
    assert all(same_bytes(checkpoint.tensor(name), whole.tensor(name)) for name in mini6)


def test_tensors_at_odd_offsets(folder: Path, mini6: Entries) -> None:
    plain = encode(mini6)
    pad = 1 if len(plain) % 2 == sum(len(data) for _, _, data in mini6.values()) % 2 else 0
    (folder / "model.safetensors").write_bytes(encode(mini6, pad))
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.tensors["embed.weight"].offset % 2 == 1
    whole = Checkpoint.open(GOLDEN / "mini6")
    assert all(same_bytes(checkpoint.tensor(name), whole.tensor(name)) for name in mini6)
    assert checkpoint.tensor("embed.weight").dtype == torch.bfloat16


def test_empty_and_scalar_tensors(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(encode({"empty": ("F32", [0, 3], b""), "scalar": ("F32", [], b"\0" * 4)}))
    _, tensors = read_header(file)
    assert [(t.name, t.shape, t.bytes) for t in tensors] == [("empty", (0, 3), 0), ("scalar", (), 4)]


def test_vision_tensors_are_ignored_with_a_reason(folder: Path, mini6: Entries) -> None:
    extra: Entries = {
        "vision.norm.weight": ("BF16", [4], b"\0" * 8),
        "aligner.w1.bias": ("BF16", [1], b"\0" * 2),
        "image_start": ("BF16", [1], b"\0" * 2),
        "layers.3.ffn.gate.bias_vl": ("F32", [8], b"\0" * 32),
    }
    (folder / "model.safetensors").write_bytes(encode({**mini6, **extra}))
    ignored = Checkpoint.open(folder).verify()
    assert set(ignored) == set(extra)
    assert ignored["image_start"] == "read by the vision program, which is not compiled yet"
    assert "no vision_config" in ignored["layers.3.ffn.gate.bias_vl"]


def vision_checkpoint(folder: Path, entries: Entries) -> Checkpoint:
    """mini6 with a vision part in its config, and these tensors."""
    config = json.loads((folder / "config.json").read_text())
    released = json.loads((GOLDEN / "released" / "config.json").read_text())
    config["vision_config"] = {**released["vision_config"], "hidden_size": 64, "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(encode(entries))
    return Checkpoint.open(folder)


def test_image_bias_is_required_with_a_vision_part(folder: Path, mini6: Entries) -> None:
    message = refused(vision_checkpoint(folder, mini6).verify)
    assert "'layers.0.ffn.gate.bias_vl' is missing, expected F32 [8]" in message
    assert "(8 problems)" in message


def test_vision_tensors_that_are_there_must_fit(folder: Path, mini6: Entries) -> None:
    biases: Entries = {
        name.replace(".bias", ".bias_vl"): entry for name, entry in mini6.items() if name.endswith("gate.bias")
    }
    wrong: Entries = {"image_end": ("BF16", [2], b"\0" * 4)}
    message = refused(vision_checkpoint(folder, {**mini6, **biases, **wrong}).verify)
    assert "'image_end' in model.safetensors: expected BF16 [128], found BF16 [2]" in message


# ---------------------------------------------------------------------- tensors that do not fit the config


def verify_with(folder: Path, entries: Entries) -> str:
    (folder / "model.safetensors").write_bytes(encode(entries))
    return refused(Checkpoint.open(folder).verify)


def test_missing_tensor(folder: Path, mini6: Entries) -> None:
    rest = {name: entry for name, entry in mini6.items() if name != "layers.3.attn.compressor.wkv.weight"}
    message = verify_with(folder, rest)
    assert "'layers.3.attn.compressor.wkv.weight' is missing, expected BF16 [64, 128]" in message
    assert str(folder) in message


@pytest.mark.parametrize(
    "name",
    ["layers.0.attn.q_a.weight", "model.embed.weight", "layers.3.attn.compressor.wgate.weight", "layers.6.attn_sink"],
)
def test_unknown_tensor(folder: Path, mini6: Entries, name: str) -> None:
    message = verify_with(folder, {**mini6, name: ("F32", [1], b"\0" * 4)})
    assert f"'{name}' in model.safetensors is unknown: nothing in this config reads it" in message


def test_swapped_dtype(folder: Path, mini6: Entries) -> None:
    _, shape, data = mini6["layers.0.attn.wq_a.weight"]
    message = verify_with(folder, {**mini6, "layers.0.attn.wq_a.weight": ("I8", shape, data)})
    assert "'layers.0.attn.wq_a.weight' in model.safetensors: expected F8_E4M3 [64, 128], found I8 [64, 128]" in message


def test_wrong_shape(folder: Path, mini6: Entries) -> None:
    dtype, shape, data = mini6["embed.weight"]
    message = verify_with(folder, {**mini6, "embed.weight": (dtype, shape[::-1], data)})
    assert "'embed.weight' in model.safetensors: expected BF16 [512, 128], found BF16 [128, 512]" in message


def test_ten_problems_at_most_are_shown(folder: Path, mini6: Entries) -> None:
    message = verify_with(folder, {name: entry for name, entry in mini6.items() if ".experts." not in name})
    lines = message.splitlines()
    missing = sum(".experts." in name for name in mini6)
    assert f"({missing} problems)" in lines[0]
    assert len(lines) == 12
    assert lines[-1] == f"  and {missing - 10} more"


def test_unknown_name_and_unreadable_dtype(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(encode({"x": ("F64", [1], b"\0" * 8)}))
    checkpoint = Checkpoint.open(folder)
    assert "has no tensor 'y'" in refused(lambda: checkpoint.tensor("y"))
    assert "tensor 'x' is F64; the model reads only" in refused(lambda: checkpoint.tensor("x"))


# ---------------------------------------------------------------------- damaged files


def opened(folder: Path, data: bytes) -> str:
    (folder / "model.safetensors").write_bytes(data)
    return refused(lambda: Checkpoint.open(folder))


@pytest.mark.parametrize(
    ("cut", "part"),
    [
        (lambda data: b"", "has 0 bytes and is no safetensors file"),
        (lambda data: data[:5], "has 5 bytes and is no safetensors file"),
        (lambda data: data[:100], "is truncated: its header has"),
        (lambda data: data[:-1], "is truncated: its header describes"),
        (lambda data: data + b"\0", "is damaged: its header describes"),
        (lambda data: b"\xff" * 8 + data[8:], "claims a header of 18446744073709551615 bytes"),
        (lambda data: b"\0" * 8 + data[8:], "claims a header of 0 bytes"),
        (lambda data: data[:8] + b"\xff" + data[9:], "it is not JSON"),
        (lambda data: data[:8] + b"x" + data[9:], "it is not JSON"),
        (lambda data: join(b"[" * 100_000), "it is not JSON"),
        (lambda data: join(b"[1]"), "it is no JSON object"),
    ],
)
def test_damaged_file(folder: Path, mini6: Entries, cut: Callable[[bytes], bytes], part: str) -> None:
    message = opened(folder, cut(encode(mini6)))
    assert part in message
    assert "model.safetensors" in message


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ({"a": 1}, "tensor 'a' needs exactly dtype, shape and data_offsets"),
        ({"a": entry(extra=1)}, "tensor 'a' needs exactly dtype, shape and data_offsets"),
        ({"a": entry(dtype="F128")}, "tensor 'a' has the dtype 'F128'"),
        ({"a": entry(dtype=[])}, "tensor 'a' has the dtype []"),
        ({"a": entry(shape=[-2])}, "tensor 'a' has the shape [-2]"),
        ({"a": entry(shape="2")}, "tensor 'a' has the shape '2'"),
        ({"a": entry(shape=[2**62, 2**62])}, "tensor 'a' spans 8 bytes, but F32"),
        ({"a": entry(data_offsets=[8, 0])}, "tensor 'a' has the data_offsets [8, 0]"),
        ({"a": entry(data_offsets=[-8, 0])}, "tensor 'a' has the data_offsets [-8, 0]"),
        ({"a": entry(data_offsets=[0.0, 8.0])}, "tensor 'a' has the data_offsets"),
        ({"a": entry(data_offsets=[0, 4])}, "tensor 'a' spans 4 bytes, but F32 [2] needs 8"),
        ({"a": entry(), "b": entry(data_offsets=[4, 12])}, "'b' overlaps 'a'"),
        ({"a": entry(), "b": entry()}, "'b' overlaps 'a'"),
        ({"a": entry(data_offsets=[4, 12])}, "4 unused bytes before 'a'"),
        ({"a": entry(shape=[2**40], data_offsets=[0, 2**42])}, "is truncated"),
    ],
)
def test_damaged_header(folder: Path, header: dict[str, Any], part: str) -> None:
    message = opened(folder, join(json.dumps(header).encode(), b"\0" * 12))
    assert part in message
    assert "model.safetensors" in message


def test_tensor_twice_in_a_header(folder: Path) -> None:
    text = json.dumps(entry())
    message = opened(folder, join(f'{{"a": {text}, "a": {text}}}'.encode(), b"\0" * 8))
    assert "has a damaged header: it is not JSON ('a' is given twice)" in message


def test_file_that_shrinks_while_open(folder: Path, mini6: Entries) -> None:
    (folder / "model.safetensors").write_bytes(encode(mini6))
    checkpoint = Checkpoint.open(folder)
    (folder / "model.safetensors").write_bytes(encode(mini6)[:-100])
    assert "changed while it was open" in refused(lambda: checkpoint.tensor("embed.weight"))


# ---------------------------------------------------------------------- folder and index


def test_not_a_folder(folder: Path) -> None:
    assert "is not a folder" in refused(lambda: Checkpoint.open(folder / "config.json"))


def test_no_weights(folder: Path) -> None:
    message = refused(lambda: Checkpoint.open(folder))
    assert "holds neither model.safetensors nor model.safetensors.index.json" in message


def test_missing_shard(folder: Path, mini6: Entries) -> None:
    shard(folder, mini6)
    (folder / "model-00002-of-00003.safetensors").unlink()
    message = refused(lambda: Checkpoint.open(folder))
    assert "names 1 shards that are not there, of 3: model-00002-of-00003.safetensors" in message


def test_truncated_shard(folder: Path, mini6: Entries) -> None:
    shard(folder, mini6)
    path = folder / "model-00003-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "model-00003-of-00003.safetensors is truncated" in refused(lambda: Checkpoint.open(folder))


def test_index_names_a_tensor_its_shard_lacks(folder: Path, mini6: Entries) -> None:
    weight_map = shard(folder, mini6)
    write_index(folder, {**weight_map, "ghost": "model-00001-of-00003.safetensors"})
    message = refused(lambda: Checkpoint.open(folder))
    assert "puts tensor 'ghost' in model-00001-of-00003.safetensors, but that file does not hold it" in message


def test_index_names_the_wrong_shard(folder: Path, mini6: Entries) -> None:
    weight_map = shard(folder, mini6)
    right, wrong = weight_map["embed.weight"], next(f for f in weight_map.values() if f != weight_map["embed.weight"])
    write_index(folder, {**weight_map, "embed.weight": wrong})
    message = refused(lambda: Checkpoint.open(folder))
    assert f"puts tensor 'embed.weight' in {wrong}, but it is in {right}" in message


def test_shard_holds_a_tensor_the_index_lacks(folder: Path, mini6: Entries) -> None:
    weight_map = shard(folder, mini6)
    file = weight_map.pop("embed.weight")
    write_index(folder, weight_map)
    message = refused(lambda: Checkpoint.open(folder))
    assert f"{file} holds tensor 'embed.weight', which model.safetensors.index.json does not name" in message


def test_tensor_in_two_shards(folder: Path, mini6: Entries) -> None:
    weight_map = shard(folder, mini6)
    second = "model-00002-of-00003.safetensors"
    file = folder / next(f for f in weight_map.values() if f != second)
    name = next(name for name, f in weight_map.items() if f == second)
    file.write_bytes(encode({**decode(file), name: mini6[name]}))
    message = refused(lambda: Checkpoint.open(folder))
    assert f"tensor '{name}' is in two files" in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "is not a JSON document"),
        ("[]", "has no 'weight_map'"),
        ('{"weight_map": {}}', "has no 'weight_map'"),
        ('{"weight_map": {"a": 1}}', "puts 'a' in 1; a shard is"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "puts 'a' in '../x.safetensors'; a shard is"),
        ('{"weight_map": {"a": "pytorch_model.bin"}}', "puts 'a' in 'pytorch_model.bin'; a shard is"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "'a' is given twice"),
    ],
)
def test_damaged_index(folder: Path, text: str, part: str) -> None:
    (folder / "model.safetensors.index.json").write_text(text)
    message = refused(lambda: Checkpoint.open(folder))
    assert part in message
    assert "model.safetensors.index.json" in message


def test_every_single_byte_of_a_small_header_may_flip(tmp_path: Path) -> None:
    """A flipped bit gives a clear refusal or a header that still fits its file, never another exception."""
    data = bytearray(encode({"ab": ("F32", [2, 2], b"\0" * 16), "cd": ("BF16", [3], b"\0" * 6)}))
    file = tmp_path / "x.safetensors"
    for position in range(len(data) - 22):
        for bit in (0, 3, 5, 7):
            data[position] ^= 1 << bit
            file.write_bytes(data)
            try:
                _, tensors = read_header(file)
            except CheckpointError:
                tensors = []
            assert all(t.offset + t.bytes <= len(data) and math.prod(t.shape) >= 0 for t in tensors)
            data[position] ^= 1 << bit
