"""Indices of row programs against numpy's own reshapes."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from dsv41c.compiler.codegen.triton.index_math import Axis, Index, broadcast_index, reshape_index

ROW = Axis("row", "T", 16)
SHAPES = [
    ((2, 24), (2, 4, 6)),
    ((2, 4, 6), (2, 24)),
    ((2, 4, 6), (2, 6, 4)),
    ((2, 24), (2, 1, 3, 1, 8)),
    ((2, 3, 8), (2, 2, 12)),
    ((48,), (2, 24)),
    ((2, 24, 1), (48, 1)),
]


def evaluated(index: Index, place: Sequence[int], axes: Sequence[Axis]) -> int:
    names = {axis.name: value for axis, value in zip(axes, place, strict=True)}
    return int(eval(index.text(), {}, names))


@pytest.mark.parametrize(("source", "target"), SHAPES)
def test_reshape(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    """Every place of the source is where numpy has it, and back again it is itself."""
    axes = [Axis(f"a{place}", size, 1 << (size - 1).bit_length()) for place, size in enumerate(source)]
    index = [Index.of(axis) for axis in axes]
    found = reshape_index(index, source, target)
    assert found is not None
    numbers = np.arange(np.prod(source)).reshape(target)
    for count, place in enumerate(itertools.product(*map(range, source))):
        assert numbers[tuple(evaluated(own, place, axes) for own in found)] == count
    back = reshape_index(found, target, source)
    assert back is not None
    assert [own.text() for own in back if own.terms] == [axis.name for axis in axes if axis.extent != 1]


def test_rows_may_be_of_any_number() -> None:
    head, channel = Axis("i8", 8, 8), Axis("i32", 32, 32)
    index = [Index.of(ROW), Index.of(head), Index.of(channel)]
    flat = reshape_index(index, ["T", 8, 32], ["T", 256])
    assert flat is not None
    assert [own.text() for own in flat] == ["row", "32 * i8 + i32"]
    rows = reshape_index(index, ["T", 8, 32], ["8*T", 32])
    assert rows is not None
    assert [own.text() for own in rows] == ["8 * row + i8", "i32"]
    assert reshape_index([Index.of(ROW)], ["B*P"], ["B", "P"]) is None


def test_division_of_what_may_be_negative_is_left_alone() -> None:
    """The hardware rounds towards zero, so -1 // 2 is 0 there; only what is masked may be negative."""
    shifted = Index.of(Axis("i32", 32, 32)).plus(-16)
    quotient, rest = shifted.divided(2)
    assert (quotient.text(), rest.text()) == ("(i32 - 16) // 2", "(i32 - 16) % 2")
    assert (quotient.bounds, rest.bounds) == ((-8, 7), (-1, 1))
    assert quotient.times(2).plus(rest) == shifted


def test_broadcast() -> None:
    row, channel = Index.of(ROW), Index.of(Axis("i32", 32, 32))
    assert broadcast_index([row, channel], ["T", 32], [1, 32]) == (Index(), channel)
    assert broadcast_index([row, channel], ["T", 32], [32]) == (channel,)
