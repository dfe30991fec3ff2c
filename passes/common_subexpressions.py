"""Computes equal expressions once."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation

from dsv41c.ir.builder import ORIGIN, functions
from dsv41c.ir.effects import has_state_effect
from dsv41c.ir.ops.aten import AtenOp
from dsv41c.ir.ops.program import Launch
from dsv41c.passes.pass_base import Pass, PassContext, PassResult


@dataclass(frozen=True)
class CommonSubexpressions(Pass):
    """Computes equal expressions once.

    What:
        %a = torch.aten.mul.Tensor %x, %y : ...      ->      %a = torch.aten.mul.Tensor %x, %y : ...
        %b = torch.aten.mul.Tensor %x, %y : ...              (users of %b use %a)

    Why: the trace repeats constants, sizes and weights at every use; layers share rotary tables and slots.

    Needs: nothing.

    Does not handle: ops that read or write a cache, and random ops; they are never merged. Operands in another order
    count as different.
    """

    name: ClassVar[str] = "common-subexpressions"
    requires: ClassVar[tuple[str, ...]] = ("traced", "launches")

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Merge equal ops; counts them as `op`."""
        merged = sum(_merge(func) for func in functions(module).values())
        return PassResult(merged > 0, {"op": merged})


def _merge(func: FuncOp) -> int:
    first: dict[Hashable, Operation] = {}
    merged = 0
    for op in list(func.body.block.ops):
        if not _may_merge(op):
            continue
        kept = first.setdefault(_key(op), op)
        if kept is op:
            continue
        for old, new in zip(op.results, kept.results, strict=True):
            old.replace_all_uses_with(new)
        op.detach()
        op.erase()
        merged += 1
    return merged


def _may_merge(op: Operation) -> bool:
    if isinstance(op, ReturnOp) or has_state_effect(op):
        return False
    return not (isinstance(op, AtenOp) and torch.Tag.nondeterministic_seeded in op.overload.tags)


def _key(op: Operation) -> Hashable:
    attributes = frozenset((name, value) for name, value in op.attributes.items() if name != ORIGIN)
    absent = tuple(slot is None for slot in op.slots()) if isinstance(op, Launch) else ()
    properties = frozenset(op.properties.items())
    return (op.name, tuple(map(id, op.operands)), tuple(op.result_types), attributes, properties, absent)
