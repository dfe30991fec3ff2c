"""The bytes that a program of launches holds at its peak, weights and caches aside."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Self

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from dsv41c.ir.builder import ORIGIN, get_symbols
from dsv41c.ir.dims import Assignment
from dsv41c.ir.ops.custom import plain
from dsv41c.ir.ops.program import Launch
from dsv41c.ir.ops.state import GROUP_NOTES
from dsv41c.ir.ops.table import Shaped
from dsv41c.ir.rows import ROWS, starts_with_rows
from dsv41c.ir.shapes import ShapeEvaluator
from dsv41c.ir.types import CacheType, TensorType

# A launch's tile: its number, the rows of one, the places of the operands that are cut into rows, and for each result
# the place of the operand over whose rows it is written, -1 for memory of its own.
TILE, TILE_ROWS, CUT, OVER = "tile", "tile_rows", "cut", "over"
# Notes on a launch that are not arguments of its kernel.
LAUNCH_NOTES = (ORIGIN, "in_place", TILE, TILE_ROWS, CUT, OVER, *GROUP_NOTES)
INDEX_KERNELS = frozenset({"index_topk", "index_pool_topk"})

# Bytes that a kernel allocates while it runs: its name, the sizes of its operands (None where one is absent), its
# attributes.
Scratch = Callable[[str, Sequence[tuple[int, ...] | None], Mapping[str, Any]], int]


@dataclass(frozen=True)
class Transient:
    """Bytes at the peak of one run.

    Attributes:
        bytes: inputs, values between launches, and what reference kernels allocate while they run. What a compiled
            kernel needs inside is not counted.
        indexer_bytes: the indexer's largest share at any launch: scratch of its kernels, their lists, and the
            integer tensors that are computed from these lists.
        launch: the place of the launch at which `bytes` are held, among the program's launches.
    """

    bytes: int
    indexer_bytes: int
    launch: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Tile:
    """Launches that follow each other and run over one tile of rows after the other.

    Attributes:
        rows: of a tile; 0 for a single launch that runs over all rows at once.
        launches: first to last.
    """

    rows: int
    launches: tuple[Launch, ...]

    @property
    def results(self) -> list[SSAValue]:
        """What is needed behind the last launch: assembled from the tiles."""
        inside = set(self.launches)
        return [r for op in self.launches for r in op.results if any(use.operation not in inside for use in r.uses)]


def tiles_of(launches: Sequence[Launch]) -> Iterator[Tile]:
    """The launches of a program as the runtime runs them; one without a tile is a tile by itself."""
    numbered = groupby(enumerate(launches), key=lambda item: tile_of(item[1]) or (-1 - item[0], 0))
    for (_, rows), group in numbered:
        yield Tile(rows, tuple(op for _, op in group))


def tile_of(op: Launch) -> tuple[int, int] | None:
    """A launch's tile as (number, rows), if it has one."""
    if TILE not in op.attributes:
        return None
    number, rows = plain(op.attributes[TILE]), plain(op.attributes[TILE_ROWS])
    assert isinstance(number, int)
    assert isinstance(rows, int)
    return number, rows


def cut_of(op: Launch) -> frozenset[int]:
    """The places of the operands of which a launch takes the rows of its tile."""
    return frozenset(_places(op, CUT))


def over_of(op: Launch) -> dict[SSAValue, SSAValue]:
    """The results of a launch in a tile that are put together in the memory of an operand, and that operand."""
    slots = op.slots()
    found = {result: slots[at] for result, at in zip(op.results, over_places(op), strict=False) if at >= 0}
    return {result: slot for result, slot in found.items() if slot is not None}


def over_places(op: Launch) -> tuple[int, ...]:
    """For each result of a launch in a tile the place of the operand in whose memory it is put together, else -1."""
    return tuple(_places(op, OVER))


def _places(op: Launch, name: str) -> list[int]:
    found = op.attributes.get(name)
    items = found.data if isinstance(found, ArrayAttr) else ()
    return [item.value.data for item in items if isinstance(item, IntegerAttr)]


def written_over(tile: Tile) -> dict[SSAValue, SSAValue]:
    """The results of a tile that are put together in memory that is there, and whose memory it is."""
    return {result: operand for op in tile.launches for result, operand in over_of(op).items()}


def launches_of(func: FuncOp) -> list[Launch]:
    """A program's launches in order."""
    return [op for op in func.body.block.ops if isinstance(op, Launch)]


def largest_sizes(func: FuncOp) -> dict[str, int]:
    """The largest value of each symbol of a program: one row of logits, pools and rings as large as the batch needs."""
    high = {name: bounds[1] for name, bounds in get_symbols(func).items()}
    rows = high.get(ROWS, 1)
    sequences = min(high.get("B", 1), rows)
    return high | {"B": sequences, "S": sequences, "R": 1, "N": high.get("P", 1)}


def transient_peak(func: FuncOp, assignment: Assignment, scratch: Scratch) -> Transient:
    """Follow a program of launches and free each value after its last reader, as the runtime does.

    Args:
        func: a lowered program.
        assignment: a value for each of its symbols; pools hold as many pages as the batch needs.
        scratch: what kernels allocate.
    """
    return PeakFinder(func, assignment, scratch).peak(tiles_of(launches_of(func)))


class PeakFinder:
    """Finds the peak of a program under one assignment, cut into tiles one way or another.

    Args:
        func: a program of launches.
        assignment: a value for each of its symbols.
        scratch: what kernels allocate.
        cut: the places of the operands that a tile of a launch cuts; by default those that it notes.
        over: the results of a tile that take the memory of an operand; by default those that its launches note.
    """

    def __init__(
        self,
        func: FuncOp,
        assignment: Assignment,
        scratch: Scratch,
        cut: Callable[[Launch], Collection[int]] = cut_of,
        over: Callable[[Tile], Collection[SSAValue]] = written_over,
    ) -> None:
        self._func, self._assignment, self._scratch, self._cut, self._over = func, assignment, scratch, cut, over
        self.in_order(launches_of(func))
        self._kept = {*func.args, *(func.body.block.last_op.operands if func.body.block.last_op else ())}
        self._listed = _index_values(self.launches)
        self._evaluators: dict[int, ShapeEvaluator] = {}
        self._sizes: dict[tuple[SSAValue, int], int] = {}
        self._scratches: dict[tuple[Launch, int], int] = {}

    def in_order(self, launches: Sequence[Launch]) -> Self:
        """Take the launches in another order than they stand in."""
        self.launches = list(launches)
        self._place = {op: i for i, op in enumerate(launches)}
        self._last = {operand: i for i, op in enumerate(launches) for operand in op.operands}
        return self

    @property
    def rows(self) -> int:
        """Rows of the whole program."""
        return self._assignment.get(ROWS, 1)

    def peak(self, tiles: Iterable[Tile]) -> Transient:
        """The peak over all launches."""
        live = self.inputs()
        found: list[Transient] = [Transient(0, 0)]
        for tile in tiles:
            found.append(self.peak_of(tile, live))
            self.after(tile, live)
        largest = max(found, key=lambda one: one.bytes)
        return Transient(largest.bytes, max(one.indexer_bytes for one in found), largest.launch)

    def inputs(self) -> dict[SSAValue, int]:
        """Bytes of what is live before the first launch."""
        return {value: self.bytes(value) for value in self._func.args if isinstance(value.type, TensorType)}

    def after(self, tile: Tile, live: dict[SSAValue, int]) -> None:
        """Brings what is live from before a tile to behind it."""
        for op in tile.launches:
            live |= {value: self.bytes(value) for value in op.results if isinstance(value.type, TensorType)}
            for value in self._ending(op):
                live.pop(value, None)

    def peak_of(self, tile: Tile, before: Mapping[SSAValue, int]) -> Transient:
        """The peak while a tile's launches run.

        Args:
            before: bytes of what is live before the first of them; all of it is kept until the last one is done.
        """
        rows = tile.rows if 0 < tile.rows < self.rows else 0
        outer = sum(before.values())
        outer_lists = sum(size for value, size in before.items() if value in self._listed)
        if rows:
            taken = self._over(tile)
            outer += sum(self.bytes(value) for value in tile.results if value not in taken)
            outer_lists += sum(self.bytes(value) for value in tile.results if value in self._listed)
        inner: dict[SSAValue, int] = {}
        best, best_lists, at = 0, 0, 0
        for op in tile.launches:
            inner |= {value: self.bytes(value, rows) for value in op.results if isinstance(value.type, TensorType)}
            scratch = self.scratch(op, rows)
            held = outer + sum(inner.values()) + scratch
            lists = outer_lists + sum(size for value, size in inner.items() if value in self._listed)
            best_lists = max(best_lists, lists + (scratch if op.kernel.data in INDEX_KERNELS else 0))
            if held > best:
                best, at = held, self._place[op]
            for value in self._ending(op):
                inner.pop(value, None)
        return Transient(best, best_lists, at)

    def ends_in(self, value: SSAValue, tile: Tile) -> bool:
        """Whether nothing behind a tile needs a value."""
        return value not in self._kept and self._last.get(value, -1) <= self._place[tile.launches[-1]]

    def _ending(self, op: Launch) -> list[SSAValue]:
        """The values that no later launch reads."""
        place = self._place[op]
        values = [value for value in (*op.operands, *op.results) if value not in self._kept]
        return [value for value in values if self._last.get(value, place) <= place]

    def bytes(self, value: SSAValue, rows: int = 0) -> int:
        """Bytes of a value; of a tile of so many rows of it, where it has rows."""
        key = (value, rows if starts_with_rows(value.type) else 0)
        if key not in self._sizes:
            found = self._evaluator(key[1]).value(value)
            assert isinstance(found, Shaped)
            self._sizes[key] = found.bytes
        return self._sizes[key]

    def scratch(self, op: Launch, rows: int = 0) -> int:
        """What a launch's kernel allocates over all rows, or over a tile of so many."""
        key = (op, rows)
        if key not in self._scratches:
            self._scratches[key] = self._scratch(op.kernel.data, self._shapes(op, rows), kernel_attrs(op))
        return self._scratches[key]

    def _shapes(self, op: Launch, rows: int) -> list[tuple[int, ...] | None]:
        cut = self._cut(op) if rows else ()
        slots = enumerate(op.slots())
        return [None if slot is None else self._shape(slot, rows if place in cut else 0) for place, slot in slots]

    def _shape(self, value: SSAValue, rows: int) -> tuple[int, ...]:
        type_ = value.type.storage if isinstance(value.type, CacheType) else value.type
        found = self._evaluator(rows).declared(type_)
        assert isinstance(found, Shaped)
        return found.shape

    def _evaluator(self, rows: int) -> ShapeEvaluator:
        if rows not in self._evaluators:
            sizes = {**self._assignment, ROWS: rows} if rows else self._assignment
            self._evaluators[rows] = ShapeEvaluator(sizes)
        return self._evaluators[rows]


def kernel_attrs(op: Launch) -> dict[str, Any]:
    """The attributes of a launch that its kernel gets."""
    return {name: plain(value) for name, value in op.attributes.items() if name not in LAUNCH_NOTES}


def _index_values(launches: Sequence[Launch]) -> set[SSAValue]:
    """The indexer's lists and the integers that are computed from them, such as cache slots."""
    found: set[SSAValue] = set()
    for op in launches:
        if op.kernel.data in INDEX_KERNELS or found.intersection(op.operands):
            found |= {value for value in op.results if _is_integer(value)}
    return found


def _is_integer(value: SSAValue) -> bool:
    return isinstance(value.type, TensorType) and value.type.element.startswith(("si", "ui"))
