"""The text of a generated kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from dsv41c.compiler.codegen.triton.index_math import Axis
from dsv41c.compiler.codegen.triton.row_blocks import FP8_HELPERS, RowBlocks
from dsv41c.compiler.codegen.triton.row_operands import tensor_type
from dsv41c.ir.names import value_names

__all__ = ["kernel_source"]

_PACKAGE = "dsv41c.compiler.codegen.triton.kernels"
_AXIS = re.compile(r"@(\w+)@")


def kernel_source(
    function: FuncOp,
    name: str,
    place: tuple[int, int],
    blocks: RowBlocks,
    arguments: Mapping[str, str],
    holes: Sequence[str],
) -> str:
    """A module with one kernel.

    Args:
        place: which of how many kernels of the region. arguments, holes: the kernel's parameters in order.
    """
    positions = blocks.positions()
    rank = 1 + max(positions.values(), default=0)
    body = [*_axis_lines(blocks, positions, rank), *(_placed(line, positions, rank) for line in blocks.lines)]
    parameters = [*arguments, *(f"{hole}: tl.constexpr" for hole in holes)]
    return "\n".join(
        [
            _header(function, place),
            "",
            "import triton",
            "import triton.language as tl",
            *_imports(blocks.helpers),
            "",
            "",
            "@triton.jit",
            f"def {name}_kernel(",
            *(f"    {parameter}," for parameter in parameters),
            "):",
            *(f"    {line}" for line in body),
            "",
        ]
    )


def _header(function: FuncOp, place: tuple[int, int]) -> str:
    names = value_names(function.body.block)
    last = function.body.block.last_op
    assert last is not None
    region = function.sym_name.data
    which = "" if place[1] == 1 else f", kernel {place[0] + 1} of {place[1]}"
    lines = [f'"""The region {region}{which}, generated from the lowered program; do not edit.', ""]
    lines += [f"    {names[argument]}: {_type_text(argument)}" for argument in function.args]
    lines += [f"    out{i} = {names[value]}: {_type_text(value)}" for i, value in enumerate(last.operands)]
    return "\n".join([*lines, '"""'])


def _type_text(value: SSAValue) -> str:
    type_ = tensor_type(value)
    return f"{type_.element} [{', '.join(map(str, type_.dims))}]"


def _imports(helpers: set[str]) -> list[str]:
    modules = sorted({"formats" if name in FP8_HELPERS else "row_math" for name in helpers})
    return ["", f"from {_PACKAGE} import {', '.join(modules)}"] if modules else []


def _axis_lines(blocks: RowBlocks, positions: Mapping[Axis, int], rank: int) -> list[str]:
    """The variable of each axis; the tiled ones share the second axis of the grid."""
    rows = f"(tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64){_subscript(0, rank)}"
    lines = [f"row = {rows}"]
    behind = 1
    for axis in sorted(positions, key=lambda axis: positions[axis]):
        count = f"tl.arange(0, {axis.block})"
        if axis.tiled:
            tiles = -(-int(axis.extent) // axis.block)
            tile = "tl.program_id(1)" if behind == 1 else f"(tl.program_id(1) // {behind})"
            count = f"({tile} % {tiles} * {axis.block} + {count})"
            behind *= tiles
        lines.append(f"{axis.name} = {count}{_subscript(positions[axis], rank)}")
    return lines


def _subscript(place: int, rank: int) -> str:
    if rank == 1:
        return ""
    return f"[{', '.join(':' if other == place else 'None' for other in range(rank))}]"


def _placed(line: str, positions: Mapping[Axis, int], rank: int) -> str:
    places = {axis.name: str(place) for axis, place in positions.items()}
    places["ONES"] = f"({', '.join(['1'] * rank)}{',' if rank == 1 else ''})"
    return _AXIS.sub(lambda match: places[match[1]], line)
