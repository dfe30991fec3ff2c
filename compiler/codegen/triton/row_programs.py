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
through a scratch buffer and what needs it is another kernel: see `_Splitting`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from dsv41c.compiler.codegen.triton.families import Hole, Kernel, Tile
from dsv41c.compiler.codegen.triton.index_math import Axis, Index, reshape_index
from dsv41c.compiler.codegen.triton.row_blocks import (
    FP8_HELPERS,
    Buffer,
    RowBlocks,
    TooLarge,
    joined,
    refused,
    tensor_type,
)
from dsv41c.compiler.codegen.triton.row_ops import EMITTERS, RESHAPES, dimension_of, list_items
from dsv41c.compiler.codegen.triton.row_source import kernel_source
from dsv41c.errors import CompileError
from dsv41c.ir.dims import Dim
from dsv41c.ir.names import value_names
from dsv41c.ir.types import TensorType

__all__ = ["FAMILY", "RowProgram", "row_program"]

FAMILY = "row_programs"
# Elements of a block that is one of many: 32 fp32 registers of 256 threads.
_LIMIT = 8192
# The largest block at all: of a sum over one row, which nothing can make smaller.
_LARGEST = 65536
# Statements that may be there twice before the value that they compute goes through memory instead.
_REPEATED = 24
_MOST_ROWS = 16
_ROW_ELEMENTS = 1024
_WARPS = ((4096, 4), (_LIMIT, 8), (_LARGEST, 16))


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
    return _Splitting(function).program()


@dataclass(frozen=True)
class _Root:
    """Something that a kernel stores: a value, over which sizes, and where each element goes.

    Attributes:
        value: what is computed. dims: the sizes that the kernel goes over, of as many elements.
        place: the index in the buffer for an index in the value. target: the value that this is, or is a piece of.
    """

    value: SSAValue
    dims: tuple[Dim, ...]
    place: Callable[[Sequence[Index]], Sequence[Index]]
    buffer: Buffer
    target: SSAValue

    @property
    def row(self) -> int:
        """The dimension of rows: the first whose size only a launch knows, else the first."""
        return next((place for place, dim in enumerate(self.dims) if not isinstance(dim, int)), 0)


@dataclass
class _Splitting:
    """Finds the fewest kernels of a region, beginning with one for all results.

    Each attempt computes all results with the values in `stored` kept in memory. It fails in one of three ways, each of
    which adds to what is kept, and then is made again:

        a block is too large, inside a sum that does not vary over the result's axes   -> store the sum
        a block is too large, and all of it belongs to the result                      -> cut the result over programs
        a value is computed in many statements more than once                          -> store the value
    """

    function: FuncOp
    stored: dict[SSAValue, Buffer] = field(default_factory=dict)
    cuts: dict[tuple[SSAValue, int], dict[int, int]] = field(default_factory=dict)
    limits: dict[SSAValue, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = self.function.sym_name.data
        self.names = value_names(self.function.body.block)
        last = self.function.body.block.last_op
        assert last is not None
        for value in [*self.function.args, *last.operands]:
            if not isinstance(value.type, TensorType):
                raise CompileError(f"region '{self.name}' is no row program: {value.type} is no tensor")
        self.arguments = {a: _buffer(f"{self.names[a]}_ptr", a) for a in self.function.args}
        self.results = [(value, _buffer(f"out{place}_ptr", value)) for place, value in enumerate(last.operands)]

    def program(self) -> RowProgram:
        """Repeats attempts until one holds."""
        while True:
            groups = self._attempt()
            if groups is not None:
                break
        kernels = tuple(self._kernel(place, len(groups), *group) for place, group in enumerate(groups))
        sizes = tuple(sorted({size for _, blocks in groups for size in blocks.sizes}))
        outputs = {buffer.pointer for _, buffer in self.results}
        return RowProgram(
            self.name,
            kernels,
            tuple(buffer.pointer for buffer in self.arguments.values()),
            tuple(buffer.pointer for _, buffer in self.results),
            tuple(buffer for buffer in self.stored.values() if buffer.pointer not in outputs),
            sizes,
        )

    def _attempt(self) -> list[tuple[list[_Root], RowBlocks]] | None:
        """All kernels, or None where something more has to be stored or cut."""
        roots = self._roots()
        pointers: dict[int, set[str]] = {}
        for place, root in enumerate(roots):
            blocks = self._emit([root])
            if blocks is None or self._stores_repeated(blocks):
                return None
            pointers[place] = set(blocks.pointers)
        groups: dict[tuple[object, ...], list[_Root]] = {}
        for place, level in _levels(roots, pointers).items():
            root = roots[place]
            alone = place if (root.target, root.row) in self.cuts or root.target in self.limits else -1
            groups.setdefault((level, str(root.dims[root.row]), alone), []).append(root)
        done = []
        for key in sorted(groups, key=lambda key: (key[0], str(key[1:]))):
            blocks = self._emit(groups[key])
            if blocks is None or self._stores_repeated(blocks):
                return None
            done.append((groups[key], blocks))
        return done

    def _roots(self) -> list[_Root]:
        wanted = list(self.results)
        kept = {buffer.pointer for _, buffer in wanted}
        wanted += [(value, buffer) for value, buffer in self.stored.items() if buffer.pointer not in kept]
        return [root for value, buffer in wanted for root in self._pieces(value, value, buffer, lambda index: index)]

    def _pieces(
        self, value: SSAValue, target: SSAValue, buffer: Buffer, place: Callable[[Sequence[Index]], Sequence[Index]]
    ) -> Iterable[_Root]:
        """A value as roots: what views it from, and the pieces of a concatenation each for itself."""
        op = value.owner
        is_source = value in self.arguments or (value in self.stored and value is not target)
        if is_source or not isinstance(op, Operation):
            yield _Root(value, self._finest(value), place, buffer, target)
            return
        name = op.name.removeprefix("torch.aten.")
        if name in RESHAPES:
            source, own = tensor_type(op.operands[0]).dims, tensor_type(value).dims
            yield from self._pieces(op.operands[0], target, buffer, lambda i: place(_reshaped(op, i, source, own)))
            return
        if name == "cat":
            dim, start = dimension_of(op, 1, value), 0
            for piece in list_items(op, 0):
                yield from self._pieces(piece, target, buffer, _shifted(place, dim, start))
                size = tensor_type(piece).dims[dim]
                if not isinstance(size, int):
                    raise refused(op, f"a piece's size is not known, {size}")
                start += size
            return
        yield _Root(value, self._finest(value), place, buffer, target)

    def _finest(self, value: SSAValue) -> tuple[Dim, ...]:
        """The sizes of a value, cut as finely as the values are that it is computed from element by element.

        Groups of a quantized row are so a dimension of their own from the store on, down to their largest magnitude.
        """
        dims = tensor_type(value).dims
        op = value.owner
        if value in self.arguments or value in self.stored or not isinstance(op, Operation):
            return dims
        name = op.name.removeprefix("torch.aten.")
        for operand in op.operands if name in _ELEMENTWISE or name in RESHAPES else ():
            if isinstance(operand.type, TensorType) and (name in RESHAPES or operand.type.dims == dims):
                dims = _refined(dims, self._finest(operand))
        return dims

    def _emit(self, roots: Sequence[_Root]) -> RowBlocks | None:
        """The statements of a kernel that stores some roots; None where something more is stored or cut now."""
        first = roots[0]
        rows = Axis("row", first.dims[first.row], _MOST_ROWS)
        targets = {root.target for root in roots}
        buffers = self.arguments | {value: b for value, b in self.stored.items() if value not in targets}
        limit = max(self.limits.get(target, _LIMIT) for target in targets)
        blocks = RowBlocks(self.names, buffers, rows, limit, EMITTERS)
        for root in roots:
            index = _root_index(blocks, root, self.cuts.get((root.target, root.row), {}))
            try:
                self._store(blocks, root, index)
            except TooLarge as problem:
                self._divide(root, frozenset().union(*(own.axes for own in index)) - {rows}, problem)
                return None
        return blocks

    def _store(self, blocks: RowBlocks, root: _Root, index: Sequence[Index]) -> None:
        own = _reshaped(None, index, root.dims, tensor_type(root.value).dims)
        block, position = blocks.value(root.value, own), root.place(own)
        blocks.touch(frozenset().union(*(one.axes for one in index)), root.value)
        checks = [
            text
            for own, dim in zip(index, root.dims, strict=True)
            if own.terms
            for text in blocks.bounds_check(own, dim, None)
        ]
        text = f"{block.text}.to(tl.uint8)" if root.buffer.element == "i1" and block.number is None else block.text
        text = str(int(block.number)) if root.buffer.element == "i1" and block.number is not None else text
        where = f"{blocks.pointer(root.buffer)} + {blocks.offset(position, root.buffer.dims, None)}"
        mask = f", mask={joined(checks)}" if checks else ""
        blocks.lines.append(f"tl.store({where}, {text}{mask})")

    def _divide(self, root: _Root, axes: frozenset[Axis], problem: TooLarge) -> None:
        """Answers a block that is too large, as the class says."""
        own = {place: extent for place, extent in enumerate(root.dims) if place != root.row and isinstance(extent, int)}
        cut = self.cuts.get((root.target, root.row), {})
        wide = {place: cut.get(place, 1 << (extent - 1).bit_length()) for place, extent in own.items() if extent > 1}
        inner = problem.reductions[-1] if problem.reductions else None
        if inner is not None and inner.result is not root.target and inner.axes != axes:
            self._keep(inner.result)
            return
        largest = max(wide, key=lambda place: wide[place], default=None)
        if largest is not None and wide[largest] > 1:
            self.cuts[root.target, root.row] = {**cut, largest: wide[largest] // 2}
        elif problem.elements <= _LARGEST and root.target not in self.limits:
            self.limits[root.target] = _LARGEST
        else:
            raise refused(problem.op, f"a row of it takes a block of {problem.elements} elements, at most {_LARGEST}")

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
        if not repeated or max(repeated.values()) <= _REPEATED:
            return False
        order = {value: place for place, value in enumerate(self.names)}
        self._keep(max(repeated, key=lambda value: (repeated[value], order[value])))
        return True

    def _kernel(self, place: int, count: int, roots: list[_Root], blocks: RowBlocks) -> Kernel:
        name = self.name if count == 1 else f"{self.name}_{place}"
        stored = {root.buffer.pointer for root in roots}
        pointers = sorted(blocks.pointers, key=lambda pointer: pointer in stored)
        arguments = {pointer: blocks.pointers[pointer] for pointer in pointers}
        arguments |= dict.fromkeys(sorted(blocks.sizes), "i32")
        holes: dict[str, Hole] = {"FP8_CASTS": True} if blocks.helpers & FP8_HELPERS else {}
        rows = blocks.rows.extent
        programs = 1
        for axis in (axis for pool in blocks.axes.values() for axis in pool if axis.tiled):
            programs *= -(-int(axis.extent) // axis.block)
        if isinstance(rows, str) and not rows.isidentifier():
            raise CompileError(f"region '{self.name}' is no row program: it has {rows} rows, which is no single symbol")
        return Kernel(
            name=name,
            family=FAMILY,
            function=f"{name}_kernel",
            arguments=arguments,
            holes=holes,
            tiles=_tiles(blocks.largest),
            grid=((rows, "ROWS"),) if programs == 1 else ((rows, "ROWS"), (programs, 1)),
            generated=kernel_source(self.function, name, (place, count), blocks, arguments, [*holes, "ROWS"]),
        )


_NOT_ELEMENTWISE = (
    *(
        "amax",
        "amin",
        "argmax",
        "cat",
        "embedding",
        "gather",
        "linear",
        "matmul",
        "mean.dim",
        "index.Tensor_hacked_twin",
    ),
    *("select.int", "slice.Tensor", "stack", "sum.dim_IntList", "transpose.int", "permute", "expand", "softmax.int"),
    *RESHAPES,
)
_ELEMENTWISE = EMITTERS.keys() - set(_NOT_ELEMENTWISE)
_VIEWS = (*RESHAPES, "select.int", "slice.Tensor", "transpose.int", "permute", "expand", "alias")


def _is_view(value: SSAValue) -> bool:
    op = value.owner
    return isinstance(op, Operation) and op.name.removeprefix("torch.aten.") in _VIEWS


def _buffer(pointer: str, value: SSAValue) -> Buffer:
    type_ = tensor_type(value)
    return Buffer("".join(letter if letter.isalnum() else "_" for letter in pointer), type_.dims, type_.element)


def _reshaped(
    op: Operation | None, index: Sequence[Index], source: Sequence[Dim], target: Sequence[Dim]
) -> tuple[Index, ...]:
    found = reshape_index(index, source, target)
    if found is None:
        assert op is not None, f"{source} is finer than {target}"
        raise refused(op, "a size that is not known divides its rows")
    return found


def _shifted(
    place: Callable[[Sequence[Index]], Sequence[Index]], dim: int, start: int
) -> Callable[[Sequence[Index]], Sequence[Index]]:
    return lambda index: place([*index[:dim], index[dim].plus(start), *index[dim + 1 :]])


def _refined(dims: tuple[Dim, ...], finer: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Sizes cut at the places of both lists of sizes, where these fit into each other; else `dims`."""
    if dims == finer:
        return dims
    if dims[:1] != finer[:1] or not all(isinstance(dim, int) for dim in [*dims[1:], *finer[1:]]):
        return dims
    own, other = ([int(dim) for dim in sizes[1:]] for sizes in (dims, finer))
    cuts = [1, *sorted(_products(own) | _products(other))]
    if any(larger % smaller for smaller, larger in pairwise(cuts)):
        return dims
    return (dims[0], *reversed([larger // smaller for smaller, larger in pairwise(cuts)]))


def _products(sizes: Sequence[int]) -> set[int]:
    """Products of the last sizes, of one and more, greater than 1."""
    total, found = 1, set()
    for size in reversed(sizes):
        total *= size
        found |= {total} - {1}
    return found


def _root_index(blocks: RowBlocks, root: _Root, cut: Mapping[int, int]) -> list[Index]:
    """An axis for every dimension of a root; rows are what the programs go over."""
    index: list[Index] = []
    taken: set[Axis] = set()
    for place, extent in enumerate(root.dims):
        if place == root.row:
            index.append(Index.of(blocks.rows))
        elif not isinstance(extent, int):
            raise CompileError(f"a result with two sizes that are not known, {root.dims}, is no row program")
        elif extent == 1:
            index.append(Index())
        else:
            axis = blocks.new_axis(extent, cut[place]) if place in cut else blocks.axis(extent, frozenset(taken))
            taken.add(axis)
            index.append(Index.of(axis))
    return index


def _levels(roots: Sequence[_Root], pointers: Mapping[int, set[str]]) -> dict[int, int]:
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


def _tiles(largest: int) -> tuple[Tile, ...]:
    """Several rows a program where a row is small; else one, with as many warps as its block asks for."""
    warps = next(warps for elements, warps in _WARPS if largest <= elements)
    rows = max(1, min(_MOST_ROWS, _ROW_ELEMENTS // largest))
    one = Tile({"ROWS": 1}, warps=warps)
    more = Tile({"ROWS": 1}, warps=2 * warps)
    return (Tile({"ROWS": rows}, warps=warps), one, more) if rows > 1 else (one, more)
