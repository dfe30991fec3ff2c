"""The fusions of products keep every bit, and verify-each names a copy of one that does not."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

from dsv41c.compiler.definitions import context_of
from dsv41c.errors import CompileError
from dsv41c.ir.builder import attribute, functions
from dsv41c.ir.ops.products import Linears
from dsv41c.ir.text import parse_module
from dsv41c.ir.types import TensorType
from dsv41c.passes.fuse_rows import FuseRows
from dsv41c.passes.manager import PassManager, ProbeCase
from dsv41c.passes.merge_projections import MergeProjections
from dsv41c.passes.pass_base import Pass, PassContext, PassResult

CASES = Path(__file__).parents[1] / "passes" / "cases"


def tensor(name: str, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    generator = torch.Generator().manual_seed(len(name))
    if dtype == torch.uint8:
        return torch.randint(120, 130, tuple(shape), generator=generator).to(dtype)
    return torch.randn(tuple(shape), generator=generator).to(dtype)


WEIGHTS = {
    name: tensor(name, dtype, shape)
    for word in ("wq_a", "wkv")
    for name, dtype, shape in (
        (f"{word}.weight", torch.float8_e4m3fn, (64, 64)),
        (f"{word}.scale", torch.uint8, (2, 2)),
    )
}


def probe(module: ModuleOp) -> Sequence[ProbeCase]:
    """Five rows and packed weights with random values."""
    (func,) = functions(module).values()
    types = {str(argument.name_hint): argument.type for argument in func.args}
    inputs = {
        name: tensor(name, type_.dtype, type_.shape({"T": 5}))
        for name, type_ in types.items()
        if isinstance(type_, TensorType)
    }
    return [ProbeCase("f", inputs, WEIGHTS.__getitem__)]


def run(name: str, *passes: Pass) -> ModuleOp:
    text = (CASES / f"{name}.mlir").read_text()
    # Both weights of one shape, so that a mistake shows in values and not in types.
    text = text.replace("[32, 64], f8E4M3FN", "[64, 64], f8E4M3FN").replace("[1, 2], ui8", "[2, 2], ui8")
    module = parse_module(text.replace("[T, 32], bf16", "[T, 64], bf16"))
    return PassManager(passes, context_of(module), verify_each=probe).run(module)


@dataclass(frozen=True)
class Crossed(MergeProjections):
    """Gives the readers of one product the result of the other."""

    name: ClassVar[str] = "crossed"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """As merge-projections, and then the mistake."""
        result = super().run(module, ctx)
        for op in [op for op in module.walk() if isinstance(op, Linears)]:
            first, second = op.packed[:2], op.packed[2:4]
            op.operands = [op.x, *second, *first]
        return result


@dataclass(frozen=True)
class Forgetful(FuseRows):
    """Drops the quantization and does not tell the product."""

    name: ClassVar[str] = "forgetful"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """As fuse-rows, and then the mistake."""
        result = super().run(module, ctx)
        for op in module.walk():
            if isinstance(op, Linears):
                op.attributes["quantize"] = attribute(0)
        return result


@pytest.mark.parametrize(
    ("case", "good", "bad", "moved"),
    [
        ("merge-projections_matches", MergeProjections(), Crossed(), "%q of 'f'"),
        ("fuse-rows_matches", FuseRows(), Forgetful(), "%y of 'f'"),
    ],
)
def test_a_fusion_keeps_every_bit_and_a_broken_copy_is_named(case: str, good: Pass, bad: Pass, moved: str) -> None:
    found = [op for op in run(case, good).walk() if isinstance(op, Linears)]
    assert [(len(op.products), op.quantize.value.data) for op in found] in ([(2, 0)], [(1, 0), (1, 1)])
    with pytest.raises(CompileError, match=f"pass '{bad.name}' moved {moved}"):
        run(case, bad)
