"""How each aten op becomes statements of a row program.

An emitter takes the blocks of a kernel, an op and an index into its result, and gives the result's block there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from xdsl.ir import Operation, SSAValue

from dsv41c.compiler.codegen.triton.index_math import Axis, Index, broadcast_index, reshape_index
from dsv41c.compiler.codegen.triton.row_blocks import (
    TRITON_TYPES,
    Block,
    Buffer,
    Reduction,
    RowBlocks,
    refused,
    tensor_type,
)
from dsv41c.ir.ops.torch_ops import ListConstruct, Scalar, constant_value, is_constant

__all__ = ["EMITTERS", "RESHAPES", "dimension_of", "list_items"]

Emitter = Callable[[RowBlocks, Operation, tuple[Index, ...]], Block]

# From the narrowest: two operands meet in the later one.
_PROMOTION = ("i1", "ui8", "si8", "si16", "si32", "si64", "bf16", "f16", "f32", "f64")
_FLOATS = ("bf16", "f16", "f32", "f64")
_E4M3_LARGEST = 448.0
_BINARY = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "rsub": "{1} - {0}",
    "mul": "{0} * {1}",
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "logical_and": "{0} & {1}",
    "logical_or": "{0} | {1}",
    "__lshift__": "{0} << {1}",
    "__rshift__": "{0} >> {1}",
}
_WITH_ALPHA = ("add", "sub", "rsub")
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNARY = {
    "abs": "tl.abs({0})",
    "neg": "-{0}",
    "square": "{0} * {0}",
    "exp": "tl.exp({0})",
    "log": "tl.log({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
}
_HELPED = {"sqrt": "square_root", "rsqrt": "inverse_square_root", "sigmoid": "sigmoid"}
RESHAPES = ("unsqueeze", "squeeze.dim", "flatten.using_ints", "unflatten.int", "view")


def cast(blocks: RowBlocks, value: SSAValue, block: Block, element: str) -> Block:
    """A block in another element type; numbers stay numbers."""
    if block.element == element:
        return block
    if block.number is not None:
        number = float(block.number) if element in _FLOATS else int(block.number)
        return Block(_number_text(number), element, number=number)
    if block.element == "f8E4M3FN":
        wide = blocks.statement(value, f"{blocks.helper('decode_e4m3')}({block.text}, FP8_CASTS)", [block], "f32")
        return cast(blocks, value, wide, element)
    if element == "f8E4M3FN":
        wide = cast(blocks, value, block, "f32")
        return blocks.statement(value, f"{blocks.helper('encode_e4m3')}({wide.text}, FP8_CASTS)", [wide], element)
    if element == "i1":
        return blocks.statement(value, f"{block.text} != 0", [block], element)
    return blocks.statement(value, f"{block.text}.to({TRITON_TYPES[element]})", [block], element)


def _number_text(number: float) -> str:
    if isinstance(number, float) and number in (float("inf"), float("-inf")):
        return f'float("{number}")'
    return repr(number)


def _compute(
    blocks: RowBlocks, value: SSAValue, template: str, operands: Sequence[Block], element: str, result: str
) -> Block:
    """A statement on operands of one element type; 16-bit floats are computed in fp32 and rounded once."""
    inner = "f32" if element in ("bf16", "f16") else element
    taken = [cast(blocks, value, operand, inner) for operand in operands]
    if all(block.number is not None for block in taken):
        first = blocks.statement(value, f"tl.full(@ONES@, {taken[0].text}, {TRITON_TYPES[inner]})", [], inner)
        taken[0] = first
    kept = inner if result == element else result
    done = blocks.statement(value, template.format(*(block.text for block in taken)), taken, kept)
    return cast(blocks, value, done, result)


def _tensor_operand(blocks: RowBlocks, op: Operation, place: int, index: tuple[Index, ...]) -> Block:
    operand = op.operands[place]
    wide = tensor_type(op.results[0]).dims
    return blocks.value(operand, broadcast_index(index, wide, tensor_type(operand).dims))


def _scalar(blocks: RowBlocks, op: Operation, place: int, element: str) -> Block:
    found = blocks.operand(op, place)
    if isinstance(found, str):
        return Block(found, "si32")
    if found is None:
        raise refused(op, f"operand {place} is absent")
    number = float(found) if element in _FLOATS else int(found)
    return Block(_number_text(number), element, number=number)


def _either(blocks: RowBlocks, op: Operation, place: int, index: tuple[Index, ...], element: str) -> Block:
    is_tensor = op.operands[place].type.name == "dsv41.tensor"
    return _tensor_operand(blocks, op, place, index) if is_tensor else _scalar(blocks, op, place, element)


def _binary(name: str) -> Emitter:
    def emit(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
        result = op.results[0]
        element = tensor_type(result).element
        operands = [_either(blocks, op, place, index, element) for place in (0, 1)]
        if name in _WITH_ALPHA and blocks.operand(op, 2) != 1:
            raise refused(op, "alpha is not 1")
        return _compute(blocks, result, _BINARY[name], operands, element, element)

    return emit


def _divide(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    result = op.results[0]
    element = tensor_type(result).element
    operands = [_either(blocks, op, place, index, element) for place in (0, 1)]
    template = "{0} / {1}" if element == "f64" else blocks.helper("divide") + "({0}, {1})"
    return _compute(blocks, result, template, operands, element, element)


def _integer_helper(name: str) -> Emitter:
    def emit(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
        result = op.results[0]
        element = tensor_type(result).element
        if element in _FLOATS:
            raise refused(op, f"on {element}; integers are supported")
        operands = [_either(blocks, op, place, index, element) for place in (0, 1)]
        return _compute(blocks, result, blocks.helper(name) + "({0}, {1})", operands, element, element)

    return emit


def _compare(sign: str) -> Emitter:
    def emit(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
        first = _tensor_operand(blocks, op, 0, index)
        second = _either(blocks, op, 1, index, first.element)
        element = max(first.element, second.element, key=_PROMOTION.index)
        return _compute(blocks, op.results[0], f"{{0}} {sign} {{1}}", [first, second], element, "i1")

    return emit


def _unary(template: str) -> Emitter:
    def emit(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
        element = tensor_type(op.results[0]).element
        return _compute(blocks, op.results[0], template, [blocks.value(op.operands[0], index)], element, element)

    return emit


def _helped(name: str) -> Emitter:
    def emit(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
        element = tensor_type(op.results[0]).element
        if element == "f64":
            raise refused(op, "on f64; fp32 and 16-bit floats are supported")
        template = blocks.helper(name) + "({0})"
        return _compute(blocks, op.results[0], template, [blocks.value(op.operands[0], index)], element, element)

    return emit


def _softplus(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    if blocks.operand(op, 1) != 1:
        raise refused(op, "beta is not 1")
    threshold = _scalar(blocks, op, 2, "f32")
    element = tensor_type(op.results[0]).element
    template = f"{blocks.helper('softplus')}({{0}}, {threshold.text})"
    return _compute(blocks, op.results[0], template, [blocks.value(op.operands[0], index)], element, element)


def _reciprocal(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    template = blocks.helper("divide") + "(1.0, {0})"
    element = tensor_type(op.results[0]).element
    return _compute(blocks, op.results[0], template, [blocks.value(op.operands[0], index)], element, element)


def _clamp(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    element = tensor_type(op.results[0]).element
    text, operands = "{0}", [blocks.value(op.operands[0], index)]
    for place, name in ((1, "maximum"), (2, "minimum")):
        if blocks.operand(op, place) is not None:
            operands.append(_scalar(blocks, op, place, element))
            text = f"tl.{name}({text}, {{{len(operands) - 1}}})"
    return _compute(blocks, op.results[0], text, operands, element, element)


def _where(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    result = op.results[0]
    element = tensor_type(result).element
    condition = _tensor_operand(blocks, op, 0, index)
    chosen = [cast(blocks, result, _either(blocks, op, place, index, element), element) for place in (1, 2)]
    return _select(blocks, result, condition, chosen, element)


def _select(blocks: RowBlocks, value: SSAValue, condition: Block, chosen: Sequence[Block], element: str) -> Block:
    if condition.number is not None:
        return chosen[0] if condition.number else chosen[1]
    texts = [block.text for block in chosen]
    if texts[0] == texts[1]:
        return chosen[0]
    if all(block.number is not None for block in chosen):
        texts[0] = f"tl.full(@ONES@, {texts[0]}, {TRITON_TYPES[element]})"
    return blocks.statement(value, f"tl.where({condition.text}, {', '.join(texts)})", [condition, *chosen], element)


def _to_dtype(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    element = tensor_type(op.results[0]).element
    if element == "f8E4M3FN" and not _is_clamped(op.operands[0]):
        raise refused(op, f"what is cast is not clamped to +-{_E4M3_LARGEST}, beyond which casts to e4m3 differ")
    return cast(blocks, op.results[0], blocks.value(op.operands[0], index), element)


def _is_clamped(value: SSAValue) -> bool:
    """Whether a value is clamped to what e4m3 holds, from below also by what it is computed from."""
    op = value.owner
    if not isinstance(op, Operation) or op.name != "torch.aten.clamp":
        return False
    low, high = (_constant_of(operand) for operand in op.operands[1:])
    above = low >= -_E4M3_LARGEST if isinstance(low, float) else low is None and _is_positive(op.operands[0])
    return above and isinstance(high, float) and high <= _E4M3_LARGEST


def _is_positive(value: SSAValue) -> bool:
    """Whether a value is clamped from below at zero or more, or that times a positive number."""
    op = value.owner
    if not isinstance(op, Operation):
        return False
    number = _constant_of(op.operands[1]) if len(op.operands) > 1 else None
    if op.name == "torch.aten.clamp":
        return isinstance(number, float) and number >= 0
    is_scaled = op.name in ("torch.aten.div.Scalar", "torch.aten.mul.Scalar")
    return is_scaled and isinstance(number, float) and number > 0 and _is_positive(op.operands[0])


def _constant_of(value: SSAValue) -> Scalar:
    owner = value.owner
    return constant_value(owner) if isinstance(owner, Operation) and is_constant(owner) else None


def _view_dtype(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    source, target = tensor_type(op.operands[0]), tensor_type(op.results[0])
    if source.dtype.itemsize != target.dtype.itemsize or "i1" in (source.element, target.element):
        raise refused(op, f"from {source.element} to {target.element}; two types of one width are supported")
    block = blocks.value(op.operands[0], index)
    if TRITON_TYPES[source.element] == TRITON_TYPES[target.element]:
        return Block(block.text, target.element, block.axes)
    text = f"{block.text}.to({TRITON_TYPES[target.element]}, bitcast=True)"
    return blocks.statement(op.results[0], text, [block], target.element)


def _filled(number: float) -> Emitter:
    def emit(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
        element = tensor_type(op.results[0]).element
        typed = float(number) if element in _FLOATS else int(number)
        return Block(_number_text(typed), element, number=typed)

    return emit


def _full(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    return _scalar(blocks, op, 1, tensor_type(op.results[0]).element)


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
    return _tensor_operand(blocks, op, 0, index)


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
    if not isinstance(owner, Operation) or owner.name.removeprefix("torch.aten.") not in RESHAPES:
        return None
    found = _memory(blocks, owner)
    return None if found is None else replace(found, dims=tensor_type(op.results[0]).dims)


def _dimension(blocks: RowBlocks, op: Operation, place: int, value: SSAValue) -> int:
    found = blocks.integer(op, place)
    return found + len(tensor_type(value).dims) if found < 0 else found


def _known_place(blocks: RowBlocks, op: Operation, place: int, size: object) -> int:
    found = blocks.integer(op, place)
    if found < 0 and not isinstance(size, int):
        raise refused(op, f"it counts from the end of a size that is not known, {size}")
    return found + size if found < 0 else found  # type: ignore[operator]


def _select_int(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    source = op.operands[0]
    dim = _dimension(blocks, op, 1, source)
    place = _known_place(blocks, op, 2, tensor_type(source).dims[dim])
    return blocks.value(source, (*index[:dim], Index(place), *index[dim:]))


def _slice(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    source = op.operands[0]
    dim = _dimension(blocks, op, 1, source)
    start = 0 if blocks.operand(op, 2) is None else _known_place(blocks, op, 2, tensor_type(source).dims[dim])
    position = index[dim].times(blocks.integer(op, 4)).plus(start)
    return blocks.value(source, (*index[:dim], position, *index[dim + 1 :]))


def _transpose(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    first, second = (_dimension(blocks, op, place, op.operands[0]) for place in (1, 2))
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
    dim = _dimension(blocks, op, 1, result)
    sizes = [tensor_type(piece).dims[dim] for piece in blocks.list_of(op, 0)]
    if not all(isinstance(size, int) for size in sizes):
        raise refused(op, "a piece's size is not known")
    starts = [sum(map(int, sizes[:place])) for place in range(len(sizes) + 1)]
    position = index[dim]
    low, high = position.bounds
    low, high = 0 if low is None else low, starts[-1] - 1 if high is None else high
    pieces = list(zip(blocks.list_of(op, 0), starts, starts[1:], strict=False))
    met = [piece for piece in pieces if piece[1] <= high and low < piece[2]] or pieces[:1]
    chosen = [
        (blocks.value(piece, (*index[:dim], position.plus(-start), *index[dim + 1 :])), end)
        for piece, start, end in met
    ]
    found = chosen[-1][0]
    for block, end in reversed(chosen[:-1]):
        condition = Block(f"{position.text()} < {end}", "i1", position.axes)
        found = _select(blocks, result, condition, [block, found], tensor_type(result).element)
    return found


def _stack(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    result = op.results[0]
    dim = _dimension(blocks, op, 1, result)
    rest = (*index[:dim], *index[dim + 1 :])
    pieces = blocks.list_of(op, 0)
    if (constant := index[dim].constant) is not None:
        return blocks.value(pieces[constant], rest)
    chosen = [blocks.value(piece, rest) for piece in pieces]
    found = chosen[-1]
    for place in reversed(range(len(chosen) - 1)):
        condition = Block(f"{index[dim].text()} == {place}", "i1", index[dim].axes)
        found = _select(blocks, result, condition, [chosen[place], found], tensor_type(result).element)
    return found


def _position(blocks: RowBlocks, value: SSAValue, index: tuple[Index, ...]) -> Index:
    return blocks.loaded(cast(blocks, value, blocks.value(value, index), "si64"))


def _index_tensor(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    source, places = op.operands[0], blocks.list_of(op, 1)
    behind = len(tensor_type(source).dims) - len(places)
    own = index[: len(index) - behind]
    dims = tensor_type(op.results[0]).dims[: len(own)]
    if any(place.type.name != "dsv41.tensor" for place in places):
        raise refused(op, "a dimension is left out")
    found = [_position(blocks, p, broadcast_index(own, dims, tensor_type(p).dims)) for p in places]
    return blocks.value(source, (*found, *index[len(own) :]))


def _embedding(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    return blocks.value(op.operands[0], (_position(blocks, op.operands[1], index[:-1]), index[-1]))


def _gather(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    dim = _dimension(blocks, op, 1, op.operands[0])
    place = _position(blocks, op.operands[2], index)
    return blocks.value(op.operands[0], (*index[:dim], place, *index[dim + 1 :]))


def _free_axes(blocks: RowBlocks, index: Sequence[Index], extents: Sequence[int]) -> list[Axis]:
    taken = frozenset().union(*(own.axes for own in index))
    found: list[Axis] = []
    for extent in extents:
        found.append(blocks.axis(extent, taken | frozenset(found)))
    return found


def _reduced(
    blocks: RowBlocks, value: SSAValue, block: Block, axes: Sequence[Axis], function: str, neutral: str
) -> Block:
    """A block reduced along axes; places behind an axis's extent count as `neutral`."""
    blocks.touch(block.axes | frozenset(axes), value)
    own = [axis for axis in axes if axis in block.axes]
    repeats = 1
    for axis in axes:
        repeats *= int(axis.extent) if axis not in own else 1
    padded = [f"({axis.name} < {axis.extent})" for axis in own if axis.is_padded]
    text = block.text if block.number is None else f"tl.full(@ONES@, {block.text}, {TRITON_TYPES[block.element]})"
    text = f"tl.where({' & '.join(padded)}, {text}, {neutral})" if padded else text
    for axis in own:
        text = f"tl.{function}({text}, axis=@{axis.name}@, keep_dims=True)"
    if function == "sum" and repeats > 1:
        text = f"{text} * {repeats}"
    return blocks.statement(value, text, [Block("", block.element, block.axes - frozenset(axes))], block.element)


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


def _reduce(blocks: RowBlocks, op: Operation, index: tuple[Index, ...], function: str) -> Block:
    result = op.results[0]
    rank = len(tensor_type(op.operands[0]).dims)
    dims = sorted(dim % rank for dim in blocks.integers(op, 1))
    position, axes = _reduction_index(blocks, op, index, dims, bool(blocks.operand(op, 2)))
    block, inner = _inside(blocks, op, index, op.operands[0], position), tensor_type(result).element
    wide = "f32" if inner in ("bf16", "f16") else inner
    done = _reduced(blocks, result, cast(blocks, result, block, wide), axes, *_FUNCTIONS[function](wide))
    return cast(blocks, result, done, inner)


def _inside(
    blocks: RowBlocks, op: Operation, index: tuple[Index, ...], operand: SSAValue, position: Sequence[Index]
) -> Block:
    """A reduction's operand; a block that is too large inside it is the reduction's."""
    axes = frozenset().union(*(own.axes for own in index))
    blocks.reductions.append(Reduction(op.results[0], axes - {blocks.rows}))
    block = blocks.value(operand, position)
    blocks.touch(frozenset().union(block.axes, axes & block.axes), op.results[0])
    blocks.reductions.pop()
    return block


_FUNCTIONS: dict[str, Callable[[str], tuple[str, str]]] = {
    "sum": lambda element: ("sum", "0.0" if element in _FLOATS else "0"),
    "amax": lambda element: ("max", 'float("-inf")' if element in _FLOATS else str(-(2**31))),
    "amin": lambda element: ("min", 'float("inf")' if element in _FLOATS else str(2**31 - 1)),
}


def _reduction(function: str) -> Emitter:
    return lambda blocks, op, index: _reduce(blocks, op, index, function)


def _mean(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    sizes = tensor_type(op.operands[0]).dims
    count = 1
    for dim in blocks.integers(op, 1):
        count *= int(sizes[dim])
    total = _reduce(blocks, op, index, "sum")
    number = Block(_number_text(float(count)), "f32", number=float(count))
    template = blocks.helper("divide") + "({0}, {1})"
    return _compute(blocks, op.results[0], template, [total, number], total.element, total.element)


def _argmax(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    rank = len(tensor_type(op.operands[0]).dims)
    dims = [blocks.integer(op, 1) % rank]
    position, axes = _reduction_index(blocks, op, index, dims, bool(blocks.operand(op, 2)))
    block = _inside(blocks, op, index, op.operands[0], position)
    found = _reduced(
        blocks, op.results[0], cast(blocks, op.results[0], block, "f32"), axes, *_FUNCTIONS["argmax"]("f32")
    )
    return cast(blocks, op.results[0], Block(found.text, "si32", found.axes), "si64")


_FUNCTIONS["argmax"] = lambda element: ("argmax", 'float("-inf")')


def _softmax(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    """Exponentials below the largest, times the reciprocal of their sum, as torch has it for short rows."""
    result, source = op.results[0], op.operands[0]
    dim = _dimension(blocks, op, 1, source)
    if tensor_type(source).element != "f32" or blocks.operand(op, 2) is not None:
        raise refused(op, f"on {tensor_type(source).element}; fp32 is supported")
    position, axes = _reduction_index(blocks, op, index, [dim], keep=True)
    outer = tuple(own for place, own in enumerate(index) if place != dim)
    row = _inside(blocks, op, outer, source, position)
    largest = _reduced(blocks, result, row, axes, *_FUNCTIONS["amax"]("f32"))
    grown = blocks.statement(result, f"tl.exp({row.text} - {largest.text})", [row, largest], "f32")
    total = _reduced(blocks, result, grown, axes, *_FUNCTIONS["sum"]("f32"))
    inverse = blocks.statement(result, f"{blocks.helper('divide')}(1.0, {total.text})", [total], "f32")
    if index[dim].axis != axes[0]:
        here = blocks.value(source, index)
        grown = blocks.statement(result, f"tl.exp({here.text} - {largest.text})", [here, largest], "f32")
    return blocks.statement(result, f"{grown.text} * {inverse.text}", [grown, inverse], "f32")


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
    products = blocks.statement(result, f"{factors[0].text} * {factors[1].text}", factors, wide)
    blocks.reductions.pop()
    done = _reduced(blocks, result, products, [axis], *_FUNCTIONS["sum"](wide))
    return cast(blocks, result, done, element)


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


def ordered_sum(op: Operation) -> tuple[SSAValue, int] | None:
    """The value and the dimension whose places `op` adds up from the first to the last, as a chain of additions."""
    places: list[int] = []
    found: tuple[SSAValue, int] | None = None
    while op.name == "torch.aten.add.Tensor":
        step = _selected(op.operands[1])
        if step is None or (found is not None and step[:2] != found):
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
    dim, place = (constant_value(o.owner) for o in op.operands[1:] if isinstance(o.owner, Operation))
    assert isinstance(dim, int)
    assert isinstance(place, int)
    return op.operands[0], dim % len(tensor_type(op.operands[0]).dims), place


def _add(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    found = ordered_sum(op)
    if found is None or tensor_type(op.results[0]).element != "f32":
        return _binary("add")(blocks, op, index)
    value, dim = found
    extent = tensor_type(value).dims[dim]
    assert isinstance(extent, int)
    (axis,) = _free_axes(blocks, index, [extent])
    position = (*index[:dim], Index.of(axis), *index[dim:])
    block = _inside(blocks, op, index, value, position)
    blocks.touch(block.axes | {axis}, op.results[0])
    text = f"{blocks.helper('sum_in_order')}({block.text}, {axis.name}, @{axis.name}@, {extent})"
    return blocks.statement(op.results[0], text, [Block("", "f32", block.axes - {axis})], "f32")


EMITTERS: dict[str, Emitter] = {
    **{f"{name}.{kind}": _binary(name) for name in _BINARY for kind in ("Tensor", "Scalar")},
    **{name: _binary(name) for name in ("maximum", "minimum", "logical_and", "logical_or")},
    **{f"{name}.{kind}": _compare(sign) for name, sign in _COMPARISONS.items() for kind in ("Tensor", "Scalar")},
    **{name: _unary(template) for name, template in _UNARY.items()},
    **{name: _helped(helper) for name, helper in _HELPED.items()},
    **dict.fromkeys(RESHAPES, _reshape),
    **{
        f"{name}{kind}": _integer_helper(name)
        for name in ("floor_divide", "remainder")
        for kind in (".Scalar", ".Tensor")
    },
    "floor_divide": _integer_helper("floor_divide"),
    "add.Tensor": _add,
    "alias": _same,
    "amax": _reduction("amax"),
    "amin": _reduction("amin"),
    "arange": _arange,
    "arange.start_step": _arange,
    "argmax": _argmax,
    "cat": _cat,
    "clamp": _clamp,
    "clone": _same,
    "contiguous": _same,
    "div.Scalar": _divide,
    "div.Tensor": _divide,
    "embedding": _embedding,
    "expand": _expand,
    "full_like": _full,
    "gather": _gather,
    "index.Tensor_hacked_twin": _index_tensor,
    "linear": _linear,
    "matmul": _matmul,
    "mean.dim": _mean,
    "ones_like": _filled(1),
    "permute": _permute,
    "reciprocal": _reciprocal,
    "select.int": _select_int,
    "slice.Tensor": _slice,
    "softmax.int": _softmax,
    "softplus": _softplus,
    "stack": _stack,
    "sum.dim_IntList": _reduction("sum"),
    "to.dtype": _to_dtype,
    "transpose.int": _transpose,
    "view.dtype": _view_dtype,
    "where.ScalarOther": _where,
    "where.ScalarSelf": _where,
    "where.self": _where,
    "zeros_like": _filled(0),
}


def dimension_of(op: Operation, place: int, value: SSAValue) -> int:
    """The dimension of a value that a constant operand names."""
    owner = op.operands[place].owner
    assert isinstance(owner, Operation)
    found = constant_value(owner)
    assert isinstance(found, int)
    return found % len(tensor_type(value).dims)


def list_items(op: Operation, place: int) -> Sequence[SSAValue]:
    """The items of an operand that is a list."""
    owner = op.operands[place].owner
    assert isinstance(owner, ListConstruct)
    return owner.items
