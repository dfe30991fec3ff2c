"""The text form: round trips, exact names, origins, refusals."""

import pytest
from programs import EVERYTHING, STORE, WINDOW, function, load, state_function

from dsv41c.errors import IRError
from dsv41c.ir.builder import FunctionBuilder, functions, get_symbols, module_of, output_names
from dsv41c.ir.names import clone_module, value_names
from dsv41c.ir.text import parse_module, print_module
from dsv41c.ir.types import TensorType

X = TensorType.of(["T", 8], "f32")


def test_round_trip_of_every_op() -> None:
    module = parse_module(EVERYTHING)
    text = print_module(module)
    again = parse_module(text)
    assert again.is_structurally_equivalent(module)
    assert print_module(again) == text


def test_names_survive_text_and_cloning() -> None:
    module = parse_module(EVERYTHING)
    names = list(value_names(functions(module)["step"].body.block).values())
    assert {"window.0", "window_1", "wq.scale", "int-1", "s2"} <= set(names)
    for copy in (clone_module(module), parse_module(print_module(module))):
        assert list(value_names(functions(copy)["step"].body.block).values()) == names


def test_names_in_text_are_those_of_value_names() -> None:
    builder = FunctionBuilder("f", {"x": X}, {"T": (1, 4)})
    value = builder.args["x"]
    for name in ("mul", "mul", "mul_1", None, None, "a b", "3"):
        value = builder.aten("mul.Tensor", [value, value], [X], [name] if name else None)[0]
    func = builder.finish({"y": value})
    text = print_module(module_of([func]))
    for name in value_names(func.body.block).values():
        assert f"%{name}" in text
    assert "%a_b = " in text


@pytest.mark.parametrize("value", [1.0, -0.0, 1e-6, 0.1, 1e300, 5e-324, float("inf"), float("-inf"), 2.0**60])
def test_floats_keep_their_bits(value: float) -> None:
    builder = FunctionBuilder("f", {"x": X}, {"T": (1, 4)})
    result = builder.aten("mul.Scalar", [builder.args["x"], value], [X])[0]
    text = print_module(module_of([builder.finish({"y": result})]))
    constant = next(op for op in parse_module(text).walk() if op.name == "torch.constant.float")
    assert constant.python.hex() == value.hex()  # type: ignore[attr-defined]


def test_origins_are_optional() -> None:
    module = parse_module(EVERYTHING)
    assert '{origin = "norm.py:3"}' in print_module(module)
    assert "origin" not in print_module(module, origins=False)


def test_symbols_and_outputs_are_attributes() -> None:
    step = functions(parse_module(EVERYTHING))["step"]
    assert get_symbols(step)["T"] == (1, 512)
    assert output_names(step) == ["window.0", "tail.0", "main.0", "out"]


def test_stage_of_a_module_survives() -> None:
    func = state_function(f"{STORE}\nfunc.return %stored : {WINDOW}")
    module = parse_module(f'builtin.module attributes {{dsv41.stage = "launches"}} {{\n{func}}}')
    assert print_module(parse_module(print_module(module))) == print_module(module)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("%y = torch.aten.mull %x : !torch.int -> !torch.int", "torch has no aten::mull"),
        ("%y = dsv41.attention %x : !torch.int -> !torch.int", "dsv41.attention is not registered"),
        ("%y = torch.aten.add_.Tensor %x : !torch.int -> !torch.int", "mutates an operand"),
        ("%y = torch.aten.neg %x : !torch.int -> !dsv41.tensor<[T], f32>", "used with type|defined with type"),
        ("%y = torch.aten.neg %x, none : !dsv41.tensor<[T], f32> -> !torch.int", "2 operands but 1 operand types"),
        ("%y = dsv41.quantize %x, %x : !dsv41.tensor<[T], f32>, !dsv41.tensor<[T], f32> -> !torch.int", "takes x"),
        (f"{load('x')}", "used with type|defined with type|type"),
    ],
)
def test_bad_text_is_refused(body: str, reason: str) -> None:
    f32 = "!dsv41.tensor<[T], f32>"
    text = function(f"%x: {f32}, %slots: !dsv41.tensor<[T], si64>", f"{body}\nfunc.return %x : {f32}", f32)
    with pytest.raises(IRError, match=reason):
        parse_module(text)
