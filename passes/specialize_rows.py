"""Adds to every program one for a single row."""

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp

from dsv41c.ir.builder import MANY_ROWS, functions, get_symbols, set_symbols
from dsv41c.ir.names import copy_names
from dsv41c.passes.pass_base import Pass, PassContext, PassResult

SUFFIX = "_one_row"
_SIZES = ("T", "B", "R")  # one row is one sequence and at most one row with logits


@dataclass(frozen=True)
class SpecializeRows(Pass):
    """Adds to every program one for a single row.

    What:
        func.func @step(...) {symbols = {T = [1, 512], B = [1, 64], ...}} { ... }
          ->  the same, and
              func.func @step_one_row(...) {symbols = {T = [1, 1], B = [1, 1], ...}} { ... }

    Why: a decode step of one sequence reads every weight for one row. Kernels that know this are four times as fast,
    and want other cuts and other forms than a prefill chunk. The runtime takes the program whose sizes fit the call.

    Needs: to stand before the passes that choose forms; they ask `ir.builder.has_one_row`.

    Does not handle: programs without rows, or with a range that leaves no choice, and programs marked
    `dsv41.many_rows` (the parts of a prefill, which run once a prompt and not once a token); they get no second form.
    """

    name: ClassVar[str] = "specialize-rows"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Add a function for each program of many rows; counts them as `program`."""
        added = [_narrowed(func) for func in functions(module).values() if _has_choice(func)]
        for func in added:
            module.body.block.add_op(func)
        return PassResult(bool(added), {"program": len(added)})


def _has_choice(func: FuncOp) -> bool:
    return MANY_ROWS not in func.attributes and get_symbols(func).get("T", (1, 1))[1] > 1


def _narrowed(func: FuncOp) -> FuncOp:
    narrow = func.clone()
    copy_names(func, narrow)
    narrow.sym_name = StringAttr(func.sym_name.data + SUFFIX)
    set_symbols(narrow, {name: (1, 1) if name in _SIZES else bounds for name, bounds in get_symbols(func).items()})
    return narrow
