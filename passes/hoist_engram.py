"""Moves Engram's hashing and table rows to the program's start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from dsv41c.ir.builder import functions
from dsv41c.ir.effects import cache_writes
from dsv41c.ir.ops.custom import Lookup, NgramHash
from dsv41c.passes.pass_base import Pass, PassContext, PassResult

PROGRAM = "step"


@dataclass(frozen=True)
class HoistEngram(Pass):
    """Moves Engram's hashing and table rows to the program's start.

    What:
        %x = ... the layers before ...                      %rows = dsv41.ngram_hash %ids, ...
        %rows = dsv41.ngram_hash %ids, ...              ->  %e = dsv41.lookup %table, %scale, %rows
        %e = dsv41.lookup %table, %scale, %rows             %x = ... the layers before ...
        %y = ... %x, %e ...                                 %y = ... %x, %e ...

    Why: the rows of all Engram layers follow from the token ids alone (SPEC 7.5), and their tables are the largest
    weights there are: far from the device, on the host or in a file. At the program's start a target can ask for all
    rows at once and wait where the first layer reads them, while the layers before it compute.

    Needs: nothing. With a lookup everything moves that its hash is computed from, in the order in which it stood: only
    the order changes, and no value.

    Does not handle: lookups of rows that are not hashed, and hashes that need a cache which the program has written
    before; both stay where they are.
    """

    name: ClassVar[str] = "hoist-engram"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Move all lookups; counts those that stand at the start by program."""
        changed, counts = False, {}
        for name, func in functions(module).items():
            before = list(func.body.block.ops)
            counts[name] = _hoist(func)
            changed |= before != list(func.body.block.ops)
        return PassResult(changed, counts)

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """One lookup for each Engram layer of the traced step; parts of it have no rule of their own."""
        if ctx.config is None or PROGRAM not in functions(module):
            return None
        return {PROGRAM: len(ctx.config.engram_layer_ids)}


def _hoist(func: FuncOp) -> int:
    block = func.body.block
    slices = [_needed(op) for op in block.ops if isinstance(op, Lookup) and isinstance(op.rows.owner, NgramHash)]
    slices = [needed for needed in slices if not any(cache_writes(op) for op in needed)]
    wanted = set().union(*slices)
    moved = [op for op in block.ops if op in wanted]
    for op in moved:
        op.detach()
    _insert_first(func, moved)
    return len(slices)


def _insert_first(func: FuncOp, ops: Sequence[Operation]) -> None:
    first = func.body.block.first_op
    assert first is not None, "a program ends in a return"
    for op in ops:
        func.body.block.insert_op_before(op, first)


def _needed(op: Operation) -> set[Operation]:
    """An op and all that it is computed from."""
    found, waiting = {op}, [op]
    while waiting:
        owners = {operand.owner for operand in waiting.pop().operands if isinstance(operand.owner, Operation)}
        waiting += owners - found
        found |= owners
    return found
