"""Positions of values as integer expressions over the axes of a kernel's blocks, and how views change them.

An `Index` is a sum of integer multiples of atoms: axes, quotients and remainders of other indices, loaded positions.
Reshapes, slices and concatenations are arithmetic on indices, so values in another layout need no data movement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsv41c.ir.dims import Dim, normalise

__all__ = ["Axis", "Index", "Loaded", "broadcast_index", "product", "reshape_index", "strides_of"]


@dataclass(frozen=True)
class Axis:
    """One axis of a kernel's blocks.

    Attributes:
        name: the variable that counts along it. extent: how far; a symbol for rows.
        block: positions that a program holds at once, a power of two. tiled: each program holds others.
    """

    name: str
    extent: Dim
    block: int
    tiled: bool = False

    @property
    def bounds(self) -> tuple[int, int | None]:
        """The first and the last position that the variable can have; None where only a launch knows."""
        if not isinstance(self.extent, int):
            return 0, None
        return 0, -(-self.extent // self.block) * self.block - 1

    @property
    def is_padded(self) -> bool:
        """Whether the variable may stand behind the last position."""
        return not isinstance(self.extent, int) or self.extent % self.block != 0


@dataclass(frozen=True)
class Loaded:
    """A position that the kernel has computed: a variable of its blocks, and the axes that it varies over."""

    name: str
    axes: frozenset[Axis]

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """Nothing is known."""
        return None, None


@dataclass(frozen=True)
class _Quotient:
    """`value // divisor`, rounded towards zero as the hardware does."""

    value: Index
    divisor: int

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        low, high = self.value.bounds
        return (
            None if low is None else math.trunc(low / self.divisor),
            None if high is None else math.trunc(high / self.divisor),
        )


@dataclass(frozen=True)
class _Remainder:
    """`value % divisor`, with the sign of the value as the hardware has it."""

    value: Index
    divisor: int

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        low, _ = self.value.bounds
        return (0 if low is not None and low >= 0 else 1 - self.divisor), self.divisor - 1


_Atom = Axis | Loaded | _Quotient | _Remainder


@dataclass(frozen=True)
class Index:
    """`offset + sum(factor * atom)`."""

    offset: int = 0
    terms: tuple[tuple[_Atom, int], ...] = ()

    @classmethod
    def of(cls, atom: _Atom) -> Index:
        """An atom as an index."""
        return cls(0, ((atom, 1),))

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The least and the largest value that the variables can give, None where it is not known."""
        return self._range([atom.bounds for atom, _ in self.terms])

    @property
    def valid(self) -> tuple[int | None, int | None]:
        """The same while every axis is within its extent; whatever is behind that is masked in the end."""
        return self._range([_valid(atom) for atom, _ in self.terms])

    def _range(self, ends: Sequence[tuple[int | None, int | None]]) -> tuple[int | None, int | None]:
        low: int | None = self.offset
        high: int | None = self.offset
        for (_, factor), (first, last) in zip(self.terms, ends, strict=True):
            least, most = (first, last) if factor > 0 else (last, first)
            low = None if low is None or least is None else low + factor * least
            high = None if high is None or most is None else high + factor * most
        return low, high

    @property
    def axes(self) -> frozenset[Axis]:
        """The axes that the index varies over."""
        return frozenset().union(*(_axes(atom) for atom, _ in self.terms))

    @property
    def axis(self) -> Axis | None:
        """The axis that the index is, if it is nothing else."""
        if self.offset or len(self.terms) != 1:
            return None
        atom, factor = self.terms[0]
        return atom if isinstance(atom, Axis) and factor == 1 else None

    @property
    def constant(self) -> int | None:
        """The value of an index that has no atoms."""
        return None if self.terms else self.offset

    def plus(self, other: Index | int) -> Index:
        """The sum; a quotient and the remainder that belongs to it become what they were taken from."""
        other = other if isinstance(other, Index) else Index(other)
        factors = dict(self.terms)
        for atom, factor in other.terms:
            factors[atom] = factors.get(atom, 0) + factor
        total = Index(self.offset + other.offset, tuple((atom, f) for atom, f in factors.items() if f))
        return _joined(total)

    def times(self, factor: int) -> Index:
        """A multiple."""
        if factor == 0:
            return Index()
        return Index(self.offset * factor, tuple((atom, own * factor) for atom, own in self.terms))

    def divided(self, divisor: int) -> tuple[Index, Index]:
        """Quotient and remainder by a positive number."""
        if divisor == 1:
            return self, Index()
        whole = Index(
            self.offset // divisor * divisor, tuple((a, f - f % divisor) for a, f in self.terms if f - f % divisor)
        )
        rest = self.plus(whole.times(-1))
        quotient = Index(whole.offset // divisor, tuple((atom, factor // divisor) for atom, factor in whole.terms))
        low, high = rest.valid
        if low is not None and high is not None and low >= 0 and high < divisor:
            return quotient, rest
        low, _ = self.valid
        if low is None or low < 0:
            # Rounding towards zero: the multiples may only be split off where nothing is negative.
            return Index.of(_Quotient(self, divisor)), Index.of(_Remainder(self, divisor))
        return quotient.plus(Index.of(_Quotient(rest, divisor))), Index.of(_Remainder(rest, divisor))

    def text(self) -> str:
        """The index in Python."""
        parts = [_term_text(atom, factor) for atom, factor in self.terms]
        if self.offset or not parts:
            parts.append(str(self.offset))
        return " + ".join(parts).replace("+ -", "- ")


def _joined(index: Index) -> Index:
    factors = dict(index.terms)
    for atom, factor in index.terms:
        if not isinstance(atom, _Remainder):
            continue
        quotient = _Quotient(atom.value, atom.divisor)
        if factors.get(quotient) == factor * atom.divisor:
            del factors[quotient], factors[atom]
            return Index(index.offset, tuple(factors.items())).plus(atom.value.times(factor))
    return index


def _valid(atom: _Atom) -> tuple[int | None, int | None]:
    return (0, atom.extent - 1) if isinstance(atom, Axis) and isinstance(atom.extent, int) else atom.bounds


def _axes(atom: _Atom) -> frozenset[Axis]:
    if isinstance(atom, Axis):
        return frozenset({atom})
    return atom.axes if isinstance(atom, Loaded) else atom.value.axes


def _term_text(atom: _Atom, factor: int) -> str:
    text = _atom_text(atom)
    if factor == 1:
        return text
    text = text if text.isidentifier() else f"({text})"
    return f"-{text}" if factor == -1 else f"{factor} * {text}"


def _atom_text(atom: _Atom) -> str:
    if isinstance(atom, Axis | Loaded):
        return atom.name
    value = atom.value.text()
    value = value if value.isidentifier() else f"({value})"
    return f"{value} {'//' if isinstance(atom, _Quotient) else '%'} {atom.divisor}"


def broadcast_index(index: Sequence[Index], result: Sequence[Dim], operand: Sequence[Dim]) -> tuple[Index, ...]:
    """The position in an operand that is broadcast to a result, for a position in the result."""
    behind = len(result) - len(operand)
    pairs = zip(index[behind:], result[behind:], operand, strict=True)
    return tuple(Index() if dim == 1 and wide != 1 else own for own, wide, dim in pairs)


def reshape_index(index: Sequence[Index], source: Sequence[Dim], target: Sequence[Dim]) -> tuple[Index, ...] | None:
    """The position in `target` of what stands at `index` in `source`, both of one number of elements in one order.

    None where it would need a division by a size that only a launch knows.
    """
    position: list[Index] = []
    for (start, end), (first, last) in _segments(source, target):
        own, dims = index[start:end], target[first:last]
        found = _reshaped(own, source[start:end], dims)
        if found is None:
            return None
        position += found
    return tuple(position)


def _reshaped(index: Sequence[Index], source: Sequence[Dim], target: Sequence[Dim]) -> list[Index] | None:
    wide = [(own, dim) for own, dim in zip(index, source, strict=True) if dim != 1]
    places = [place for place, dim in enumerate(target) if dim != 1]
    found = [Index()] * len(target)
    if [dim for _, dim in wide] == [target[place] for place in places]:
        for place, (own, _) in zip(places, wide, strict=True):
            found[place] = own
        return found
    if not all(isinstance(dim, int) for _, dim in wide[1:]) or not all(isinstance(target[p], int) for p in places[1:]):
        return None
    rest = Index()
    for own, dim in wide:
        rest = rest.times(dim if isinstance(dim, int) else 1).plus(own)
    for place in reversed(places[1:]):
        size = target[place]
        assert isinstance(size, int)
        rest, found[place] = rest.divided(size)
    if places:
        found[places[0]] = rest
    return found


def _segments(source: Sequence[Dim], target: Sequence[Dim]) -> Iterable[tuple[tuple[int, int], tuple[int, int]]]:
    """The shortest runs of sizes of equal products, from the left."""
    i = j = 0
    while i < len(source) or j < len(target):
        start, first = i, j
        left: Dim = source[i] if i < len(source) else 1
        right: Dim = target[j] if j < len(target) else 1
        i, j = min(i + 1, len(source)), min(j + 1, len(target))
        while left != right:
            if i < len(source) and (_is_smaller(left, right) or j == len(target)):
                left = product((left, source[i]))
                i += 1
            elif j < len(target):
                right = product((right, target[j]))
                j += 1
            else:
                raise ValueError(f"sizes {list(source)} and {list(target)} have no equal products")
        yield (start, i), (first, j)


def _is_smaller(left: Dim, right: Dim) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left < right
    return isinstance(left, int)


def product(sizes: Iterable[Dim]) -> Dim:
    """The product of sizes."""
    known, symbols = 1, []
    for size in sizes:
        if isinstance(size, int):
            known *= size
        else:
            symbols.append(f"({size})")
    return normalise(" * ".join([str(known), *symbols])) if symbols else known


def strides_of(dims: Sequence[Dim]) -> list[Dim]:
    """Elements between neighbours along each dimension of a tensor that lies in one piece."""
    return [product(dims[place + 1 :]) for place in range(len(dims))]
