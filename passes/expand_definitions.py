"""Replaces ops by their definitions in aten ops."""

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from dsv41c.ir.builder import ORIGIN, functions
from dsv41c.ir.names import copy_names, set_name
from dsv41c.ir.ops.aten import AtenOp
from dsv41c.ir.ops.custom import CustomOp
from dsv41c.ir.ops.state import Storage
from dsv41c.ir.types import CacheType, TensorType
from dsv41c.passes.pass_base import Pass, PassContext, PassResult


@dataclass(frozen=True)
class ExpandDefinitions(Pass):
    """Replaces ops by their definitions in aten ops: custom ops, and sums whose order is part of the model.

    What:
        %w = dsv41.dequantize_weight %weight, %scale : ...
          ->  %e = torch.aten.to.dtype %scale, %int3, ...      (the ops of the definition, with the op's operands)
              ...
              %w = torch.aten.to.dtype %product, %int15, ...

    Why: a target that compiles regions of aten ops needs no kernel of its own for an op that is plain arithmetic.

    `composed=true` expands only those that `ctx` names `composed`: their definitions hold ops that become functions of
    their own, which must happen before regions are cut.

    An outlined function that only reads the storage of a cache takes that storage for an argument.

    Needs: `ctx.define`, which gives the definition of an op for its operand types as a function, or None.

    Does not handle: ops without a definition, and those that `ctx` keeps whole; they stay, and the target runs them as
    kernels.
    """

    name: ClassVar[str] = "expand-definitions"
    composed: bool = False

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Expand all ops that have a definition; counts them by op."""
        matches: dict[str, int] = {}
        for func in functions(module).values():
            kept = ctx.whole_in(func)
            for op in list(func.body.block.ops):
                if op.name in kept or (self.composed and op.name not in ctx.composed):
                    continue
                if (definition := self._definition(op, ctx)) is None:
                    continue
                _inline(op, definition)
                matches[op.name] = matches.get(op.name, 0) + 1
            _take_storages(func)
        return PassResult(bool(matches), matches)

    def _definition(self, op: Operation, ctx: PassContext) -> FuncOp | None:
        return ctx.define(op) if isinstance(op, CustomOp | AtenOp) else None


def _inline(op: Operation, definition: FuncOp) -> None:
    """Puts a copy of the definition's ops in the place of `op`."""
    block = op.parent_block()
    assert block is not None
    body = definition.clone()
    copy_names(definition, body)
    # A definition takes the tensors; the scalar operands of an aten op are part of it.
    tensors = [slot for slot in op.operands if isinstance(slot.type, TensorType | CacheType)]
    for argument, value in zip(body.args, [_tensor(slot, op) for slot in tensors], strict=True):
        argument.replace_all_uses_with(value)
    results: list[SSAValue] = []
    for inner in list(body.body.block.ops):
        if isinstance(inner, ReturnOp):
            results = list(inner.operands)
            continue
        inner.detach()
        if ORIGIN in op.attributes and inner.results:
            inner.attributes[ORIGIN] = op.attributes[ORIGIN]
        block.insert_op_before(inner, op)
    for old, new in zip(op.results, results, strict=True):
        new._name = old._name
        old.replace_all_uses_with(new)
    body.body.block.erase_op(body.body.block.last_op, safe_erase=False)  # type: ignore[arg-type]  # it is the return
    op.detach()
    op.erase()


def _take_storages(func: FuncOp) -> None:
    """Lets an outlined function take the storage of a cache of any owner, where nothing in it needs the cache."""
    for argument in func.args:
        users = [use.operation for use in argument.uses]
        if not isinstance(argument.type, CacheType) or argument.type.data.owner != -1:
            continue
        if not users or not all(isinstance(user, Storage) for user in users):
            continue
        storage = argument.type.storage
        for user in users:
            user.results[0].replace_all_uses_with(argument)
            user.detach()
            user.erase()
        name = argument.name_hint
        set_name(Rewriter.replace_value_with_new_type(argument, storage), name)
    func.update_function_type()


def _tensor(value: SSAValue, reader: Operation) -> SSAValue:
    """A cache operand as the tensor of its storage."""
    if not isinstance(value.type, CacheType):
        return value
    storage = Storage.build(operands=[value], result_types=[value.type.storage])
    block = reader.parent_block()
    assert block is not None
    block.insert_op_before(storage, reader)
    return storage.result
