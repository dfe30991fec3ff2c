"""Every pass of the pipeline on mini6 with its weights: the program before and after it, interpreted and compared."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from xdsl.dialects.builtin import ModuleOp

from dsv41c.compiler import driver
from dsv41c.compiler.driver import CompileOptions, Lowered, derived_constants, lower_config
from dsv41c.compiler.probe import checkpoint_probe
from dsv41c.errors import CompileError
from dsv41c.ir.names import replace_op
from dsv41c.ir.ops.aten import aten_class
from dsv41c.models.checkpoint import Checkpoint
from dsv41c.passes.pass_base import Pass, PassContext, PassResult
from dsv41c.passes.pipeline import default_pipeline

GOLDEN = Path(__file__).parents[1] / "golden"
PAGE_TOKENS = 16


@dataclass(frozen=True)
class Broken(Pass):
    """Takes the reciprocal root of the third norm of a program for its root."""

    name: ClassVar[str] = "broken"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Replace it; counts `op`."""
        op = [op for op in module.walk() if op.name == "torch.aten.rsqrt"][2]
        wrong = aten_class("torch.aten.sqrt")
        replace_op(op, wrong.create(operands=op.operands, result_types=op.result_types, attributes=dict(op.attributes)))
        return PassResult(True, {"op": 1})


def verified() -> Lowered:
    checkpoint, tokenizer = Checkpoint.open(GOLDEN / "mini6"), GOLDEN / "tokenizer.json"
    constants = derived_constants(checkpoint.config, tokenizer)
    probe = checkpoint_probe(checkpoint, tokenizer, constants, PAGE_TOKENS)
    return lower_config(checkpoint.config, CompileOptions(page_tokens=PAGE_TOKENS), probe=probe)


def test_no_pass_of_the_pipeline_moves_a_value() -> None:
    lowered = verified()
    assert [report.name for report in lowered.reports] == [pass_.name for pass_ in default_pipeline()]


def test_a_broken_pass_is_named_with_the_first_value_it_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = default_pipeline()
    monkeypatch.setattr(driver, "default_pipeline", lambda budget: [*passes[:2], Broken(), *passes[2:]])
    with pytest.raises(CompileError, match=r"pass 'broken' moved %\S+ of 'step'.*\n.*= torch\.aten\.sqrt"):
        verified()
