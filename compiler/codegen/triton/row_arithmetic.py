"""Arithmetic of row programs: aten ops that compute each element from the elements at its place.

An emitter takes the blocks of a kernel, an op and an index into its result, and gives the result's block there.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from dsv41c.compiler.codegen.triton.index_math import Index, broadcast_index
from dsv41c.compiler.codegen.triton.row_blocks import TRITON_TYPES, Block, Emitter, RowBlocks
from dsv41c.compiler.codegen.triton.row_operands import constant_of, refused, tensor_type
from dsv41c.ir.types import TensorType

__all__ = ["ARITHMETIC", "FLOATS", "binary", "cast", "compute", "number_text", "operand_block", "select"]


# From the narrowest: two operands meet in the later one.
_PROMOTION = ("i1", "ui8", "si8", "si16", "si32", "si64", "bf16", "f16", "f32", "f64")
FLOATS = ("bf16", "f16", "f32", "f64")
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
}
_HELPED = {"sqrt": "square_root", "rsqrt": "inverse_square_root", "sigmoid": "sigmoid"}


def cast(blocks: RowBlocks, value: SSAValue, block: Block, element: str, name: str | None = None) -> Block:
    """A block in another element type; numbers stay numbers.

    Args:
        value: what the cast belongs to. name: of the new block; its own name and the type for a step on the way.
    """
    if block.element == element:
        return block
    if block.number is not None:
        number = float(block.number) if element in FLOATS else int(block.number)
        return Block(number_text(number), element, number=number)
    if name is None:
        name = f"{block.text}_{element}"
    if block.element == "f8E4M3FN":
        own = name if element == "f32" else f"{block.text}_f32"
        wide = blocks.statement(value, f"{blocks.helper('decode_e4m3')}({block.text}, FP8_CASTS)", [block], "f32", own)
        return cast(blocks, value, wide, element, name)
    if element == "f8E4M3FN":
        wide = cast(blocks, value, block, "f32")
        return blocks.statement(value, f"{blocks.helper('encode_e4m3')}({wide.text}, FP8_CASTS)", [wide], element, name)
    text = f"{block.text} != 0" if element == "i1" else f"{block.text}.to({TRITON_TYPES[element]})"
    return blocks.statement(value, text, [block], element, name)


def number_text(number: float) -> str:
    """A number in Python."""
    if isinstance(number, float) and number in (float("inf"), float("-inf")):
        return f'float("{number}")'
    return repr(number)


def compute(
    blocks: RowBlocks, value: SSAValue, template: str, operands: Sequence[Block], element: str, result: str
) -> Block:
    """A statement on operands of one element type; 16-bit floats are computed in fp32 and rounded once."""
    inner = "f32" if element in ("bf16", "f16") else element
    taken = [cast(blocks, value, operand, inner) for operand in operands]
    if all(block.number is not None for block in taken):
        text = f"tl.full(@ONES@, {taken[0].text}, {TRITON_TYPES[inner]})"
        taken[0] = blocks.statement(value, text, [], inner, "number")
    is_last = result in (inner, "i1")
    step = None if is_last else f"{blocks.names[value]}_{inner}"
    text = template.format(*(block.text for block in taken))
    done = blocks.statement(value, text, taken, result if is_last else inner, step)
    return cast(blocks, value, done, result, "")


def operand_block(blocks: RowBlocks, op: Operation, place: int, index: tuple[Index, ...]) -> Block:
    """A tensor operand, broadcast to the op's result, for an index into that."""
    operand = op.operands[place]
    wide = tensor_type(op.results[0]).dims
    return blocks.value(operand, broadcast_index(index, wide, tensor_type(operand).dims))


def scalar_block(blocks: RowBlocks, op: Operation, place: int, element: str) -> Block:
    """A scalar operand as a number of an element type, or as the text of a size."""
    found = blocks.operand(op, place)
    if isinstance(found, str):
        return Block(found, "si32")
    if found is None:
        raise refused(op, f"operand {place} is absent")
    number = float(found) if element in FLOATS else int(found)
    return Block(number_text(number), element, number=number)


def either_block(blocks: RowBlocks, op: Operation, place: int, index: tuple[Index, ...], element: str) -> Block:
    """An operand that is a tensor or a scalar."""
    is_tensor = isinstance(op.operands[place].type, TensorType)
    return operand_block(blocks, op, place, index) if is_tensor else scalar_block(blocks, op, place, element)


def select(blocks: RowBlocks, value: SSAValue, condition: Block, chosen: Sequence[Block], element: str) -> Block:
    """One of two blocks by a condition."""
    if condition.number is not None:
        return chosen[0] if condition.number else chosen[1]
    texts = [block.text for block in chosen]
    if texts[0] == texts[1]:
        return chosen[0]
    if all(block.number is not None for block in chosen):
        texts[0] = f"tl.full(@ONES@, {texts[0]}, {TRITON_TYPES[element]})"
    return blocks.statement(value, f"tl.where({condition.text}, {', '.join(texts)})", [condition, *chosen], element)


def binary(name: str) -> Emitter:
    def emit(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
        result = op.results[0]
        element = tensor_type(result).element
        operands = [either_block(blocks, op, place, index, element) for place in (0, 1)]
        if name in _WITH_ALPHA and blocks.operand(op, 2) != 1:
            raise refused(op, "alpha is not 1")
        return compute(blocks, result, _BINARY[name], operands, element, element)

    return emit


def _divide(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    result = op.results[0]
    element = tensor_type(result).element
    operands = [either_block(blocks, op, place, index, element) for place in (0, 1)]
    template = "{0} / {1}" if element == "f64" else blocks.helper("divide") + "({0}, {1})"
    return compute(blocks, result, template, operands, element, element)


def _integer_helper(name: str) -> Emitter:
    def emit(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
        result = op.results[0]
        element = tensor_type(result).element
        if element in FLOATS:
            raise refused(op, f"on {element}; integers are supported")
        operands = [either_block(blocks, op, place, index, element) for place in (0, 1)]
        return compute(blocks, result, blocks.helper(name) + "({0}, {1})", operands, element, element)

    return emit


def _compare(sign: str) -> Emitter:
    def emit(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
        first = operand_block(blocks, op, 0, index)
        second = either_block(blocks, op, 1, index, first.element)
        element = max(first.element, second.element, key=_PROMOTION.index)
        return compute(blocks, op.results[0], f"{{0}} {sign} {{1}}", [first, second], element, "i1")

    return emit


def _unary(template: str) -> Emitter:
    def emit(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
        element = tensor_type(op.results[0]).element
        return compute(blocks, op.results[0], template, [blocks.value(op.operands[0], index)], element, element)

    return emit


def _helped(name: str) -> Emitter:
    def emit(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
        element = tensor_type(op.results[0]).element
        if element == "f64":
            raise refused(op, "on f64; fp32 and 16-bit floats are supported")
        template = blocks.helper(name) + "({0})"
        return compute(blocks, op.results[0], template, [blocks.value(op.operands[0], index)], element, element)

    return emit


def _softplus(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    if blocks.operand(op, 1) != 1:
        raise refused(op, "beta is not 1")
    threshold = scalar_block(blocks, op, 2, "f32")
    element = tensor_type(op.results[0]).element
    template = f"{blocks.helper('softplus')}({{0}}, {threshold.text})"
    return compute(blocks, op.results[0], template, [blocks.value(op.operands[0], index)], element, element)


def _reciprocal(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    template = blocks.helper("divide") + "(1.0, {0})"
    element = tensor_type(op.results[0]).element
    return compute(blocks, op.results[0], template, [blocks.value(op.operands[0], index)], element, element)


def _clamp(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    element = tensor_type(op.results[0]).element
    text, operands = "{0}", [blocks.value(op.operands[0], index)]
    for place, name in ((1, "maximum"), (2, "minimum")):
        if blocks.operand(op, place) is not None:
            operands.append(scalar_block(blocks, op, place, element))
            text = f"tl.{name}({text}, {{{len(operands) - 1}}})"
    return compute(blocks, op.results[0], text, operands, element, element)


def _where(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    result = op.results[0]
    element = tensor_type(result).element
    condition = operand_block(blocks, op, 0, index)
    chosen = [cast(blocks, result, either_block(blocks, op, place, index, element), element) for place in (1, 2)]
    return select(blocks, result, condition, chosen, element)


def _to_dtype(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    element = tensor_type(op.results[0]).element
    if element == "f8E4M3FN" and not _is_clamped(op.operands[0]):
        raise refused(op, f"what is cast is not clamped to +-{_E4M3_LARGEST}, beyond which casts to e4m3 differ")
    return cast(blocks, op.results[0], blocks.value(op.operands[0], index), element, "")


def _is_clamped(value: SSAValue) -> bool:
    """Whether a value is clamped to what e4m3 holds, from below also by what it is computed from."""
    op = value.owner
    if not isinstance(op, Operation) or op.name != "torch.aten.clamp":
        return False
    low, high = (constant_of(operand) for operand in op.operands[1:])
    above = low >= -_E4M3_LARGEST if isinstance(low, float) else low is None and _is_positive(op.operands[0])
    return above and isinstance(high, float) and high <= _E4M3_LARGEST


def _is_positive(value: SSAValue) -> bool:
    """Whether a value is clamped from below at zero or more, or that times a positive number."""
    op = value.owner
    if not isinstance(op, Operation):
        return False
    number = constant_of(op.operands[1]) if len(op.operands) > 1 else None
    if op.name == "torch.aten.clamp":
        return isinstance(number, float) and number >= 0
    is_scaled = op.name in ("torch.aten.div.Scalar", "torch.aten.mul.Scalar")
    return is_scaled and isinstance(number, float) and number > 0 and _is_positive(op.operands[0])


def _view_dtype(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    source, target = tensor_type(op.operands[0]), tensor_type(op.results[0])
    if source.dtype.itemsize != target.dtype.itemsize or "i1" in (source.element, target.element):
        raise refused(op, f"from {source.element} to {target.element}; two types of one width are supported")
    block = blocks.value(op.operands[0], index)
    if TRITON_TYPES[source.element] == TRITON_TYPES[target.element]:
        return Block(block.text, target.element, block.axes)
    text = f"{block.text}.to({TRITON_TYPES[target.element]}, bitcast=True)"
    return blocks.statement(op.results[0], text, [block], target.element)


def _zeros(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    number = 0.0 if tensor_type(op.results[0]).element in FLOATS else 0
    return Block(number_text(number), tensor_type(op.results[0]).element, number=number)


def _full(blocks: RowBlocks, op: Operation, index: tuple[Index, ...]) -> Block:
    return scalar_block(blocks, op, 1, tensor_type(op.results[0]).element)


ARITHMETIC: dict[str, Emitter] = {
    **{f"{name}.{kind}": binary(name) for name in _BINARY for kind in ("Tensor", "Scalar")},
    **{name: binary(name) for name in ("maximum", "minimum")},
    **{f"{name}.{kind}": _compare(sign) for name, sign in _COMPARISONS.items() for kind in ("Tensor", "Scalar")},
    **{name: _unary(template) for name, template in _UNARY.items()},
    **{name: _helped(helper) for name, helper in _HELPED.items()},
    **{f"remainder.{kind}": _integer_helper("remainder") for kind in ("Tensor", "Scalar")},
    **dict.fromkeys(("floor_divide", "floor_divide.Scalar"), _integer_helper("floor_divide")),
    **dict.fromkeys(("div.Tensor", "div.Scalar"), _divide),
    **dict.fromkeys(("where.self", "where.ScalarOther"), _where),
    "clamp": _clamp,
    "full_like": _full,
    "reciprocal": _reciprocal,
    "softplus": _softplus,
    "to.dtype": _to_dtype,
    "view.dtype": _view_dtype,
    "zeros_like": _zeros,
}
