"""Where a GPU program's values lie: inputs in places of their own, buffers in the arena of a bucket, the rest inside.

pool    | weights ... | caches ... | inputs of a call | arena of a call |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dsv41c.errors import PlanError
from dsv41c.runtime.expressions import size_value
from dsv41c.runtime.plan_format import ELEMENT_TYPES, Bucket, DeviceProgram, InputSpec

__all__ = ["ALIGNMENT", "Layout", "aligned", "bound_sizes", "bucket_of", "input_bytes", "shape_bytes"]

ALIGNMENT = 256  # bytes; what transfer engines ask for, and a multiple of what kernels do


def aligned(size: int) -> int:
    """A size rounded up to `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def shape_bytes(dtype: str, shape: Iterable[int | str], sizes: Mapping[str, int]) -> int:
    """Bytes of a tensor."""
    return math.prod(size_value(size, sizes) for size in shape) * ELEMENT_TYPES[dtype].itemsize


def input_bytes(inputs: Iterable[InputSpec], sizes: Mapping[str, int]) -> int:
    """Bytes of a program's inputs, each at an aligned place."""
    return sum(aligned(shape_bytes(spec.dtype, spec.shape, sizes)) for spec in inputs)


def bound_sizes(inputs: Iterable[InputSpec], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The value of each symbol, by the shapes of a call's inputs.

    Raises:
        PlanError: an input is missing, or its shape contradicts its spec or another input's.
    """
    sizes: dict[str, int] = {}
    for spec in inputs:
        found = shapes.get(spec.name)
        if found is None or len(found) != len(spec.shape):
            raise PlanError(f"input {spec.name} is {found}, the program takes {list(spec.shape)}")
        for size, length in zip(spec.shape, found, strict=True):
            if isinstance(size, str) and size.isidentifier():
                sizes.setdefault(size, length)
    for spec in inputs:
        wanted = tuple(size_value(size, sizes) for size in spec.shape)
        if wanted != shapes[spec.name]:
            raise PlanError(
                f"input {spec.name} has shape {list(shapes[spec.name])}, with the other inputs {spec.shape} is "
                f"{list(wanted)}"
            )
    return sizes


def bucket_of(name: str, program: DeviceProgram, rows: int) -> Bucket:
    """The smallest bucket of a GPU program that takes a call of so many rows.

    Raises:
        PlanError: the program has none that large.
    """
    for bucket in program.buckets:
        if rows <= bucket.rows:
            return bucket
    found = ", ".join(str(bucket.rows) for bucket in program.buckets) or "none"
    raise PlanError(
        f"a call of {rows} rows fits no bucket of the GPU program {name}; it has {found}: split the call, or compile "
        f"with --buckets {rows} or --max-rows {rows}"
    )


@dataclass(frozen=True)
class Layout:
    """The addresses of a program's values for calls of certain sizes.

    Attributes:
        sizes: by symbol.
        addresses: of `%value`, `@weight` and `$cache`.
        lengths: bytes of each `%value`.
    """

    sizes: Mapping[str, int]
    addresses: Mapping[str, int]
    lengths: Mapping[str, int]

    @classmethod
    def of(
        cls,
        program: DeviceProgram,
        bucket: Bucket,
        sizes: Mapping[str, int],
        inputs_at: int,
        arena_at: int,
        fixed: Mapping[str, int],
    ) -> Layout:
        """Places the values of a program.

        Args:
            bucket: whose offsets hold; `sizes` are those of its rows or smaller ones.
            inputs_at, arena_at: where the memory of inputs and of the arena begins.
            fixed: addresses of `@weight` and `$cache`.
        Raises:
            PlanError: a value has no place, reaches beyond the arena, lies in itself, or overlaps another one that is
                read while it is live.
        """
        addresses, lengths = dict(fixed), {}
        at = inputs_at
        for spec in program.inputs:
            name = f"%{spec.name}"
            addresses[name], lengths[name] = at, shape_bytes(spec.dtype, spec.shape, sizes)
            at += aligned(lengths[name])
        used = _spans(program)
        for short, buffer in program.buffers.items():
            name = f"%{short}"
            lengths[name] = shape_bytes(buffer.dtype, buffer.shape, sizes)
            if buffer.of is None and name in used:
                addresses[name] = arena_at + _offset(name, bucket, lengths[name])
        for name in (f"%{short}" for short, buffer in program.buffers.items() if buffer.of is not None):
            if _owner(name, program) in (None, *used):
                _resolve(name, program, sizes, addresses)
        found = cls(sizes, addresses, lengths)
        found.check_overlaps(program, arena_at, bucket)
        return found

    def check_overlaps(self, program: DeviceProgram, arena_at: int, bucket: Bucket) -> None:
        """No two values of the arena share bytes while both are live.

        Raises:
            PlanError: two do.
        """
        spans = _spans(program)
        placed = [name for name in spans if arena_at <= self.addresses[name] < arena_at + max(1, bucket.arena)]
        placed.sort(key=lambda name: self.addresses[name])
        for index, name in enumerate(placed):
            end = self.addresses[name] + self.lengths[name]
            for other in placed[index + 1 :]:
                if self.addresses[other] >= end:
                    break
                first, second = spans[name], spans[other]
                if self.lengths[other] and first[0] <= second[1] and second[0] <= first[1]:
                    raise PlanError(
                        f"bucket of {bucket.rows} rows: {name} and {other} share memory between launches "
                        f"{max(first[0], second[0])} and {min(first[1], second[1])}; compile the plan again"
                    )


def _offset(name: str, bucket: Bucket, length: int) -> int:
    offset = bucket.offsets.get(name)
    if offset is None:
        raise PlanError(f"bucket of {bucket.rows} rows has no place for {name}; compile the plan again")
    if offset < 0 or offset % ALIGNMENT or offset + length > bucket.arena:
        raise PlanError(
            f"bucket of {bucket.rows} rows: {name} of {length} bytes at {offset} is not in its {bucket.arena} bytes, "
            f"or not at a multiple of {ALIGNMENT}; compile the plan again"
        )
    return offset


def _resolve(name: str, program: DeviceProgram, sizes: Mapping[str, int], addresses: dict[str, int]) -> int:
    """The address of a value that may lie in another one, all of which end in memory with a place."""
    if name not in addresses:
        buffer = program.buffers[name[1:]]
        base = _resolve(str(buffer.of), program, sizes, addresses)
        addresses[name] = base + size_value(buffer.offset, sizes)
    return addresses[name]


def _spans(program: DeviceProgram) -> dict[str, tuple[int, int]]:
    """The first and the last launch at which the memory of each value of the arena is used, by those that own it."""
    spans: dict[str, tuple[int, int]] = {}
    for place, launch in enumerate(program.launches):
        for arg in launch.args:
            owner = _owner(arg, program)
            if owner is not None:
                spans[owner] = spans.get(owner, (place, place))[0], place
    for output in program.outputs:
        owner = _owner(output.value, program)
        if owner in spans:
            spans[owner] = spans[owner][0], len(program.launches)
    return spans


def _owner(arg: int | float | str | None, program: DeviceProgram) -> str | None:
    """The value of the arena in which an argument lies, or None."""
    path: list[str] = []
    while isinstance(arg, str) and arg.startswith("%"):
        if arg in path:
            raise PlanError(f"{arg} lies in itself ({' in '.join(path)}); compile the plan again")
        path.append(arg)
        buffer = program.buffers.get(arg[1:])
        if buffer is None:
            return None
        if buffer.of is None:
            return arg
        arg = buffer.of
    return None
