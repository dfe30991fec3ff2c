"""Views and gathers of row programs: aten ops that move elements, as arithmetic on the index into their operands."""

from __future__ import annotations

from dataclasses import replace

from xdsl.ir import Operation, SSAValue

from dsv41c.compiler.codegen.triton.index_math import Index, broadcast_index, reshape_index
from dsv41c.compiler.codegen.triton.row_arithmetic import cast, operand_block, select
from dsv41c.compiler.codegen.triton.row_blocks import TRITON_TYPES, Block, Buffer, Emitter, RowBlocks
from dsv41c.compiler.codegen.triton.row_operands import dimension_of, list_items, op_word, refused, tensor_type
from dsv41c.ir.types import TensorType

__all__ = ["MOVES", "RESHAPES", "VIEWS"]

RESHAPES = ("unsqueeze", "squeeze.dim", "flatten.using_ints", "unflatten.int", "view")


def _arange(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    counts = [blocks.integer(op, place) for place in range(3)] if "start" in op.name else [0, 0, 1]
    position = index[0].times(counts[2]).plus(counts[0])
    element = tensor_type(op.results[0]).element
    if position.constant is not None:
        return cast(blocks, op.results[0], Block(str(position.constant), "si64", number=position.constant), element)
    text = f"({position.text()}).to({TRITON_TYPES[element]})"
    return blocks.statement(op.results[0], text, [Block("", element, position.axes)], element)


def _same(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    return blocks.value(op.operands[0], index)


def _expand(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    return operand_block(blocks, op, 0, index)


def _reshape(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    source = op.operands[0]
    position = reshape_index(index, tensor_type(op.results[0]).dims, tensor_type(source).dims)
    if position is not None:
        return blocks.value(source, position)
    memory = _memory(blocks, op)
    if memory is None:
        raise refused(op, "a size that is not known divides its rows")
    return blocks.load(op.results[0], memory, index)


def _memory(blocks: RowBlocks, op: Operation) -> Buffer | None:
    """What a reshape views, if that lies in memory: the same bytes under other sizes."""
    source = op.operands[0]
    if source in blocks.buffers:
        return replace(blocks.buffers[source], dims=tensor_type(op.results[0]).dims)
    owner = source.owner
    if not isinstance(owner, Operation) or op_word(owner) not in RESHAPES:
        return None
    found = _memory(blocks, owner)
    return None if found is None else replace(found, dims=tensor_type(op.results[0]).dims)


def _known_place(blocks: RowBlocks, op: Operation, place: int, size: object) -> int:
    found = blocks.integer(op, place)
    if found < 0 and not isinstance(size, int):
        raise refused(op, f"it counts from the end of a size that is not known, {size}")
    return found + size if found < 0 else found  # type: ignore[operator]


def _select_int(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    source = op.operands[0]
    dim = dimension_of(op, 1, source)
    place = _known_place(blocks, op, 2, tensor_type(source).dims[dim])
    return blocks.value(source, (*index[:dim], Index(place), *index[dim:]))


def _slice(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    source = op.operands[0]
    dim = dimension_of(op, 1, source)
    start = 0 if blocks.operand(op, 2) is None else _known_place(blocks, op, 2, tensor_type(source).dims[dim])
    position = index[dim].times(blocks.integer(op, 4)).plus(start)
    return blocks.value(source, (*index[:dim], position, *index[dim + 1 :]))


def _transpose(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    first, second = (dimension_of(op, place, op.operands[0]) for place in (1, 2))
    position = list(index)
    position[first], position[second] = index[second], index[first]
    return blocks.value(op.operands[0], position)


def _permute(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    position = list(index)
    for place, dim in enumerate(blocks.integers(op, 1)):
        position[dim] = index[place]
    return blocks.value(op.operands[0], position)


def _cat(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    result = op.results[0]
    dim = dimension_of(op, 1, result)
    sizes = [tensor_type(piece).dims[dim] for piece in list_items(op, 0)]
    if not all(isinstance(size, int) for size in sizes):
        raise refused(op, "a piece's size is not known")
    starts = [sum(map(int, sizes[:place])) for place in range(len(sizes) + 1)]
    position = index[dim]
    low, high = position.bounds
    low, high = 0 if low is None else low, starts[-1] - 1 if high is None else high
    pieces = list(zip(list_items(op, 0), starts, starts[1:], strict=False))
    met = [piece for piece in pieces if piece[1] <= high and low < piece[2]] or pieces[:1]
    chosen = [
        (blocks.value(piece, (*index[:dim], position.plus(-start), *index[dim + 1 :])), end)
        for piece, start, end in met
    ]
    found = chosen[-1][0]
    for block, end in reversed(chosen[:-1]):
        condition = Block(f"{position.text()} < {end}", "i1", position.axes)
        found = select(blocks, result, condition, [block, found], tensor_type(result).element)
    return found


def _stack(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    result = op.results[0]
    dim = dimension_of(op, 1, result)
    rest = (*index[:dim], *index[dim + 1 :])
    pieces = list_items(op, 0)
    if (constant := index[dim].constant) is not None:
        return blocks.value(pieces[constant], rest)
    chosen = [blocks.value(piece, rest) for piece in pieces]
    found = chosen[-1]
    for place in reversed(range(len(chosen) - 1)):
        condition = Block(f"{index[dim].text()} == {place}", "i1", index[dim].axes)
        found = select(blocks, result, condition, [chosen[place], found], tensor_type(result).element)
    return found


def _position(blocks: RowBlocks, value: SSAValue, index: tuple[Index, ...]) -> Index:
    return blocks.loaded(cast(blocks, value, blocks.value(value, index), "si64"))


def _index_tensor(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    source, places = op.operands[0], list_items(op, 1)
    behind = len(tensor_type(source).dims) - len(places)
    own = index[: len(index) - behind]
    dims = tensor_type(op.results[0]).dims[: len(own)]
    if not all(isinstance(place.type, TensorType) for place in places):
        raise refused(op, "a dimension is left out")
    found = [_position(blocks, p, broadcast_index(own, dims, tensor_type(p).dims)) for p in places]
    return blocks.value(source, (*found, *index[len(own) :]))


def _embedding(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    return blocks.value(op.operands[0], (_position(blocks, op.operands[1], index[:-1]), index[-1]))


def _gather(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    dim = dimension_of(op, 1, op.operands[0])
    place = _position(blocks, op.operands[2], index)
    return blocks.value(op.operands[0], (*index[:dim], place, *index[dim + 1 :]))


# Only the index changes.
VIEWS: dict[str, Emitter] = {
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(("alias", "clone", "contiguous"), _same),
    "expand": _expand,
    "permute": _permute,
    "select.int": _select_int,
    "slice.Tensor": _slice,
    "transpose.int": _transpose,
}
MOVES: dict[str, Emitter] = {
    "arange": _arange,
    "arange.start_step": _arange,
    "cat": _cat,
    "embedding": _embedding,
    "gather": _gather,
    "index.Tensor_hacked_twin": _index_tensor,
    "stack": _stack,
}
