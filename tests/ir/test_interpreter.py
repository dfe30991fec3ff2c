"""The interpreter: values, state, calls, launches, and inputs that do not fit."""

import pytest
import torch
from programs import EVERYTHING, STORE, WINDOW, function, load, state_function
from torch import Tensor

from dsv41c.errors import IRError
from dsv41c.ir.builder import functions
from dsv41c.ir.interpreter import Interpreter, bind_symbols
from dsv41c.ir.text import parse_module
from dsv41c.ir.types import CacheType
from dsv41c.models import ops
from dsv41c.models.layers import rotate

F32 = "!dsv41.tensor<[T, 8], f32>"
SQUARE = function(
    f"%x: {F32}",
    f"%y = torch.aten.mul.Tensor %x, %x : {F32}, {F32} -> {F32}\nfunc.return %y : {F32}",
    F32,
    "square",
)


def no_weights(name: str) -> Tensor:
    raise AssertionError(f"weight {name} is not asked for here")


def run(text: str, inputs: dict[str, Tensor], name: str = "step") -> dict[str, Tensor]:
    return Interpreter(no_weights).run(functions(parse_module(text))[name], inputs)


def state_inputs() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "window": torch.randint(0, 255, (2, 528), dtype=torch.uint8, generator=generator),
        "rows": torch.randint(0, 255, (3, 66), dtype=torch.uint8, generator=generator),
        "slots": torch.tensor([9, -1, 2]),
    }


@pytest.mark.parametrize("note", ["", ", in_place"])
def test_store_gives_a_new_cache_and_keeps_the_callers(note: str) -> None:
    store = STORE.replace("page = 8", "page = 8" + note)
    text = state_function(f"{load('window', 'old')}\n{store}\n{load('stored')}\nfunc.return %stored : {WINDOW}")
    inputs = state_inputs()
    before = inputs["window"].clone()
    values: dict[str, Tensor] = {}
    func = functions(parse_module(text))["step"]
    outputs = Interpreter(no_weights, values.__setitem__).run(func, inputs)
    assert torch.equal(inputs["window"], before)
    expected = before.clone()
    ops.store(expected, inputs["rows"], inputs["slots"], "fp8_e8m0", 8)
    assert torch.equal(outputs["result0"], expected)
    assert torch.equal(values["loaded"][[0, 2]], inputs["rows"][[0, 2]])
    assert torch.equal(values["old"], ops.load_definition(before, inputs["slots"], "fp8_e8m0", 8, 66))


def test_a_store_in_place_is_really_in_place() -> None:
    """So that `verify_each` sees a wrong mark: this text does not verify, yet runs."""
    store = STORE.replace("page = 8", "page = 8, in_place")
    text = state_function(f"{store}\nfunc.return %window : {WINDOW}")
    inputs = state_inputs()
    assert not torch.equal(run(text, inputs)["result0"], inputs["window"])


@pytest.mark.parametrize("op", ["dsv41.call @square(%x)", 'dsv41.launch "square"(%x)'])
def test_calls_and_launches_run_functions(op: str) -> None:
    text = SQUARE + function(f"%x: {F32}", f"%z = {op} : ({F32}) -> ({F32})\nfunc.return %z : {F32}", F32)
    x = torch.randn(5, 8)
    values: dict[str, Tensor] = {}
    outputs = Interpreter(no_weights, values.__setitem__).run(functions(parse_module(text))["step"], {"x": x})
    assert torch.equal(outputs["result0"], x * x)
    assert set(values) == {"z", "z/y"}


def test_launch_of_a_custom_op() -> None:
    text = function(
        f"%x: {F32}",
        f'%y = dsv41.launch "fake_quantize"(%x) {{row_format = "fp8_e8m0", band = "reference"}} : ({F32}) -> '
        "(!dsv41.tensor<[T, 8], bf16>)\nfunc.return %y : !dsv41.tensor<[T, 8], bf16>",
        "!dsv41.tensor<[T, 8], bf16>",
    ).replace("8]", "32]")
    x = torch.randn(5, 32)
    assert torch.equal(run(text, {"x": x})["result0"], torch.ops.dsv41.fake_quantize(x, "fp8_e8m0"))


def test_views_of_transposed_values_are_legal() -> None:
    text = function(
        f"%x: {F32}",
        f"""%d0 = torch.constant.int 0
        %d1 = torch.constant.int 1
        %n = torch.constant.int -1
        %t = torch.aten.transpose.int %x, %d0, %d1 : {F32}, !torch.int, !torch.int -> !dsv41.tensor<[8, T], f32>
        %l = torch.prim.ListConstruct %n : (!torch.int) -> !torch.list<int>
        %v = torch.aten.view %t, %l : !dsv41.tensor<[8, T], f32>, !torch.list<int> -> !dsv41.tensor<[8*T], f32>
        func.return %v : !dsv41.tensor<[8*T], f32>""",
        "!dsv41.tensor<[8*T], f32>",
    )
    x = torch.randn(5, 8)
    assert torch.equal(run(text, {"x": x})["result0"], x.t().reshape(-1))


def everything_inputs() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Inputs for EVERYTHING with T=3, B=3, P=2, N=4, S=2, and its weights."""
    torch.manual_seed(0)
    step = functions(parse_module(EVERYTHING))["step"]
    sizes = {"T": 3, "B": 3, "P": 2, "N": 4, "S": 2}
    inputs = {}
    for argument in step.args:
        type_ = argument.type.storage if isinstance(argument.type, CacheType) else argument.type
        shape, dtype = type_.shape(sizes), type_.dtype  # type: ignore[attr-defined]
        is_float = dtype.is_floating_point
        inputs[str(argument.name_hint)] = torch.randn(shape).to(dtype) if is_float else torch.zeros(shape, dtype=dtype)
    inputs["slots"] = torch.tensor([0, 1, 2])
    weights = {
        "wq.weight": torch.randn(64, 64).to(torch.float8_e4m3fn),
        "wq.scale": torch.full((2, 2), 127, dtype=torch.uint8),
        "gate.bias": torch.linspace(-1.0, 1.0, 4),
        "experts.*.w1.weight": torch.randint(0, 255, (4, 32, 32), dtype=torch.uint8),
        "experts.*.w1.scale": torch.full((4, 32, 2), 120, dtype=torch.uint8),
        "experts.*.w2.weight": torch.randint(0, 255, (4, 64, 16), dtype=torch.uint8),
        "experts.*.w2.scale": torch.full((4, 64, 1), 120, dtype=torch.uint8),
        "multipliers": torch.tensor([3, 5, 7]),
        "primes": torch.tensor([5, 7, 11, 13]),
        "table.weight": torch.randn(40, 32).to(torch.float8_e4m3fn),
        "table.scale": torch.full((40, 1), 127, dtype=torch.uint8),
        "inv_freq": torch.rand(8),
        "hc_attn_fn": torch.randn(24, 256),
        "hc_attn_base": torch.randn(24),
        "hc_attn_scale": torch.randn(3),
        "attn_norm.weight": torch.randn(64).to(torch.bfloat16),
    }
    return inputs, weights


def quantized_rotation(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.ops.dsv41.quantize(rotate(x, cos, sin), "fp8_e8m0")


def test_every_op_runs_and_bundles_are_stacked() -> None:
    inputs, weights = everything_inputs()
    step = functions(parse_module(EVERYTHING))["step"]
    sources = {name: list(value) if "*" in name else value for name, value in weights.items()}
    values: dict[str, Tensor] = {}
    outputs = Interpreter(sources.__getitem__, values.__setitem__).run(step, inputs)
    assert set(outputs) == {"window.0", "tail.0", "main.0", "out"}
    assert torch.equal(values["w1"], weights["experts.*.w1.weight"])
    square = values["linear"] * values["linear"]
    assert torch.equal(outputs["out"], square * square)
    assert torch.equal(values["rows"], torch.ops.dsv41.quantize(inputs["x"], "fp8_e8m0"))
    assert torch.equal(outputs["tail.0"][0].view(8, 6)[:3], inputs["tail_rows"])
    assert torch.equal(values["packed_rows"], quantized_rotation(inputs["x"], values["cos"], values["sin"]))


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({}, r"lacks inputs \['x'\]"),
        ({"x": torch.zeros(2, 8), "y": torch.zeros(1)}, r"does not know \['y'\]"),
        ({"x": torch.zeros(2, 7)}, r"input 'x' is torch.float32 \[2, 7\]"),
        ({"x": torch.zeros(2, 8, 1)}, "has shape"),
        ({"x": torch.zeros(2, 8, dtype=torch.bfloat16)}, "torch.bfloat16"),
        ({"x": torch.zeros(513, 8)}, "symbol T is 513; 'square' is for 1 to 512"),
        ({"x": torch.zeros(0, 8)}, "symbol T is 0"),
    ],
)
def test_inputs_that_do_not_fit(inputs: dict[str, Tensor], reason: str) -> None:
    with pytest.raises(IRError, match=reason):
        run(SQUARE, inputs, "square")


def test_symbols_must_agree_between_inputs() -> None:
    text = function("%x: !dsv41.tensor<[T], f32>, %y: !dsv41.tensor<[2*T], f32>", "func.return")
    func = functions(parse_module(text))["step"]
    assert bind_symbols(func, {"x": torch.zeros(3), "y": torch.zeros(6)}) == {"T": 3}
    with pytest.raises(IRError, match="input 'y'"):
        bind_symbols(func, {"x": torch.zeros(3), "y": torch.zeros(5)})


def test_results_must_be_of_their_declared_type() -> None:
    wrong = SQUARE.replace(f"-> {F32}\n", "-> !dsv41.tensor<[T, 9], f32>\n").replace("%y :", "%x :")
    with pytest.raises(IRError, match=r"gave \[2, 8\] f32; declared"):
        run(wrong, {"x": torch.zeros(2, 8)}, "square")


def test_a_failing_op_is_named() -> None:
    text = SQUARE.replace("%x, %x :", "%x, %k :").replace(
        "%y = ", "%k = torch.constant.int 3\n%y = "
    ).replace(f"{F32}, {F32} ->", f"{F32}, !torch.int ->")  # fmt: skip
    assert "dsv41" in text
    text = text.replace("mul.Tensor", "view.dtype").replace("int 3", "int 77")
    with pytest.raises(IRError, match=r"torch.aten.view.dtype failed: .*\n  in: %y"):
        run(text, {"x": torch.zeros(2, 8)}, "square")
