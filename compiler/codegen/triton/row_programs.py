"""Row programs: an outlined region becomes generated Triton kernels, one block of rows a program.

    program = row_program(functions(module)["region_3"])
    for kernel in program.kernels:          # in launch order, on one stream
        kernel.arguments                    # names in the order of the launch, each one of
            program.inputs                  #   pointers of the region's arguments, in their order
            program.outputs                 #   pointers of its results, in their order
            program.scratch                 #   buffers that live from one kernel to the next: pointer, sizes, element
            program.sizes                   #   symbols of the region, such as T: int32 numbers
        kernel.grid                         # (size, per) along each axis; size is a number or a symbol
        kernel.generated                    # the source
        kernel.tiles, kernel.holes          # as of hand-kept families

Every kernel takes those arguments that it needs. Tensors lie in one piece; booleans and e4m3 are bytes ("*u8"). A
region's symbol that no kernel takes is not in `sizes`.

A region is one kernel where that is possible. Where a value is wanted in blocks of another layout at such a cost that
it would be computed again and again, or where the block of a sum is larger than a program should hold, the value goes
through a scratch buffer and what needs it is another kernel: see `row_split`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.func import FuncOp

from dsv41c.compiler.codegen.triton.families import Hole, Kernel, Tile
from dsv41c.compiler.codegen.triton.row_blocks import FP8_HELPERS, Buffer, RowBlocks
from dsv41c.compiler.codegen.triton.row_source import kernel_source
from dsv41c.compiler.codegen.triton.row_split import LARGEST, LIMIT, MOST_ROWS, Splitting

__all__ = ["FAMILY", "RowProgram", "row_program"]

FAMILY = "row_programs"
# Elements of all rows of a program together, where one row has fewer.
_ROW_ELEMENTS = 1024
# Warps by the elements of the largest block.
_WARPS = ((LIMIT // 2, 4), (LIMIT, 8), (LARGEST, 16))


@dataclass(frozen=True)
class RowProgram:
    """The kernels of a region.

    Attributes:
        region: the function's name. kernels: in launch order, each behind the one before it.
        inputs, outputs: the pointer arguments of the region's arguments and results, in their order.
        scratch: buffers that nobody needs behind the last kernel.
        sizes: symbols that kernels take as arguments.
    """

    region: str
    kernels: tuple[Kernel, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scratch: tuple[Buffer, ...]
    sizes: tuple[str, ...]


def row_program(function: FuncOp) -> RowProgram:
    """Generates the kernels of an outlined region.

    Args:
        function: aten ops, constants and lists; arguments and results are tensors.

    Raises:
        CompileError: naming region, op and reason.
    """
    split = Splitting(function)
    bodies = split.bodies()
    inputs = tuple(buffer.pointer for buffer in split.arguments.values())
    outputs = tuple(buffer.pointer for _, buffer in split.results)
    scratch = tuple(buffer for buffer in split.stored.values() if buffer.pointer not in outputs)
    order = [*inputs, *(buffer.pointer for buffer in scratch), *outputs]
    kernels = tuple(_kernel(function, (place, len(bodies)), body, order) for place, body in enumerate(bodies))
    sizes = tuple(sorted(frozenset().union(*(body.sizes for body in bodies))))
    return RowProgram(function.sym_name.data, kernels, inputs, outputs, scratch, sizes)


def _kernel(function: FuncOp, place: tuple[int, int], blocks: RowBlocks, order: Sequence[str]) -> Kernel:
    region = function.sym_name.data
    name = region if place[1] == 1 else f"{region}_{place[0]}"
    arguments = {pointer: blocks.pointers[pointer] for pointer in order if pointer in blocks.pointers}
    rows = blocks.rows.extent
    if isinstance(rows, str):
        blocks.sizes.add(rows)
    arguments |= dict.fromkeys(sorted(blocks.sizes), "i32")
    holes: dict[str, Hole] = {"FP8_CASTS": True} if blocks.helpers & FP8_HELPERS else {}
    programs = blocks.tiles
    return Kernel(
        name=name,
        family=FAMILY,
        function=f"{name}_kernel",
        arguments=arguments,
        holes=holes,
        tiles=_tiles(blocks.largest),
        grid=((rows, "ROWS"),) if programs == 1 else ((rows, "ROWS"), (programs, 1)),
        generated=kernel_source(function, name, place, blocks, arguments, [*holes, "ROWS"]),
    )


def _tiles(largest: int) -> tuple[Tile, ...]:
    """Several rows a program where a row is small; else one, with as many warps as its block asks for."""
    warps = next(warps for elements, warps in _WARPS if largest <= elements)
    rows = max(1, min(MOST_ROWS, _ROW_ELEMENTS // largest))
    one, more = Tile({"ROWS": 1}, warps=warps), Tile({"ROWS": 1}, warps=2 * warps)
    return (Tile({"ROWS": rows}, warps=warps), one, more) if rows > 1 else (one, more)
