"""Sums and the like of row programs: aten ops that compute an element from a whole dimension of an operand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from xdsl.ir import Operation, SSAValue

from dsv41c.compiler.codegen.triton.index_math import Axis, Index, broadcast_index
from dsv41c.compiler.codegen.triton.row_arithmetic import ARITHMETIC, FLOATS, cast, compute, number_text
from dsv41c.compiler.codegen.triton.row_blocks import TRITON_TYPES, Block, Emitter, Reduction, RowBlocks
from dsv41c.compiler.codegen.triton.row_operands import constant_of, dimension_of, refused, tensor_type

__all__ = ["SUMS"]

_FUNCTIONS: dict[str, Callable[[str], tuple[str, str]]] = {
    "sum": lambda element: ("sum", "0.0" if element in FLOATS else "0"),
    "amax": lambda element: ("max", 'float("-inf")' if element in FLOATS else str(-(2**31))),
    "argmax": lambda element: ("argmax", 'float("-inf")'),
}


def _free_axes(blocks: RowBlocks, index: Sequence[Index], extents: Sequence[int]) -> list[Axis]:
    taken = frozenset().union(*(own.axes for own in index))
    found: list[Axis] = []
    for extent in extents:
        found.append(blocks.axis(extent, taken | frozenset(found)))
    return found


def _reduced(
    blocks: RowBlocks,
    value: SSAValue,
    block: Block,
    axes: Sequence[Axis],
    function: tuple[str, str],
    name: str | None = None,
) -> Block:
    """A block reduced along axes.

    Args:
        function: of Triton, and what places behind an axis's extent count as. name: of a step on the way.
    """
    reduce, neutral = function
    blocks.touch(block.axes | frozenset(axes), value)
    own = [axis for axis in axes if axis in block.axes]
    repeats = math.prod(int(axis.extent) for axis in axes if axis not in own)
    padded = [f"({axis.name} < {axis.extent})" for axis in own if axis.is_padded]
    text = block.text if block.number is None else f"tl.full(@ONES@, {block.text}, {TRITON_TYPES[block.element]})"
    text = f"tl.where({' & '.join(padded)}, {text}, {neutral})" if padded else text
    for axis in own:
        text = f"tl.{reduce}({text}, axis=@{axis.name}@, keep_dims=True)"
    if reduce == "sum" and repeats > 1:
        text = f"{text} * {repeats}"
    return blocks.statement(value, text, [Block("", "", block.axes - frozenset(axes))], block.element, name)


def _reduction_index(
    blocks: RowBlocks, op: Operation, index: tuple[Index, ...], dims: Sequence[int], keep: bool
) -> tuple[list[Index], list[Axis]]:
    """The index into a reduction's operand, with an axis for every dimension that is reduced."""
    sizes = tensor_type(op.operands[0]).dims
    outer = [own for place, own in enumerate(index) if place not in dims] if keep else list(index)
    extents = [sizes[dim] for dim in dims]
    if not all(isinstance(extent, int) for extent in extents):
        raise refused(op, f"it reduces sizes that are not known, {extents}")
    axes = _free_axes(blocks, outer, [int(extent) for extent in extents])
    rest, own = iter(outer), iter(axes)
    return [Index.of(next(own)) if dim in dims else next(rest) for dim in range(len(sizes))], axes


def _inside(
    blocks: RowBlocks, op: Operation, index: tuple[Index, ...], operand: SSAValue, position: Sequence[Index]
) -> Block:
    """A reduction's operand; a block that is too large inside it is the reduction's."""
    axes = frozenset().union(*(own.axes for own in index))
    blocks.reductions.append(Reduction(op.results[0], axes - {blocks.rows}))
    block = blocks.value(operand, position)
    blocks.reductions.pop()
    return block


def _reduce(blocks: RowBlocks, op: Operation, index: tuple[Index, ...], function: str, mean: bool = False) -> Block:
    result = op.results[0]
    element = tensor_type(result).element
    wide = "f32" if element in ("bf16", "f16") else element
    sizes = tensor_type(op.operands[0]).dims
    dims = sorted(dim % len(sizes) for dim in blocks.integers(op, 1))
    position, axes = _reduction_index(blocks, op, index, dims, bool(blocks.operand(op, 2)))
    row = cast(blocks, result, _inside(blocks, op, index, op.operands[0], position), wide)
    if not mean:
        step = None if wide == element else f"{blocks.names[result]}_{wide}"
        return cast(blocks, result, _reduced(blocks, result, row, axes, _FUNCTIONS[function](wide), step), element, "")
    total = _reduced(blocks, result, row, axes, _FUNCTIONS[function](wide), f"{blocks.names[result]}_sum")
    count = float(math.prod(int(sizes[dim]) for dim in dims))
    template = blocks.helper("divide") + "({0}, {1})"
    return compute(blocks, result, template, [total, Block(number_text(count), wide, number=count)], element, element)


def _reduction(function: str, mean: bool = False) -> Emitter:
    return lambda blocks, op, index: _reduce(blocks, op, index, function, mean)


def _argmax(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    result = op.results[0]
    dim = dimension_of(op, 1, op.operands[0])
    position, axes = _reduction_index(blocks, op, index, [dim], bool(blocks.operand(op, 2)))
    row = cast(blocks, result, _inside(blocks, op, index, op.operands[0], position), "f32")
    found = _reduced(blocks, result, row, axes, _FUNCTIONS["argmax"]("f32"), f"{blocks.names[result]}_si32")
    return cast(blocks, result, Block(found.text, "si32", found.axes), "si64", "")


def _softmax(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    """Exponentials below the largest, times the reciprocal of their sum, as torch has it for short rows."""
    result, source = op.results[0], op.operands[0]
    dim = dimension_of(op, 1, source)
    if tensor_type(source).element != "f32" or blocks.operand(op, 2) is not None:
        raise refused(op, f"on {tensor_type(source).element}; fp32 is supported")
    position, axes = _reduction_index(blocks, op, index, [dim], keep=True)
    outer = tuple(own for place, own in enumerate(index) if place != dim)
    name = blocks.names[result]

    def grown(row: Block) -> Block:
        return blocks.statement(result, f"tl.exp({row.text} - {largest.text})", [row, largest], "f32", f"{name}_grown")

    row = _inside(blocks, op, outer, source, position)
    largest = _reduced(blocks, result, row, axes, _FUNCTIONS["amax"]("f32"), f"{name}_largest")
    along = grown(row)
    total = _reduced(blocks, result, along, axes, _FUNCTIONS["sum"]("f32"), f"{name}_sum")
    text = f"{blocks.helper('divide')}(1.0, {total.text})"
    inverse = blocks.statement(result, text, [total], "f32", f"{name}_inverse")
    here = along if index[dim].axis == axes[0] else grown(blocks.value(source, index))
    return blocks.statement(result, f"{here.text} * {inverse.text}", [here, inverse], "f32")


def _product(
    blocks: RowBlocks,
    op: Operation,
    index: tuple[Index, ...],
    sides: Callable[[Index], tuple[tuple[Index, ...], tuple[Index, ...]]],
    extent: object,
) -> Block:
    """A sum of products over an axis, in fp32 or f64."""
    if not isinstance(extent, int):
        raise refused(op, f"it sums over a size that is not known, {extent}")
    result = op.results[0]
    element = tensor_type(result).element
    wide = "f64" if element == "f64" else "f32"
    (axis,) = _free_axes(blocks, index, [extent])
    positions = sides(Index.of(axis))
    factors = [
        cast(blocks, result, _inside(blocks, op, index, operand, position), wide)
        for operand, position in zip(op.operands[:2], positions, strict=True)
    ]
    axes = frozenset().union(*(own.axes for own in index))
    blocks.reductions.append(Reduction(result, axes - {blocks.rows}))
    name = blocks.names[result]
    products = blocks.statement(result, f"{factors[0].text} * {factors[1].text}", factors, wide, f"{name}_products")
    blocks.reductions.pop()
    step = None if wide == element else f"{name}_{wide}"
    return cast(blocks, result, _reduced(blocks, result, products, [axis], _FUNCTIONS["sum"](wide), step), element, "")


def _linear(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    if blocks.operand(op, 2) is not None:
        raise refused(op, "it has a bias")
    extent = tensor_type(op.operands[0]).dims[-1]
    return _product(blocks, op, index, lambda own: ((*index[:-1], own), (index[-1], own)), extent)


def _matmul(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    left, right = (tensor_type(operand).dims for operand in op.operands)
    wide = tensor_type(op.results[0]).dims
    if len(left) < 2 or len(right) < 2:
        raise refused(op, "of a vector; matrices and batches of them are supported")

    def sides(own: Index) -> tuple[tuple[Index, ...], tuple[Index, ...]]:
        batch = index[:-2]
        first = broadcast_index(batch, wide[:-2], left[:-2])
        second = broadcast_index(batch, wide[:-2], right[:-2])
        return (*first, index[-2], own), (*second, own, index[-1])

    return _product(blocks, op, index, sides, left[-1])


def _add(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    found = _ordered_sum(op)
    if found is None or tensor_type(op.results[0]).element != "f32":
        return ARITHMETIC["add.Tensor"](blocks, op, index)
    value, dim = found
    extent = tensor_type(value).dims[dim]
    assert isinstance(extent, int)
    (axis,) = _free_axes(blocks, index, [extent])
    position = (*index[:dim], Index.of(axis), *index[dim:])
    block = _inside(blocks, op, index, value, position)
    blocks.touch(block.axes | {axis}, op.results[0])
    text = f"{blocks.helper('sum_in_order')}({block.text}, {axis.name}, @{axis.name}@, {extent})"
    return blocks.statement(op.results[0], text, [Block("", "f32", block.axes - {axis})], "f32")


def _ordered_sum(op: Operation) -> tuple[SSAValue, int] | None:
    """The value and the dimension whose places `op` adds up from the first to the last, as a chain of additions."""
    places: list[int] = []
    found: tuple[SSAValue, int] | None = None
    while op.name == "torch.aten.add.Tensor":
        step = _selected(op.operands[1])
        if step is None or (found is not None and step[:2] != found) or constant_of(op.operands[2]) != 1:
            return None
        found = step[:2]
        places.append(step[2])
        nearer = _selected(op.operands[0])
        if nearer is not None:
            places.append(nearer[2])
            size = tensor_type(found[0]).dims[found[1]]
            complete = nearer[:2] == found and places[::-1] == list(range(len(places))) and size == len(places)
            return found if complete else None
        if not isinstance(op.operands[0].owner, Operation):
            return None
        op = op.operands[0].owner
    return None


def _selected(value: SSAValue) -> tuple[SSAValue, int, int] | None:
    op = value.owner
    if not isinstance(op, Operation) or op.name != "torch.aten.select.int":
        return None
    place = constant_of(op.operands[2])
    assert isinstance(place, int)
    return op.operands[0], dimension_of(op, 1, op.operands[0]), place


SUMS: dict[str, Emitter] = {
    "add.Tensor": _add,
    "amax": _reduction("amax"),
    "argmax": _argmax,
    "linear": _linear,
    "matmul": _matmul,
    "mean.dim": _reduction("sum", mean=True),
    "softmax.int": _softmax,
    "sum.dim_IntList": _reduction("sum"),
}
