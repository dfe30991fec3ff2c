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
from dataclasses import dataclass

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
        restored: cached, replayed or recomputed, as the state table says.
        programs: that use these caches.
    """

    kind: str
    names: tuple[str, ...]
    rows: int
    ratio: int
    restored: str
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


class Held:
    """The positions that a sequence's caches hold, group by group."""

    def __init__(self, n_groups: int) -> None:
        self.spans: list[Span] = [(0, 0)] * n_groups

    def truncate(self, length: int) -> None:
        """After a rollback to `length` tokens; rows of rings that newer ones overwrote do not come back."""
        self.spans = [(min(first, length), min(end, length)) for first, end in self.spans]

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
        members: dict[tuple[str, int, int, str, frozenset[str]], list[str]] = {}
        for spec in specs:
            is_paged = spec.pool == "pages"
            kind, rows = ("entries", 0) if is_paged else (spec.kind, spec.page)
            ratio = spec.ratio if spec.kind == "tail" else 1
            members.setdefault((kind, rows, ratio, spec.restored, users[spec.name]), []).append(spec.name)
        self.groups = [
            Group(kind, tuple(names), rows, ratio, restored, used)
            for (kind, rows, ratio, restored, used), names in members.items()
        ]

    def nothing_held(self) -> Held:
        """Of a new sequence."""
        return Held(len(self.groups))

    def restore(self, held: Held, entries: int, history: Span) -> None:
        """Notes the state of a prefix whose pages were found and whose look-back ids were written: no windows, no tail.

        Args:
            held: of the new sequence.
            entries: tokens of the prefix.
            history: positions whose ids are there.
        """
        spans: dict[str, Span] = {"cached": (0, entries), "recomputed": history, "replayed": (0, 0)}
        held.spans = [spans[group.restored] for group in self.groups]

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
            first, last = self._needed(group, piece, end)
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

    def _needed(self, group: Group, piece: Piece, end: int) -> Span:
        context = piece.context
        if group.kind == "entries":
            return 0, max(context, min(end, piece.written_from))
        if group.kind == "window":
            return max(piece.start, context - group.rows + 1), context
        if group.kind == "history":
            return max(0, context - self._look_back), context
        opened = context - context % group.ratio
        is_written = opened + group.ratio > piece.written_from
        return (opened if is_written else context), context

    def _missing(self, program: str, piece: Piece, group: Group, needed: Span, held: Span) -> str:
        what = {
            "window": "the window rows of {}",
            "tail": "the open group's compressor rows of {}",
            "history": "the look-back ids of {}",
            "entries": "the entries of {}",
        }[group.kind].format(f"tokens {needed[0]}..{needed[1] - 1} in {group.listed}")
        found = f"tokens {held[0]}..{held[1] - 1}" if held[0] < held[1] else "none"
        text = f"a forward of {program} at token {piece.context} needs {what}; the sequence holds {found}"
        if group.kind == "entries":
            page = max(held[1], needed[0]) // self._page_tokens
            text += f", so page {page} of its block table is not written"
        return f"{text}; run the missing tokens first, or start the sequence again"
