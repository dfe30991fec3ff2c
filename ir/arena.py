"""Offsets in one buffer for the values of a program of launches, from when each is live."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import networkx as nx
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from dsv41c.ir.dims import Assignment
from dsv41c.ir.transient import PeakFinder, Tile, tiles_of
from dsv41c.ir.types import TensorType

ALIGNMENT = 256  # bytes; what vector loads of every target and their transfer engines ask for
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Arena(Generic[Key]):
    """Where values lie.

    Attributes:
        bytes: of the buffer.
        offsets: of each value, a multiple of `ALIGNMENT`. Two values that are live at the same time do not overlap.
    """

    bytes: int
    offsets: dict[Key, int]


def arena_of(func: FuncOp, assignment: Assignment) -> Arena[SSAValue]:
    """Place the values that a program's launches make, under one assignment of its sizes.

    Args:
        func: a program of launches, with its tiles.
        assignment: a value for each of its symbols.
    """
    finder = PeakFinder(func, assignment, lambda kernel, shapes, attrs: 0)
    return placed(*_spans(func, finder))


def placed(bytes_of: Mapping[Key, int], spans: Mapping[Key, tuple[int, int]]) -> Arena[Key]:
    """Place values one after the other, each as low as it fits.

    Args:
        bytes_of: of each value. spans: the first and the last step at which it is live.
    """
    sizes = {value: -(-size // ALIGNMENT) * ALIGNMENT for value, size in bytes_of.items()}
    conflicts = nx.Graph()
    conflicts.add_nodes_from(spans)
    ordered = sorted(spans, key=lambda value: spans[value])
    for place, value in enumerate(ordered):
        for other in ordered[place + 1 :]:
            if spans[other][0] > spans[value][1]:
                break
            conflicts.add_edge(value, other)
    # No one order is best for all programs; placing is quick, so the best of three is taken.
    orders = (
        sorted(ordered, key=lambda value: -sizes[value]),
        sorted(ordered, key=lambda value: spans[value][0] - spans[value][1]),
        sorted(ordered, key=lambda value: sizes[value] * (spans[value][0] - spans[value][1] - 1)),
    )
    return min((_in_order(order, sizes, conflicts) for order in orders), key=lambda arena: arena.bytes)


def _in_order(order: Sequence[Key], sizes: Mapping[Key, int], conflicts: nx.Graph) -> Arena[Key]:
    """Each value in order as low as it fits."""
    offsets: dict[Key, int] = {}
    for value in order:
        taken = sorted((offsets[other], sizes[other]) for other in conflicts[value] if other in offsets)
        offsets[value] = _lowest(sizes[value], taken)
    return Arena(max((offsets[value] + sizes[value] for value in offsets), default=0), offsets)


def _spans(func: FuncOp, finder: PeakFinder) -> tuple[dict[SSAValue, int], dict[SSAValue, tuple[int, int]]]:
    """Bytes of each value that a launch makes, and the first and the last step at which it is live.

    A step is a launch, or all launches of a tile: what they make may be wanted again for the next tile of rows.
    """
    sizes: dict[SSAValue, int] = {}
    spans: dict[SSAValue, tuple[int, int]] = {}
    steps = list(tiles_of(finder.launches))
    for place, tile in enumerate(steps):
        for value, size in _made(tile, finder):
            sizes[value] = size
            spans[value] = place, place
        for operand in (operand for op in tile.launches for operand in op.operands if operand in spans):
            spans[operand] = spans[operand][0], place
    last = func.body.block.last_op
    for value in last.operands if last is not None else ():
        if value in spans:
            spans[value] = spans[value][0], len(steps)
    return sizes, spans


def _made(tile: Tile, finder: PeakFinder) -> list[tuple[SSAValue, int]]:
    """What a tile's launches make: all rows of what is needed behind it, and a tile's rows of the rest."""
    kept = set(tile.results)
    rows = tile.rows if 0 < tile.rows < finder.rows else 0
    values = [value for op in tile.launches for value in op.results if isinstance(value.type, TensorType)]
    return [(value, finder.bytes(value, 0 if value in kept else rows)) for value in values]


def _lowest(size: int, taken: list[tuple[int, int]]) -> int:
    """The lowest offset at which so many bytes fit between those that are taken, in order of their offsets."""
    offset = 0
    for start, length in taken:
        if offset + size <= start:
            break
        offset = max(offset, start + length)
    return offset
