"""Runs launches over tiles of rows where all rows at once would hold too many bytes."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from dsv41c.errors import CompileError
from dsv41c.ir.buffers import own_results, shared_operands
from dsv41c.ir.builder import attribute, functions, get_symbols, has_one_row
from dsv41c.ir.ops.program import Launch
from dsv41c.ir.rows import launch_rows, starts_with_rows
from dsv41c.ir.text import line_of
from dsv41c.ir.transient import CUT, OVER, TILE, TILE_ROWS, PeakFinder, Tile, largest_sizes, launches_of
from dsv41c.passes.pass_base import Pass, PassContext, PassResult

SMALLEST = 16  # rows of a tile: below, every product reads its weights for almost no work
_MOST_LAUNCHES = 24  # of a tile; a layer has fewer


@dataclass(frozen=True)
class PlanMemory(Pass):
    """Runs launches over tiles of rows where all rows at once would hold too many bytes.

    What:
        %q = dsv41.launch "linears"(%x, %w, %s) : ... -> <[T, 32768], bf16>
        %y = dsv41.launch "attend"(%q, %cos, %sin, %window, %fresh, %index, ...) : ... -> <[T, 32768], bf16>
        %z = dsv41.launch "linears"(%y, %v, %r) : ... -> <[T, 8192], bf16>
          ->  the same with {tile = 0, tile_rows = 4096, cut = [0]} on each, and cut = [0, 1, 2, 5] on the second:
              the three run for rows 0..4095, then for 4096..8191, ..., and only %z exists for all rows

        %new = dsv41.launch "region_3"(%old, %y) : ... -> <[T, 4, 5120], bf16>          the last reader of %old
          ->  {..., over = [0]}: rows of %new are put where the same rows of %old were

    Why: at 16,384 rows one query projection takes 1 GiB, and what a plan needs at its peak must be known before a
    machine is rented, for the longest chunk and context that the plan is for.

    How: at the largest sizes of a program's symbols it finds the launch with the peak and takes, of all runs of
    launches around it that work row by row, the one that comes under the budget with the fewest launches times tiles;
    until the peak is under the budget. Calls with fewer rows than a tile run as before. A result that exists for all
    rows takes the memory of an operand that the launch cuts, if that is of its type, its own memory (`ir.buffers`), and
    needed by nothing behind the tile: the streams of a hyper-connection exist once and not twice.

    Needs: launches; `ctx.scratch`, what kernels allocate; `ir.rows`, which knows what works row by row.

    Does not handle: what a compiled kernel holds inside; program outputs with a row for each wanted token (one is
    counted); launches that write caches, which end a run. `rows` cuts every run into tiles of so many rows whatever the
    budget: for tests.
    """

    name: ClassVar[str] = "plan-memory"
    requires: ClassVar[tuple[str, ...]] = ("traced", "launches")
    budget: int = 0
    rows: int = 0

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Cut what must be cut; counts `tile` and `launch`.

        Raises:
            CompileError: the budget cannot be met; it names the launch that needs most.
        """
        counts = {"tile": 0, "launch": 0}
        for func in functions(module).values():
            if has_one_row(func) or not (self.budget or self.rows) or not launches_of(func):
                continue
            planner = _Planner(func, module, ctx)
            tiles = planner.everywhere(self.rows) if self.rows else planner.under(self.budget)
            for number, tile in enumerate(tiles):
                planner.note(number, tile)
                counts["tile"] += 1
                counts["launch"] += len(tile.launches)
        return PassResult(counts["tile"] > 0, counts)


class _Planner:
    """Chooses the tiles of one program."""

    def __init__(self, func: FuncOp, module: ModuleOp, ctx: PassContext) -> None:
        self._func = func
        self._rules: dict[str, frozenset[int] | None] = {}
        self._module = module
        self._finder = PeakFinder(func, largest_sizes(func), ctx.scratch, self._cut, self._over)
        self._launches = self._finder.launches

    def note(self, number: int, tile: Tile) -> None:
        """Writes a tile on its launches."""
        for op in tile.launches:
            op.attributes |= {
                TILE: attribute(number),
                TILE_ROWS: attribute(tile.rows),
                CUT: attribute(sorted(self._cut(op))),
            }
        over = self._over(tile)
        for op in tile.launches:
            slots = op.slots()
            places = [slots.index(over[result]) if result in over else -1 for result in op.results]
            if any(place >= 0 for place in places):
                op.attributes[OVER] = attribute(places)

    def everywhere(self, rows: int) -> list[Tile]:
        """The longest runs, all in tiles of so many rows."""
        tiles, start = [], 0
        while start < len(self._launches):
            ends = list(self._ends(start, len(self._launches)))
            if ends:
                tiles.append(Tile(rows, tuple(self._launches[start : ends[-1] + 1])))
            start = ends[-1] + 1 if ends else start + 1
        return tiles

    def under(self, budget: int) -> list[Tile]:
        """The tiles that bring the peak under a budget."""
        tiles: dict[int, Tile] = {}
        while True:
            peak = self._finder.peak(self._in_order(tiles))
            if peak.bytes <= budget:
                return [tiles[start] for start in sorted(tiles)]
            found = self._best(peak.launch, tiles, budget)
            if found is None:
                raise self._refusal(peak.launch, peak.bytes, budget)
            start = self._launches.index(found.launches[0])
            covered = range(start, start + len(found.launches))
            tiles = {first: tile for first, tile in tiles.items() if not _overlaps(first, tile, covered)}
            tiles[start] = found

    def _in_order(self, tiles: Mapping[int, Tile]) -> Iterator[Tile]:
        place = 0
        while place < len(self._launches):
            tile = tiles.get(place, Tile(0, (self._launches[place],)))
            yield tile
            place += len(tile.launches)

    def _best(self, at: int, tiles: Mapping[int, Tile], budget: int) -> Tile | None:
        """The cheapest run around a launch whose own peak is under the budget; None if there is none."""
        before = self._live_before(tiles, at)
        best: tuple[int, Tile] | None = None
        for start in range(at, max(-1, at - _MOST_LAUNCHES), -1):
            if start not in before:
                continue
            for end in self._ends(start, start + _MOST_LAUNCHES):
                if end < at or any(_cuts(first, tile, start, end) for first, tile in tiles.items()):
                    continue
                tile = self._largest(self._launches[start : end + 1], before[start], budget)
                if tile is None:
                    continue
                cost = len(tile.launches) * -(-self._finder.rows // tile.rows)
                if best is None or cost < best[0]:
                    best = cost, tile
        return best[1] if best else None

    def _largest(self, launches: list[Launch], before: Mapping[SSAValue, int], budget: int) -> Tile | None:
        rows = self._finder.rows
        while (rows := rows // 2) >= SMALLEST:
            tile = Tile(rows, tuple(launches))
            if self._finder.peak_of(tile, before).bytes <= budget:
                return tile
        return None

    def _live_before(self, tiles: Mapping[int, Tile], at: int) -> dict[int, dict[SSAValue, int]]:
        """What is live before each launch up to one, where no other tile is under way."""
        live = self._finder.inputs()
        found: dict[int, dict[SSAValue, int]] = {}
        place = 0
        for tile in self._in_order(tiles):
            if place > at:
                break
            if place > at - _MOST_LAUNCHES:
                found[place] = dict(live)
            self._finder.after(tile, live)
            place += len(tile.launches)
        return found

    def _ends(self, start: int, limit: int) -> Iterator[int]:
        """The last launches of the runs that begin at one and work row by row."""
        made: set[SSAValue] = set()
        for place in range(start, min(limit, len(self._launches))):
            op = self._launches[place]
            cut = self._rule(op)
            if not cut or not all(starts_with_rows(result.type) for result in op.results):
                return
            whole = {slot for at, slot in enumerate(op.slots()) if slot is not None and at not in cut}
            if made & whole:
                return
            made.update(op.results)
            yield place

    def _cut(self, op: Launch) -> Collection[int]:
        return self._rule(op) or ()

    def _over(self, tile: Tile) -> dict[SSAValue, SSAValue]:
        """The results of a tile that can take the memory of an operand of their launch."""
        found: dict[SSAValue, SSAValue] = {}
        needed = set(tile.results)
        for op in tile.launches:
            slots = op.slots()
            for result in (result for result in op.results if result in needed):
                cut = (slots[place] for place in sorted(self._cut(op)))
                free = (slot for slot in cut if slot is not None and slot.type == result.type)
                taken = next((s for s in free if s not in found.values() and self._is_free(s, tile)), None)
                if taken is not None:
                    found[result] = taken
        return found

    def _is_free(self, value: SSAValue, tile: Tile) -> bool:
        """Whether rows of a value from before a tile may be written over as soon as the tile's launches read them."""
        maker = value.owner
        if not isinstance(maker, Launch) or maker in tile.launches or not self._finder.ends_in(value, tile):
            return False
        if list[SSAValue](maker.results).index(value) not in own_results(maker, self._module):
            return False
        return all(self._leaves(use.operation, value, tile) for use in value.uses)

    def _leaves(self, user: Operation, value: SSAValue, tile: Tile) -> bool:
        """Whether a reader of a value gives no view of it, and in a tile reads no more than the tile's rows."""
        if not isinstance(user, Launch):
            return False
        places = {place for place, slot in enumerate(user.slots()) if slot is value}
        whole = user in tile.launches and not places.issubset(self._cut(user))
        return not whole and not places & shared_operands(user, self._module)

    def _rule(self, op: Launch) -> frozenset[int] | None:
        key = f"{op.kernel.data} {[slot is None for slot in op.slots()]}"
        if key not in self._rules:
            self._rules[key] = launch_rows(op, self._module)
        return self._rules[key]

    def _refusal(self, at: int, peak: int, budget: int) -> CompileError:
        declared = get_symbols(self._func)
        sizes = ", ".join(f"{name} = {high}" for name, (_, high) in declared.items() if name in "TBP")
        name = self._func.sym_name.data
        return CompileError(
            f"'{name}' holds {peak:,} bytes at {sizes} and may hold {budget:,}; "
            f"tiles of {SMALLEST} rows or more do not bring it there: raise --transient-budget, or lower --max-rows\n"
            f"  at: {line_of(self._launches[at])}"
        )


def _overlaps(first: int, tile: Tile, covered: Iterable[int]) -> bool:
    return bool(set(range(first, first + len(tile.launches))).intersection(covered))


def _cuts(first: int, tile: Tile, start: int, end: int) -> bool:
    """Whether a run would take a part of a tile."""
    last = first + len(tile.launches) - 1
    apart = last < start or first > end
    inside = start <= first and last <= end
    return not apart and not inside
