"""Lets a product quantize its input itself where the quantization would be a launch of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from dsv41c.ir.builder import attribute, functions
from dsv41c.ir.names import replace_op
from dsv41c.ir.ops.custom import CustomOp, FakeQuantize
from dsv41c.ir.ops.products import Linears
from dsv41c.ir.ops.state import SparseAttention
from dsv41c.passes.pass_base import Pass, PassContext, PassResult

_FORMAT = "fp8_e8m0"  # what `dsv41.linears` quantizes to


@dataclass(frozen=True)
class FuseRows(Pass):
    """Lets a product quantize its input itself where the quantization would be a launch of its own.

    What:
        %a = dsv41.linears %o, %w, %s {groups = 8, quantize = 0} : ...
        %q = dsv41.fake_quantize %a {row_format = "fp8_e8m0"} : ...
        %y = dsv41.linears %q, %v, %t {groups = 1, quantize = 0} : ...
          ->  %a = dsv41.linears %o, %w, %s {groups = 8, quantize = 0} : ...
              %y = dsv41.linears %a, %v, %t {groups = 1, quantize = 1} : ...

    Why: between two kernels a quantization alone is a launch and a result in memory. Runs of elementwise and
    row-reduction ops become row programs in outline-regions, without a pattern of their own; where such a run makes
    the operand, the quantization is one more op of it, costs no launch and serves all readers. So it stays there. In a
    layer this leaves the quantization between the two output projections, wo_a and wo_b.

    Needs: products merged by merge-projections, so that the readers of one input are one op.

    Does not handle: quantizations with several readers, to another format, or of a value that a row program or the
    caller makes. They stay.
    """

    name: ClassVar[str] = "fuse-rows"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Fuse all; counts `prologue`."""
        found = 0
        for func in functions(module).values():
            for op in list(func.body.block.ops):
                quantize = _prologue(op, func, ctx) if isinstance(op, Linears) else None
                if quantize is None:
                    continue
                assert isinstance(op, Linears)
                attributes = {**op.attributes, "quantize": attribute(1)}
                types = [result.type for result in op.products]
                replace_op(op, Linears.from_slots([quantize.x, *op.packed], types, attributes))
                quantize.detach()
                quantize.erase()
                found += 1
        return PassResult(found > 0, {"prologue": found})

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """In a traced model: once an attention, in programs whose products are kernels."""
        if ctx.config is None:
            return None
        ops = [list(func.body.block.ops) for func in functions(module).values()]
        having = [own for own in ops if any(isinstance(op, Linears) for op in own)]
        return {"prologue": sum(isinstance(op, SparseAttention) for own in having for op in own)}


def _prologue(op: Linears, func: FuncOp, ctx: PassContext) -> FakeQuantize | None:
    """The quantization that a product can take over, or None."""
    quantize = op.x.owner
    if not isinstance(quantize, FakeQuantize) or op.quantize.value.data:
        return None
    made_by = quantize.x.owner
    is_alone = isinstance(made_by, Operation) and _is_kernel(made_by, func, ctx) and len(list(op.x.uses)) == 1
    return quantize if is_alone and quantize.row_format.data == _FORMAT else None


def _is_kernel(op: Operation, func: FuncOp, ctx: PassContext) -> bool:
    """Whether an op is a launch of its own, and not part of a row program."""
    return isinstance(op, CustomOp) and op.name not in ctx.fusible - ctx.whole_in(func) - ctx.alone
