"""Derives the replay of a prefix from the program that writes the states of a prompt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from dsv41c.errors import CompileError
from dsv41c.ir.builder import functions
from dsv41c.ir.effects import cache_reads, cache_writes
from dsv41c.ir.names import copy_names, set_name
from dsv41c.ir.ops.attend import Attend
from dsv41c.ir.ops.pack import WriteRows
from dsv41c.ir.ops.state import SparseAttention, Store
from dsv41c.ir.text import line_of
from dsv41c.ir.types import CacheType, type_text
from dsv41c.passes.pass_base import Pass, PassContext, PassResult
from dsv41c.passes.split_ced import ENCODE

REPLAY = "encode_replay"
WINDOW = "replay.window"
_WINDOW_KIND = "window"


def slots_input(ratio: int) -> str:
    """The name of the input with the slots of entries of so many tokens."""
    return f"replay.slots.{ratio}"


@dataclass(frozen=True)
class DeriveReplay(Pass):
    """Derives the replay of a prefix from the program that writes the states of a prompt.

    What:
        func.func @encode(%tokens, ..., %window.0, ..., %main.20) -> (carry.0, ..., %window.0, ..., %main.20)
          ->  the same, and
              func.func @encode_replay(%tokens, ..., %replay.window, %replay.slots.1, ..., %window.0, ..., %main.20)

        and in @encode_replay:
              dsv41.attend %q, %cos, %sin, %window.0, %rows, %index, ...
                ->  dsv41.attend %q, %cos, %sin, %window.0, %rows, %replay.window, ...
              dsv41.store %main.20, %rows, %slots
                ->  dsv41.store %main.20, %rows, %replay.slots.1

    Why: behind a prefix whose pages were found, its last window runs once more to fill the windows, the compressor's
    tails and the look-back ids (SPEC 5.5). These rows attend to no window row before the first of them (SPEC 5.6), and
    write no entry: the pages have theirs, and other sequences read them. Which rows these are, only the caller knows;
    so the two lists that decide it are inputs.

    Needs: attentions and stores as ops of the dialect, rewritten or not. It stands behind all rewrites, so that the
    replay has the kernels of its program and costs no compilation of its own.

    Does not handle: another reader of a window than an attention, another writer of an entry than a store, attentions
    of windows of several sizes. It refuses these programs by name. A module without the program is left alone.
    """

    name: ClassVar[str] = "derive-replay"
    extends: ClassVar[bool] = True
    program: str = ENCODE

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Add the program; counts `program`, and in it attentions as `window` and stores as `entries`.

        Raises:
            CompileError: a program whose windows or entries are used in a way that no list decides; see the class.
        """
        func = functions(module).get(self.program)
        if func is None:
            return PassResult(False, {"program": 0, "window": 0, "entries": 0})
        replay = func.clone()
        copy_names(func, replay)
        replay.sym_name = StringAttr(REPLAY)
        inputs = _Inputs(replay)
        counts = {"window": 0, "entries": 0}
        for op in replay.body.block.ops:
            counts["window"] += _give_window(op, inputs)
            counts["entries"] += _give_slots(op, inputs)
        replay.update_function_type()
        module.body.block.add_op(replay)
        return PassResult(True, {"program": 1, **counts})

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """One program for a module that has the one to derive it from."""
        return {"program": 1} if self.program in functions(module) else None


class _Inputs:
    """The inputs that a replay has besides those of its program, before its caches."""

    def __init__(self, func: FuncOp) -> None:
        self._block = func.body.block
        self._found: dict[str, SSAValue] = {}
        self._place = sum(not isinstance(argument.type, CacheType) for argument in func.args)

    def give(self, name: str, op: Operation, old: SSAValue) -> None:
        """Puts the input of that name in the place of an operand, whose type it has."""
        if name not in self._found:
            self._found[name] = self._block.insert_arg(old.type, self._place)
            set_name(self._found[name], name)
            self._place += 1
        given = self._found[name]
        if given.type != old.type:
            raise CompileError(
                f"one list is to stand for all, and {name} would be {type_text(given.type)} and {type_text(old.type)}: "
                f"{line_of(op)}"
            )
        op.operands = [given if operand is old else operand for operand in op.operands]


def _give_window(op: Operation, inputs: _Inputs) -> int:
    if isinstance(op, Attend | SparseAttention):
        inputs.give(WINDOW, op, op.window_index)
        return 1
    reads_window = any(_type(cache).data.kind == _WINDOW_KIND for cache in cache_reads(op))
    if reads_window and not isinstance(op, ReturnOp) and not cache_writes(op):
        raise CompileError(f"'{REPLAY}' cannot bound what this op reads of a window, only an attention: {line_of(op)}")
    return 0


def _give_slots(op: Operation, inputs: _Inputs) -> int:
    entries = [cache for cache in cache_writes(op) if _type(cache).pool == "pages"]
    if not entries:
        return 0
    if not isinstance(op, Store | WriteRows):
        raise CompileError(f"'{REPLAY}' cannot keep this op from writing entries, only a store: {line_of(op)}")
    inputs.give(slots_input(_type(entries[0]).data.ratio), op, op.slots_)
    return 1


def _type(cache: SSAValue) -> CacheType:
    assert isinstance(cache.type, CacheType)
    return cache.type
