"""Gives kernels with parts the functions that compute them."""

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp

from dsv41c.ir.builder import functions
from dsv41c.ir.ops.custom import CustomOp
from dsv41c.ir.text import print_module
from dsv41c.passes.pass_base import Pass, PassContext, PassResult


@dataclass(frozen=True)
class OutlineParts(Pass):
    """Gives kernels with parts the functions that compute them.

    What:
        %y = dsv41.experts %x, %ids, %weights, %w1, ... {limit = 10.0} : ...
          ->  %y = dsv41.experts %x, %ids, %weights, %w1, ... {limit = 10.0, body = "part_0"} : ...
              func.func @part_0(%arg0: !dsv41.tensor<[M, 128], bf16>, ...)      M rows that chose one expert

        and in a program of many rows, where products are left to a library:
              {limit = 10.0, unpack = "part_1", activate = "part_2"}

    Why: a kernel of the runtime leaves to compiled code what is plain arithmetic on its tiles: one expert on the rows
    that chose it, what comes before a product and behind it. It stays one launch.

    Needs: `ctx.define_parts`, which gives the functions of an op by the attribute that names each.

    Does not handle: a target whose kernels have no parts; it defines none.
    """

    name: ClassVar[str] = "outline-parts"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Outline each distinct part once; counts `kernel` (ops with parts) and `function`."""
        known: dict[str, FuncOp] = {}
        found = 0
        for func in list(functions(module).values()):
            for op in func.body.block.ops:
                parts = ctx.define_parts(op) if isinstance(op, CustomOp) else {}
                found += bool(parts)
                for role, part in parts.items():
                    text = print_module(ModuleOp([part.clone()]), origins=False)
                    if text not in known:
                        part.sym_name = StringAttr(f"part_{len(known)}")
                        known[text] = part
                    op.attributes[role] = known[text].sym_name
        for part in known.values():
            module.body.block.add_op(part)
        return PassResult(found > 0, {"kernel": found, "function": len(known)})
