"""From a lowered program to what a GPU runs: launches of kernels over buffers with places."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from dsv41c.compiler.codegen.triton.device_builder import Argument, DeviceBuilder, LoweredOp
from dsv41c.compiler.codegen.triton.families import Kernel
from dsv41c.compiler.codegen.triton.recipes import recipe_for
from dsv41c.compiler.codegen.triton.row_programs import RowProgram, row_program
from dsv41c.compiler.launch_list import argument_texts, check_launches, input_of, outputs_of
from dsv41c.ir.arena import placed
from dsv41c.ir.builder import functions, get_symbols
from dsv41c.ir.dims import evaluate
from dsv41c.ir.ops.program import Launch
from dsv41c.ir.rows import ROWS
from dsv41c.ir.transient import kernel_attrs, largest_sizes
from dsv41c.ir.types import CacheType, TensorType, dtype_of
from dsv41c.runtime.plan_format import Bucket, DeviceProgram

__all__ = ["DeviceCode", "device_program"]


@dataclass(frozen=True)
class DeviceCode:
    """A program, and what it was made of.

    Attributes:
        program: as plans hold it.
        kernels: those that its launches name.
        finished: the ops of the lowered program by the place of the last launch of each.
        counts: for each launch of the lowered program, how many of the GPU's it became.
    """

    program: DeviceProgram
    kernels: Mapping[str, Kernel]
    finished: Mapping[int, LoweredOp]
    counts: tuple[int, ...]


def device_program(
    func: FuncOp, module: ModuleOp, rows: Iterable[int], few: bool, of: str | None = None, target: str = "gpu"
) -> DeviceCode:
    """What a GPU runs for a program.

    Args:
        func: a program of launches, as `lowering.lower_for_gpu` makes them. module: it, and the regions that it runs.
        rows: of the buckets; no call has more than the most of them.
        few: whether calls have few rows, each of another sequence; the kernels are then cut to fill a GPU all the same.
        of: the program of the plan that it computes.
        target: whom errors name.
    Raises:
        CompileError: an op has no kernels.
    """
    check_launches(func)
    texts, regions = argument_texts(func), functions(module)
    counts = sorted(rows)
    build = DeviceBuilder(get_symbols(func) | {ROWS: (1, counts[-1])}, few)
    finished: dict[int, LoweredOp] = {}
    became: list[int] = []
    for op in func.body.block.ops:
        if not isinstance(op, Launch):
            continue
        lowered = _lowered(op, texts)
        for name, type_ in zip(lowered.results, lowered.result_types, strict=True):
            build.result(name, type_)
        if lowered.kernel in regions:
            _run_rows(lowered, row_program(regions[lowered.kernel]), build)
        else:
            recipe_for(lowered, target)(lowered, build)
        finished[len(build.launches) - 1] = lowered
        became.append(len(build.launches) - sum(became))
    outputs = tuple(outputs_of(func, texts))
    program = DeviceProgram(
        inputs=tuple(input_of(argument) for argument in func.args if isinstance(argument.type, TensorType)),
        caches=tuple(texts[cache].removeprefix("$") for cache in func.args if isinstance(cache.type, CacheType)),
        outputs=outputs,
        buffers=build.buffers,
        launches=tuple(build.launches),
        of=of,
        buckets=tuple(_bucket(build, func, count, {output.value for output in outputs}) for count in counts),
    )
    return DeviceCode(program, build.kernels, finished, tuple(became))


def _lowered(op: Launch, texts: Mapping[SSAValue, str]) -> LoweredOp:
    slots = op.slots()
    results = [value for value in op.results if isinstance(value.type, TensorType)]
    return LoweredOp(
        kernel=op.kernel.data,
        args=tuple(None if slot is None else texts[slot] for slot in slots),
        types=tuple(None if slot is None else _typed(slot) for slot in slots),
        results=tuple(texts[value] for value in results),
        result_types=tuple(value.type for value in results if isinstance(value.type, TensorType)),
        attrs=kernel_attrs(op),
    )


def _run_rows(op: LoweredOp, program: RowProgram, build: DeviceBuilder) -> None:
    """The launches of a region's row program."""
    known: dict[str, Argument] = dict(zip(program.inputs, op.args, strict=True))
    known |= dict(zip(program.outputs, op.results, strict=True))
    known |= {
        buffer.pointer: build.scratch(op, buffer.pointer, buffer.element, *buffer.dims) for buffer in program.scratch
    }
    known |= {size: size for size in program.sizes}
    for kernel in program.kernels:
        names = (*kernel.arguments, *kernel.sizes)
        build.launch(kernel, **{name: known[name] for name in names})


def _typed(value: SSAValue) -> TensorType | CacheType:
    assert isinstance(value.type, TensorType | CacheType)
    return value.type


def _bucket(build: DeviceBuilder, func: FuncOp, rows: int, kept: set[str]) -> Bucket:
    """The places of a program's buffers for calls of so many rows."""
    largest = largest_sizes(func)
    sequences = rows if build.few else min(largest.get("B", 1), rows)
    # A call may ask for the logits of all its rows.
    sizes = {**largest, ROWS: rows, "B": sequences, "S": sequences, "R": rows}
    own = {f"%{name}": buffer for name, buffer in build.buffers.items() if buffer.of is None}
    bytes_of = {name: _bytes(buffer.shape, buffer.dtype, sizes) for name, buffer in own.items()}
    spans: dict[str, tuple[int, int]] = {}
    for place, launch in enumerate(build.launches):
        for name in (_memory_of(arg, build) for arg in launch.args if isinstance(arg, str)):
            if name in own:
                spans[name] = spans.get(name, (place, place))[0], place
    spans |= {name: (spans[name][0], len(build.launches)) for name in kept if name in spans}
    arena = placed({name: bytes_of[name] for name in spans}, spans)
    return Bucket(rows, arena.bytes, dict(sorted(arena.offsets.items())))


def _memory_of(arg: str, build: DeviceBuilder) -> str:
    """The value in whose memory an argument lies."""
    buffer = build.buffers.get(arg.removeprefix("%"))
    return arg if buffer is None or buffer.of is None else _memory_of(buffer.of, build)


def _bytes(shape: Iterable[int | str], element: str, sizes: Mapping[str, int]) -> int:
    return math.prod(evaluate(size, sizes) for size in shape) * dtype_of(element).itemsize
