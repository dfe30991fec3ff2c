"""Names of prefixes, window states that live for a while, and which prefix a prompt goes on from."""

import pytest
import torch

from dsv41c.runtime.preconditions import Held
from dsv41c.runtime.prefix import Image, WindowState, WindowStates, best_hit, names_of


def test_a_name_stands_for_all_tokens_before_it() -> None:
    one, other = list(names_of([1, 2, 3, 4, 5, 6, 7], 2)), list(names_of([9, 2, 3, 4, 5, 6], 2))
    assert len(one) == len(other) == 3
    assert not set(one) & set(other), "pages with the same tokens behind other ones"
    assert list(names_of([1, 2, 3, 4], 2)) == one[:2]
    assert list(names_of([5, 6], 2, one[1])) == [one[2]]
    assert len(set(names_of([7] * 20, 2))) == 10


def test_a_name_stands_for_the_images_that_reach_into_it() -> None:
    """Tokens of all images have one id; pages before an image, and only those, have the name that they have without."""
    tokens = [4, 5, 8, 8, 8, 6, 7, 3]
    without = list(names_of(tokens, 2))
    named = [list(names_of(tokens, 2, images=[Image(2, 3, digest)])) for digest in (b"a", b"b")]
    moved = list(names_of(tokens, 2, images=[Image(3, 2, b"a")]))
    for names in (*named, moved):
        assert names[0] == without[0]
        assert not set(names[1:]) & set(without)
    assert not set(named[0][1:]) & set(named[1][1:])
    assert not set(named[0][1:]) & set(moved[1:])
    begun = named[0][1]
    assert list(names_of(tokens[4:], 2, begun, 4, [Image(2, 3, b"a")])) == named[0][2:]
    two, one = ([Image(2, 1, b"ab"), Image(3, 2, b"c")], [Image(2, 1, b"a"), Image(3, 2, b"bc")])
    assert list(names_of(tokens, 4, images=two)) != list(names_of(tokens, 4, images=one))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def state(size: int = 100) -> WindowState:
    return WindowState({"window.0": torch.zeros(size - 4, dtype=torch.uint8)}, Held(0), {"c": torch.zeros(1)}, True)


def test_states_live_on_with_every_use() -> None:
    clock = Clock()
    states = WindowStates(10, 1000, clock)
    states.put(b"a", state())
    states.put(b"b", state())
    clock.now = 8
    assert states.find(b"a") is not None
    clock.now = 12
    assert states.find(b"b") is None
    assert states.find(b"a") is not None
    assert (len(states), states.bytes) == (1, 100)
    clock.now = 30
    assert states.find(b"a") is None
    assert (len(states), states.bytes) == (0, 0)


def test_states_stay_within_their_bytes() -> None:
    states = WindowStates(10, 250, Clock())
    for name in (b"a", b"b"):
        states.put(name, state())
    states.find(b"a")
    states.put(b"c", state())
    states.put(b"d", state(300))
    assert [states.find(name) is not None for name in (b"a", b"b", b"c", b"d")] == [True, False, True, False]
    states.put(b"c", state(50))
    assert states.bytes == 150
    states.drop(b"c")
    states.drop(b"c")
    assert states.bytes == 100


@pytest.mark.parametrize(
    ("pages", "may_replay", "tokens", "has_state"),
    [
        ("", True, None, None),
        (".", True, None, None),  # 8 tokens are a whole window: a replay would run all of them
        ("..", True, 16, False),
        ("..", False, None, None),
        (".s", True, 16, True),
        ("s.", True, 8, True),  # 8 tokens of the second page, or 8 of a replay: what is exact goes first
        ("s..", True, 24, False),
        ("s..", False, 8, True),
        ("s.s.", True, 24, True),
    ],
)
def test_the_hit_that_leaves_least_to_run(pages: str, may_replay: bool, tokens: int | None, has_state: bool) -> None:
    """A page of 8 tokens for each mark, s with a window state behind it; windows of 8."""
    hit = best_hit([state() if mark == "s" else None for mark in pages], 8, 8, may_replay)
    assert (hit and hit.tokens) == tokens
    assert (hit and hit.state is not None) == has_state
