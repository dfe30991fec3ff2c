"""Makes one op of an attention and the rotations on both sides of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.utils.test_value import create_ssa_value

from dsv41c.errors import CompileError
from dsv41c.ir.builder import functions
from dsv41c.ir.names import set_name
from dsv41c.ir.ops.attend import Attend
from dsv41c.ir.ops.state import SparseAttention
from dsv41c.ir.ops.syntax import Slot
from dsv41c.ir.text import line_of
from dsv41c.ir.types import TensorType
from dsv41c.passes.cache_rows import rotations
from dsv41c.passes.pass_base import Pass, PassContext, PassResult
from dsv41c.passes.patterns import match_definition

_BEHIND, _BEFORE = "epilogue", "prologue"


@dataclass(frozen=True)
class LowerSparseAttention(Pass):
    """Makes one op of an attention and the rotations on both sides of it.

    What:
        %h = torch.aten.unflatten.int %q, -1, [64, 512] : ...
        %r = the rotation of %h by %cos and %sin (14 ops)
        %a = dsv41.sparse_attention %r, %window, %rows, %index, %main, %slots, %sink {...} : ...
        %b = the rotation of %a by %cos and -%sin (14 ops)
        %y = torch.aten.flatten.using_ints %b, 1, -1 : ...
          ->  %y = dsv41.attend %q, %cos, %sin, %window, %rows, %index, %main, %slots, %sink {...} : ...

    Why: rotated queries and the attention's own output live in a tile of rows inside the kernel, and not between
    launches: each is as large as the query. A launch before the attention and one behind it have less to do or go.
    What is left of the rotations and of the attention goes with dead-code.

    Needs: `ctx.define_parts`, whose parts of dsv41.attend are the pattern: what stands before and behind.

    Does not handle: an attention whose output is rotated back by other angles, or has another reader; it stays.
    """

    name: ClassVar[str] = "lower-sparse-attention"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Lower all attentions; counts `attention`."""
        count = 0
        for func in functions(module).values():
            for attention in _attentions(func):
                found = _match(attention, func, ctx)
                if found is None:
                    continue
                _replace(attention, *found)
                count += 1
        return PassResult(count > 0, {"attention": count})

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """Every attention of a traced model matches."""
        if ctx.config is None:
            return None
        return {"attention": sum(len(_attentions(func)) for func in functions(module).values())}


def _attentions(func: FuncOp) -> list[SparseAttention]:
    return [op for op in func.body.block.ops if isinstance(op, SparseAttention)]


def _match(attention: SparseAttention, func: FuncOp, ctx: PassContext) -> tuple[Operation, Attend] | None:
    """The op whose result is an attention's output rotated back, and what takes its place; None for another graph."""
    for rotation in rotations(func):
        parts = ctx.define_parts(_sample(attention, rotation))
        if parts.keys() < {_BEFORE, _BEHIND}:
            raise CompileError(f"the target defines no dsv41.attend, which {line_of(attention)} would become")
        before = match_definition(parts[_BEFORE], attention.query)
        if before is None:
            continue
        # What reads the output must all be inside of the op: the rotation reads it so many times.
        behind = parts[_BEHIND]
        if len(list(attention.result.uses)) != len(list(behind.args[0].uses)):
            return None
        for flat in _reached(attention.result, behind):
            if match_definition(behind, flat.results[0]) == [attention.result, *before[1:]]:
                return flat, _of(attention, [*before, *attention.slots()[1:]])
    return None


def _replace(attention: SparseAttention, flat: Operation, attend: Attend) -> None:
    """Puts the op where the attention stands: before the store to the window that it reads."""
    block = attention.parent_block()
    assert block is not None
    block.insert_op_before(attend, attention)
    set_name(attend.result, flat.results[0].name_hint)
    flat.results[0].replace_all_uses_with(attend.result)
    flat.detach()
    flat.erase()


def _sample(attention: SparseAttention, rotation: TensorType) -> Attend:
    """The op on values of its own, so that the program's values are not read by it."""
    own = [create_ssa_value(type_) for type_ in (_flat(attention), rotation, rotation)]
    others = [None if slot is None else create_ssa_value(slot.type) for slot in attention.slots()[1:]]
    return _of(attention, [*own, *others])


def _of(attention: SparseAttention, slots: list[Slot]) -> Attend:
    return Attend.from_slots(slots, [_flat(attention)], dict(attention.attributes))


def _flat(attention: SparseAttention) -> TensorType:
    type_ = attention.query.type
    assert isinstance(type_, TensorType)
    rows, heads, channels = type_.dims
    assert isinstance(heads, int)
    assert isinstance(channels, int)
    return TensorType.of([rows, heads * channels], type_.element)


def _reached(value: SSAValue, pattern: FuncOp) -> Iterator[Operation]:
    """The ops that may end a pattern which begins at a value: reached from it through ops of the pattern's names."""
    names = {op.name for op in pattern.body.block.ops}
    last = pattern.body.block.last_op
    assert last is not None
    result = last.operands[0]
    assert isinstance(result.owner, Operation)
    seen: set[Operation] = set()
    waiting = [value]
    while waiting:
        for use in waiting.pop(0).uses:
            op = use.operation
            if op in seen or op.name not in names:
                continue
            seen.add(op)
            waiting += op.results
            if op.name == result.owner.name and op.results[0].type == result.type:
                yield op
