"""Makes ops of the products with bf16 weights, for targets that have kernels for them."""

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from dsv41c.ir.builder import attribute, functions
from dsv41c.ir.names import replace_op
from dsv41c.ir.ops.products import LinearBf16
from dsv41c.ir.types import NONE, TensorType
from dsv41c.passes.pass_base import Pass, PassContext, PassResult

_GROUP = 32  # inputs that a kernel takes at a time at least


@dataclass(frozen=True)
class LowerBf16Linear(Pass):
    """Makes ops of the products with bf16 weights, for targets that have kernels for them.

    What:
        %y = torch.aten.linear %x, %w, %none : bf16, bf16 -> bf16
          ->  %y = dsv41.linear_bf16 %x, %w {wide = 0} : ...

        %a = torch.aten.to.dtype %x, %int6, ... : bf16 -> f32
        %b = torch.aten.to.dtype %w, %int6, ... : bf16 -> f32
        %y = torch.aten.linear %a, %b, %none : f32, f32 -> f32
          ->  %y = dsv41.linear_bf16 %x, %w {wide = 1} : ...

    Why: matrix units multiply bf16 and add in fp32, which is both of these; as part of a row program the products would
    be plain arithmetic. In a model these are the router, the compressors, the head and the indexer's two.

    Needs: to stand behind what matches the network's own ops. What the casts were goes with dead-code.

    Does not handle: a bias, other elements, rows of no constant size or of one that 32 does not divide; they stay.
    """

    name: ClassVar[str] = "lower-bf16-linear"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Rewrite all products; counts `linear` and `wide`."""
        counts = {"linear": 0, "wide": 0}
        for func in functions(module).values():
            for op in list(func.body.block.ops):
                product = _product(op) if op.name == "torch.aten.linear" else None
                if product is None:
                    continue
                replace_op(op, product)
                counts["wide" if product.wide.value.data else "linear"] += 1
        return PassResult(any(counts.values()), counts)


def _product(op: Operation) -> LinearBf16 | None:
    """The op that takes a product's place, or None."""
    x, weight, bias = op.operands
    element = _element(op.results[0])
    if element == "f32":
        x, weight = _widened(x), _widened(weight)
    fits = bias.type == NONE and element in ("f32", "bf16") and _element(x) == _element(weight) == "bf16"
    if not fits or not _has_groups(weight):
        return None
    return LinearBf16.from_slots([x, weight], op.result_types, {"wide": attribute(int(element == "f32"))})


def _widened(value: SSAValue) -> SSAValue:
    """What a cast was made from; the value itself where it is no cast."""
    op = value.owner
    return op.operands[0] if isinstance(op, Operation) and op.name == "torch.aten.to.dtype" else value


def _has_groups(weight: SSAValue) -> bool:
    assert isinstance(weight.type, TensorType)
    sizes = weight.type.dims
    return len(sizes) == 2 and isinstance(sizes[1], int) and sizes[1] % _GROUP == 0


def _element(value: SSAValue) -> str:
    assert isinstance(value.type, TensorType)
    return value.type.element
