"""Gives every op of routed experts the functions that compute one expert."""

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp

from dsv41c.ir.builder import functions
from dsv41c.ir.ops.custom import Experts
from dsv41c.ir.text import print_module
from dsv41c.passes.pass_base import Pass, PassContext, PassResult


@dataclass(frozen=True)
class OutlineExperts(Pass):
    """Gives every op of routed experts the functions that compute one expert.

    What:
        %y = dsv41.experts %x, %ids, %weights, %w1, ... {limit = 10.0} : ...
          ->  %y = dsv41.experts %x, %ids, %weights, %w1, ... {limit = 10.0, body = "expert_0"} : ...
              func.func @expert_0(%arg0: !dsv41.tensor<[M, 128], bf16>, ...)      M rows that chose one expert

        and in a program of many rows, where products are left to a library:
              {limit = 10.0, unpack = "expert_1", activate = "expert_2"}

    Why: which rows an expert gets is known only at run time; what it computes on them is a region like any other.

    Needs: `ctx.define_expert`, which gives the functions of one expert for an op, by the attribute that names each.

    Does not handle: a target that groups experts in one kernel; its own pass replaces the op.
    """

    name: ClassVar[str] = "outline-experts"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Outline the functions of each distinct expert shape; counts `experts` and `function`."""
        if ctx.define_expert is None:
            return PassResult(False, {"experts": 0, "function": 0})
        known: dict[str, FuncOp] = {}
        found = 0
        for func in list(functions(module).values()):
            for op in func.body.block.ops:
                if not isinstance(op, Experts):
                    continue
                found += 1
                for role, body in ctx.define_expert(op).items():
                    text = print_module(ModuleOp([body.clone()]), origins=False)
                    if text not in known:
                        body.sym_name = StringAttr(f"expert_{len(known)}")
                        known[text] = body
                    op.attributes[role] = known[text].sym_name
        for body in known.values():
            module.body.block.add_op(body)
        return PassResult(found > 0, {"experts": found, "function": len(known)})
