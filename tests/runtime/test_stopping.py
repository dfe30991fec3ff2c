"""Stop strings over text that comes in pieces."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41c.runtime.stopping import StopText


class Pieces:
    """A stand-in for a token decoder: token i is the i-th piece."""

    def __init__(self, pieces: Sequence[str], rest: str = "") -> None:
        self._pieces, self._rest = pieces, rest

    def push(self, token: int) -> str:
        return self._pieces[token]

    def finish(self) -> str:
        return self._rest


def shown(pieces: Sequence[str], *stops: str, rest: str = "") -> tuple[list[str], bool]:
    text = StopText(Pieces(pieces, rest), stops)  # type: ignore[arg-type]
    out = []
    for token in range(len(pieces)):
        out.append(text.push(token))
        if text.stopped:
            return out, True
    out.append(text.finish())
    return out, text.stopped


def test_text_without_stops_passes() -> None:
    assert shown(["a", "", "bc"], rest="d") == (["a", "", "bc", "d"], False)


def test_what_may_begin_a_stop_waits() -> None:
    assert shown(["ab<", "e", "n", "x"], "<end>") == (["ab", "", "", "<enx", ""], False)
    assert shown(["ab<", "end", ">cd"], "<end>") == (["ab", "", ""], True)


def test_the_earliest_stop_ends_the_text() -> None:
    assert shown(["one two three"], "three", "two") == (["one "], True)


def test_a_stop_in_what_is_left_at_the_end_is_seen() -> None:
    assert shown(["a<en"], "<end>", rest="d>b") == (["a", ""], True)
    assert shown(["a<en"], "<end>", rest="z") == (["a", "<enz"], False)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("ab", max_size=3), max_size=6), st.lists(st.text("ab", min_size=1, max_size=3), max_size=2))
def test_any_pieces_show_the_text_before_the_first_stop(pieces: list[str], stops: list[str]) -> None:
    """The text in one piece says where the first stop that is complete comes to its end."""
    whole = "".join(pieces)
    out, stopped = shown(pieces, *stops)
    ends = [whole.find(stop) for stop in stops if stop in whole]
    assert stopped == bool(ends)
    text = "".join(out)
    if not ends:
        assert text == whole
        return
    assert whole.startswith(text)
    assert not any(stop in text for stop in stops)
    assert any(whole[len(text) :].startswith(stop) for stop in stops)


@pytest.mark.parametrize("pieces", [["x", "<en", "d>"], ["x<end>"], list("x<end>")], ids=str)
def test_the_borders_of_pieces_do_not_matter(pieces: list[str]) -> None:
    out, stopped = shown(pieces, "<end>")
    assert ("".join(out), stopped) == ("x", True)
