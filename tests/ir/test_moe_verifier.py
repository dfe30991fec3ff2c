"""dsv41.moe takes operands that fit together; each refusal names the one that does not."""

import pytest
from programs import function

from dsv41c.errors import IRError
from dsv41c.ir.text import parse_module
from dsv41c.ir.verify import verify

WEIGHTS = {
    "w1": "[4, 32, 32], ui8",
    "s1": "[4, 32, 2], ui8",
    "w3": "[4, 32, 32], ui8",
    "s3": "[4, 32, 2], ui8",
    "w2": "[4, 64, 16], ui8",
    "s2": "[4, 64, 1], ui8",
    "shared_w1": "[40, 64], f8E4M3FN",
    "shared_s1": "[2, 2], ui8",
    "shared_w3": "[40, 64], f8E4M3FN",
    "shared_s3": "[2, 2], ui8",
    "shared_w2": "[64, 40], f8E4M3FN",
    "shared_s2": "[2, 2], ui8",
}
OPERANDS = {"x": "[T, 64], bf16", "ids": "[T, 2], si64", "weights": "[T, 2], f32", **WEIGHTS}


def program(result: str = "[T, 64], bf16", **changed: str) -> str:
    types = {name: f"!dsv41.tensor<{text}>" for name, text in (OPERANDS | changed).items()}
    arguments = ", ".join(f"%{name}: {text}" for name, text in types.items())
    given, y = ", ".join(f"%{name}" for name in types), f"!dsv41.tensor<{result}>"
    body = f"%y = dsv41.moe {given} {{limit = 10.0}} : {', '.join(types.values())} -> {y}\nfunc.return %y : {y}"
    return function(arguments, body, y)


def test_a_shared_expert_of_any_size_verifies() -> None:
    verify(parse_module(program()))


@pytest.mark.parametrize(
    ("name", "text", "asked"),
    [
        ("w3", "[3, 32, 32], ui8", "[4, 32, 32]"),
        ("w2", "[4, 64, 8], ui8", "[4, 64, 16]"),
        ("s2", "[4, 64, 2], ui8", "[4, 64, 1]"),
        ("shared_w3", "[32, 64], f8E4M3FN", "[40, 64]"),
        ("shared_s1", "[1, 2], ui8", "[2, 2]"),
        ("shared_w2", "[40, 64], f8E4M3FN", "[64, 40]"),
        ("weights", "[T, 3], f32", "['T', 2]"),
    ],
)
def test_operands_of_other_sizes_are_refused(name: str, text: str, asked: str) -> None:
    with pytest.raises(IRError) as caught:
        verify(parse_module(program(**{name: text})))
    assert f"dsv41.moe: {name} has sizes [{text.split('], ')[0][1:].replace('T', repr('T'))}]" in str(caught.value)
    assert f"ask for {asked}" in str(caught.value)


def test_rows_of_a_size_that_is_not_known_are_refused() -> None:
    with pytest.raises(IRError, match=r"dsv41\.moe: the sizes of weights are numbers"):
        verify(parse_module(program(result="[T, T], bf16", x="[T, T], bf16")))
