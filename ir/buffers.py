"""Which results of a launch have memory of their own, and which may share that of an operand.

    func @region(%x: <[T, 8], f32>) -> (<[T, 8], f32>, <[T, 2, 4], f32>, <[T, 8], f32>)
      %y = torch.aten.mul.Tensor %x, %x
      %v = torch.aten.unflatten.int %x, ...        a view
      return %y, %v, %x

For this one `own_results` gives {0}: the others may be the caller's %x.
"""

from collections import Counter

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from dsv41c.ir.effects import callee_of
from dsv41c.ir.ops.aten import is_view
from dsv41c.ir.ops.program import Launch
from dsv41c.ir.rows import KERNEL_ROWS

# Of one dtype to the same one, aten's cast gives its operand.
_CASTS = frozenset({"torch.aten.to.dtype", "torch.aten.contiguous", "torch.aten._to_copy"})


def own_results(op: Launch, module: ModuleOp) -> frozenset[int]:
    """The places of the results that share memory with no operand and no other result.

    Kernels that work row by row (`ir.rows.KERNEL_ROWS`) make theirs; of other kernels nothing is known.
    """
    callee = callee_of(op, module)
    if callee is None:
        return frozenset(range(len(op.results)) if f"dsv41.{op.kernel.data}" in KERNEL_ROWS else ())
    roots = _roots(callee)
    times = Counter(roots)
    computed = {root for root in roots if times[root] == 1 and not isinstance(root.owner, Block)}
    return frozenset(place for place, root in enumerate(roots) if root in computed)


def shared_operands(op: Launch, module: ModuleOp) -> frozenset[int]:
    """The places of the operands whose memory a result may be."""
    callee = callee_of(op, module)
    if callee is None:
        known = f"dsv41.{op.kernel.data}" in KERNEL_ROWS
        return frozenset() if known else frozenset(range(len(op.slots())))
    roots = set(_roots(callee))
    return frozenset(place for place, argument in enumerate(callee.args) if argument in roots)


def _roots(func: FuncOp) -> list[SSAValue]:
    """What each result of a function is a view of, at the end of all views."""
    last = func.body.block.last_op
    assert last is not None
    return [_root(value) for value in last.operands]


def _root(value: SSAValue) -> SSAValue:
    while isinstance(value.owner, Operation) and (is_view(value.owner) or value.owner.name in _CASTS):
        value = value.owner.operands[0]
    return value
