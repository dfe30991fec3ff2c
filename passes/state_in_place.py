"""Lets stores write into the buffer of the cache they take."""

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp, UnitAttr

from dsv41c.errors import CompileError
from dsv41c.ir.builder import functions
from dsv41c.ir.text import line_of
from dsv41c.ir.verify import first_reader_after, is_store
from dsv41c.passes.pass_base import Pass, PassContext, PassResult


@dataclass(frozen=True)
class StateInPlace(Pass):
    """Lets stores write into the buffer of the cache they take.

    What:
        %c1 = dsv41.store %c0, %rows, %slots {page = 128, ...} : ...
          ->  %c1 = dsv41.store %c0, %rows, %slots {page = 128, ..., in_place} : ...

    Why: a cache is a value in programs and a buffer in memory; a copy a store would cost the whole cache a step.

    Needs: no op after a store, in program order, reads the cache value that the store took.

    Does not handle: such a reader; the pass names it and refuses the program, because moving it is a decision about
    order that belongs to the pass that made the store.
    """

    name: ClassVar[str] = "state-in-place"
    requires: ClassVar[tuple[str, ...]] = ("traced", "launches")

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Mark all stores; counts them as `store`.

        Raises:
            CompileError: naming the store and the reader that needs the old value.
        """
        marked = 0
        for func in functions(module).values():
            order = {op: place for place, op in enumerate(func.body.block.ops)}
            for op in order:
                if not is_store(op) or "in_place" in op.attributes:
                    continue
                if (reader := first_reader_after(op, order)) is not None:
                    raise CompileError(
                        "a store cannot be in place: a later op reads the value it takes; read the store's result, or "
                        f"move the reader before it\n  store:  {line_of(op)}\n  reader: {line_of(reader)}"
                    )
                op.attributes["in_place"] = UnitAttr()
                marked += 1
        return PassResult(marked > 0, {"store": marked})
