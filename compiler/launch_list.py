"""The launch list of a lowered program: what the runtime reads instead of IR."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import SSAValue

from dsv41c.errors import CompileError
from dsv41c.ir.arena import arena_of
from dsv41c.ir.builder import fixed_sizes, output_names
from dsv41c.ir.effects import cache_writes
from dsv41c.ir.names import value_names
from dsv41c.ir.ops.custom import plain
from dsv41c.ir.ops.program import Launch as LaunchOp
from dsv41c.ir.ops.program import Weight
from dsv41c.ir.ops.torch_ops import is_constant
from dsv41c.ir.rows import ROWS
from dsv41c.ir.text import line_of
from dsv41c.ir.transient import LAUNCH_NOTES, cut_of, largest_sizes, over_places, tile_of, tiles_of
from dsv41c.ir.types import CacheType, TensorType
from dsv41c.runtime.plan_format import Bucket, InputSpec, Launch, OutputSpec, Program


def program_of(func: FuncOp, of: str | None = None) -> Program:
    """The launch list of a program of launches, weights and constants.

    Args:
        of: the program that it is a form of, for the sizes that are fixed in it.
        func: every store in it is in place, so that a cache is one buffer from beginning to end.
    Errors: CompileError for an op that is no launch, or a store that would need a copy of its cache.
    """
    texts = argument_texts(func)
    launches = [op for op in func.body.block.ops if isinstance(op, LaunchOp)]
    check_launches(func)
    last = {value: i for i, op in enumerate(launches) for value in op.operands}
    returned = set(func.body.block.last_op.operands) if func.body.block.last_op else set()
    records = []
    for i, op in enumerate(launches):
        results = [value for value in op.results if isinstance(value.type, TensorType)]
        dead = [value for value in results if value not in last and value not in returned]
        ending = [value for value in dict.fromkeys(op.operands) if last[value] == i and _is_freed(value, returned)]
        records.append(
            Launch(
                kernel=op.kernel.data,
                args=tuple(None if slot is None else texts[slot] for slot in op.slots()),
                results=tuple(texts[value] for value in results),
                attrs={name: plain(value) for name, value in op.attributes.items() if name not in LAUNCH_NOTES},
                frees=tuple(texts[value] for value in [*ending, *dead]),
                tile=None if (tile := tile_of(op)) is None else tile[0],
                cut=tuple(sorted(cut_of(op))),
                over=over_places(op),
            )
        )
    inputs = [argument for argument in func.args if isinstance(argument.type, TensorType)]
    caches = [argument for argument in func.args if isinstance(argument.type, CacheType)]
    return Program(
        inputs=tuple(input_of(argument) for argument in inputs),
        caches=tuple(texts[cache].removeprefix("$") for cache in caches),
        outputs=tuple(outputs_of(func, texts)),
        launches=tuple(records),
        of=of,
        sizes=fixed_sizes(func) if of is not None else {},
        tiles=tuple(tile.rows for tile in tiles_of(launches) if tile.rows),
    )


def buckets_of(func: FuncOp, rows: Iterable[int]) -> tuple[Bucket, ...]:
    """Where a program's values lie when it runs with one row for each of so many sequences, all with logits.

    Args:
        func: a program of launches.
        rows: ascending.
    """
    names = value_names(func.body.block)
    largest = largest_sizes(func)
    buckets = []
    for count in rows:
        arena = arena_of(func, {**largest, ROWS: count, "B": count, "S": count, "R": count})
        offsets = {f"%{names[value]}": offset for value, offset in arena.offsets.items()}
        buckets.append(Bucket(count, arena.bytes, offsets))
    return tuple(buckets)


def _is_freed(value: SSAValue, returned: set[SSAValue]) -> bool:
    produced = isinstance(value.owner, LaunchOp)
    return produced and isinstance(value.type, TensorType) and value not in returned


def check_launches(func: FuncOp) -> None:
    """Refuse a program that is not launches, weights and constants alone, or has a store that copies its cache."""
    for op in func.body.block.ops:
        if isinstance(op, LaunchOp):
            if cache_writes(op) and "in_place" not in op.attributes:
                raise CompileError(f"a store is not in place; run the pass state-in-place: {line_of(op)}")
        elif not (isinstance(op, Weight | ReturnOp) or is_constant(op)):
            raise CompileError(f"an op is left that is no launch; outline it or turn it into one: {line_of(op)}")


def argument_texts(func: FuncOp) -> dict[SSAValue, str]:
    """How each value is spelled as an argument: %value, @weight, $cache."""
    texts: dict[SSAValue, str] = {}
    for value, name in value_names(func.body.block).items():
        if isinstance(value.owner, Weight):
            texts[value] = f"@{value.owner.symbol.data}"
        elif not isinstance(value.type, CacheType):
            texts[value] = f"%{name}"
        elif isinstance(value.owner, LaunchOp):
            texts[value] = texts[cache_writes(value.owner)[0]]  # in place: the new value is the same buffer
        else:
            texts[value] = f"${name}"
    return texts


def input_of(argument: SSAValue) -> InputSpec:
    """A tensor argument of a program."""
    assert isinstance(argument.type, TensorType)
    return InputSpec(str(argument.name_hint), argument.type.element, argument.type.dims)


def outputs_of(func: FuncOp, texts: dict[SSAValue, str]) -> Iterable[OutputSpec]:
    """The tensors that a program returns."""
    last: Any = func.body.block.last_op
    for name, value in zip(output_names(func), last.operands, strict=True):
        if isinstance(value.type, TensorType):
            yield OutputSpec(name, texts[value])
