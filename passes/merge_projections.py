"""Makes one op of the products that read the same input."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from dsv41c.ir.builder import functions
from dsv41c.ir.names import set_name
from dsv41c.ir.ops.custom import Experts
from dsv41c.ir.ops.products import Linears
from dsv41c.ir.ops.program import Weight
from dsv41c.ir.ops.state import IndexPoolTopk, IndexTopk, SparseAttention
from dsv41c.passes.pass_base import Pass, PassContext, PassResult

# What a traced model has: the projections that are merged, and the op that a program holds once for each such merge.
_IN_A_MODEL: Mapping[str, tuple[type[Operation], ...]] = {
    "wq_a + wkv": (SparseAttention,),
    "wq_b + indexer.wq_b": (IndexTopk, IndexPoolTopk),
    "w1 + w3": (Experts,),
}


@dataclass(frozen=True)
class MergeProjections(Pass):
    """Makes one op of the products that read the same input.

    What:
        %q = dsv41.linears %x, %wq, %sq {groups = 1, quantize = 0} : ...
        %k = dsv41.linears %x, %wk, %sk {groups = 1, quantize = 0} : ...
          ->  %q, %k = dsv41.linears %x, %wq, %sq, %wk, %sk {groups = 1, quantize = 0} : ...

    Why: one launch instead of several, and one place for what all of them need, such as the input's quantization. In a
    layer these are wq_a + wkv, wq_b + indexer.wq_b, and w1 + w3 of a shared expert that is not part of a larger op.

    Needs: `dsv41.linears`, as lower-linear makes them in programs of many rows. Products are pure, so one may move to
    where the first stands, and weights with it.

    Does not handle: products in groups, which no two of a model share an input with; products that quantize their input
    beside products that do not, and weights that are computed in between. They stay.
    """

    name: ClassVar[str] = "merge-projections"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Merge all; counts merged ops by their weights' names, e.g. `wq_a + wkv`."""
        matches: dict[str, int] = {}
        for func in functions(module).values():
            for same in _by_input(func):
                first, *rest = same
                movable = [op for op in rest if _moves_before(op, first)]
                if movable:
                    name = _merge([first, *movable])
                    matches[name] = matches.get(name, 0) + 1
        return PassResult(bool(matches), matches)

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """In a traced model: once an attention, once an index selection, once a layer of experts with a shared one."""
        if ctx.config is None:
            return None
        ops = [op for func in functions(module).values() if _has_products(func) for op in func.body.block.ops]
        counts = {name: sum(isinstance(op, marks) for op in ops) for name, marks in _IN_A_MODEL.items()}
        return {name: count for name, count in counts.items() if count}


def _has_products(func: FuncOp) -> bool:
    return any(isinstance(op, Linears) for op in func.body.block.ops)


def _by_input(func: FuncOp) -> Iterable[list[Linears]]:
    """The products in one group of each input, in program order."""
    found: dict[tuple[SSAValue, int], list[Linears]] = {}
    for op in func.body.block.ops:
        if isinstance(op, Linears) and op.groups.value.data == 1:
            found.setdefault((op.x, op.quantize.value.data), []).append(op)
    return found.values()


def _moves_before(op: Linears, first: Linears) -> bool:
    """Whether the weights of a product are known where the first one stands."""
    return all(
        not isinstance(owner, Operation) or isinstance(owner, Weight) or owner.is_before_in_block(first)
        for owner in (value.owner for value in op.packed)
    )


def _merge(products: list[Linears]) -> str:
    """Put one op in the place of the first; gives the name of the merge."""
    first, block = products[0], products[0].parent_block()
    assert block is not None
    for weight in {value.owner: None for op in products[1:] for value in op.packed}:
        if isinstance(weight, Weight) and not weight.is_before_in_block(first):
            weight.detach()
            block.insert_op_before(weight, first)
    results = [result for op in products for result in op.products]
    packed = [value for op in products for value in op.packed]
    merged = Linears.build(
        operands=[first.x, packed],
        result_types=[[result.type for result in results]],
        attributes={name: first.attributes[name] for name in Linears.ARGUMENTS},
    )
    block.insert_op_before(merged, first)
    for old, new in zip(results, merged.products, strict=True):
        set_name(new, old.name_hint)
        old.replace_all_uses_with(new)
    for op in products:
        op.detach()
        op.erase()
    return _name_of(packed[::2])


def _name_of(weights: Sequence[SSAValue]) -> str:
    """The weights' names behind the first one's module, e.g. `wq_a + wkv` of `layers.3.attn.wq_a.weight` and so on."""
    names = [value.owner.symbol.data if isinstance(value.owner, Weight) else str(value.name_hint) for value in weights]
    names = [name.removesuffix(".weight") for name in names]
    module = names[0].rpartition(".")[0]
    return " + ".join(name.removeprefix(f"{module}.") for name in names)
