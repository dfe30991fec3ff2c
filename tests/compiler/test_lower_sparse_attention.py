"""lower-sparse-attention on its documented example: no bit moves, a broken copy is caught, and what it refuses."""

import dataclasses
from pathlib import Path

import pytest
import torch
from test_ops import cache, lists, normal
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from dsv41c.compiler.definitions import context_of
from dsv41c.errors import CompileError
from dsv41c.ir.builder import functions
from dsv41c.ir.ops.attend import Attend
from dsv41c.ir.text import parse_module
from dsv41c.models import quant
from dsv41c.models.config import ModelConfig
from dsv41c.passes.dead_code import DeadCode
from dsv41c.passes.lower_sparse_attention import LowerSparseAttention
from dsv41c.passes.manager import PassManager, ProbeCase
from dsv41c.passes.pass_base import Pass, PassContext, PassResult

CASES = Path(__file__).parents[1] / "passes" / "cases"
MINI6 = Path(__file__).parents[1] / "golden" / "mini6"


def case(name: str) -> ModuleOp:
    return parse_module((CASES / f"lower-sparse-attention_{name}.mlir").read_text())


def probe(module: ModuleOp) -> list[ProbeCase]:
    """Three rows of two heads of 32 channels; the second row sees no main row."""
    index = lists([[-1] * 7 + [-2], [-1] * 3 + [8, 9, 15, -2, -3], [0, 1, 2, 3, 4, -2, -3, -4]])
    inputs = {
        "q": normal(3, 64),
        "positions": torch.tensor([4, 5, 900]),
        "freq": normal(8, dtype=torch.float32),
        "window": cache(2, 8, 32, "fp8_e8m0")[:, :264].contiguous(),
        "rows": quant.quantize(normal(3, 32), "fp8_e8m0"),
        "index": index,
        "main": cache(2, 4, 32, "fp4_e4m3"),
        "slots": lists([[0, 5, 7, -1], [-1] * 4, [1, 2, 6, 7]]),
        "sink": normal(2, dtype=torch.float32),
    }
    return [ProbeCase("f", inputs, {}.__getitem__)]


def run(name: str, *passes: Pass, ctx: PassContext | None = None, compares: bool = False) -> FuncOp:
    module = case(name)
    manager = PassManager(passes, ctx or context_of(module), verify_each=probe if compares else None)
    return functions(manager.run(module))["f"]


def test_no_bit_moves() -> None:
    func = run("matches", LowerSparseAttention(), DeadCode(), compares=True)
    assert [op.name for op in func.body.block.ops] == ["dsv41.rotary", "dsv41.attend", "func.return"]


@dataclasses.dataclass(frozen=True)
class Swapped(LowerSparseAttention):
    """Turns the queries the other way."""

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Swap sine and cosine of each attend."""
        result = super().run(module, ctx)
        for op in module.walk():
            if isinstance(op, Attend):
                at: dict[SSAValue, int] = {value: place for place, value in enumerate(op.operands)}
                op.operands[at[op.cos]], op.operands[at[op.sin]] = op.sin, op.cos
        return result


def test_a_broken_copy_is_caught() -> None:
    with pytest.raises(CompileError, match=r"pass 'lower-sparse-attention' moved %y of 'f'"):
        run("matches", Swapped(), compares=True)


@pytest.mark.parametrize("name", ["must_not", "must_not_second_reader"])
def test_a_network_with_another_attention_is_refused(name: str) -> None:
    ctx = dataclasses.replace(context_of(case(name)), config=ModelConfig.from_json(MINI6))
    with pytest.raises(CompileError, match="matched 'attention' 0 times; this program has 1"):
        run(name, LowerSparseAttention(), ctx=ctx)


def test_a_target_that_does_not_define_the_op_is_refused() -> None:
    with pytest.raises(CompileError, match=r"the target defines no dsv41.attend, which .* would become"):
        run("matches", LowerSparseAttention(), ctx=PassContext())
