"""Cuts programs into functions of aten ops between the ops that run as kernels of their own."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from dsv41c.ir.builder import ORIGIN, functions, get_symbols, has_one_row, set_symbols
from dsv41c.ir.effects import cache_writes, has_state_effect
from dsv41c.ir.names import set_name
from dsv41c.ir.ops.aten import AtenOp
from dsv41c.ir.ops.program import Call, Weight
from dsv41c.ir.ops.state import GROUP_NOTES, StateOp
from dsv41c.ir.ops.torch_ops import ListConstruct, is_constant
from dsv41c.ir.rows import reads_other_rows
from dsv41c.ir.text import print_module
from dsv41c.ir.types import CacheType, TensorType
from dsv41c.passes.pass_base import Pass, PassContext, PassResult


@dataclass(frozen=True)
class OutlineRegions(Pass):
    """Cuts programs into functions of aten ops between the ops that run as kernels of their own.

    What:
        %a = torch.aten.mul.Tensor %x, %x : ...            %b = dsv41.call @region_0(%x, %w) : ...
        %b = torch.aten.add.Tensor %a, %w, %int1 : ...     %c = dsv41.store %c0, %b, %s : ...
        %c = dsv41.store %c0, %b, %s : ...             ->  %d = dsv41.call @region_0(%b, %w) : ...
        %d = ... the same two ops on %b ...

    Why: a compiled kernel is one function; the fewer and larger they are, the more is fused and the less is launched.
    Equal regions become one function, so that forty layers need the kernels of a handful of layer kinds.

    Needs: `ctx.fusible`, the custom ops that may stand in regions; they count as aten ops here and are expanded later,
    in each distinct region once. Those that `ctx` names `whole` or `alone` count as kernels; the latter become
    functions too, each op for itself: a large definition is then compiled once and not in every region that needs it.

    How: each op gets a stage. Regions have even stages and kernels odd ones; an op stands one stage later than the last
    op of the other kind that it needs, and all aten ops of a stage are one region:

        stage   0             1        2                3
                region_0  ->  store -> region_1     ->  experts
                (aten ops)             (needs both)

    An op that takes rows of other tokens from a result stands in the next region: what is before it works row by row,
    and can run over one tile of rows after the other (`plan-memory`). With one row there are no others.

        %p = torch.aten.linear %x, %w                                  region_0
        %previous = torch.aten.index.Tensor_hacked_twin %p, [%row]     region_1

    A region takes a cache of any owner: the owner of its cache arguments is -1.

    What a later stage needs is computed there if its operands are fewer bytes to keep until then than its result:

        %mixed = the old streams of mHC, mixed: f32 [T, 4, d], in the region of its reader, from bf16 [T, 4, d]

    A store comes after every reader of the value it replaces. Aten ops that need weights only go to the stage of their
    first user: dequantizing all weights at the start would hold them all in memory.

    Does not handle: regions whose results are scalars; a size that a kernel needs is recomputed where it is needed.
    """

    name: ClassVar[str] = "outline-regions"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Outline all programs; counts `region` (calls) and `function` (distinct regions)."""
        outlined = _Functions(module)
        calls = 0
        for func in list(functions(module).values()):
            kernels = ctx.whole_in(func)
            calls += _Outliner(func, outlined, ctx.fusible - kernels - ctx.alone, ctx.alone - kernels).run()
        return PassResult(calls > 0, {"region": calls, "function": len(outlined.by_text)})


@dataclass
class _Functions:
    """The outlined functions of a module, each once."""

    module: ModuleOp
    by_text: dict[str, FuncOp] = field(default_factory=dict)

    def add(self, func: FuncOp) -> FuncOp:
        """Gives the module's function that is equal to `func`, adding it if it is the first."""
        text = _nameless_text(func)
        if text not in self.by_text:
            func.sym_name = type(func.sym_name)(f"region_{len(self.by_text)}")
            self.by_text[text] = func
            self.module.body.block.add_op(func)
        return self.by_text[text]


def _nameless_text(func: FuncOp) -> str:
    """A function's text without the names of its values, which equal functions of different layers need not share."""
    copy = func.clone()
    for value in [*copy.args, *(result for op in copy.body.block.ops for result in op.results)]:
        value._name = None
    return print_module(ModuleOp([copy]), origins=False)


_VIEWS = {
    f"torch.aten.{name}"
    for name in (
        "unsqueeze",
        "squeeze.dim",
        "select.int",
        "slice.Tensor",
        "flatten.using_ints",
        "unflatten.int",
        "size.int",
    )
}


def _is_free(op: Operation) -> bool:
    """Whether an op is no work: it may stand anywhere and as often as it is needed."""
    return is_constant(op) or isinstance(op, Weight | ListConstruct)


def _is_copied(op: object) -> bool:
    """Whether a region makes its own copy of an op instead of taking its result: what costs less than a result."""
    if not isinstance(op, Operation):
        return False
    return is_constant(op) or isinstance(op, ListConstruct) or op.name in _VIEWS or _is_widening(op)


def _is_widening(op: Operation) -> bool:
    """Whether an op is a cast to a larger type: its operand is the cheaper one to keep."""
    if op.name != "torch.aten.to.dtype":
        return False
    source, result = op.operands[0].type, op.results[0].type
    assert isinstance(source, TensorType)
    assert isinstance(result, TensorType)
    return source.dtype.itemsize < result.dtype.itemsize


class _Outliner:
    """Outlines one program.

    Args:
        func: the program.
        outlined: takes the functions.
        fusible: names of the custom ops that may stand in regions.
        alone: names of those that become a function by themselves.
    """

    def __init__(
        self, func: FuncOp, outlined: _Functions, fusible: frozenset[str], alone: frozenset[str] = frozenset()
    ) -> None:
        self.func, self.outlined, self.fusible, self.alone = func, outlined, fusible, alone
        self.largest = {name: high for name, (_, high) in get_symbols(func).items()}
        self.many_rows = not has_one_row(func)
        self.new: dict[SSAValue, SSAValue] = {}  # results that left the program -> results of calls

    def run(self) -> int:
        """Outlines and gives the number of calls."""
        block, last = self.func.body.block, self.func.body.block.last_op
        assert last is not None
        ops = [op for op in block.ops if op is not last]
        stages = self._stages(ops)
        members: dict[int, list[Operation]] = {}
        for op in ops:
            if op in stages:
                members.setdefault(stages[op], []).append(op)
        regions = {stage: _inputs(own) for stage, own in members.items() if self._is_fusible(own[0])}
        others = [op for stage in members if stage not in regions for op in members[stage]]
        kernels = [op for op in others if op.name not in self.alone]
        own_inputs = {op: _inputs([op]) for op in others if op.name in self.alone}
        needed = {value for inputs in [*regions.values(), *own_inputs.values()] for value in inputs}
        needed |= {operand for op in [*kernels, last] for operand in op.operands}
        for stage in sorted(members):
            if stage in regions:
                block.insert_op_before(self._call(members[stage], regions[stage], needed), last)
                continue
            for op in members[stage]:
                if op in own_inputs:
                    block.insert_op_before(self._call([op], own_inputs[op], needed), last)
                    continue
                op.detach()
                block.insert_op_before(op, last)
        for op in [*kernels, last]:
            op.operands = [self.new.get(operand, operand) for operand in op.operands]
        _erase_unused([op for op in ops if op not in kernels])
        return len(regions) + len(own_inputs)

    def _is_fusible(self, op: Operation) -> bool:
        return isinstance(op, AtenOp) or op.name in self.fusible

    def _step(self, earlier: Operation, later: Operation) -> int:
        if self._is_fusible(earlier) != self._is_fusible(later):
            return 1
        other_rows = reads_other_rows(later) if self.many_rows else None
        return 2 if other_rows is not None and other_rows.owner is earlier and self._is_fusible(later) else 0

    def _stages(self, ops: Sequence[Operation]) -> dict[Operation, int]:
        stages: dict[Operation, int] = {}
        weight_only: dict[Operation, None] = {}
        readers: dict[SSAValue, list[Operation]] = {}
        for op in ops:
            if _is_free(op):
                continue
            operands = _operands(op)
            needed = [value.owner for value in operands if isinstance(value.owner, Operation) and value.owner in stages]
            for value in cache_writes(op):
                needed += [reader for reader in readers.get(value, ()) if reader is not op]
            first = 0 if self._is_fusible(op) else 1
            stages[op] = max((stages[other] + self._step(other, op) for other in needed), default=first)
            for value in operands:
                if isinstance(value.type, CacheType):
                    readers.setdefault(value, []).append(op)
            from_input = any(isinstance(value.owner, Block) for value in operands)
            if self._is_fusible(op) and not from_input and all(other in weight_only for other in needed):
                weight_only[op] = None
        for op in reversed(weight_only):
            stages[op] = self._latest(op, stages)
        self._sink(stages)
        return stages

    def _latest(self, op: Operation, stages: dict[Operation, int]) -> int:
        """The stage of the first op that needs an op's results."""
        users = [user for user in _users(op) if user in stages]
        return min((stages[user] - self._step(op, user) for user in users), default=stages[op])

    def _sink(self, stages: dict[Operation, int]) -> None:
        """Moves what only later stages need to the first of them, where that keeps fewer bytes between regions."""
        order = {op: place for place, op in enumerate(stages)}
        for op in reversed(list(stages)):
            target = self._latest(op, stages)
            if not self._is_fusible(op) or target == stages[op] or has_state_effect(op):
                continue
            if _is_copied(op):
                stages[op] = target
                continue
            cone = self._cone(op, stages, order)
            inputs = [value for value in _inputs(list(cone)) if not _lives_until(value, target, stages)]
            kept = sum(self._bytes(value) for value in inputs)
            if kept < sum(self._bytes(result) for result in op.results):
                stages.update(dict.fromkeys(cone, target))

    def _cone(self, root: Operation, stages: dict[Operation, int], order: dict[Operation, int]) -> set[Operation]:
        """An op and the ops of its stage that only it needs, directly or through each other."""
        cone, waiting = {root}, [root]
        while waiting:
            waiting.sort(key=order.__getitem__)
            for value in _operands(waiting.pop()):
                maker = value.owner
                if not isinstance(maker, Operation) or stages.get(maker) != stages[root] or maker in cone:
                    continue
                if self._is_fusible(maker) and not has_state_effect(maker) and cone.issuperset(_users(maker)):
                    cone.add(maker)
                    waiting.append(maker)
        return cone

    def _bytes(self, value: SSAValue) -> int:
        """A tensor's bytes at the largest sizes of the program."""
        if not isinstance(value.type, TensorType):
            return 0
        return math.prod(value.type.shape(self.largest)) * value.type.dtype.itemsize

    def _call(self, members: Sequence[Operation], inputs: Sequence[SSAValue], needed: set[SSAValue]) -> Call:
        outputs = [result for op in members for result in op.results if result in needed]
        region = self.outlined.add(_function(members, inputs, outputs, self.func))
        arguments = [self.new.get(value, value) for value in inputs]
        call = Call.of(region.sym_name.data, arguments, [output.type for output in outputs])
        for old, result in zip(outputs, call.results, strict=True):
            result._name = old._name
            self.new[old] = result
        return call


def _erase_unused(ops: Sequence[Operation]) -> None:
    for op in reversed(ops):
        if any(result.uses for result in op.results):
            continue
        op.detach()
        op.erase()


def _operands(op: Operation) -> list[SSAValue]:
    """What an op needs, seen through lists: results of work, inputs, weights and caches."""
    found: list[SSAValue] = []
    for operand in op.operands:
        found += _operands(operand.owner) if isinstance(operand.owner, ListConstruct) else [operand]
    return found


def _users(op: Operation) -> list[Operation]:
    """The ops that need an op's results, seen through lists."""
    found: list[Operation] = []
    for result in op.results:
        for use in result.uses:
            found += _users(use.operation) if isinstance(use.operation, ListConstruct) else [use.operation]
    return found


def _lives_until(value: SSAValue, stage: int, stages: dict[Operation, int]) -> bool:
    """Whether a value is there at a stage anyway: an input, a weight, or one that an op of it or behind it needs."""
    if not isinstance(value.owner, Operation) or value.owner not in stages:
        return True
    return any(stages.get(user, stage) >= stage for user in _readers(value.owner))


def _readers(op: Operation) -> Iterator[Operation]:
    """The ops that need an op's results, seen through lists and what regions copy."""
    for user in _users(op):
        yield user
        if _is_copied(user):
            yield from _readers(user)


def _inputs(members: Sequence[Operation]) -> list[SSAValue]:
    """Values that the ops of a region take from outside, in order of their first use."""
    inside = set(members)
    inputs: dict[SSAValue, None] = {}

    def visit(op: Operation) -> None:
        for operand in op.operands:
            owner = operand.owner
            if owner in inside:
                continue
            if isinstance(owner, Operation) and _is_copied(owner):
                visit(owner)
            else:
                inputs.setdefault(operand)

    for op in members:
        visit(op)
    return list(inputs)


def _function(
    members: Sequence[Operation], inputs: Sequence[SSAValue], outputs: Sequence[SSAValue], func: FuncOp
) -> FuncOp:
    block = Block(arg_types=[_of_any_owner(value.type) for value in inputs])
    values: dict[SSAValue, SSAValue] = dict(zip(inputs, block.args, strict=True))
    for i, argument in enumerate(block.args):
        set_name(argument, f"arg{i}")

    def copy(op: Operation) -> None:
        for operand in op.operands:
            if operand not in values:
                assert isinstance(operand.owner, Operation)
                copy(operand.owner)
        clone = op.clone(values)
        # Notes differ from layer to layer, and would make two regions of equal ones.
        for note in (ORIGIN, *(GROUP_NOTES if isinstance(clone, StateOp) else ())):
            clone.attributes.pop(note, None)
        block.add_op(clone)
        values.update(zip(op.results, clone.results, strict=True))

    for op in members:
        copy(op)
    block.add_op(ReturnOp(*(values[output] for output in outputs)))
    types = [argument.type for argument in block.args], [output.type for output in outputs]
    region = FuncOp("region", types, Region(block))
    values_inside = [*block.args, *(result for op in block.ops for result in op.results)]
    used = {symbol for value in values_inside for symbol in _symbols(value.type)}
    set_symbols(region, {name: bounds for name, bounds in get_symbols(func).items() if name in used})
    return region


def _of_any_owner(type_: Attribute) -> Attribute:
    return CacheType(replace(type_.data, owner=-1)) if isinstance(type_, CacheType) else type_


def _symbols(type_: Attribute) -> frozenset[str]:
    tensor = type_.storage if isinstance(type_, CacheType) else type_
    return tensor.symbols if isinstance(tensor, TensorType) else frozenset()
