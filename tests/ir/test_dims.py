"""Sizes: one normal form, values under assignments, refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv41c.ir.dims import evaluate, normalise, prime_assignments, symbols_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("T*4", "4*T"),
        ("T + S*128", "128*S + T"),
        ("2*(T + 1) - 2*T", 2),
        ("T - T", 0),
        ("(4*T)//4", "T"),
        ("T//4", "(T floordiv 4)"),
        ("(T+3) floordiv 4 * 4", "4*((T + 3) floordiv 4)"),
        ("Max(8, T)", "max(8, T)"),
        ("-T + 1", "-T + 1"),
        ("T**2", "T*T"),
        ("(8*T) mod 4", 0),
    ],
)
def test_normal_form(text: str, expected: str | int) -> None:
    assert normalise(text) == expected


_SIZES = st.recursive(
    st.sampled_from(["T", "B", "P"]) | st.integers(0, 9).map(str),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})")
        | st.tuples(inner, st.sampled_from(["//", "%"]), st.integers(1, 5)).map(lambda p: f"({p[0]} {p[1]} {p[2]})")
        | st.tuples(st.sampled_from(["max", "min"]), inner, inner).map(lambda p: f"{p[0]}({p[1]}, {p[2]})")
    ),
    max_leaves=6,
)


@given(_SIZES, st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_normal_form_keeps_the_value_and_is_stable(text: str, t: int, b: int, p: int) -> None:
    assignment = {"T": t, "B": b, "P": p}
    normal = normalise(text)
    assert evaluate(normal, assignment) == evaluate(text, assignment)
    assert normalise(normal) == normal


def test_symbols_and_missing_values() -> None:
    assert symbols_of("max(T, 4*B) + 1") == {"T", "B"}
    with pytest.raises(ValueError, match="symbol 'B' has no value"):
        evaluate("T*B", {"T": 1})


@pytest.mark.parametrize("text", ["__import__('os')", "T.real", "T / 2", "T if B else 1", "T +", "'T'"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size '"):
        normalise(text)


def test_prime_assignments_are_distinct_and_keep_single_values() -> None:
    first, second = prime_assignments({"T": (1, 512), "B": (1, 8), "R": (1, 1)})
    assert len({first["T"], first["B"], second["T"], second["B"]}) == 4
    assert first["R"] == second["R"] == 1
