"""Scores a Reindex layer's entries from the candidate pool only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp

from dsv41c.errors import CompileError
from dsv41c.ir.builder import functions
from dsv41c.ir.names import set_name
from dsv41c.ir.ops.state import IndexPoolTopk, IndexTopk
from dsv41c.ir.text import line_of
from dsv41c.passes.pass_base import Pass, PassContext, PassResult


@dataclass(frozen=True)
class RestrictCandidates(Pass):
    """Scores a Reindex layer's entries from the candidate pool only.

    What:
        %topk, %blocks = dsv41.index_topk %q, %w, %index, ..., %candidates {..., block = 8, n_blocks = 0} : ...
          ->  %topk = dsv41.index_pool_topk %q, %w, %index, ..., %candidates {..., block = 8} : ...

    Why: with a mask, every visible entry is scored and those outside the pool are thrown away. The pool is a list of
    block ids, 2,048 blocks of 8 entries in the released config, so scoring its entries alone is constant in the
    context: a decode step at N tokens scores 3 N/2 + N + 4 min(N, 16384) index rows (SPEC 15.2).

    Needs: the ids of a row distinct and chosen by the row's own visible length, with its newest block among them; the
    candidate source publishes them so (SPEC 4.9). Scores are the same numbers by the same roundings; the additions over
    heads may stand in another order, which shows only where fp32 does not hold their sum exactly.

    Does not handle: a selection without candidates, which scores all entries because its layer may choose any. A
    selection with candidates that publishes blocks itself is refused: its blocks are ranked over all entries.
    """

    name: ClassVar[str] = "restrict-candidates"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Replace the masked selections; counts `selection`."""
        masked = _masked(module)
        for op in masked:
            _check(op)
            _restrict(op)
        return PassResult(bool(masked), {"selection": len(masked)})

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """In a traced model the index sources behind the candidate source have candidates, once a program."""
        if ctx.config is None:
            return None
        config = ctx.config
        restricted = sum(config.uses_candidates(layer) for layer in config.index_source_layer_ids)
        return {"selection": restricted * len(functions(module))}


def _masked(module: ModuleOp) -> list[IndexTopk]:
    ops = [op for func in functions(module).values() for op in func.body.block.ops]
    return [op for op in ops if isinstance(op, IndexTopk) and op.candidates is not None]


def _check(op: IndexTopk) -> None:
    if op.n_blocks.value.data == 0 and op.blocks.first_use is None:
        return
    raise CompileError(
        f"a selection from a candidate pool publishes {op.n_blocks.value.data} candidate blocks of its own: "
        f"{line_of(op)}\n  supported is one candidate source, which scores all entries; "
        "give the selection n_blocks = 0 and let its readers take the blocks that it was given"
    )


def _restrict(op: IndexTopk) -> None:
    block = op.parent_block()
    assert block is not None
    attributes = {name: value for name, value in op.attributes.items() if name != "n_blocks"}
    new = IndexPoolTopk.build(operands=op.slots(), result_types=[op.topk.type], attributes=attributes)
    block.insert_op_before(new, op)
    set_name(new.topk, op.topk.name_hint)
    op.topk.replace_all_uses_with(new.topk)
    op.detach()
    op.erase()
