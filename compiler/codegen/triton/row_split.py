"""The kernels of a row program: which values go through memory between them.

The fewest kernels of a region, beginning with one for all results. Each attempt computes all results with the values in
`stored` kept in memory. It fails in one of three ways, each of which adds to what is kept, and then is made again:

    a block is too large, inside a sum that does not vary over the result's axes   -> store the sum
    a block is too large, and all of it belongs to the result                      -> cut the result over programs
    a value is computed in many statements more than once                          -> store the value

Kernels have levels: what reads a stored value stands one level later. Roots of one level with the same rows are one
kernel, but for those that are cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from dsv41c.compiler.codegen.triton.index_math import Axis
from dsv41c.compiler.codegen.triton.row_arithmetic import ARITHMETIC
from dsv41c.compiler.codegen.triton.row_blocks import Buffer, RowBlocks, TooLarge
from dsv41c.compiler.codegen.triton.row_operands import op_word, refused, tensor_type
from dsv41c.compiler.codegen.triton.row_roots import Root, roots_of
from dsv41c.compiler.codegen.triton.row_sums import SUMS
from dsv41c.compiler.codegen.triton.row_views import MOVES, VIEWS
from dsv41c.errors import CompileError
from dsv41c.ir.names import value_names
from dsv41c.ir.types import TensorType

__all__ = ["LARGEST", "LIMIT", "MOST_ROWS", "Splitting"]

# Elements of a block that is one of many: 32 fp32 registers of 256 threads.
LIMIT = 8192
# The largest block at all: of a sum over one row, which nothing can make smaller.
LARGEST = 65536
MOST_ROWS = 16
# Statements that may be there twice, large ones counting more, before their value goes through memory instead.
_REPEATED = 24
# Sums come last: an addition may be the end of a sum.
_EMITTERS = {**ARITHMETIC, **VIEWS, **MOVES, **SUMS}


@dataclass
class Splitting:
    """Splits one region.

    Attributes:
        function: the region. arguments, results: their buffers, by value and in order.
        stored: the buffers of values that later kernels read.
        cuts: by target and dimension of rows, how many places of a dimension one program takes.
        limits: targets whose blocks may be as large as they must.
    """

    function: FuncOp
    stored: dict[SSAValue, Buffer] = field(default_factory=dict)
    cuts: dict[tuple[SSAValue, int], dict[int, int]] = field(default_factory=dict)
    limits: dict[SSAValue, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = value_names(self.function.body.block)
        last = self.function.body.block.last_op
        assert last is not None
        for value in [*self.function.args, *last.operands]:
            if not isinstance(value.type, TensorType):
                region = self.function.sym_name.data
                raise CompileError(f"region '{region}' is no row program: {value.type} is no tensor")
        self.arguments = {a: _buffer(f"{self.names[a]}_ptr", a) for a in self.function.args}
        self.results = [(value, _buffer(f"out{place}_ptr", value)) for place, value in enumerate(last.operands)]

    def bodies(self) -> list[RowBlocks]:
        """The statements of all kernels in launch order: repeats attempts until one holds."""
        while True:
            bodies = self._attempt()
            if bodies is not None:
                return bodies

    def _attempt(self) -> list[RowBlocks] | None:
        """All kernels, or None where something more has to be stored or cut."""
        roots = self._roots()
        pointers: dict[int, set[str]] = {}
        for place, root in enumerate(roots):
            blocks = self._emit([root])
            if blocks is None or self._stores_repeated(blocks):
                return None
            pointers[place] = set(blocks.pointers)
        groups: dict[tuple[int, str, int], list[Root]] = {}
        for place, level in _levels(roots, pointers).items():
            root = roots[place]
            is_alone = (root.target, root.row) in self.cuts or root.target in self.limits
            groups.setdefault((level, str(root.rows), place if is_alone else -1), []).append(root)
        bodies = []
        for key in sorted(groups):
            blocks = self._emit(groups[key])
            if blocks is None or self._stores_repeated(blocks):
                return None
            bodies.append(blocks)
        return bodies

    def _roots(self) -> list[Root]:
        kept = {buffer.pointer for _, buffer in self.results}
        scratch = [(value, buffer) for value, buffer in self.stored.items() if buffer.pointer not in kept]
        memory = self.arguments | self.stored
        return [root for value, buffer in [*self.results, *scratch] for root in roots_of(value, buffer, memory)]

    def _emit(self, roots: Sequence[Root]) -> RowBlocks | None:
        """The statements of a kernel that stores some roots; None where something more is stored or cut now."""
        rows = Axis("row", roots[0].rows, MOST_ROWS)
        targets = {root.target for root in roots}
        memory = self.arguments | {value: b for value, b in self.stored.items() if value not in targets}
        limit = max(self.limits.get(target, LIMIT) for target in targets)
        blocks = RowBlocks(self.names, memory, rows, limit, _EMITTERS)
        for root in roots:
            index = root.index(blocks, self.cuts.get((root.target, root.row), {}))
            axes = frozenset[Axis]().union(*(own.axes for own in index))
            try:
                blocks.touch(axes, root.value)
                block = blocks.value(root.value, root.inside(index))
                blocks.store(block, root.buffer, root.place(root.inside(index)), index, root.dims)
            except TooLarge as problem:
                self._divide(root, axes - {rows}, problem)
                return None
        return blocks

    def _divide(self, root: Root, axes: frozenset[Axis], problem: TooLarge) -> None:
        """Answers a block that is too large, as the module says."""
        inner = problem.reductions[-1] if problem.reductions else None
        if inner is not None and inner.result is not root.target and inner.axes != axes:
            self._keep(inner.result)
            return
        cut = self.cuts.get((root.target, root.row), {})
        extents = {place: extent for place, extent in enumerate(root.dims) if isinstance(extent, int)}
        blocks = {place: cut.get(place, 1 << (extent - 1).bit_length()) for place, extent in extents.items()}
        widest = max((place for place in blocks if place != root.row), key=blocks.__getitem__, default=root.row)
        if widest != root.row and blocks[widest] > 1:
            self.cuts[root.target, root.row] = {**cut, widest: blocks[widest] // 2}
        elif problem.elements <= LARGEST and root.target not in self.limits:
            self.limits[root.target] = LARGEST
        else:
            raise refused(problem.op, f"a row of it takes a block of {problem.elements} elements, at most {LARGEST}")

    def _keep(self, value: SSAValue) -> None:
        assert value not in self.stored, f"{self.names[value]} is stored and computed again"
        buffer = next((buffer for result, buffer in self.results if result is value), None)
        self.stored[value] = buffer or _buffer(f"{self.names[value]}_ptr", value)

    def _stores_repeated(self, blocks: RowBlocks) -> bool:
        """Stores the value that costs the most statements when it is computed again, if that is worth a kernel."""
        repeated = {
            value: sum(costs) - max(costs)
            for value, costs in blocks.costs.items()
            if len(costs) > 1 and value not in blocks.buffers and not _is_view(value)
        }
        if max(repeated.values(), default=0) <= _REPEATED:
            return False
        order = {value: place for place, value in enumerate(self.names)}
        self._keep(max(repeated, key=lambda value: (repeated[value], order[value])))
        return True


def _is_view(value: SSAValue) -> bool:
    op = value.owner
    return isinstance(op, Operation) and op_word(op) in VIEWS


def _buffer(pointer: str, value: SSAValue) -> Buffer:
    type_ = tensor_type(value)
    return Buffer("".join(letter if letter.isalnum() else "_" for letter in pointer), type_.dims, type_.element)


def _levels(roots: Sequence[Root], pointers: Mapping[int, set[str]]) -> dict[int, int]:
    """For each root the number of kernels that must have run: one more than for all that it reads."""
    makers: dict[str, list[int]] = {}
    for place, root in enumerate(roots):
        makers.setdefault(root.buffer.pointer, []).append(place)
    levels: dict[int, int] = {}

    def level(place: int) -> int:
        if place not in levels:
            read = [maker for p in pointers[place] - {roots[place].buffer.pointer} for maker in makers.get(p, ())]
            levels[place] = max((level(maker) + 1 for maker in read), default=0)
        return levels[place]

    return {place: level(place) for place in range(len(roots))}
