"""Verification of whole programs: structure, signatures, sizes, and the discipline of state."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from dsv41c.errors import IRError
from dsv41c.ir.builder import get_symbols, output_names
from dsv41c.ir.dialect import rule_of
from dsv41c.ir.dims import prime_assignments
from dsv41c.ir.effects import cache_reads, cache_users, cache_writes, callee_of, stand_in
from dsv41c.ir.ops.program import Call, Launch
from dsv41c.ir.shapes import Memo, ShapeEvaluator, check_results
from dsv41c.ir.text import line_of
from dsv41c.ir.types import CacheType, TensorType


def verify(module: ModuleOp, memo: Memo | None = None) -> None:
    """Check a module.

    Args:
        memo: results of shape rules to reuse and extend; pass one dict to all verifications of a pipeline.

    Raises:
        IRError: naming the op, its line of text and the reason.
    """
    memo = {} if memo is None else memo
    names: set[str] = set()
    for op in module.body.block.ops:
        if not isinstance(op, FuncOp):
            raise _fault(op, f"'{op.name}' stands at the top of a module; only functions may")
        if op.sym_name.data in names:
            raise _fault(op, f"two functions are named '{op.sym_name.data}'")
        names.add(op.sym_name.data)
        _verify_func(op, module, memo)


def _verify_func(func: FuncOp, module: ModuleOp, memo: Memo) -> None:
    if func.is_declaration or len(func.body.blocks) != 1:
        raise _fault(func, f"function '{func.sym_name.data}' must have a body of one block")
    _checked(func, lambda: func.verify(verify_nested_ops=False))
    _verify_signature(func)
    ranges = get_symbols(func)
    evaluators = [ShapeEvaluator(assignment, memo) for assignment in prime_assignments(ranges)]
    defined: set[SSAValue] = set(func.args)
    for op in func.body.block.ops:
        _verify_op(op, func, module, defined, evaluators)
        defined.update(op.results)
    if not isinstance(func.body.block.last_op, ReturnOp):
        raise _fault(func, f"function '{func.sym_name.data}' does not end in func.return")
    _verify_state(func)


def _verify_signature(func: FuncOp) -> None:
    known = set(get_symbols(func))
    names = [argument.name_hint for argument in func.args]
    if len(set(names)) != len(names) and None not in names:
        raise _fault(func, f"function '{func.sym_name.data}' has two arguments of one name")
    for argument in func.args:
        if isinstance(argument.type, TensorType) and not argument.type.symbols <= known:
            missing = ", ".join(sorted(argument.type.symbols - known))
            raise _fault(func, f"argument %{argument.name_hint} uses {missing}; declare it in dsv41.symbols")
    if len(output_names(func)) != len(func.function_type.outputs):
        raise _fault(
            func, f"dsv41.outputs names {len(output_names(func))} of {len(func.function_type.outputs)} results"
        )


def _verify_op(
    op: Operation, func: FuncOp, module: ModuleOp, defined: set[SSAValue], evaluators: list[ShapeEvaluator]
) -> None:
    for operand in op.operands:
        if operand not in defined:
            raise _fault(op, f"%{operand.name_hint or '?'} is used before it is defined in '{func.sym_name.data}'")
    _checked(op, lambda: op.verify(verify_nested_ops=False))
    if isinstance(op, ReturnOp):
        return
    try:
        rule_of(op)
        if isinstance(op, Launch):
            stand_in(op).verify(verify_nested_ops=False)
        _verify_callee(op, module)
        for evaluator in evaluators:
            check_results(op, evaluator)
    except (IRError, VerifyException) as error:
        raise _fault(op, str(error)) from error


def _verify_callee(op: Operation, module: ModuleOp) -> None:
    callee = callee_of(op, module)
    if callee is None:
        return
    assert isinstance(op, Call | Launch)
    wanted, given = callee.function_type.inputs.data, op.operand_types
    fits = len(wanted) == len(given) == len(op.slots()) and all(map(_takes, wanted, given))
    if not fits:
        raise IRError(f"'{callee.sym_name.data}' takes ({_types(wanted)}); it is given ({_types(given)})")
    if callee.function_type.outputs.data != op.result_types:
        results = _types(callee.function_type.outputs.data)
        raise IRError(f"'{callee.sym_name.data}' gives ({results}); the {op.name} declares ({_types(op.result_types)})")
    if any(isinstance(type_, CacheType) for type_ in op.result_types):
        raise IRError(f"'{callee.sym_name.data}' gives a cache; outlined functions only read caches")


def _takes(wanted: Attribute, given: Attribute) -> bool:
    """Whether an argument of an outlined function takes a value: equal types, or a cache for one of any owner or for
    its storage; only the call sees which cache it is."""
    if not isinstance(given, CacheType):
        return wanted == given
    return wanted in (given, CacheType(replace(given.data, owner=-1)), given.storage)


def _types(types: Iterable[object]) -> str:
    return ", ".join(map(str, types))


def _verify_state(func: FuncOp) -> None:
    """Each cache value is stored to at most once, nothing reads a value stored over in place, no store is lost."""
    writer: dict[SSAValue, Operation] = {}
    overwritten: dict[SSAValue, Operation] = {}
    for op in func.body.block.ops:
        for value in cache_reads(op):
            if value in overwritten:
                raise _fault(op, f"reads %{value.name_hint} after this store in place: {line_of(overwritten[value])}")
        for value in cache_writes(op):
            if value in writer:
                raise _fault(
                    op, f"stores to %{value.name_hint}, to which this already stores: {line_of(writer[value])}"
                )
            writer[value] = op
            if "in_place" in op.attributes:
                overwritten[value] = op
    _verify_no_lost_store(func, writer)


def _verify_no_lost_store(func: FuncOp, writer: dict[SSAValue, Operation]) -> None:
    last = func.body.block.last_op
    returned = set(last.operands) if last is not None else set()
    for store in writer.values():
        for result in store.results:
            if isinstance(result.type, CacheType) and result not in writer and result not in returned:
                raise _fault(store, "stores to a cache whose last value is not returned; return it from the function")


def first_reader_after(store: Operation, order: Mapping[Operation, int]) -> Operation | None:
    """Give the first op after a store that reads the cache value it stored over, or its storage.

    Args:
        order: the place of each op in its function.
    """
    late = (op for value in cache_writes(store) for op in cache_users(value) if order[op] > order[store])
    return min(late, key=order.__getitem__, default=None)


def is_store(op: Operation) -> bool:
    """Whether an op writes a cache, as an op or as a launch."""
    return bool(cache_writes(op))


def _checked(op: Operation, check: object) -> None:
    assert callable(check)
    try:
        check()
    except (VerifyException, ValueError) as error:
        raise _fault(op, str(error)) from error


def _fault(op: Operation, reason: str) -> IRError:
    if isinstance(op, FuncOp):
        return IRError(reason)
    return IRError(f"{op.name}: {reason}\n  in: {line_of(op)}")
