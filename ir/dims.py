"""Symbolic sizes: integer expressions over symbols, kept in one normal form so that equal sizes are equal text.

A size is an int or a text such as `T`, `4*T`, `128*S + T`, `T floordiv 4`, `max(T, 8)`. The normal form is a
polynomial: terms by falling degree, then by name; `floordiv`, `mod`, `max` and `min` stay as opaque factors with
normalised parts.
"""

import ast
from collections.abc import Iterable, Mapping
from functools import lru_cache, reduce

Dim = int | str
Assignment = Mapping[str, int]

# A monomial is its factors in order; a polynomial maps monomials to their coefficients.
_Polynomial = dict[tuple[str, ...], int]
_CALLS = ("floordiv", "mod", "max", "min")


def normalise(dim: Dim) -> Dim:
    """Bring a size to its normal form.

    Args:
        dim: an int, or an expression over symbol names with + - * // % floordiv mod max min and small powers.

    Returns:
        An int when no symbol is left, else the text in normal form.

    Raises:
        ValueError: the text is not such an expression.
    """
    return dim if isinstance(dim, int) else _normalise_text(dim)


def evaluate(dim: Dim, assignment: Assignment) -> int:
    """Give the value of a size under an assignment of its symbols.

    Raises:
        ValueError: the assignment lacks a symbol.
    """
    return dim if isinstance(dim, int) else _value(_parse(dim), assignment)


def symbols_of(dim: Dim) -> frozenset[str]:
    """Name the symbols that a size depends on."""
    return frozenset() if isinstance(dim, int) else _symbols_of_text(dim)


@lru_cache(maxsize=4096)
def _symbols_of_text(text: str) -> frozenset[str]:
    calls = set(_CALLS)
    return frozenset(node.id for node in ast.walk(_parse(text)) if isinstance(node, ast.Name) and node.id not in calls)


@lru_cache(maxsize=4096)
def _normalise_text(text: str) -> Dim:
    polynomial = _polynomial(_parse(text))
    if not polynomial:
        return 0
    if set(polynomial) == {()}:
        return polynomial[()]
    return _polynomial_text(polynomial)


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    source = text.replace(" floordiv ", " // ").replace(" mod ", " % ")
    try:
        return ast.parse(source.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"size '{text}' is not an expression over symbols") from error


def _polynomial(node: ast.expr) -> _Polynomial:
    match node:
        case ast.Constant(value=int() as value):
            return {(): value} if value else {}
        case ast.Name(id=name):
            return {(name,): 1}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _times(_polynomial(operand), {(): -1})
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _plus(_polynomial(left), _polynomial(right))
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _plus(_polynomial(left), _times(_polynomial(right), {(): -1}))
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _times(_polynomial(left), _polynomial(right))
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)) if 0 <= power <= 8:
            return reduce(_times, [_polynomial(left)] * power, {(): 1})
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            return _divide(_polynomial(left), _polynomial(right))
        case ast.BinOp(left=left, op=ast.Mod(), right=right):
            return _remainder(_polynomial(left), _polynomial(right))
        case ast.Call(func=ast.Name(id=("max" | "min" | "Max" | "Min") as name), args=parts, keywords=[]):
            return _extreme(name.lower(), [_polynomial(part) for part in parts])
    raise ValueError(f"size '{ast.unparse(node)}' uses more than + - * floordiv mod max min over symbols")


def _plus(left: _Polynomial, right: _Polynomial) -> _Polynomial:
    total = dict(left)
    for monomial, coefficient in right.items():
        total[monomial] = total.get(monomial, 0) + coefficient
    return {monomial: coefficient for monomial, coefficient in total.items() if coefficient}


def _times(left: _Polynomial, right: _Polynomial) -> _Polynomial:
    total: _Polynomial = {}
    for a, x in left.items():
        for b, y in right.items():
            monomial = tuple(sorted(a + b))
            total[monomial] = total.get(monomial, 0) + x * y
    return {monomial: coefficient for monomial, coefficient in total.items() if coefficient}


def _constant(polynomial: _Polynomial) -> int | None:
    if not polynomial:
        return 0
    return polynomial[()] if set(polynomial) == {()} else None


def _divide(left: _Polynomial, right: _Polynomial) -> _Polynomial:
    divisor = _constant(right)
    if divisor and all(coefficient % divisor == 0 for coefficient in left.values()):
        return {monomial: coefficient // divisor for monomial, coefficient in left.items()}
    value = _constant(left)
    if divisor and value is not None:
        return {(): value // divisor} if value // divisor else {}
    return {(f"({_operand_text(left)} floordiv {_operand_text(right)})",): 1}


def _remainder(left: _Polynomial, right: _Polynomial) -> _Polynomial:
    divisor = _constant(right)
    if divisor and all(coefficient % divisor == 0 for coefficient in left.values()):
        return {}
    value = _constant(left)
    if divisor and value is not None:
        return {(): value % divisor} if value % divisor else {}
    return {(f"({_operand_text(left)} mod {_operand_text(right)})",): 1}


def _extreme(name: str, parts: list[_Polynomial]) -> _Polynomial:
    texts = sorted({_polynomial_text(part) for part in parts})
    return parts[0] if len(texts) == 1 else {(f"{name}({', '.join(texts)})",): 1}


def _polynomial_text(polynomial: _Polynomial) -> str:
    terms = sorted(polynomial.items(), key=lambda item: (-len(item[0]), item[0]))
    if not terms:
        return "0"
    text = _term_text(*terms[0])
    for monomial, coefficient in terms[1:]:
        sign = "-" if coefficient < 0 else "+"
        text += f" {sign} {_term_text(monomial, abs(coefficient))}"
    return text


def _operand_text(polynomial: _Polynomial) -> str:
    """Spell a side of floordiv or mod; anything but a number or one factor needs brackets to stay one operand."""
    text = _polynomial_text(polynomial)
    is_factor = len(polynomial) == 1 and all(len(m) == 1 and c == 1 for m, c in polynomial.items())
    return text if text.isdigit() or is_factor else f"({text})"


def _term_text(monomial: tuple[str, ...], coefficient: int) -> str:
    if not monomial:
        return str(coefficient)
    factors = "*".join(monomial)
    if coefficient == 1:
        return factors
    return f"-{factors}" if coefficient == -1 else f"{coefficient}*{factors}"


def _value(node: ast.expr, assignment: Assignment) -> int:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            if name not in assignment:
                raise ValueError(f"symbol '{name}' has no value; known symbols are {sorted(assignment)}")
            return assignment[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, assignment)
        case ast.BinOp(left=left, op=operator, right=right):
            return _apply(operator, _value(left, assignment), _value(right, assignment))
        case ast.Call(func=ast.Name(id=("max" | "Max")), args=parts):
            return max(_value(part, assignment) for part in parts)
        case ast.Call(func=ast.Name(id=("min" | "Min")), args=parts):
            return min(_value(part, assignment) for part in parts)
    raise ValueError(f"size '{ast.unparse(node)}' uses more than + - * floordiv mod max min over symbols")


def _apply(operator: ast.operator, left: int, right: int) -> int:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.FloorDiv():
            return left // right
        case ast.Mod():
            return left % right
        case ast.Pow() if 0 <= right <= 8:
            return int(left**right)
    raise ValueError(f"operator {type(operator).__name__} is not part of sizes; use + - * floordiv mod max min")


def prime_assignments(ranges: Mapping[str, tuple[int, int]], names: Iterable[str] = ()) -> tuple[dict[str, int], ...]:
    """Choose two assignments of distinct primes; sizes that agree under both count as equal.

    Args:
        ranges: (smallest, largest) per declared symbol; a symbol with one legal value keeps it.
        names: further symbols without a range.
    """
    symbols = sorted({*ranges, *names})
    primes = _primes_from(521, 2 * len(symbols))
    first = dict(zip(symbols, primes[: len(symbols)], strict=True))
    second = dict(zip(symbols, primes[len(symbols) :], strict=True))
    fixed = {name: low for name, (low, high) in ranges.items() if low == high}
    return {**first, **fixed}, {**second, **fixed}


@lru_cache(maxsize=64)
def _primes_from(start: int, count: int) -> list[int]:
    found: list[int] = []
    candidate = start
    while len(found) < count:
        if all(candidate % factor for factor in range(2, int(candidate**0.5) + 1)):
            found.append(candidate)
        candidate += 1
    return found
