"""Splits a program into what the states of a prompt need, and the rest."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from dsv41c.errors import CompileError
from dsv41c.ir.builder import (
    MANY_ROWS,
    OUTPUTS,
    attribute,
    cache_inputs,
    functions,
    get_symbols,
    output_names,
    set_symbols,
)
from dsv41c.ir.dims import evaluate
from dsv41c.ir.effects import cache_reads, cache_writes, has_state_effect
from dsv41c.ir.names import copy_names, set_name
from dsv41c.ir.ops.aten import aten_class, is_view
from dsv41c.ir.ops.program import Weight
from dsv41c.ir.ops.state import SparseAttention
from dsv41c.ir.ops.torch_ops import constant
from dsv41c.ir.text import line_of
from dsv41c.ir.types import POOLS, CacheType, TensorType, type_text
from dsv41c.passes.pass_base import Pass, PassContext, PassResult

ENCODE = "encode"
TAIL = "tail"
_CASTS = ("torch.aten.to.dtype", "torch.aten._to_copy")


@dataclass(frozen=True)
class SplitCed(Pass):
    """Splits a program into what the states of a prompt need, and the rest.

    What:
        func.func @step(%tokens, ..., %window.0, ..., %main.20, ...) -> (logits, main_hidden, %window.0, ...)
          ->  the same, and
              func.func @encode(%tokens, ..., %window.0, ..., %main.20) -> (carry.0, carry.1, %window.0, ..., %main.20)
              func.func @tail(%positions, ..., %carry.0, %carry.1, %window.20, ..., %main.20)
                  -> (logits, main_hidden, %window.20, ...)

        and in @tail, where attention must not look behind the rows that it is given:
              %fresh_index = torch.aten.clamp %window_index, %none, %int-1     a slot (0 and up) becomes no key (-1)

    Why: a prompt's global KV needs the encoder and the first projections of the decoder; the rest of the decoder is
    needed for the last rows only (SPEC 5.3, 5.4), so the prefill of a long prompt costs little more than half.

    Needs: equal values to be one value, so that little crosses the cut. `states` says which caches the prompt needs, as
    kinds or names joined by `+`; `encode` is the backward slice from their last values over use-def chains. A cache
    that the slice reads is written too, since another chunk may follow: so the windows of the encoder's layers come in,
    and no layer is ever named.

    How: `tail` is the backward slice from everything else that the program returns, up to the values that `encode` has.
    What it takes from there:

    1. constants, weights, and what follows from inputs and derived tables alone (row geometry, rotations) is computed
       again, from the tail's own inputs;
    2. a cast or a view is computed again, if its operand is no larger: bf16 streams cross, not their copies in f32;
    3. a cache is read as `encode` leaves it;
    4. every other value crosses as `carry.<n>`, an output of `encode` and an input of `tail`. It has one row for each
       row of the program, so that a caller may keep the last rows of each sequence and run the tail on these. For the
       released model two values cross, the streams of the first decoder layer and its normalized attention input:
       10 d bytes a row.

    Does not handle: a value that crosses without a row for each token, a tail that would write or read a state which
    its few rows do not fill, readers of windows other than sparse attention. It refuses these programs by name. A
    program from whose request nothing crosses into the rest is left alone: there is no decoder to leave out.
    """

    name: ClassVar[str] = "split-ced"
    extends: ClassVar[bool] = True
    program: str = "step"
    states: str = "main+index+tail+history"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Add the two programs; counts `program`, and the values that cross as `carry`.

        Raises:
            CompileError: an unknown state, or a program that cannot be split; see the class.
        """
        func = functions(module).get(self.program)
        if func is None:
            return PassResult(False, {"program": 0, "carry": 0})
        cut = _Cut(func, encoded_states(func, self._requested(func)))
        if not cut.carried:
            return PassResult(False, {"program": 0, "carry": 0})
        for part in (cut.encode(), cut.tail()):
            module.body.block.add_op(part)
        return PassResult(True, {"program": 2, "carry": len(cut.carried)})

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """Two programs for a model that has a KV source."""
        split = ctx.config is not None and ctx.config.kv_source_layer_ids and self.program in functions(module)
        return {"program": 2} if split else None

    def _requested(self, func: FuncOp) -> list[str]:
        caches = cache_inputs(func)
        words = [word.strip() for word in self.states.split("+")]
        for word in words:
            if word not in POOLS and word not in caches:
                raise CompileError(
                    f"'{word}' of states is no state of '{self.program}'; it has the caches {', '.join(caches)}, and "
                    f"the kinds are {', '.join(POOLS)}"
                )
        return [name for name, cache in caches.items() if name in words or _kind(cache) in words]


def state_values(func: FuncOp) -> dict[str, SSAValue]:
    """The last value of every cache that a program writes and returns, by the name of its argument."""
    last = func.body.block.last_op
    assert last is not None, "a verified function ends in a return"
    values: dict[str, SSAValue] = {}
    for value in last.operands:
        if isinstance(value.type, CacheType) and isinstance(value.owner, Operation):
            values[_argument(value)] = value
    return values


def encoded_states(func: FuncOp, requested: Iterable[str]) -> list[str]:
    """The states that a slice for some states has to write: these, and all that it reads.

    Returns:
        names in the order of the arguments.
    """
    values = state_values(func)
    wanted: set[str] = set(requested) & set(values)
    while True:
        ops = backward_slice(values[name] for name in wanted)
        read = {_argument(cache) for op in ops for cache in cache_reads(op)} & set(values)
        if read <= wanted:
            return [name for name in values if name in wanted]
        wanted |= read


def backward_slice(values: Iterable[SSAValue], stop: Collection[Operation] = frozenset()) -> set[Operation]:
    """The ops that some values depend on, over use-def chains.

    Args:
        stop: ops that are not entered.
    """
    found: set[Operation] = set()
    waiting = [value.owner for value in values]
    while waiting:
        op = waiting.pop()
        if isinstance(op, Block) or op in found or op in stop:
            continue
        found.add(op)
        waiting += [operand.owner for operand in op.operands]
    return found


def _kind(cache: SSAValue) -> str:
    assert isinstance(cache.type, CacheType)
    return cache.type.data.kind


def _argument(cache: SSAValue) -> str:
    """The name of the argument that a cache value began as."""
    while isinstance(cache.owner, Operation):
        cache = cache_writes(cache.owner)[0]
    return str(cache.name_hint)


class _Cut:
    """A program with its two parts.

    Args:
        func: the program.
        states: the caches that `encode` writes; closed under reading.

    Attributes:
        carried: the values that cross, in program order.
    """

    def __init__(self, func: FuncOp, states: Sequence[str]) -> None:
        self.func = func
        self.order = {op: i for i, op in enumerate(func.body.block.ops)}
        self.final = state_values(func)
        self.encoded = {name: self.final[name] for name in states}
        self.encode_ops = backward_slice(self.encoded.values())
        self.tainted = self._tainted()
        self.tail_outputs = {
            name: value
            for name, value in zip(output_names(func), self._returned(), strict=True)
            if not isinstance(value.type, CacheType) or (name in self.final and name not in states)
        }
        self.tail_ops: set[Operation] = set()
        self.carried = self._carry()

    def _returned(self) -> Sequence[SSAValue]:
        last = self.func.body.block.last_op
        assert last is not None, "a verified function ends in a return"
        return last.operands

    def _tainted(self) -> set[Operation]:
        """The ops of the encoder that depend on its weights or on state: what is not to be computed again."""
        tainted: set[Operation] = set()
        for op in self._in_order(self.encode_ops):
            reads_checkpoint = isinstance(op, Weight) and op.source.data == "checkpoint"
            if reads_checkpoint or has_state_effect(op) or any(value.owner in tainted for value in op.operands):
                tainted.add(op)
        return tainted

    def _in_order(self, ops: Iterable[Operation]) -> list[Operation]:
        return sorted(ops, key=self.order.__getitem__)

    def _carry(self) -> list[SSAValue]:
        """Finds the tail's ops, and with them the values that cross."""
        carried: dict[SSAValue, None] = {}
        waiting = list(self.tail_outputs.values())
        while waiting:
            value = waiting.pop()
            op = value.owner
            if isinstance(op, Block) or op in self.tail_ops or value in carried:
                continue
            if op in self.tainted and not isinstance(op, Weight):
                if isinstance(value.type, CacheType):
                    continue
                if not _is_recomputed(op):
                    self._check_rows(value)
                    carried[value] = None
                    continue
            self.tail_ops.add(op)
            waiting += op.operands
        self._check_states()
        return sorted(carried, key=lambda value: self.order[_op(value)])

    def _check_rows(self, value: SSAValue) -> None:
        if isinstance(value.type, TensorType) and value.type.dims[:1] == ("T",):
            return
        raise CompileError(
            f"a value of type {type_text(value.type)} would cross from '{ENCODE}' to '{TAIL}'; only values with a row "
            f"for each token can, as their first size T says: {line_of(_op(value))}"
        )

    def _check_states(self) -> None:
        for name in self.tail_outputs:
            if name in self.final and _kind(self.final[name]) != "window":
                raise CompileError(
                    f"'{TAIL}' would write {name}, but only for the last rows of a prompt; add it to `states`, so that "
                    f"'{ENCODE}' writes it"
                )
        for op in self._in_order(self.tail_ops):
            for cache in set(cache_reads(op)) - set(cache_writes(op)):
                self._check_read(op, cache)

    def _check_read(self, op: Operation, cache: SSAValue) -> None:
        name = _argument(cache)
        if name in self.encoded and cache is not self.encoded[name]:
            raise CompileError(
                f"'{TAIL}' needs {name} as it was before '{ENCODE}' stored to it; only its last value can be read "
                f"there: {line_of(op)}"
            )
        is_own_window = isinstance(op, SparseAttention) and op.window is cache
        if name in self.final and name not in self.encoded and not is_own_window:
            raise CompileError(
                f"'{TAIL}' reads {name}, which holds nothing before its own rows; only the window of "
                f"dsv41.sparse_attention can be cut off there: {line_of(op)}"
            )

    def encode(self) -> FuncOp:
        """The program that writes the states."""
        names = _carry_names(self.carried)
        outputs = dict(zip(names, self.carried, strict=True)) | self.encoded
        ops = backward_slice(outputs.values())
        used = {operand for op in ops for operand in op.operands}
        inputs = {str(arg.name_hint): arg for arg in self.func.args if arg in used}
        return _function(ENCODE, self.func, inputs, {}, self._in_order(ops), outputs)

    def tail(self) -> FuncOp:
        """The program that computes the rest for some rows of each sequence."""
        ops = self._in_order(self.tail_ops)
        needed = {operand for op in ops for operand in op.operands} | set(self.tail_outputs.values())
        carried = dict(zip(_carry_names(self.carried), self.carried, strict=True))
        own = [arg for arg in self.func.args if not isinstance(arg.type, CacheType) and arg in needed]
        used = {_argument(value) for value in needed if isinstance(value.type, CacheType)}
        caches = {name: cache for name, cache in cache_inputs(self.func).items() if name in used}
        inputs = {str(arg.name_hint): arg for arg in own} | carried | caches
        # A cache that the encoder wrote comes in as it left it.
        aliases = {value: caches[name] for name, value in self.encoded.items() if name in caches}
        func = _function(TAIL, self.func, inputs, aliases, ops, self.tail_outputs)
        _cut_windows(func)
        return func


def _op(value: SSAValue) -> Operation:
    assert isinstance(value.owner, Operation)
    return value.owner


def _carry_names(carried: Sequence[SSAValue]) -> list[str]:
    return [f"carry.{i}" for i in range(len(carried))]


def _is_recomputed(op: Operation) -> bool:
    """Whether the tail computes an op of the encoder again: a scalar or a list, or a cast or view of fewer bytes."""
    if not all(isinstance(result.type, TensorType) for result in op.results):
        return True
    if op.name not in _CASTS and not is_view(op):
        return False
    source = op.operands[0]
    keeps_rows = isinstance(source.type, TensorType) and source.type.dims[:1] == ("T",)
    return keeps_rows and isinstance(source.owner, Operation) and _row_bytes(source) <= _row_bytes(op.results[0])


def _row_bytes(value: SSAValue) -> int:
    assert isinstance(value.type, TensorType)
    size = value.type.dtype.itemsize
    for dim in value.type.dims[1:]:
        size *= evaluate(dim, dict.fromkeys(value.type.symbols, 1))
    return size


def _function(
    name: str,
    source: FuncOp,
    inputs: Mapping[str, SSAValue],
    aliases: Mapping[SSAValue, SSAValue],
    ops: Sequence[Operation],
    outputs: Mapping[str, SSAValue],
) -> FuncOp:
    """A function of copies of some ops.

    Args:
        inputs: values of `source` that become arguments, by the argument's name.
        aliases: values that an argument stands for besides its own.
    """
    block = Block(arg_types=[value.type for value in inputs.values()])
    values: dict[SSAValue, SSAValue] = dict(zip(inputs.values(), block.args, strict=True))
    values |= {value: values[argument] for value, argument in aliases.items()}
    for argument, label in zip(block.args, inputs, strict=True):
        set_name(argument, label)
    for op in ops:
        clone = op.clone(values)
        copy_names(op, clone)
        block.add_op(clone)
        values.update(zip(op.results, clone.results, strict=True))
    block.add_op(ReturnOp(*(values[value] for value in outputs.values())))
    types = [argument.type for argument in block.args], [value.type for value in outputs.values()]
    func = FuncOp(name, types, Region(block))
    used = {symbol for argument in block.args for symbol in _symbols(argument.type)}
    set_symbols(func, {symbol: bounds for symbol, bounds in get_symbols(source).items() if symbol in used})
    func.attributes[OUTPUTS] = attribute(list(outputs))
    func.attributes[MANY_ROWS] = UnitAttr()
    return func


def _symbols(type_: Attribute) -> frozenset[str]:
    tensor = type_.storage if isinstance(type_, CacheType) else type_
    return tensor.symbols if isinstance(tensor, TensorType) else frozenset()


def _cut_windows(func: FuncOp) -> None:
    """Takes the stored rows out of the window indices: a tail attends to its own rows only (SPEC 5.4, 5.6)."""
    cut: dict[SSAValue, SSAValue] = {}
    for op in list(func.body.block.ops):
        if not isinstance(op, SparseAttention) or isinstance(op.window.owner, Operation):
            continue
        index = op.window_index
        if index not in cut:
            none, highest = constant(None), constant(-1)
            clamp = aten_class("torch.aten.clamp").create(
                operands=[index, none.results[0], highest.results[0]], result_types=[index.type]
            )
            set_name(clamp.results[0], "fresh_index")
            func.body.block.insert_ops_before([none, highest, clamp], op)
            cut[index] = clamp.results[0]
        op.operands = [cut[index] if operand is index else operand for operand in op.operands]
