"""The body of one generated kernel: blocks of values, computed where and at the positions that their users need.

A `RowBlocks` is asked for a value at an index and adds the statements that compute it. Views only change the index;
element-wise ops ask for their operands at the same index; a reduction adds an axis. Each pair of value and index is
computed once.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.ir import Operation, SSAValue

from dsv41c.compiler.codegen.triton.index_math import Axis, Index, Loaded, product, strides_of
from dsv41c.compiler.codegen.triton.row_operands import constant_of, list_items, op_word, refused, tensor_type
from dsv41c.ir.dims import Dim, symbols_of
from dsv41c.ir.names import unused
from dsv41c.ir.ops.torch_ops import Scalar, is_constant

__all__ = [
    "FP8_HELPERS",
    "TRITON_TYPES",
    "Block",
    "Buffer",
    "Reduction",
    "RowBlocks",
    "TooLarge",
    "joined",
    "refused",
    "tensor_type",
]

# Elements as kernels compute with them; e4m3 is a byte there.
TRITON_TYPES = {
    "f64": "tl.float64",
    "f32": "tl.float32",
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "f8E4M3FN": "tl.uint8",
    "ui8": "tl.uint8",
    "si8": "tl.int8",
    "si16": "tl.int16",
    "si32": "tl.int32",
    "si64": "tl.int64",
    "i1": "tl.int1",
}
FP8_HELPERS = frozenset({"decode_e4m3", "encode_e4m3"})
_SYMBOL = re.compile(r"[A-Za-z_]\w*")
_PRODUCT = re.compile(r"\w+(\*\w+)*")
_AXIS_LETTERS = "ijklmnuvw"
_BIG = 2**31
# A statement counts as one for so many elements.
_CHEAP = 1024


@dataclass(frozen=True)
class Block:
    """A value inside a kernel: a variable or a number.

    Attributes:
        text: how statements spell it. element: as the IR has it. axes: what it varies over. number: of a constant.
    """

    text: str
    element: str
    axes: frozenset[Axis] = frozenset()
    number: int | float | bool | None = None


@dataclass(frozen=True)
class Buffer:
    """A tensor in memory, in one piece: `pointer` is the kernel's argument."""

    pointer: str
    dims: tuple[Dim, ...]
    element: str


@dataclass(frozen=True)
class Reduction:
    """A reduction that is being computed: its result, and the axes that its result varies over."""

    result: SSAValue
    axes: frozenset[Axis]


# Computes an op's result at an index.
Emitter = Callable[["RowBlocks", Operation, tuple[Index, ...]], Block]


class TooLarge(Exception):
    """A block of more elements than a program should hold; raised by `RowBlocks` and handled by the splitting."""

    def __init__(self, elements: int, reductions: Sequence[Reduction], op: Operation) -> None:
        super().__init__(elements)
        self.elements, self.reductions, self.op = elements, tuple(reductions), op


def joined(checks: Sequence[str]) -> str:
    """The text of a condition that all of these hold."""
    each = list(dict.fromkeys(checks))
    return each[0] if len(each) == 1 else " & ".join(f"({check})" for check in each)


@dataclass
class RowBlocks:
    """One kernel's statements.

    Attributes:
        names: of all values. buffers: what lies in memory: arguments, and values that other kernels have stored.
        rows: the axis of rows. limit: elements of a block, rows not counted.
        emitters: by op name.
        lines: the statements. pointers, sizes, helpers: what they use: buffers with their Triton types, symbols, and
            functions of hand-kept modules.
        axes: by extent. created: all of them in order. neighbours: those that an axis meets in a block.
        work: statements, large ones counting more. costs: of a value, the work of each time that it was computed.
        reductions: those inside of which something is being computed, the innermost last.
        largest: elements of the largest block.
    """

    names: Mapping[SSAValue, str]
    buffers: Mapping[SSAValue, Buffer]
    rows: Axis
    limit: int
    emitters: Mapping[str, Emitter]
    lines: list[str] = field(default_factory=list)
    axes: dict[int, list[Axis]] = field(default_factory=dict)
    created: list[Axis] = field(default_factory=list)
    neighbours: dict[Axis, set[Axis]] = field(default_factory=dict)
    pointers: dict[str, str] = field(default_factory=dict)
    sizes: set[str] = field(default_factory=set)
    work: int = 0
    costs: dict[SSAValue, list[int]] = field(default_factory=dict)
    reductions: list[Reduction] = field(default_factory=list)
    largest: int = 1
    helpers: set[str] = field(default_factory=set)
    _known: dict[tuple[SSAValue, tuple[Index, ...]], Block] = field(default_factory=dict)
    _used: set[str] = field(
        default_factory=lambda: {"tl", "triton", "float", "formats", "row_math", "row", "ROWS", "FP8_CASTS"}
    )

    def value(self, value: SSAValue, index: Sequence[Index]) -> Block:
        """The block of a value at an index, computed here unless it is there already."""
        key = (value, tuple(index))
        if key not in self._known:
            before = self.work
            self._known[key] = self._compute(value, key[1])
            self.costs.setdefault(value, []).append(self.work - before)
        return self._known[key]

    def _compute(self, value: SSAValue, index: tuple[Index, ...]) -> Block:
        if value in self.buffers:
            return self.load(value, self.buffers[value], index)
        op = value.owner
        assert isinstance(op, Operation), "arguments are buffers"
        emitter = self.emitters.get(op_word(op))
        if emitter is None:
            raise refused(op, "row programs do not have this op")
        return emitter(self, op, index)

    def statement(
        self, value: SSAValue, text: str, operands: Sequence[Block], element: str, name: str | None = None
    ) -> Block:
        """Adds `name = text` for a value that varies over its operands' axes; a step on the way has its own name."""
        axes = frozenset[Axis]().union(*(operand.axes for operand in operands))
        self.touch(axes, value)
        variable = self.fresh(name or self.names[value])
        type_ = tensor_type(value)
        comment = element if name else f"{type_.element} [{', '.join(map(str, type_.dims))}]"
        self.lines.append(f"{variable} = {text}  # {comment}")
        self.work += 1 + math.prod(axis.block for axis in axes - {self.rows}) // _CHEAP
        return Block(variable, element, axes)

    def fresh(self, hint: str) -> str:
        """A variable's name that is not used yet."""
        name = "".join(letter if letter.isalnum() else "_" for letter in hint)
        name = f"v{name}" if name[0].isdigit() else name
        name = f"{name}_" if keyword.iskeyword(name) else name
        found = unused(name, self._used)
        self._used.add(found)
        return found

    def helper(self, name: str) -> str:
        """A function of the hand-kept modules, whose import it asks for."""
        self.helpers.add(name)
        return f"{'formats' if name in FP8_HELPERS else 'row_math'}.{name}"

    def operand(self, op: Operation, place: int) -> Scalar | str:
        """A scalar operand: a constant, or the text of a size."""
        owner = op.operands[place].owner
        if isinstance(owner, Operation) and is_constant(owner):
            return constant_of(op.operands[place])
        if isinstance(owner, Operation) and owner.name == "torch.aten.size.int":
            dim = tensor_type(owner.operands[0]).dims[int(str(self.operand(owner, 1)))]
            return dim if isinstance(dim, int) else self.size(dim, op)
        raise refused(op, f"operand {place} is computed at run time")

    def integer(self, op: Operation, place: int) -> int:
        """A scalar operand that must be a known integer."""
        found = self.operand(op, place)
        if not isinstance(found, int):
            raise refused(op, f"operand {place} is {found}; known integers are supported")
        return found

    def integers(self, op: Operation, place: int) -> list[int]:
        """The items of an operand that is a list of known integers."""
        owner = op.operands[place].owner
        assert isinstance(owner, Operation)
        return [self.integer(owner, item) for item in range(len(list_items(op, place)))]

    def size(self, dim: Dim, op: Operation | None = None) -> str:
        """A size's text; its symbols become arguments, and products of them are 64 bits wide."""
        text = str(dim)
        if op is not None and not _PRODUCT.fullmatch(text):
            raise refused(op, f"size {text} is no product of symbols")
        self.sizes |= symbols_of(dim)
        return text if text.isidentifier() else _SYMBOL.sub(r"\g<0>.to(tl.int64)", text).replace("*", " * ")

    def axis(self, extent: int, taken: frozenset[Axis]) -> Axis:
        """An axis of an extent that is not among `taken`: the first there is, so that users of a value share one."""
        pool = self.axes.setdefault(extent, [])
        for axis in pool:
            if axis not in taken and not axis.tiled:
                return axis
        return self.new_axis(extent, _power_of_two(extent))

    def new_axis(self, extent: int, block: int) -> Axis:
        """One more axis of an extent; tiled over programs where a block does not hold it."""
        pool = self.axes.setdefault(extent, [])
        letter = _AXIS_LETTERS[len(pool) % len(_AXIS_LETTERS)] * (1 + len(pool) // len(_AXIS_LETTERS))
        name = f"{letter}{extent}"
        self._used.add(name)
        pool.append(Axis(name, extent, block, tiled=block < extent))
        self.created.append(pool[-1])
        return pool[-1]

    @property
    def tiles(self) -> int:
        """How many programs share a block of rows."""
        tiled = (axis for pool in self.axes.values() for axis in pool if axis.tiled)
        return math.prod(-(-int(axis.extent) // axis.block) for axis in tiled)

    def positions(self) -> dict[Axis, int]:
        """The place of every axis among a block's dimensions; two that meet in no block may share one. Rows are 0."""
        places: dict[Axis, int] = {}
        for axis in (axis for axis in self.created if axis in self.neighbours):
            taken = {places[other] for other in self.neighbours[axis] if other in places}
            places[axis] = next(place for place in range(1, len(places) + 2) if place not in taken)
        return places

    def bounds_check(self, index: Index, dim: Dim, op: Operation | None) -> list[str]:
        """Conditions that an index lies within a size; none where that is certain."""
        low, high = index.bounds
        text = index.text()
        checks = [f"{text} >= 0"] if low is None or low < 0 else []
        if isinstance(dim, int):
            return checks + ([f"{text} < {dim}"] if high is None or high >= dim else [])
        return [*checks, f"{text} < {self.size(dim, op)}"]

    def offset(self, index: Sequence[Index], dims: Sequence[Dim], op: Operation | None) -> str:
        """The element's number in a tensor that lies in one piece."""
        known, parts = Index(), []
        total = product(dims)
        is_big = isinstance(total, int) and total >= _BIG
        for own, stride in zip(index, strides_of(dims), strict=True):
            if own.terms and (is_big or not isinstance(stride, int)):
                parts.append(f"({own.text()}).to(tl.int64) * {self.size(stride, op)}")
            elif isinstance(stride, int):
                known = known.plus(own.times(stride))
            elif own.offset:
                parts.append(f"{own.offset} * {self.size(stride, op)}")
        return " + ".join([*parts, known.text()] if known != Index() or not parts else parts)

    def pointer(self, buffer: Buffer) -> str:
        """Marks a buffer as used and gives its argument."""
        element = {"i1": "u8", "f8E4M3FN": "u8", "f32": "fp32", "f64": "fp64", "f16": "fp16"}.get(buffer.element)
        kind = element or buffer.element.replace("si", "i").replace("ui", "u")
        self.pointers[buffer.pointer] = f"*{kind}"
        return buffer.pointer

    def touch(self, axes: frozenset[Axis], value: SSAValue) -> None:
        """Notes that a block over these axes exists, for a value.

        Raises:
            TooLarge: it has more elements than the limit.
        """
        own = axes - {self.rows}
        elements = math.prod(axis.block for axis in own)
        if elements > self.limit:
            op = value.owner if isinstance(value.owner, Operation) else next(iter(value.uses)).operation
            raise TooLarge(elements, self.reductions, op)
        self.largest = max(self.largest, elements)
        for axis in own:
            self.neighbours.setdefault(axis, set()).update(own - {axis})

    def load(self, value: SSAValue, buffer: Buffer, index: tuple[Index, ...]) -> Block:
        """A value's block from memory; what lies outside of it is 0."""
        op = value.owner if isinstance(value.owner, Operation) else None
        checks = [text for own, dim in zip(index, buffer.dims, strict=True) for text in self.bounds_check(own, dim, op)]
        axes = frozenset().union(*(own.axes for own in index))
        where = f"{self.pointer(buffer)} + {self.offset(index, buffer.dims, op)}"
        mask = f", mask={joined(checks)}, other=0" if checks else ""
        text = f"tl.load({where}{mask})"
        text = f"{text} != 0" if buffer.element == "i1" else text
        return self.statement(value, text, [Block("", buffer.element, axes)], buffer.element)

    def store(
        self, block: Block, buffer: Buffer, place: Sequence[Index], index: Sequence[Index], dims: Sequence[Dim]
    ) -> None:
        """Stores a block.

        Args:
            place: the index in the buffer. index, dims: what the kernel goes over, whose rest is masked.
        """
        pairs = [(own, dim) for own, dim in zip(index, dims, strict=True) if own.terms]
        checks = [text for own, dim in pairs for text in self.bounds_check(own, dim, None)]
        text = block.text
        if buffer.element == "i1":
            text = f"{text}.to(tl.uint8)" if block.number is None else str(int(block.number))
        mask = f", mask={joined(checks)}" if checks else ""
        self.lines.append(f"tl.store({self.pointer(buffer)} + {self.offset(place, buffer.dims, None)}, {text}{mask})")

    def loaded(self, block: Block) -> Index:
        """A computed position as an index."""
        if block.number is not None:
            return Index(int(block.number))
        return Index.of(Loaded(block.text, block.axes))


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
