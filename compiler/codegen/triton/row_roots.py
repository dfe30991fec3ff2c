"""What a generated kernel stores: values or pieces of them, over sizes that suit how they are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from xdsl.ir import Operation, SSAValue

from dsv41c.compiler.codegen.triton.index_math import Axis, Index, reshape_index
from dsv41c.compiler.codegen.triton.row_arithmetic import ARITHMETIC
from dsv41c.compiler.codegen.triton.row_blocks import Buffer, RowBlocks
from dsv41c.compiler.codegen.triton.row_operands import dimension_of, list_items, op_word, refused, tensor_type
from dsv41c.compiler.codegen.triton.row_views import RESHAPES
from dsv41c.ir.dims import Dim
from dsv41c.ir.types import TensorType

__all__ = ["Root", "roots_of"]

_Place = Callable[[Sequence[Index]], Sequence[Index]]


@dataclass(frozen=True)
class Root:
    """A value, over which sizes a kernel goes to compute it, and where each element is stored.

    Attributes:
        value: what is computed. dims: sizes of as many elements.
        place: the index in the buffer for an index in the value. target: the value that this is, or is a piece of.
    """

    value: SSAValue
    dims: tuple[Dim, ...]
    place: _Place
    buffer: Buffer
    target: SSAValue

    @property
    def row(self) -> int:
        """The dimension of rows: the first whose size only a launch knows, else the first."""
        return next((place for place, dim in enumerate(self.dims) if not isinstance(dim, int)), 0)

    @property
    def rows(self) -> Dim:
        """How many rows there are."""
        return self.dims[self.row] if self.dims else 1

    def index(self, blocks: RowBlocks, cut: Mapping[int, int]) -> tuple[Index, ...]:
        """An index over `dims`, with an axis for every dimension; rows are what the programs go over.

        Args:
            cut: how many places of a dimension one program takes, where it is not all.
        """
        if isinstance(self.rows, str) and not self.rows.isidentifier():
            raise refused(self._op, f"it has {self.rows} rows, which is no single symbol")
        index: list[Index] = []
        for place, extent in enumerate(self.dims):
            if place == self.row:
                index.append(Index.of(blocks.rows))
            elif not isinstance(extent, int):
                raise refused(self._op, f"two sizes of a result are not known, {self.dims}")
            elif extent == 1:
                index.append(Index())
            elif cut.get(place, extent) < extent:
                index.append(Index.of(blocks.new_axis(extent, cut[place])))
            else:
                taken = frozenset[Axis]().union(*(own.axes for own in index))
                index.append(Index.of(blocks.axis(extent, taken)))
        return tuple(index)

    @property
    def _op(self) -> Operation:
        """The op to name where something is wrong."""
        owner = self.value.owner
        return owner if isinstance(owner, Operation) else next(iter(self.value.uses)).operation

    def inside(self, index: Sequence[Index]) -> tuple[Index, ...]:
        """An index over `dims` as one into the value."""
        found = reshape_index(index, self.dims, tensor_type(self.value).dims)
        assert found is not None, f"{self.dims} are no finer sizes of {self.value.type}"
        return found


def roots_of(value: SSAValue, buffer: Buffer, memory: Mapping[SSAValue, Buffer]) -> Iterable[Root]:
    """The roots that store a value: what it views, and the pieces of a concatenation each for itself.

    Args:
        memory: values that are not computed.
    """
    return _pieces(value, value, buffer, lambda index: index, memory)


def _pieces(
    value: SSAValue, target: SSAValue, buffer: Buffer, place: _Place, memory: Mapping[SSAValue, Buffer]
) -> Iterable[Root]:
    op = value.owner
    computed = value is target or value not in memory
    if isinstance(op, Operation) and computed and op_word(op) in RESHAPES:
        inner = _reshaped(place, op)
        if inner is not None:
            yield from _pieces(op.operands[0], target, buffer, inner, memory)
            return
    if isinstance(op, Operation) and computed and op_word(op) == "cat":
        dim, start = dimension_of(op, 1, value), 0
        for piece in list_items(op, 0):
            yield from _pieces(piece, target, buffer, _shifted(place, dim, start), memory)
            size = tensor_type(piece).dims[dim]
            if not isinstance(size, int):
                raise refused(op, f"a piece's size is not known, {size}")
            start += size
        return
    yield Root(value, _finest(value, target, memory), place, buffer, target)


def _reshaped(place: _Place, op: Operation) -> _Place | None:
    """Where a reshape's operand is stored; None where that would need a division by a size that is not known."""
    source, own = tensor_type(op.operands[0]).dims, tensor_type(op.results[0]).dims
    if reshape_index([Index()] * len(source), source, own) is None:
        return None

    def inner(index: Sequence[Index]) -> Sequence[Index]:
        found = reshape_index(index, source, own)
        assert found is not None
        return place(found)

    return inner


def _shifted(place: _Place, dim: int, start: int) -> _Place:
    return lambda index: place([*index[:dim], index[dim].plus(start), *index[dim + 1 :]])


def _finest(value: SSAValue, target: SSAValue, memory: Mapping[SSAValue, Buffer]) -> tuple[Dim, ...]:
    """The sizes of a value, cut as finely as the values are that it is computed from element by element.

    Groups of a quantized row are so a dimension of their own from the store on, down to their largest magnitude.
    """
    dims = tensor_type(value).dims
    op = value.owner
    if not isinstance(op, Operation) or (value in memory and value is not target):
        return dims
    word = op_word(op)
    for operand in op.operands if word in ARITHMETIC or word in RESHAPES else ():
        if isinstance(operand.type, TensorType) and (word in RESHAPES or operand.type.dims == dims):
            dims = _refined(dims, _finest(operand, target, memory))
    return dims


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
