"""hoist-engram: where the rows stand in the models' programs, their values, and a broken copy."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from test_split_ced import clean, config_of
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from dsv41c.compiler.driver import PROGRAM
from dsv41c.errors import CompileError
from dsv41c.ir.builder import functions
from dsv41c.ir.interpreter import Interpreter
from dsv41c.ir.ops.custom import Lookup, NgramHash
from dsv41c.ir.ops.state import Store
from dsv41c.ir.text import parse_module, print_module
from dsv41c.passes.hoist_engram import HoistEngram
from dsv41c.passes.manager import PassManager, ProbeCase, first_bad_pass
from dsv41c.passes.pass_base import PassContext, PassResult
from dsv41c.passes.split_ced import SplitCed

MATCHES = Path(__file__).parents[1] / "passes" / "cases" / "hoist-engram_matches.mlir"


@dataclass(frozen=True)
class Careless(HoistEngram):
    """Hashes the ids without what is done to them first."""

    name: ClassVar[str] = "careless"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Hoist, and go one op too far back."""
        result = super().run(module, ctx)
        for op in module.walk():
            if isinstance(op, NgramHash) and isinstance(op.ids.owner, Operation):
                op.operands[0] = op.ids.owner.operands[0]
        return result


def probe(module: ModuleOp) -> Sequence[ProbeCase]:
    """Three tokens with ids on both sides of zero."""
    torch.manual_seed(1)
    inputs = {
        "tokens": torch.tensor([1, 2, 3]),
        "ids": torch.tensor([[4, -3, 2], [0, 1, -7], [5, 6, 7]]),
        "x": torch.randn(3, 64).to(torch.bfloat16),
        "multipliers": torch.tensor([3, 5, 7]),
        "primes": torch.tensor([11, 13]),
        "offsets": torch.tensor([0, 20]),
        "table": torch.randn(40, 32).to(torch.float8_e4m3fn),
        "scale": torch.randint(120, 130, (40, 1), dtype=torch.uint8),
    }
    return [ProbeCase("f", inputs, lambda name: torch.zeros(()))]


@pytest.mark.parametrize("kind", ["mini6", "sched40"])
def test_all_rows_are_looked_up_before_the_first_layer(kind: str) -> None:
    config = config_of(kind)
    manager = PassManager([HoistEngram()], PassContext(config=config))
    ops = list(functions(manager.run(clean(kind)))[PROGRAM].body.block.ops)
    assert manager.reports[0].matches == {PROGRAM: len(config.engram_layer_ids)}
    last = max(place for place, op in enumerate(ops) if isinstance(op, Lookup))
    # Nothing that is not theirs stands before them: no embedding, no write of the look-back that they read.
    assert not any(isinstance(op, Store) or op.name == "torch.aten.embedding" for op in ops[:last])
    again = PassManager([HoistEngram()], PassContext(config=config))
    before = manager.run(clean(kind))
    assert print_module(again.run(before)) == print_module(before)
    assert not again.reports[0].changed


def test_the_parts_of_a_prefill_have_them_where_their_layers_are() -> None:
    config = config_of("mini6")
    manager = PassManager([SplitCed(), HoistEngram()], PassContext(config=config))
    manager.run(clean("mini6"))
    assert manager.reports[1].matches == {PROGRAM: 2, "encode": 2, "tail": 0}


def test_a_broken_copy_is_named() -> None:
    module = parse_module(MATCHES.read_text())
    PassManager([HoistEngram()], verify_each=probe).run(module)
    with pytest.raises(CompileError, match=r"pass 'careless' moved %rows of 'f' .*bytes\n.*dsv41\.ngram_hash"):
        PassManager([HoistEngram(), Careless()], verify_each=probe).run(module)
    (case,) = probe(module)

    def result(candidate: ModuleOp) -> torch.Tensor:
        (value,) = Interpreter(case.weights).run(functions(candidate)["f"], case.inputs).values()
        return value

    wanted, passes = result(module), [HoistEngram(), Careless(), HoistEngram()]
    assert first_bad_pass(passes, module, lambda found: torch.equal(result(found), wanted)) is passes[1]
