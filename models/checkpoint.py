"""Checkpoints in the released names and layouts: read from safetensors headers, mapped, never copied or unpickled.

`Checkpoint.open` parses the headers and refuses damaged files; `Checkpoint.verify` holds the tensors against what the
config asks for; `Checkpoint.tensor` gives a view of the mapped file. The list of tensors is in
`checkpoint_tensors`.
"""

import hashlib
import json
import math
import mmap
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dsv41c.errors import CheckpointError
from dsv41c.models.checkpoint_tensors import TensorSpec, expected_tensors, unread_reason, vision_tensors
from dsv41c.models.config import ModelConfig

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# Bits of an element for every dtype the format knows.
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64"), 64),
}
# How the model carries them. Scales and packed FP4 codes are bytes: a numeric copy of e8m0 would turn 2^-7 into 0.
_TORCH = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.uint8,
    "I8": torch.uint8,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
}
# The format's own limit; a larger length is noise read as a number.
_LONGEST_HEADER = 100_000_000
_PROBLEMS_SHOWN = 10


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies: `bytes` bytes from absolute `offset` of `file` (a name inside the checkpoint's folder)."""

    name: str
    file: str
    offset: int
    bytes: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class StoredFile:
    """One safetensors file: its whole size and the SHA-256 of its header (the length field and the JSON)."""

    bytes: int
    header_sha256: str


@dataclass
class Checkpoint:
    """A checkpoint folder whose headers have been read; weights are touched only by `tensor`.

    `tensors` and `files` are keyed by name, in the order of the files.
    """

    folder: Path
    config: ModelConfig
    tensors: dict[str, StoredTensor]
    files: dict[str, StoredFile]
    _mapped: dict[str, torch.Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, folder: str | Path) -> "Checkpoint":
        """Reads config and headers of a checkpoint.

        Args:
            folder: holds `config.json` and `model.safetensors`, or `model.safetensors.index.json` and its shards.
        Errors: ConfigError for the config; CheckpointError that names the file (and tensor) for a missing or truncated
            shard, a damaged header, or an index that does not fit its shards.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise CheckpointError(
                f"{folder} is not a folder; a checkpoint is a folder with config.json and its weights"
            )
        config = ModelConfig.from_json(folder)
        shards = _shards(folder)
        tensors: dict[str, StoredTensor] = {}
        files = {}
        for name in sorted(shards):
            files[name], found = _read_file(folder, name)
            for tensor in found:
                if tensor.name in tensors:
                    other = tensors[tensor.name].file
                    raise CheckpointError(
                        f"tensor '{tensor.name}' is in two files, {other} and {name}; keep one of them"
                    )
                tensors[tensor.name] = tensor
        _check_index(shards, tensors)
        return cls(folder, config, tensors, files)

    def verify(self) -> dict[str, str]:
        """Holds every tensor against the config.

        Returns: the tensors that are not read, each with the reason.
        Errors: CheckpointError that lists up to ten tensors: missing, unknown, or of another shape or dtype than
            expected.
        """
        expected = expected_tensors(self.config)
        known = {**expected, **vision_tensors(self.config)}
        unexpected = [name for name in self.tensors if name not in expected]
        ignored = {name: reason for name in unexpected if (reason := unread_reason(name))}
        problems = [
            f"'{name}' is missing, expected {spec}" for name, spec in expected.items() if name not in self.tensors
        ]
        for name, tensor in self.tensors.items():
            found, spec = TensorSpec(tensor.shape, tensor.dtype), known.get(name)
            if spec is not None and spec != found:
                problems.append(f"'{name}' in {tensor.file}: expected {spec}, found {found}")
            if spec is None and name not in ignored:
                problems.append(f"'{name}' in {tensor.file} is unknown: nothing in this config reads it")
        if problems:
            raise CheckpointError(_listed(self.folder, problems))
        return ignored

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor as a view of the mapped file; writing to it is not allowed and crashes.

        Args:
            name: as in the checkpoint.
        Returns: float8_e4m3fn, bfloat16 or float32 for F8_E4M3, BF16 and F32; uint8 for F8_E8M0 (scale bytes) and I8
            (two FP4 codes a byte). It is a copy only where its offset is no multiple of its element size.
        Errors: CheckpointError when there is no such tensor, or its dtype is none of these.
        """
        stored = self.tensors.get(name)
        if stored is None:
            raise CheckpointError(f"{self.folder} has no tensor '{name}'")
        dtype = _TORCH.get(stored.dtype)
        if dtype is None:
            raise CheckpointError(f"tensor '{name}' is {stored.dtype}; the model reads only {', '.join(_TORCH)}")
        data = self.mapped(stored.file)[stored.offset : stored.offset + stored.bytes]
        if stored.offset % dtype.itemsize:
            data = data.clone()
        return data.view(dtype).reshape(stored.shape)

    def mapped(self, file: str) -> torch.Tensor:
        """A whole file as a uint8 tensor over its read-only mapping, page aligned; made once a file.

        Args:
            file: a key of `files`.
        Errors: CheckpointError when the file is gone or has another size than when it was opened.
        """
        if file not in self._mapped:
            self._mapped[file] = _map(self.folder / file, self.files[file].bytes)
        return self._mapped[file]

    def identity(self) -> dict[str, dict[str, Any]]:
        """What a plan remembers of the checkpoint: for each file its size in bytes and the SHA-256 of its header."""
        return {name: {"bytes": file.bytes, "header_sha256": file.header_sha256} for name, file in self.files.items()}


def read_header(path: str | Path) -> tuple[StoredFile, list[StoredTensor]]:
    """Reads and checks the header of one safetensors file.

    Args:
        path: the file.
    Returns: the file's identity, and its tensors in the order of their bytes.
    Errors: CheckpointError that says what is damaged.
    """
    path = Path(path)
    return _read_file(path.parent, path.name)


# ---------------------------------------------------------------------- folder and index


def _shards(folder: Path) -> dict[str, list[str] | None]:
    """The files to read, each with the tensors the index promises in it (None without an index)."""
    index = folder / INDEX_FILE
    if not index.is_file():
        if (folder / SINGLE_FILE).is_file():
            return {SINGLE_FILE: None}
        raise CheckpointError(f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}; only these names are read")
    try:
        document = json.loads(index.read_bytes(), object_pairs_hook=_once)
    except OSError as error:
        raise CheckpointError(f"cannot read {index}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{index} is not a JSON document: {error}") from error
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no 'weight_map' from tensor names to files")
    shards: dict[str, list[str] | None] = {}
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{index} puts '{tensor}' in {file!r}; a shard is a .safetensors file in the same folder"
            )
        promised = shards.setdefault(file, [])
        assert promised is not None
        promised.append(tensor)
    missing = sorted(file for file in shards if not (folder / file).is_file())
    if missing:
        raise CheckpointError(
            f"{index} names {len(missing)} shards that are not there, of {len(shards)}: "
            f"{', '.join(missing[:_PROBLEMS_SHOWN])}; download them again"
        )
    return shards


def _check_index(shards: Mapping[str, list[str] | None], tensors: Mapping[str, StoredTensor]) -> None:
    promised = {name: file for file, names in shards.items() for name in names or ()}
    if not promised:
        return
    for name, file in promised.items():
        if name not in tensors:
            raise CheckpointError(f"{INDEX_FILE} puts tensor '{name}' in {file}, but that file does not hold it")
        if tensors[name].file != file:
            raise CheckpointError(f"{INDEX_FILE} puts tensor '{name}' in {file}, but it is in {tensors[name].file}")
    extra = next((name for name in tensors if name not in promised), None)
    if extra is not None:
        raise CheckpointError(f"{tensors[extra].file} holds tensor '{extra}', which {INDEX_FILE} does not name")


# ---------------------------------------------------------------------- one file


def _read_file(folder: Path, name: str) -> tuple[StoredFile, list[StoredTensor]]:
    path = folder / name
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            prefix = stream.read(8)
            length = int.from_bytes(prefix, "little")
            _check_length(path, size, length)
            text = stream.read(length)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    tensors = _parse_header(path, text, size)
    return StoredFile(size, hashlib.sha256(prefix + text).hexdigest()), tensors


def _check_length(path: Path, size: int, length: int) -> None:
    if size < 8:
        raise CheckpointError(f"{path} has {size} bytes and is no safetensors file; it was probably cut off")
    if not 2 <= length <= _LONGEST_HEADER:
        raise CheckpointError(f"{path} claims a header of {length} bytes; it is damaged or no safetensors file")
    if length > size - 8:
        raise CheckpointError(f"{path} is truncated: its header has {length} bytes, the file only {size}")


def _parse_header(path: Path, text: bytes, size: int) -> list[StoredTensor]:
    try:
        header = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} has a damaged header: it is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} has a damaged header: it is no JSON object")
    header.pop("__metadata__", None)
    start = 8 + len(text)
    tensors = [_parse_entry(path, name, entry, start) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.bytes))
    _check_layout(path, tensors, start, size)
    return tensors


def _parse_entry(path: Path, name: str, entry: Any, start: int) -> StoredTensor:
    def damaged(what: str) -> CheckpointError:
        return CheckpointError(f"{path} has a damaged header: tensor '{name}' {what}")

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise damaged("needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise damaged(f"has the dtype {dtype!r}; known are {', '.join(_BITS)}")
    if not _are_sizes(shape):
        raise damaged(f"has the shape {shape!r}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise damaged(f"has the data_offsets {offsets!r}")
    found, needed = offsets[1] - offsets[0], math.prod(shape) * _BITS[dtype] // 8
    if found != needed:
        raise damaged(f"spans {found} bytes, but {dtype} {shape} needs {needed}")
    return StoredTensor(name, path.name, start + offsets[0], found, dtype, tuple(shape))


def _check_layout(path: Path, tensors: list[StoredTensor], start: int, size: int) -> None:
    """The format lays tensors back to back, from the header to the end of the file."""
    end, before = start, None
    for tensor in tensors:
        if tensor.offset < end:
            raise CheckpointError(f"{path} has a damaged header: '{tensor.name}' overlaps '{before}'")
        if tensor.offset > end:
            raise CheckpointError(
                f"{path} has a damaged header: {tensor.offset - end} unused bytes before '{tensor.name}'"
            )
        end, before = tensor.offset + tensor.bytes, tensor.name
    if end > size:
        raise CheckpointError(
            f"{path} is truncated: its header describes {end} bytes, the file has {size}; copy it again"
        )
    if end < size:
        raise CheckpointError(f"{path} is damaged: its header describes {end} bytes, the file has {size}")


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"'{repeated}' is given twice")
    return document


def _map(path: Path, size: int) -> torch.Tensor:
    try:
        with path.open("rb") as stream:
            mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot map {path}: {error}") from error
    if len(mapping) != size:
        raise CheckpointError(
            f"{path} changed while it was open: {size} bytes before, {len(mapping)} now; open it again"
        )
    with warnings.catch_warnings():
        # torch has no read-only tensors and says so; the mapping itself refuses writes.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(np.frombuffer(mapping, dtype=np.uint8))


# ---------------------------------------------------------------------- verification


def _listed(folder: Path, problems: list[str]) -> str:
    shown = problems[:_PROBLEMS_SHOWN]
    more = f"\n  and {len(problems) - len(shown)} more" if len(problems) > len(shown) else ""
    head = f"{folder} does not hold what its config.json asks for ({len(problems)} problems)"
    return head + "".join(f"\n  {line}" for line in shown) + more
