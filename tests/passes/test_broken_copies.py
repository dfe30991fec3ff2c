"""A copy of each pass that leaves a wrong program behind is caught by verify-each, which names it."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from dsv41c.compiler.definitions import context_of
from dsv41c.errors import CompileError
from dsv41c.ir.builder import functions, get_symbols
from dsv41c.ir.ops.aten import aten_class
from dsv41c.ir.ops.program import Weight
from dsv41c.ir.text import parse_module
from dsv41c.ir.types import CacheType, TensorType
from dsv41c.passes.manager import PassManager, ProbeCase
from dsv41c.passes.pass_base import Pass, PassContext, PassResult
from dsv41c.passes.pipeline import REGISTRY, parse_pipeline

CASES = Path(__file__).parent / "cases"


def value_of(type_: object, sizes: dict[str, int], seed: int) -> torch.Tensor:
    """Numbers near one, small codes and indices; a cache's bytes."""
    tensor = type_.storage if isinstance(type_, CacheType) else type_
    assert isinstance(tensor, TensorType)
    shape = tensor.shape(sizes)
    rng = torch.Generator().manual_seed(seed)
    if tensor.dtype.is_floating_point:
        return (torch.rand(shape, generator=rng) + 0.5).to(tensor.dtype)
    count = math.prod(shape)
    return (1 + torch.arange(count) % 2).reshape(shape).to(tensor.dtype)


def probe(module: ModuleOp) -> list[ProbeCase]:
    """The first function on such values."""
    name, func = next(iter(functions(module).items()))
    sizes = {symbol: min(max(low, 3), high) for symbol, (low, high) in get_symbols(func).items()}
    inputs = {str(a.name_hint): value_of(a.type, sizes, seed) for seed, a in enumerate(func.args)}
    weights = {op.symbol.data: value_of(op.result.type, {}, 99) for op in module.walk() if isinstance(op, Weight)}
    return [ProbeCase(name, inputs, weights.__getitem__)]


def spoil(func: FuncOp) -> None:
    """Negates the first result of a program; of one that gives caches only, the rows of the last store."""
    ops = list(func.body.block.ops)
    for reader in reversed(ops):
        for place, value in enumerate(reader.operands):
            # Integers that are read before the end may be slots: there is no telling what another one is.
            if not isinstance(value.type, TensorType) or (value.type.element[0] == "s" and reader is not ops[-1]):
                continue
            name = "neg" if value.type.dtype.is_floating_point else "bitwise_not"
            wrong = aten_class(f"torch.aten.{name}").create(operands=[value], result_types=[value.type])
            func.body.block.insert_op_before(wrong, reader)
            reader.operands[place] = wrong.results[0]
            return
    raise AssertionError("nothing to spoil")


def broken_copy(pass_: Pass) -> Pass:
    """The pass, and a wrong result behind it."""

    def run(self: Pass, module: ModuleOp, ctx: PassContext) -> PassResult:
        result = type(pass_).run(pass_, module, ctx)
        spoil(next(iter(functions(module).values())))
        return result

    copy = dataclasses.dataclass(frozen=True)(type("Broken", (type(pass_),), {"run": run}))
    return copy(**{field.name: getattr(pass_, field.name) for field in dataclasses.fields(pass_)})


@pytest.mark.parametrize("name", REGISTRY)
def test_a_broken_copy_is_named(name: str) -> None:
    text = (CASES / f"{name}_matches.mlir").read_text()
    module = parse_module(text)
    *before, pass_ = parse_pipeline(next(line[8:] for line in text.splitlines() if line.startswith("// RUN: ")))
    ready = PassManager(before, context_of(module)).run(module)
    PassManager([pass_], context_of(ready), verify_each=probe).run(ready)
    with pytest.raises(CompileError, match=rf"pass '{name}' moved %"):
        PassManager([broken_copy(pass_)], context_of(ready), verify_each=probe).run(ready)
