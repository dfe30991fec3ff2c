"""Which forwards are refused for want of cached state, by name, over mini6's own state table."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hand_made import PAGE_TOKENS, hand_made_manifest

from dsv41c.errors import StateError
from dsv41c.models.state import StateSpec
from dsv41c.runtime.batch import Piece
from dsv41c.runtime.caches import Allotment
from dsv41c.runtime.plan_format import Program
from dsv41c.runtime.preconditions import Held, Preconditions

LOOK_BACK = 3  # ids before a row's own in mini6's 4-grams
STATE = hand_made_manifest().state
CACHES = tuple(spec.name for spec in STATE)
DECODER = ("window.3", "window.4", "window.5")


def program(*caches: str) -> Program:
    return Program((), caches, (), ())


@pytest.fixture
def rules() -> Preconditions:
    programs = {
        "step": program(*CACHES),
        "encode": program(*(name for name in CACHES if name not in DECODER)),
        "tail": program(*DECODER, "main.3", "index.3"),
    }
    return Preconditions(STATE, programs, PAGE_TOKENS, LOOK_BACK)


def piece(context: int, count: int, pages: int = 8, start: int = 0, written_from: int = 0) -> Piece:
    return Piece(Allotment(0, list(range(pages))), context, [5] * count, (), start, written_from)


def run(rules: Preconditions, held: Held, name: str, *pieces: Piece) -> None:
    for one in pieces:
        rules.check(name, one, held)
        rules.advance(name, one, held)


def set_span(rules: Preconditions, held: Held, cache: str, first: int, end: int) -> None:
    (at,) = (at for at, group in enumerate(rules.groups) if cache in group.names)
    held.spans[at] = (first, end)


def test_a_group_has_one_rule(rules: Preconditions) -> None:
    named = {group.kind: set() for group in rules.groups}  # type: ignore[var-annotated]
    for group in rules.groups:
        named[group.kind].add(group.names)
    assert named == {
        "window": {("window.0", "window.1", "window.2"), DECODER},
        "entries": {("main.1", "index.1"), ("main.3", "index.3")},
        "tail": {("tail.1",)},
        "history": {("history",)},
    }


@pytest.mark.parametrize("chunks", [(40,), (1,) * 40, (7, 1, 16, 16), (17, 23)], ids=str)
def test_any_chunks_leave_the_same(rules: Preconditions, chunks: Sequence[int]) -> None:
    held, context = rules.nothing_held(), 0
    for count in chunks:
        run(rules, held, "step", piece(context, count))
        context += count
    kept = {group.names[0]: span for group, span in zip(rules.groups, held.spans, strict=True)}
    assert kept == {
        "window.0": (24, 40),
        "window.3": (24, 40),
        "main.1": (0, 40),
        "main.3": (0, 40),
        "tail.1": (32, 40),
        "history": (32, 40),
    }


@pytest.mark.parametrize(
    ("cache", "span", "message"),
    [
        ("history", (39, 41), r"look-back ids of tokens 38\.\.40 in history; the sequence holds tokens 39\.\.40"),
        ("history", (0, 0), r"look-back ids of tokens 38\.\.40 in history; the sequence holds none"),
        ("window.0", (30, 41), r"window rows of tokens 26\.\.40 in window\.0, window\.1 and 1 more; .* 30\.\.40"),
        ("window.4", (0, 30), r"window rows of tokens 26\.\.40 in window\.3, window\.4 and 1 more; .* 0\.\.29"),
        ("tail.1", (0, 40), r"open group's compressor rows of tokens 40\.\.40 in tail\.1; .* 0\.\.39"),
        ("main.3", (0, 36), r"entries of tokens 0\.\.40 in main\.3, index\.3; .* 0\.\.35, so page 2 .* is not written"),
        ("main.1", (16, 41), r"entries of tokens 0\.\.40 in main\.1, index\.1; .* tokens 16\.\.40"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(rules: Preconditions, cache: str, span: tuple[int, int], message: str) -> None:
    held = rules.nothing_held()
    run(rules, held, "step", piece(0, 41))
    rules.check("step", piece(41, 1), held)
    set_span(rules, held, cache, *span)
    with pytest.raises(StateError, match=f"a forward of step at token 41 needs .*{message}.*; run the missing"):
        rules.check("step", piece(41, 1), held)


def test_a_closed_group_needs_no_tail(rules: Preconditions) -> None:
    held = rules.nothing_held()
    run(rules, held, "step", piece(0, 40))
    set_span(rules, held, "tail.1", 0, 0)
    rules.check("step", piece(40, 1), held)


def test_a_short_block_table_is_named(rules: Preconditions) -> None:
    held = rules.nothing_held()
    run(rules, held, "step", piece(0, 32, pages=2))
    with pytest.raises(StateError, match=r"step ends at token 33, .* has pages for 32 tokens \(16 a page\)"):
        rules.check("step", piece(32, 1, pages=2), held)


def test_a_decode_needs_the_tail_of_a_bounded_prefill(rules: Preconditions) -> None:
    held = rules.nothing_held()
    run(rules, held, "encode", piece(0, 30), piece(30, 20))
    with pytest.raises(StateError, match=r"window rows of tokens 35\.\.49 in window\.3"):
        rules.check("step", piece(50, 1), held)
    run(rules, held, "tail", piece(34, 16, start=34, written_from=50))
    run(rules, held, "step", piece(50, 1))


def test_a_tail_needs_the_entries_of_its_own_rows(rules: Preconditions) -> None:
    held = rules.nothing_held()
    run(rules, held, "encode", piece(0, 49))
    with pytest.raises(StateError, match=r"tail at token 34 needs the entries of tokens 0\.\.49 in main\.3"):
        rules.check("tail", piece(34, 16, start=34, written_from=50), held)


@pytest.mark.parametrize("start", [15, 16])
def test_a_replay_needs_entries_and_ids_and_no_windows(rules: Preconditions, start: int) -> None:
    """At an odd start the open group's first row is missing, and nothing that it takes part in is written."""
    held = rules.nothing_held()
    for cache in ("main.1", "main.3"):
        set_span(rules, held, cache, 0, 32)
    replayed = piece(start, 32 - start, start=start, written_from=32)
    with pytest.raises(StateError, match="look-back ids"):
        rules.check("step", replayed, held)
    set_span(rules, held, "history", start - 8, start)
    run(rules, held, "step", replayed, piece(32, 5))
    set_span(rules, held, "main.1", 0, 31)
    with pytest.raises(StateError, match=r"entries of tokens 0\.\.31 in main\.1"):
        rules.check("step", replayed, held)


def test_a_rollback_follows_the_table(rules: Preconditions) -> None:
    """Entries are cut, ids written again; window rows that newer ones overwrote refuse it, and say what would help."""
    held = rules.nothing_held()
    run(rules, held, "step", piece(0, 40))
    near = rules.truncated(held, 39)
    assert {group.names[0]: span for group, span in zip(rules.groups, near.spans, strict=True)} == {
        "window.0": (24, 39),
        "window.3": (24, 39),
        "main.1": (0, 39),
        "main.3": (0, 39),
        "tail.1": (32, 39),
        "history": (31, 39),
    }
    rules.check("step", piece(39, 2), near)
    before = list(held.spans)
    message = (
        r"a rollback to token 37 needs the window rows of tokens 22\.\.36 in window\.0, window\.1 and 1 more; the "
        r"sequence holds tokens 24\.\.39, and what is gone is replayed; go back fewer tokens"
    )
    with pytest.raises(StateError, match=message):
        rules.truncated(held, 37)
    assert held.spans == before


@pytest.mark.parametrize(
    ("kind", "rollback", "message"),
    [
        ("window", "cut", None),
        ("history", "overwritten", r"rollback to token 39 needs the look-back ids of tokens 36\.\.38 in history"),
        ("tail", "rewritten", None),
    ],
)
def test_the_tables_word_alone_decides(kind: str, rollback: str, message: str | None) -> None:
    """With another word for one kind of state the same rollback is refused, or no longer."""
    named = {"window": "window.0", "tail": "tail.1", "history": "history"}
    for table, refused in ((STATE, message is None), (_with(kind, rollback), message is not None)):
        rules = Preconditions(table, {"step": program(*CACHES)}, PAGE_TOKENS, LOOK_BACK)
        held = rules.nothing_held()
        run(rules, held, "step", piece(0, 40))
        set_span(rules, held, named[kind], 39, 40)
        if refused:
            with pytest.raises(StateError, match=message or f"rollback to token 39 needs .* in {named[kind]}"):
                rules.truncated(held, 39)
        else:
            rules.truncated(held, 39)


def _with(kind: str, rollback: str) -> tuple[StateSpec, ...]:
    return tuple(replace(spec, rollback=rollback) if spec.kind == kind else spec for spec in STATE)
