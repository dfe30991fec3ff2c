"""Removes ops whose results nobody uses."""

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation

from dsv41c.ir.builder import functions
from dsv41c.ir.effects import cache_writes
from dsv41c.passes.pass_base import Pass, PassContext, PassResult


@dataclass(frozen=True)
class DeadCode(Pass):
    """Removes ops whose results nobody uses.

    What:
        %a = torch.aten.mul.Tensor %x, %x : ...      ->
        %b = torch.aten.add.Tensor %a, %x, %int1 : ...  (both gone, when %b has no use)

    Why: the trace computes values that no output needs, and passes leave producers behind.

    Needs: nothing. Stores stay, whether their result is used or not; so do arguments and outputs.

    Does not handle: functions that nobody calls; they stay, since any function may be an entry.
    """

    name: ClassVar[str] = "dead-code"
    requires: ClassVar[tuple[str, ...]] = ("traced", "launches")

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Remove dead ops; counts them as `op`."""
        removed = 0
        for func in functions(module).values():
            # Backwards, so that an op's users are gone before it is looked at.
            for op in reversed(list(func.body.block.ops)):
                if _is_dead(op):
                    op.detach()
                    op.erase()
                    removed += 1
        return PassResult(removed > 0, {"op": removed})


def _is_dead(op: Operation) -> bool:
    if isinstance(op, ReturnOp) or cache_writes(op):
        return False
    return not any(result.first_use is not None for result in op.results)
