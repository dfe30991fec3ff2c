"""lower-experts on mini6: every sublayer of every program of many rows, what it refuses, and a broken copy of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from test_split_ced import PAGE_TOKENS, clean, config_of
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from dsv41c.compiler.definitions import DEFINITIONS, Definitions
from dsv41c.compiler.driver import CompileOptions, derived_constants, step_ranges
from dsv41c.compiler.probe import checkpoint_probe
from dsv41c.errors import CompileError
from dsv41c.ir.builder import attribute, functions
from dsv41c.ir.ops.custom import Experts
from dsv41c.ir.ops.moe import Moe
from dsv41c.ir.ops.program import Weight
from dsv41c.models.checkpoint import Checkpoint
from dsv41c.passes.lower_experts import LowerExperts
from dsv41c.passes.manager import PassManager, Probe
from dsv41c.passes.pass_base import Pass, PassContext, PassResult
from dsv41c.passes.specialize_rows import SpecializeRows
from dsv41c.passes.split_ced import SplitCed

GOLDEN = Path(__file__).parents[1] / "golden"


def run(*passes: Pass, probe: Probe | None = None) -> tuple[ModuleOp, dict[str, int]]:
    """mini6's step after some passes, and how often the last one matched."""
    config = config_of("mini6")
    definitions = Definitions(step_ranges(config, CompileOptions(page_tokens=PAGE_TOKENS)).symbols())
    ctx = PassContext("cpu", config, frozenset(DEFINITIONS), definitions.define)
    manager = PassManager(passes, ctx, verify_each=probe)
    return manager.run(clean("mini6")), dict(manager.reports[-1].matches)


def test_every_sublayer_of_many_rows_is_one_op() -> None:
    module, matches = run(SplitCed(), SpecializeRows(), LowerExperts())
    assert matches == {"step": 6, "encode": 3, "tail": 3}
    for name, func in functions(module).items():
        read = {op.name for op in func.body.block.ops if any(map(_is_experts_weight, op.operands))}
        one_row = name == "step_one_row"
        assert read == ({"dsv41.experts", "dsv41.dequantize_weight"} if one_row else {"dsv41.moe"}), name
        assert not [op for op in func.body.block.ops if op.name == "dsv41.dequantize_weight" and not op.result.uses]


def _is_experts_weight(value: SSAValue) -> bool:
    return isinstance(value.owner, Weight) and "experts." in value.owner.symbol.data


@dataclass(frozen=True)
class _OtherLimit(Pass):
    """Gives the routed experts of the second layer another limit than its shared expert."""

    name: ClassVar[str] = "other-limit"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Change it; counts `op`."""
        [op for op in module.walk() if isinstance(op, Experts)][1].attributes["limit"] = attribute(9.0)
        return PassResult(True, {"op": 1})


def test_a_network_with_another_sublayer_is_refused() -> None:
    with pytest.raises(CompileError, match="pass 'lower-experts' matched 'step' 5 times; this program has 6"):
        run(_OtherLimit(), LowerExperts())


def test_a_target_that_does_not_define_the_op_is_refused() -> None:
    ctx = PassContext(config=config_of("mini6"))
    with pytest.raises(CompileError, match=r"the target defines no dsv41\.moe, which .*dsv41\.experts"):
        PassManager([LowerExperts()], ctx).run(clean("mini6"))


@dataclass(frozen=True)
class _Swapped(LowerExperts):
    """Takes the shared expert's gate for its up projection in the last layer."""

    name: ClassVar[str] = "swapped-experts"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Lower, then swap."""
        result = super().run(module, ctx)
        op = [op for op in module.walk() if isinstance(op, Moe)][-1]
        gate, up = [op.shared_w1, op.shared_s1], [op.shared_w3, op.shared_s3]
        op.operands = [*op.operands[:9], *up, *gate, *op.operands[13:]]
        return result


def test_a_broken_copy_is_caught_and_named() -> None:
    """The first value that moved is the result of the sublayer, which keeps its name."""
    checkpoint, tokenizer = Checkpoint.open(GOLDEN / "mini6"), GOLDEN / "tokenizer.json"
    probe = checkpoint_probe(checkpoint, tokenizer, derived_constants(checkpoint.config, tokenizer), PAGE_TOKENS)
    with pytest.raises(CompileError, match=r"pass 'swapped-experts' moved %\S+ of 'step'.*\n.*= dsv41\.moe"):
        run(_Swapped(), probe=probe)
