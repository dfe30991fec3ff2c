"""Orders launches so that fewer bytes are held between them."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar

import networkx as nx
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from dsv41c.ir.builder import functions, has_one_row
from dsv41c.ir.effects import cache_reads, cache_writes
from dsv41c.ir.ops.program import Launch
from dsv41c.ir.transient import PeakFinder, Tile, largest_sizes, launches_of
from dsv41c.ir.types import TensorType
from dsv41c.passes.pass_base import Pass, PassContext, PassResult

_NEAR = 8  # launches behind what a store needs, among which it takes its place


@dataclass(frozen=True)
class Schedule(Pass):
    """Orders launches so that fewer bytes are held between them.

    What:
        %e = dsv41.launch "lookup"(...) : ... -> <[T, 6144], bf16>      %a = dsv41.launch "region_0"(%x) : ...
        %a = dsv41.launch "region_0"(%x) : ...                      ->  %e = dsv41.launch "lookup"(...) : ...
        %y = dsv41.launch "region_1"(%a, %e) : ...                      %y = dsv41.launch "region_1"(%a, %e) : ...

    Why: a value that is made long before it is read is held for all that comes between.

    How: from the end. Of the launches that nothing unplaced needs it takes the one before which the fewest bytes are
    held, the later one of equals; so what needs little and makes much comes right before its first reader. What reads a
    cache stays before what writes it next. The new order is kept if its peak, at the largest sizes of the
    program's symbols, is lower.

    Needs: launches; `ctx.scratch`, what kernels allocate.

    Does not handle: programs of one row, whose values are small, and whose lookups stay early on purpose, so that a
    target can fetch table rows while it computes.
    """

    name: ClassVar[str] = "schedule"
    requires: ClassVar[tuple[str, ...]] = ("traced", "launches")

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Order all programs; counts `program` (those with a new order) and `launch` (those that moved)."""
        counts = {"program": 0, "launch": 0}
        for func in functions(module).values():
            launches = launches_of(func)
            if has_one_row(func) or len(launches) < 2:
                continue
            finder = PeakFinder(func, largest_sizes(func), ctx.scratch)
            order = _with_stores(launches, finder)
            other = _with_stores(_ordered(launches, finder), finder)
            order = min(order, other, key=lambda one: _peak(finder, one))
            if order == launches:
                continue
            counts["program"] += 1
            counts["launch"] += sum(before is not after for before, after in zip(launches, order, strict=True))
            _rearrange(func, order)
        return PassResult(counts["program"] > 0, counts)


def _peak(finder: PeakFinder, order: Sequence[Launch]) -> int:
    return finder.in_order(order).peak([Tile(0, (op,)) for op in order]).bytes


def _dependences(launches: Sequence[Launch]) -> nx.DiGraph:
    """What must come before what: makers of operands, and readers of a cache before its next writer."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(launches)))
    made: dict[SSAValue, int] = {result: place for place, op in enumerate(launches) for result in op.results}
    readers: dict[SSAValue, list[int]] = {}
    for place, op in enumerate(launches):
        graph.add_edges_from((made[operand], place) for operand in op.operands if operand in made)
        for cache in cache_writes(op):
            graph.add_edges_from((reader, place) for reader in readers.get(cache, ()))
        for cache in cache_reads(op):
            readers.setdefault(cache, []).append(place)
    return graph


def _ordered(launches: Sequence[Launch], finder: PeakFinder) -> list[Launch]:
    graph = _dependences(launches)
    waiting = dict(graph.out_degree)
    live: set[SSAValue] = set()
    ready = {place for place, count in waiting.items() if count == 0}
    order: list[Launch] = []
    while ready:
        place = min(ready, key=lambda one: (_growth(launches[one], live, finder), -one))
        ready.remove(place)
        order.append(launches[place])
        live.difference_update(launches[place].results)
        live.update(_made(launches[place].operands))
        for earlier in graph.predecessors(place):
            waiting[earlier] -= 1
            if waiting[earlier] == 0:
                ready.add(earlier)
    return order[::-1]


def _growth(op: Launch, live: Set[SSAValue], finder: PeakFinder) -> int:
    """Bytes that are held more before a launch than behind it, where `live` is."""
    needed = sum(finder.bytes(value) for value in _made(op.operands) - live)
    return needed - sum(finder.bytes(value) for value in _made(op.results) & live)


def _with_stores(launches: Sequence[Launch], finder: PeakFinder) -> list[Launch]:
    """The launches with every store moved to where the fewest bytes are held, among its next places."""
    stores = [op for op in launches if cache_writes(op)]
    order = [op for op in launches if op not in set(stores)]
    held = _held_before(order, finder)
    graph = _dependences(launches)
    number = {op: place for place, op in enumerate(launches)}
    at: dict[Launch, int] = {}  # the launch of `order` before which a store stands
    place = {op: i for i, op in enumerate(order)}
    for store in stores:
        needed = [launches[one] for one in graph.predecessors(number[store])]
        later = [launches[one] for one in graph.successors(number[store])]
        first = max((at[op] if op in at else place[op] + 1 for op in needed), default=0)
        last = min((place[op] for op in later if op in place), default=len(order))
        at[store] = min(range(first, min(last, first + _NEAR) + 1), key=lambda one: (held[one], one))
    found: list[Launch] = []
    for i in range(len(order) + 1):
        found += [store for store in stores if at[store] == i]
        found += order[i : i + 1]
    return found


def _held_before(order: Sequence[Launch], finder: PeakFinder) -> list[int]:
    """Bytes that are held before each launch, and behind the last."""
    finder.in_order(order)
    live = finder.inputs()
    held = [sum(live.values())]
    for op in order:
        finder.after(Tile(0, (op,)), live)
        held.append(sum(live.values()))
    return held


def _made(values: Iterable[SSAValue]) -> set[SSAValue]:
    """The tensors among some values that launches make."""
    return {value for value in values if isinstance(value.owner, Launch) and isinstance(value.type, TensorType)}


def _rearrange(func: FuncOp, order: Sequence[Launch]) -> None:
    """Puts the launches, in order, before the return; weights and constants stand before them."""
    block, last = func.body.block, func.body.block.last_op
    assert last is not None
    for op in order:
        op.detach()
        block.insert_op_before(op, last)
