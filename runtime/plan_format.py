"""The plan's manifest and launch list as typed records: the one definition that the compiler writes by and the runtime
reads by.

    plan/manifest.json      a `Manifest`
    plan/manifest.sha256    the digest of manifest.json, in the form `sha256sum -c` reads
    plan/launches.json      a `LaunchList`
    everything else         listed with its digest in `Manifest.digests`

A launch argument is text: `%name` a value of the program, `@symbol` a weight, `$name` a cache, or null for an absent
optional argument. A launch on a GPU has numbers and sizes too: a size is a number or an expression in the program's
symbols, see `runtime.expressions`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dsv41c.errors import PlanError
from dsv41c.models.state import StateSpec

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
MANIFEST_DIGEST = "manifest.sha256"
LAUNCHES = "launches.json"
VIEWS = "kernels/views.vmfb"  # the device's own helper module, in every plan
CONSTANTS = "constants.safetensors"

KERNEL_KINDS = ("iree", "reference", "triton")
BANDS = ("reference", "portable", "tuned")
# Launch attributes that name a compiled function which the launched kernel calls; `_0`, `_1`, ... behind one where a
# kernel has several of a role.
KERNEL_ATTRS = ("body", "unpack", "activate", "unpack_shared", "activate_shared", "prologue", "epilogue")

# Element types are spelled as torch-mlir spells them, in manifests and in launch lists.
ELEMENT_TYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8E4M3FN": torch.float8_e4m3fn,
    "ui8": torch.uint8,
    "si8": torch.int8,
    "si16": torch.int16,
    "si32": torch.int32,
    "si64": torch.int64,
    "i1": torch.bool,
}


@dataclass(frozen=True)
class Target:
    """A machine the kernels were compiled for.

    Attributes:
        name: "cpu".
        features: CPU features the kernels may use, by LLVM's names.
    """

    name: str
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class PassRecord:
    """A pass that made the programs, with the hash of its source."""

    name: str
    hash: str


@dataclass(frozen=True)
class GpuKernel:
    """What a launch of a GPU kernel needs to know, and what the compiler's tools report about its binary.

    Attributes:
        arguments: name -> type in the order in which they are passed: "*bf16" a pointer, "i32", "i64", "fp32" numbers.
            Two null pointers follow them in a binary of Triton.
        grid: programs along each axis as (size, per): size over per, rounded up. A size is a number, an argument's name
            or a name of `sizes`; `per` too, and those that the tile decides are numbers here.
        warps: of one program.
        sizes: what only the grid needs to know at launch.
        unaligned: pointers that need not be divisible by 16 bytes; all others must be.
        multiples: numbers that must be divisible by 16.
        registers, spill_bytes: of one thread.
        shared_bytes: of one program, given at launch.
        load_bits: the widest load from global memory. mma: the matrix instructions in the disassembly.
        assembly: the file of the text that the binary was assembled from, for a driver older than the assembler.
        source: the file of the kernel's source in the plan; people read it, nothing runs it.
        holes: the source's constants, tile included. tile: number of warps and stages and the holes that it decides.
        chosen: where the tile comes from: "default", "tuned" or "smaller".
        refused: why tiles before it were not taken.
    """

    arguments: dict[str, str]
    grid: tuple[tuple[int | str, int | str], ...]
    warps: int
    sizes: tuple[str, ...] = ()
    unaligned: tuple[str, ...] = ()
    multiples: tuple[str, ...] = ()
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    load_bits: int = 0
    mma: tuple[str, ...] = ()
    assembly: str | None = None
    source: str | None = None
    holes: dict[str, Any] = field(default_factory=dict)
    tile: dict[str, Any] = field(default_factory=dict)
    chosen: str = "default"
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelEntry:
    """A kernel that launches may name.

    Attributes:
        name: the name launches use; a reference kernel has the name of its custom op. On GPUs every target has an entry
            of that name.
        kind: "iree" (a function of a compiled module), "triton" (a GPU's binary) or "reference" (a registered torch
            function of the runtime).
        band: "reference", "portable" or "tuned".
        file: the module file inside the plan; null for reference kernels.
        function: the function in that module; null for reference kernels.
        target: the target it was compiled for; null for reference kernels.
        sizes: symbols whose size it was compiled for; it holds for no other.
        gpu: of GPU kernels only.
    """

    name: str
    kind: str
    band: str
    file: str | None = None
    function: str | None = None
    target: str | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    gpu: GpuKernel | None = None


@dataclass(frozen=True)
class WeightPart:
    """One checkpoint tensor that a weight consists of: `bytes` bytes at `offset` of `file` (from the file's start)."""

    tensor: str
    file: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class WeightEntry:
    """Where a weight symbol's bytes lie.

    Attributes:
        dtype: a key of `ELEMENT_TYPES`.
        shape: of the whole weight; of a bundle `[len(parts), *shape of one part]`.
        source: "checkpoint" (mapped from the checkpoint's own files) or "derived" (from a file of the plan).
        parts: checkpoint only; the parts of a bundle (a symbol with a `*`) are one tensor for each expert.
        file, tensor: derived only; a safetensors file of the plan and a name in it.
    """

    dtype: str
    shape: tuple[int, ...]
    source: str
    parts: tuple[WeightPart, ...] = ()
    file: str | None = None
    tensor: str | None = None


@dataclass(frozen=True)
class CheckpointFile:
    """A checkpoint file's size and the digest of its safetensors header (see `header_digest`)."""

    bytes: int
    header_sha256: str


@dataclass(frozen=True)
class CheckpointEntry:
    """The checkpoint that the weights are mapped from: an absolute folder, and its files by name."""

    path: str
    files: dict[str, CheckpointFile] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """All that a plan says about itself.

    Attributes:
        format: `FORMAT_VERSION` of the writer.
        model: the checkpoint's config as JSON.
        targets: the machines it was compiled for.
        shape_ranges: symbol -> (lowest, highest) size, both included.
        passes: what made the programs, in order.
        tools: package -> version.
        page_tokens: tokens that one page of the "pages" pools holds.
        state: the state table, as `models.state` defines it.
        memory: the memory bill, bytes by name.
        bill: what a token, a sequence, a step and a layer take, by the names under which `inspect` prints it.
        kernels, weights: what launches may name.
        checkpoint: where the weights lie.
        tokenizer: a file of the plan, or null.
        programs: program -> its text file in the plan, for people.
        digests: file of the plan -> sha256; every file but manifest.json and manifest.sha256.
    """

    format: int
    model: dict[str, Any]
    targets: tuple[Target, ...]
    shape_ranges: dict[str, tuple[int, int]]
    passes: tuple[PassRecord, ...]
    tools: dict[str, str]
    page_tokens: int
    state: tuple[StateSpec, ...]
    memory: dict[str, Any]
    kernels: tuple[KernelEntry, ...]
    weights: dict[str, WeightEntry]
    checkpoint: CheckpointEntry
    tokenizer: str | None
    programs: dict[str, str]
    digests: dict[str, str]
    bill: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class InputSpec:
    """A program input; dimensions are sizes, symbols or expressions in symbols."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class OutputSpec:
    """A program output: its name and the argument text (`%value`) that holds it at the end."""

    name: str
    value: str


@dataclass(frozen=True)
class Launch:
    """One kernel call.

    Attributes:
        kernel: the name of a `KernelEntry`.
        args: `%value`, `@weight`, `$cache`, or null for an absent optional argument, in the kernel's order.
        results: the `%value` names it defines.
        attrs: a reference kernel's arguments that are no tensors, by name.
        frees: values that no later launch reads.
        tile: the place in its program's `tiles` of the tile it belongs to; null for a launch over all rows.
        cut: the places of the arguments of which it then takes the rows of one tile; its results are such rows.
        over: for each result the place of the argument in whose memory the rows of all tiles are put together, -1 for
            memory of its own; empty where all have their own.
    """

    kernel: str
    args: tuple[str | None, ...]
    results: tuple[str, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    frees: tuple[str, ...] = ()
    tile: int | None = None
    cut: tuple[int, ...] = ()
    over: tuple[int, ...] = ()


@dataclass(frozen=True)
class Bucket:
    """A number of rows for which a program's values have places in one buffer.

    A call with fewer rows, one for each of as many sequences, is padded to it (`runtime.padding`): rows with position
    -1, which write nothing, attend to nothing and choose no expert, and whose outputs nobody reads.

    Attributes:
        rows: of the call, and its sequences.
        arena: bytes of the buffer.
        offsets: of each `%value` that a launch defines.
    """

    rows: int
    arena: int
    offsets: dict[str, int]


@dataclass(frozen=True)
class Program:
    """What the runtime runs for one program; an input `x` is the value `%x`.

    Attributes:
        inputs, caches, outputs, launches: the program.
        of: the program that this one is a form of, for calls of the sizes below; null for a program of its own.
        sizes: the sizes that a call must have, by symbol of the inputs' shapes.
        tiles: rows of each tile. The launches of a tile follow each other and run over one tile of rows after the
            other; what later launches read of their results is put together.
        buckets: with rising numbers of rows; none on a target that takes any number.
    """

    inputs: tuple[InputSpec, ...]
    caches: tuple[str, ...]
    outputs: tuple[OutputSpec, ...]
    launches: tuple[Launch, ...]
    of: str | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    tiles: tuple[int, ...] = ()
    buckets: tuple[Bucket, ...] = ()


@dataclass(frozen=True)
class DeviceBuffer:
    """A value of a GPU program: memory that launches read and write.

    Attributes:
        dtype: a key of `ELEMENT_TYPES`.
        shape: sizes.
        of: the `%value`, `@weight` or `$cache` that it lies in; null for memory of its own.
        offset: a size, in bytes, from where that begins.
    """

    dtype: str
    shape: tuple[int | str, ...]
    of: str | None = None
    offset: int | str = 0


@dataclass(frozen=True)
class DeviceLaunch:
    """One launch of a GPU kernel; its grid is that of the kernel's entry.

    Attributes:
        kernel: the name of a `KernelEntry` of every GPU target of the plan.
        args: in the order of the kernel's arguments: `%value`, `@weight` or `$cache` for a pointer, null for a pointer
            that the kernel does not read, a number or a size for a number.
        sizes: a size for each of the entry's `sizes`.
    """

    kernel: str
    args: tuple[int | float | str | None, ...]
    sizes: dict[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceProgram:
    """What a GPU runs for one program; an input `x` is the value `%x`.

    Attributes:
        inputs, caches, outputs: as of a `Program`; outputs name buffers.
        buffers: the values by their name without `%`, those of the inputs left out.
        launches: in order.
        of: the program of the plan that it computes, for calls of the sizes below; null for one of its own.
        sizes: the sizes that a call must have, by symbol of the inputs' shapes.
        buckets: numbers of rows with places for the buffers that have memory of their own, by `%value`; with rising
            numbers of rows.
        padded: whether it is for calls of one row a sequence, all with an output, which are padded to a bucket and
            whose launches a GPU records as a graph; else calls of any sizes within a bucket are launched as they are.
    """

    inputs: tuple[InputSpec, ...]
    caches: tuple[str, ...]
    outputs: tuple[OutputSpec, ...]
    buffers: dict[str, DeviceBuffer]
    launches: tuple[DeviceLaunch, ...]
    of: str | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    buckets: tuple[Bucket, ...] = ()
    padded: bool = False


@dataclass(frozen=True)
class LaunchList:
    """launches.json: every program of the plan by name, and what GPUs run, by a name of its own."""

    programs: dict[str, Program]
    device: dict[str, DeviceProgram] = field(default_factory=dict)


def part_names(attrs: Mapping[str, Any]) -> list[str]:
    """The attributes of a launch that name a compiled function, see `KERNEL_ATTRS`."""
    return [name for name in attrs if re.sub(r"_\d+$", "", name) in KERNEL_ATTRS]


def is_bundle(symbol: str) -> bool:
    """Whether a weight symbol names one tensor for each expert: its `*` stands for the expert."""
    return "*" in symbol


def to_json(record: Any) -> Any:
    """A record as JSON values (dicts, lists, texts, numbers)."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {f.name: to_json(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, dict):
        return {key: to_json(value) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return [to_json(value) for value in record]
    return record


def manifest_from_json(value: Any) -> Manifest:
    """A manifest from parsed JSON; a PlanError names the first field that is missing, unknown or mistyped."""
    return typing.cast(Manifest, _decode(Manifest, value, MANIFEST))


def launches_from_json(value: Any) -> LaunchList:
    """A launch list from parsed JSON; a PlanError names the first field that is missing, unknown or mistyped."""
    return typing.cast(LaunchList, _decode(LaunchList, value, LAUNCHES))


def encode_launches(launches: LaunchList) -> bytes:
    """The bytes of launches.json."""
    return (json.dumps(to_json(launches), separators=(",", ":")) + "\n").encode()


def encode_manifest(manifest: Manifest) -> dict[str, bytes]:
    """The bytes of the two files that a finished plan begins with.

    Returns:
        {"manifest.json": ..., "manifest.sha256": ...}.
    """
    body = (json.dumps(to_json(manifest), indent=1) + "\n").encode()
    line = f"{hashlib.sha256(body).hexdigest()}  {MANIFEST}\n".encode()
    return {MANIFEST: body, MANIFEST_DIGEST: line}


def file_digest(path: Path) -> str:
    """The sha256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_safetensors_header(path: Path) -> tuple[dict[str, Any], int, str]:
    """A safetensors file's parsed header.

    The digest covers the eight length bytes and the header text: names, types, shapes and offsets of every tensor, but
    not the data, so that it is quick for checkpoints of any size.

    Returns:
        the header, the file offset at which the data begins, and the header's sha256 in hex.
    Raises:
        PlanError: the file is too short for the header it announces, or the header is no JSON.
    """
    with open(path, "rb") as file:
        length = file.read(8)
        size = int.from_bytes(length, "little")
        available = path.stat().st_size - 8
        if len(length) < 8 or size > available:
            raise PlanError(f"{path}: no whole safetensors header (announced {size} bytes, there are {available})")
        body = file.read(size)
    try:
        header = json.loads(body)
    except ValueError as error:
        raise PlanError(f"{path}: the safetensors header is no JSON: {error}") from None
    return header, 8 + size, hashlib.sha256(length + body).hexdigest()


def header_digest(path: Path) -> CheckpointFile:
    """Size and header digest of a safetensors file, as a plan records them."""
    return CheckpointFile(path.stat().st_size, read_safetensors_header(path)[2])


def _decode(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _decode_record(typing.cast(type, kind), value, where)
    origin = typing.get_origin(kind)
    if origin is tuple:
        return _decode_tuple(typing.get_args(kind), value, where)
    if origin is dict:
        _expect(isinstance(value, dict), "an object", value, where)
        of = typing.get_args(kind)[1]
        return {key: _decode(of, item, f"{where}.{key}") for key, item in value.items()}
    allowed = typing.get_args(kind) if origin in (types.UnionType, typing.Union) else (kind,)
    record = next((one for one in allowed if isinstance(one, type) and dataclasses.is_dataclass(one)), None)
    if record is not None and value is not None:
        return _decode_record(record, value, where)
    # bool is an int to Python but not to a manifest.
    fits = isinstance(value, allowed) and not (isinstance(value, bool) and bool not in allowed)
    _expect(fits, " or ".join("null" if one is types.NoneType else one.__name__ for one in allowed), value, where)
    return value


def _decode_tuple(of: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    _expect(isinstance(value, list), "a list", value, where)
    if of[-1] is Ellipsis:
        return tuple(_decode(of[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    _expect(len(value) == len(of), f"{len(of)} items", value, where)
    return tuple(_decode(one, item, f"{where}[{i}]") for i, (one, item) in enumerate(zip(of, value, strict=True)))


def _decode_record(kind: type, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), "an object", value, where)
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in value:
        _expect(key in fields, f"one of the fields {', '.join(fields)}", key, where)
    for name, one in fields.items():
        optional = one.default is not dataclasses.MISSING or one.default_factory is not dataclasses.MISSING
        _expect(name in value or optional, f"a field {name}", sorted(value), where)
    return kind(**{name: _decode(hints[name], item, f"{where}.{name}") for name, item in value.items()})


def _expect(holds: bool, expected: str, found: Any, where: str) -> None:
    if not holds:
        text = repr(found)
        shown = text if len(text) <= 80 else text[:77] + "..."
        raise PlanError(f"{where}: expected {expected}, found {shown}; compile the plan again")
