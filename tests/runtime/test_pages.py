"""Pages by number: holders, names, idle pages and which of them goes first."""

from collections.abc import Hashable

import pytest

from dsv41c.errors import RequestError
from dsv41c.runtime.pages import Pages


def test_a_page_is_free_again_when_its_last_holder_gives_it_back() -> None:
    pages = Pages(3)
    taken = pages.take(2)
    assert taken == [0, 1]
    pages.share([1])
    pages.give_back(taken)
    assert (pages.held, pages.available, pages.holders(1)) == (1, 2, 1)
    assert pages.take(2) == [0, 2]
    with pytest.raises(RequestError, match="out of pages: 1 are asked for, 0 of 3 are free and 0 idle"):
        pages.take(1)
    pages.give_back([1])
    assert pages.take(1) == [1]


def test_a_named_page_stays_until_its_number_is_needed() -> None:
    evicted: list[Hashable] = []
    pages = Pages(3, evicted.append)
    first, second = pages.take(2)
    assert pages.set_name(first, "a")
    assert pages.set_name(second, "b")
    pages.give_back([second, first])
    assert (pages.held, pages.idle, pages.available) == (0, 2, 3)
    assert pages.take(2) == [1, 2], "the free one, and of the idle ones that which was given back first"
    assert evicted == ["b"]
    assert (pages.find("a"), pages.find("b")) == (0, None)


def test_an_idle_page_is_held_again() -> None:
    pages = Pages(1)
    (page,) = pages.take(1)
    pages.set_name(page, "a")
    pages.give_back([page])
    pages.share([page])
    assert (pages.held, pages.idle, pages.holders(page)) == (1, 0, 1)
    pages.give_back([page])
    pages.forget("a")
    assert (pages.idle, pages.available, pages.find("a")) == (0, 1, None)


def test_only_a_page_with_one_holder_and_no_name_may_be_written() -> None:
    pages = Pages(3)
    alone, shared, named = pages.take(3)
    pages.share([shared])
    pages.set_name(named, "a")
    assert [pages.is_fixed(page) for page in (alone, shared, named)] == [False, True, True]


def test_a_name_belongs_to_the_first() -> None:
    pages = Pages(2)
    first, second = pages.take(2)
    assert pages.set_name(first, "a")
    assert not pages.set_name(second, "a")
    pages.give_back([second])
    assert pages.idle == 0, "a page without a name is free at once"
