"""Recipes of the indexer: scores and the exact choice of the best, over tiles of rows under a budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dsv41c.compiler.codegen.triton.device_builder import DeviceBuilder, LoweredOp, Recipe, product
from dsv41c.compiler.codegen.triton.families import Kernel
from dsv41c.compiler.codegen.triton.kernels import indexer
from dsv41c.errors import CompileError
from dsv41c.ir.dims import Dim, evaluate, normalise
from dsv41c.ir.types import TensorType

__all__ = ["RECIPES"]

_BUDGET = 64 << 20  # bytes of scratch of one op
_SMALLEST_TILE = 16  # rows; every tile starts where 16 bytes divide the address
_SMALLEST_SPAN = 16


def _index_topk(op: LoweredOp, build: DeviceBuilder) -> None:
    if op.args[6] is not None:
        raise CompileError("no kernels for 'dsv41.index_topk' with candidates; run the pass restrict-candidates")
    pages, attrs = op.dims(3)[1], op.attrs
    block, n_blocks, ratio, k = attrs["block"], attrs["n_blocks"], attrs["ratio"], attrs["k"]
    entries = product(pages, attrs["page"])
    blocks = normalise(f"({entries} + {block - 1}) floordiv {block}")
    name = f"index_scores{'_blocks' * bool(n_blocks)}{'' if build.few else '_many'}"
    kernel = _scores(op, name, rows=1 if build.few else indexer.ROWS_TOGETHER, publish=bool(n_blocks))
    chosen = ((entries, k, 1), *(((blocks, n_blocks, block),) if n_blocks else ()))
    for number, part in enumerate(_tiles(op, build, [(count, k) for count, k, _ in chosen])):
        scores = _scratch(op, build, number, "scores", part.rows, entries)
        best = _scratch(op, build, number, "block_scores", part.rows, blocks) if n_blocks else None
        given = {"candidates_ptr": None, "scores_ptr": scores, "blocks_ptr": best}
        sizes = {"n_entries": entries, "n_blocks": blocks, "n_pages": pages}
        build.launch(kernel, **part.query, **given, n_rows=part.rows, **sizes)
        for of, result, (count, kept, per) in zip((scores, best), part.results, chosen, strict=False):
            assert of is not None
            choice = _Choice(of.rpartition(".")[2], part, count, kept, result, (ratio, per))
            _select(op, build, number, choice, of)


def _index_pool_topk(op: LoweredOp, build: DeviceBuilder) -> None:
    (_, n_blocks), attrs = op.dims(6), op.attrs
    entries = product(n_blocks, attrs["block"])
    kernel = _scores(op, "index_pool_scores", pool=True)
    for number, part in enumerate(_tiles(op, build, [(entries, attrs["k"])])):
        scores = _scratch(op, build, number, "scores", part.rows, entries)
        given = {"candidates_ptr": part.candidates, "scores_ptr": scores, "blocks_ptr": None}
        sizes = {"n_entries": entries, "n_blocks": n_blocks, "n_pages": op.dims(3)[1]}
        build.launch(kernel, **part.query, **given, n_rows=part.rows, **sizes)
        choice = _Choice("scores", part, entries, attrs["k"], part.results[0], (0, 0))
        _select(op, build, number, choice, scores, attrs["block"], part.candidates)


@dataclass(frozen=True)
class _Part:
    """A tile of rows: how many, and the arguments and results of these rows."""

    rows: Dim
    query: Mapping[str, str | None]
    candidates: str | None
    results: tuple[str, ...]


def _tiles(op: LoweredOp, build: DeviceBuilder, choices: Sequence[tuple[Dim, int]]) -> Iterator[_Part]:
    """The rows in tiles whose scratch keeps the budget, for the longest context that is declared.

    Args:
        choices: scores of a row, and how many of them are kept.
    """
    rows, most = op.dims(0)[0], _most(op.dims(0)[0], build)
    row_bytes = sum(
        indexer.scratch_bytes(_most(count, build), k, _span(_most(count, build), k)) for count, k in choices
    )
    height = max(_SMALLEST_TILE, _BUDGET // row_bytes // _SMALLEST_TILE * _SMALLEST_TILE)
    for first in range(0, most, height):
        start, count = (0, rows) if height >= most else _limits(rows, first, height)

        def part(at: int, start: Dim = start, count: Dim = count) -> str | None:
            name, type_ = op.args[at], op.types[at]
            return build.rows(name, type_, start, count) if name and isinstance(type_, TensorType) else name

        names = ("query_ptr", "weights_ptr", "index_ptr", "pages_ptr", "sequence_ptr", "positions_ptr")
        whole = ("index_ptr", "pages_ptr")
        query = {name: op.args[at] if name in whole else part(at) for at, name in enumerate(names)}
        made = zip(op.results, op.result_types, strict=True)
        results = tuple(build.rows(name, type_, start, count) for name, type_ in made if 0 not in type_.dims)
        yield _Part(count, query, part(6), results)


def _row_bytes(count: int, k: int) -> int:
    return indexer.scratch_bytes(count, k, _span(count, k))


def _limits(rows: Dim, first: int, height: int) -> tuple[Dim, Dim]:
    """Where a tile starts, and its rows; none in a call that has fewer."""
    if first == 0:
        return 0, normalise(f"min({height}, {rows})")
    start = normalise(f"min({first}, {rows})")
    return start, normalise(f"min({height}, {rows} - min({first}, {rows}))")


def _most(size: Dim, build: DeviceBuilder) -> int:
    return evaluate(size, {name: high for name, (_, high) in build.symbols.items()})


def _scratch(op: LoweredOp, build: DeviceBuilder, number: int, role: str, rows: Dim, *sizes: Dim) -> str:
    """Scratch of a tile, which the tiles behind the first, of as many rows or fewer, take again."""
    return build.scratch(op, role, "bf16", rows, *sizes) if number == 0 else f"{op.results[0]}.{role}"


def _scores(op: LoweredOp, name: str, rows: int = 1, pool: bool = False, publish: bool = False) -> Kernel:
    (_, heads, channels), index, attrs = op.dims(0), op.cache(2), op.attrs
    assert isinstance(heads, int)
    assert isinstance(channels, int)
    pages = (attrs["page"], index.page_stride_bytes)
    full = f"{name}_{heads}_{channels}_{attrs['ratio']}_{attrs['page']}_{attrs['block']}"
    return indexer.scores(full, heads, channels, attrs["ratio"], pages, attrs["block"], rows, pool, publish)


@dataclass(frozen=True)
class _Choice:
    """A choice of the best of each row.

    Attributes:
        role: of its scratch. part: its rows. count, kept: scores of a row, and how many of them are kept.
        result: of a row. visible: tokens an entry and entries a score, see `select_kernel`.
    """

    role: str
    part: _Part
    count: Dim
    kept: int
    result: str
    visible: tuple[int, int]


def _select(
    op: LoweredOp,
    build: DeviceBuilder,
    number: int,
    choice: _Choice,
    scores: str,
    group: int = 0,
    entries: str | None = None,
) -> None:
    """The best of each row's scores, ascending, in as many levels as the most scores need.

    Args:
        number: of the tile. group, entries: of the scores, see `select_kernel`.
    """
    rows, count, k = choice.part.rows, choice.count, choice.kept
    span = _span(_most(count, build), k)
    levels = len(indexer.levels(_most(count, build), k, span))
    for level in range(levels):
        is_last = level == levels - 1
        spans = 1 if is_last else normalise(f"({count} + {span - 1}) floordiv {span}")
        best = _scratch(op, build, number, f"{choice.role}_best_{level}", rows, spans, k)
        chosen = choice.result if is_last else f"{op.results[0]}.{choice.role}_list_{level}"
        if not is_last and number == 0:
            build.scratch(op, f"{choice.role}_list_{level}", "si32", rows, spans, k)
        given = {"scores_ptr": scores, "entries_ptr": entries, "best_ptr": best, "list_ptr": chosen}
        given |= {"positions_ptr": choice.part.query["positions_ptr"] if group == 0 else None}
        numbers = {"n_scores": count, "n_spans": spans, "k": k, "ratio": choice.visible[0], "per": choice.visible[1]}
        build.launch(indexer.select(f"select_{group}_{span}", group, span), **given, n_rows=rows, **numbers)
        scores, entries, group, count = best, chosen, 1, product(spans, k)


def _span(most: int, k: int) -> int:
    """Scores that one program chooses from: no more than there can be."""
    return max(_SMALLEST_SPAN, _power_from(k), min(indexer.SPAN, _power_from(most)))


def _power_from(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


RECIPES: Mapping[str, Recipe] = {
    "index_pool_topk": _index_pool_topk,
    "index_topk": _index_topk,
}
