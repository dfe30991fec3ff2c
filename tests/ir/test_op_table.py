"""The op table: no op without its five parts; signatures and shape rules agree with the torch ops."""

import dataclasses

import pytest
import torch
from programs import EVERYTHING
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

import dsv41c.models.mhc_ops
import dsv41c.models.moe_ops
import dsv41c.models.ops
import dsv41c.models.pack_ops
import dsv41c.models.product_ops  # noqa: F401  they register torch.ops.dsv41
from dsv41c.errors import IRError
from dsv41c.ir.builder import functions
from dsv41c.ir.cost import cost_of
from dsv41c.ir.dialect import OP_TABLE, Dsv41, Torch, rule_of
from dsv41c.ir.ops.aten import aten_class, aten_name
from dsv41c.ir.ops.custom import CustomOp
from dsv41c.ir.ops.pack import WriteRows
from dsv41c.ir.ops.program import Call, Launch, Weight
from dsv41c.ir.ops.state import Storage, Store
from dsv41c.ir.ops.table import Cost, Effect, OpRule, Shaped
from dsv41c.ir.shapes import ShapeEvaluator
from dsv41c.ir.text import parse_module
from dsv41c.ir.types import CacheType, TensorType, dtype_of

SIZES = {"T": 3, "B": 2, "P": 2, "N": 4, "S": 2}
CUSTOM = {name: rule for name, rule in OP_TABLE.items() if issubclass(rule.op, CustomOp)}
# The IR's own words; every other custom op is a torch op of the same name.
NOT_TORCH = {"dsv41.storage"}


@pytest.fixture(scope="module")
def module() -> ModuleOp:
    return parse_module(EVERYTHING)


@pytest.fixture(scope="module")
def step(module: ModuleOp) -> FuncOp:
    return functions(module)["step"]


def test_every_op_has_five_parts() -> None:
    assert {op.name for op in (*Dsv41.operations, *Torch.operations)} == set(OP_TABLE)
    parts = {field.name for field in dataclasses.fields(OpRule)}
    assert parts == {"op", "shape", "effect", "cost", "reference"}
    for name, rule in OP_TABLE.items():
        assert rule.op.name == name
        assert rule.op.__doc__, f"{name} has no description"
        assert isinstance(rule.effect, Effect), f"{name} has no effect"
        for part in ("shape", "cost", "reference"):
            assert callable(getattr(rule, part)), f"{name} has no {part}"


def test_a_rule_without_a_part_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="reference"):
        OpRule(Store, lambda op, operands: [], Effect(), lambda op, operands, results: Cost())  # type: ignore[call-arg]


def test_every_cache_operand_has_an_effect(step: FuncOp) -> None:
    for op in step.body.block.ops:
        if not isinstance(op, CustomOp):
            continue
        fields = [field for field, _ in op.get_irdl_definition().operands]
        values = {field: getattr(op, field) for field in fields}
        caches = {
            field
            for field, value in values.items()
            if isinstance(value, SSAValue) and isinstance(value.type, CacheType)
        }
        effect = rule_of(op).effect
        assert caches <= {*effect.reads, *effect.writes} <= set(fields), op.name


@pytest.mark.parametrize("name", sorted(set(CUSTOM) - NOT_TORCH))
def test_signature_is_the_torch_ops(name: str) -> None:
    op = CUSTOM[name].op
    assert issubclass(op, CustomOp)
    schema = getattr(torch.ops.dsv41, name.removeprefix("dsv41.")).default._schema
    fields = [field.rstrip("_") for field, _ in op.get_irdl_definition().operands]
    assert [*fields, *op.ARGUMENTS] == [argument.name for argument in schema.arguments]


def test_all_torch_ops_are_in_the_table() -> None:
    known = {name.removeprefix("dsv41.") for name in CUSTOM}
    defined = {name.removeprefix("dsv41::") for name in torch._C._dispatch_get_all_op_names() if "dsv41::" in name}
    assert {name.split(".")[0] for name in defined} <= known


def _meta(argument: object) -> object:
    if isinstance(argument, CacheType):
        argument = Shaped(argument.storage.shape(SIZES), argument.storage.element)
    if isinstance(argument, Shaped):
        return torch.empty(argument.shape, dtype=dtype_of(argument.element), device="meta")
    return argument


def _custom_ops(step: FuncOp) -> list[Operation]:
    return [op for op in step.body.block.ops if isinstance(op, CustomOp) and op.name not in NOT_TORCH]


def test_the_example_has_every_op(module: ModuleOp) -> None:
    assert set(OP_TABLE) <= {op.name for op in module.walk()}


def test_shape_rules_agree_with_the_fakes(step: FuncOp) -> None:
    evaluator = ShapeEvaluator(SIZES)
    for op in _custom_ops(step):
        if isinstance(op, Store | WriteRows):
            continue
        assert isinstance(op, CustomOp)
        function = getattr(torch.ops.dsv41, op.name.removeprefix("dsv41."))
        fake = function(*op.torch_operands([_meta(operand) for operand in evaluator.operands(op)]), *op.arguments())
        fakes = list(fake) if isinstance(fake, tuple | list) else [fake]
        for found, wanted in zip(rule_of(op).shape(op, evaluator.operands(op)), fakes, strict=True):
            assert isinstance(found, Shaped)
            assert (found.shape, dtype_of(found.element)) == (tuple(wanted.shape), wanted.dtype), op.name


def test_costs_count_bytes_and_flops(step: FuncOp) -> None:
    free = (Weight, Storage, ReturnOp)
    for op, cost in cost_of(step, SIZES).ops:
        if isinstance(op, free) or op.name.startswith(("torch.constant", "torch.prim")) or "view" in op.name:
            assert cost == Cost(), op.name
        elif isinstance(op, CustomOp | Call | Launch):
            assert cost.read > 0, op.name
            assert cost.written > 0, op.name


def test_linear_flops_are_two_m_n_k(step: FuncOp) -> None:
    linear = next(cost for op, cost in cost_of(step, SIZES).ops if op.name == "torch.aten.linear")
    assert linear.flops == {"fp8_fp8": 2 * 3 * 64 * 64}
    assert linear.read == 2 * (3 * 64 + 64 * 64)
    assert linear.written == 2 * 3 * 64


def test_cost_grows_with_the_symbols(step: FuncOp) -> None:
    small, large = cost_of(step, SIZES).total, cost_of(step, {**SIZES, "T": 30}).total
    assert large.read > small.read
    assert large.flops["fp8_fp8"] == 10 * small.flops["fp8_fp8"]


def test_aten_names_follow_torch_mlir() -> None:
    assert aten_name(torch.ops.aten.linear.default) == "torch.aten.linear"
    assert aten_name(torch.ops.aten.mul.Tensor) == "torch.aten.mul.Tensor"
    assert aten_name(torch.ops.aten.index.Tensor) == "torch.aten.index.Tensor_hacked_twin"
    assert aten_name(torch.ops.aten.sym_size.int) == "torch.aten.size.int"
    assert aten_class("torch.aten.linear").overload is torch.ops.aten.linear.default


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("torch.aten.mull.Tensor", "torch has no aten::mull.Tensor"),
        ("torch.aten.mul.Tensr", "torch has no aten::mul.Tensr"),
        ("torch.aten.add_.Tensor", "mutates an operand"),
        ("torch.aten.mul.out", "mutates an operand"),
    ],
)
def test_unknown_and_mutating_aten_ops_are_refused(name: str, reason: str) -> None:
    with pytest.raises(IRError, match=reason):
        aten_class(name)


def test_results_of_the_example_have_types(step: FuncOp) -> None:
    evaluator = ShapeEvaluator(SIZES)
    for op in step.body.block.ops:
        for result in op.results:
            if isinstance(result.type, TensorType):
                assert isinstance(evaluator.value(result), Shaped)
