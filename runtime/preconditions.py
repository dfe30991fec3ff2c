"""What a forward needs of a sequence's cached state, and the refusal by name where it is not there.

The rules are the state table's (DESIGN 8, SPEC 10.6): caches of one kind, size and set of programs form a group, and a
sequence records for each group which positions the caches hold. A forward of rows [c, e) that attends to no window row
before `start` and writes no entry of a token before `written_from` needs

    window    rows [max(start, c - W + 1), c)
    tail      the open group's rows [c - c % ratio, c), where the group's entry is to be written
    history   the ids [c - (n - 1), c) that n-grams look back to
    entries   main KV and index keys of [0, c), and of the rows' own tokens where it does not write them itself
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dsv41c.errors import StateError
from dsv41c.models.state import StateSpec
from dsv41c.runtime.batch import Piece
from dsv41c.runtime.plan_format import DeviceProgram, Program

Span = tuple[int, int]  # positions [first, end)


@dataclass(frozen=True)
class Group:
    """Caches that hold the same positions.

    Attributes:
        kind: window, tail, history, or entries for main KV and index keys.
        names: the caches.
        rows: positions that a ring holds; 0 for pages.
        ratio: tokens of a compressor's group; 1 elsewhere.
        restored, rollback: as the state table says.
        programs: that use these caches.
    """

    kind: str
    names: tuple[str, ...]
    rows: int
    ratio: int
    restored: str
    rollback: str
    programs: frozenset[str]

    @property
    def listed(self) -> str:
        """The caches for a message, e.g. "window.3, window.4 and 2 more"."""
        rest = len(self.names) - 2
        return ", ".join(self.names[:2]) + (f" and {rest} more" if rest > 0 else "")

    def after(self, held: Span, first: int, end: int) -> Span:
        """The positions held once rows [first, end) were written."""
        begin = held[0] if held[0] <= first <= held[1] else first
        return (max(begin, end - self.rows) if self.rows else begin), end

    def until(self, held: Span, length: int) -> Span:
        """The positions held once the sequence went back to `length` tokens."""
        if self.rollback == "rewritten":
            return max(0, length - self.rows), length
        return min(held[0], length), min(held[1], length)


class Held:
    """The positions that a sequence's caches hold, group by group."""

    def __init__(self, n_groups: int) -> None:
        self.spans: list[Span] = [(0, 0)] * n_groups

    def copy(self) -> Held:
        copied = Held(0)
        copied.spans = list(self.spans)
        return copied


class Preconditions:
    """The groups of a plan's state table.

    Args:
        specs: the state table.
        programs: by name; a program's list of caches says what it uses.
        page_tokens: tokens a page.
        look_back: ids before a row's own that its n-grams need.
    """

    def __init__(
        self,
        specs: Sequence[StateSpec],
        programs: Mapping[str, Program | DeviceProgram],
        page_tokens: int,
        look_back: int,
    ) -> None:
        self._page_tokens, self._look_back = page_tokens, look_back
        users = {
            spec.name: frozenset(name for name, program in programs.items() if spec.name in program.caches)
            for spec in specs
        }
        members: dict[Group, list[str]] = {}
        for spec in specs:
            is_paged = spec.pool == "pages"
            kind, rows = ("entries", 0) if is_paged else (spec.kind, spec.page)
            ratio = spec.ratio if spec.kind == "tail" else 1
            alike = Group(kind, (), rows, ratio, spec.restored, spec.rollback, users[spec.name])
            members.setdefault(alike, []).append(spec.name)
        self.groups = [replace(alike, names=tuple(names)) for alike, names in members.items()]

    def nothing_held(self) -> Held:
        """Of a new sequence."""
        return Held(len(self.groups))

    def restore(self, held: Held, entries: int, start: int) -> None:
        """Notes the state of a prefix that was found and is to be replayed, by the table's column `restored`.

        Args:
            held: of the new sequence.
            entries: tokens of the prefix.
            start: where the replay begins, and up to where `CachePool.write_ids` wrote ids.
        """
        held.spans = []
        for group in self.groups:
            spans: dict[str, Span] = {
                "cached": (0, entries),
                "recomputed": (max(0, start - group.rows), start),
                "replayed": (0, 0),
            }
            held.spans.append(spans[group.restored])

    def truncated(self, held: Held, length: int, start: int = 0) -> Held:
        """What a sequence holds once it went back to its first `length` tokens, by the table's column `rollback`.

        The caller writes the ids of caches that are rewritten (`CachePool.write_ids`).

        Args:
            held: what it holds now; left as it is.
            length: tokens that stay.
            start: of its pieces.
        Raises:
            StateError: newer rows overwrote some that the next forward needs; it names the caches, the positions, and
                what would bring them back.
        """
        rolled = Held(0)
        for group, span in zip(self.groups, held.spans, strict=True):
            rolled.spans.append(group.until(span, length))
            first, last = self._needed(group, length, length, start, 0)
            is_there = first >= last or span[0] <= first <= last <= span[1]
            if group.rollback == "overwritten" and not is_there:
                raise StateError(
                    f"a rollback to token {length} needs {_what(group, (first, last))}; "
                    f"the sequence holds {_listed(span)}, and what is gone is {group.restored}; go back fewer tokens, "
                    "or start the sequence again"
                )
        return rolled

    def check(self, program: str, piece: Piece, held: Held) -> None:
        """Refuses a forward that would read what is not there.

        Args:
            program: the one to run.
            piece: the sequence's rows.
            held: what its caches hold.
        Raises:
            StateError: naming the caches, the positions needed and the positions held.
        """
        end = piece.context + len(piece.tokens)
        capacity = len(piece.allotment.pages) * self._page_tokens
        if any(group.kind == "entries" and program in group.programs for group in self.groups) and end > capacity:
            raise StateError(
                f"a forward of {program} ends at token {end}, and the sequence's block table has pages for {capacity} "
                f"tokens ({self._page_tokens} a page); allot more pages first"
            )
        for group, span in zip(self.groups, held.spans, strict=True):
            if program not in group.programs:
                continue
            first, last = self._needed(group, piece.context, end, piece.start, piece.written_from)
            if first < last and not span[0] <= first <= last <= span[1]:
                raise StateError(self._missing(program, piece, group, (first, last), span))

    def advance(self, program: str, piece: Piece, held: Held) -> None:
        """Notes what a forward wrote."""
        end = piece.context + len(piece.tokens)
        for at, group in enumerate(self.groups):
            if program not in group.programs:
                continue
            first = max(piece.context, piece.written_from) if group.kind == "entries" else piece.context
            if first < end:
                held.spans[at] = group.after(held.spans[at], first, end)

    def _needed(self, group: Group, context: int, end: int, start: int, written_from: int) -> Span:
        if group.kind == "entries":
            return 0, max(context, min(end, written_from))
        if group.kind == "window":
            return max(start, context - group.rows + 1), context
        if group.kind == "history":
            return max(0, context - self._look_back), context
        opened = context - context % group.ratio
        is_written = opened + group.ratio > written_from
        return (opened if is_written else context), context

    def _missing(self, program: str, piece: Piece, group: Group, needed: Span, held: Span) -> str:
        text = (
            f"a forward of {program} at token {piece.context} needs {_what(group, needed)}; the sequence holds "
            f"{_listed(held)}"
        )
        if group.kind == "entries":
            page = max(held[1], needed[0]) // self._page_tokens
            text += f", so page {page} of its block table is not written"
        return f"{text}; run the missing tokens first, or start the sequence again"


def _what(group: Group, needed: Span) -> str:
    text = {
        "window": "the window rows of {}",
        "tail": "the open group's compressor rows of {}",
        "history": "the look-back ids of {}",
        "entries": "the entries of {}",
    }[group.kind]
    return text.format(f"tokens {needed[0]}..{needed[1] - 1} in {group.listed}")


def _listed(held: Span) -> str:
    return f"tokens {held[0]}..{held[1] - 1}" if held[0] < held[1] else "none"
