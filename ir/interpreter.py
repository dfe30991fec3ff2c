"""Runs programs op by op with each op's torch reference: the meaning of a program, and slow."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from dsv41c.errors import IRError
from dsv41c.ir.builder import get_symbols, output_names
from dsv41c.ir.dialect import rule_of
from dsv41c.ir.dims import evaluate
from dsv41c.ir.effects import callee_of, module_of_op, stand_in
from dsv41c.ir.names import value_names
from dsv41c.ir.ops.program import Launch, Weight
from dsv41c.ir.ops.syntax import PlainSyntax
from dsv41c.ir.rows import ROWS
from dsv41c.ir.text import line_of
from dsv41c.ir.transient import Tile, cut_of, launches_of, tiles_of
from dsv41c.ir.types import CacheType, TensorType, element_of

WeightSource = Callable[[str], torch.Tensor | Sequence[torch.Tensor]]
Observer = Callable[[str, torch.Tensor], None]


class Interpreter:
    """Runs functions on torch tensors.

    Args:
        weights: gives a weight by its name, or the list of tensors that a bundle stacks.
        observe: called with the name and value of every tensor as it is computed; names are those of the text, with
            the caller's result in front inside outlined functions (`v7/mul_3`).
    """

    def __init__(self, weights: WeightSource, observe: Observer | None = None) -> None:
        self._weights = weights
        self._observe = observe

    def run(self, func: FuncOp, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run a function.

        Args:
            inputs: a tensor for each argument by name, caches included; none is changed.

        Returns:
            The outputs by name, final caches included.

        Raises:
            IRError: inputs that do not fit the signature or each other, or a result that is not of its declared type.
        """
        names = [str(argument.name_hint) for argument in func.args]
        if set(names) != set(inputs):
            missing, unknown = sorted(set(names) - set(inputs)), sorted(set(inputs) - set(names))
            raise IRError(f"'{func.sym_name.data}' lacks inputs {missing} and does not know {unknown}")
        symbols = bind_symbols(func, inputs)
        values = [_own(inputs[name], arg.type) for name, arg in zip(names, func.args, strict=True)]
        results = self._run(func, values, symbols, "")
        return dict(zip(output_names(func), results, strict=True))

    def _run(self, func: FuncOp, arguments: Sequence[Any], symbols: Mapping[str, int], prefix: str) -> list[Any]:
        names = value_names(func.body.block) if self._observe else {}
        module = module_of_op(func)
        values: dict[SSAValue, Any] = dict(zip(func.args, arguments, strict=True))
        tiles = {op: tile for tile in tiles_of(launches_of(func)) if tile.rows for op in tile.launches}
        for op in func.body.block.ops:
            if isinstance(op, ReturnOp):
                return [values[operand] for operand in op.operands]
            if isinstance(op, Launch) and op in tiles:
                if op is tiles[op].launches[-1]:
                    values |= self._run_tile(tiles[op], values, symbols, module)
                continue
            results = self._execute(op, values, symbols, module, prefix + names.get(op.results[0], "") if names else "")
            for result, value in zip(op.results, results, strict=True):
                values[result] = value
                self._report(op, result, value, symbols, prefix + names.get(result, ""))
        raise IRError(f"function '{func.sym_name.data}' does not end in func.return")

    def _run_tile(
        self, tile: Tile, values: Mapping[SSAValue, Any], symbols: Mapping[str, int], module: ModuleOp | None
    ) -> dict[SSAValue, Any]:
        """Run launches over one tile of rows after the other; gives what is needed behind them, put together."""
        parts: dict[SSAValue, list[torch.Tensor]] = {}
        for start in range(0, symbols[ROWS], tile.rows):
            end = min(start + tile.rows, symbols[ROWS])
            sizes = {**symbols, ROWS: end - start}
            own: dict[SSAValue, Any] = {}
            for op in tile.launches:
                cut = {slot for place, slot in enumerate(op.slots()) if place in cut_of(op)}
                rows = {slot: values[slot][start:end] for slot in cut if slot is not None and slot not in own}
                results = self._execute(op, {**values, **own, **rows}, sizes, module, "")
                for result, value in zip(op.results, results, strict=True):
                    own[result] = value
                    self._report(op, result, value, sizes, "")
            for kept in tile.results:
                parts.setdefault(kept, []).append(own[kept])
        return {result: torch.cat(own_parts) for result, own_parts in parts.items()}

    def _execute(
        self,
        op: Operation,
        values: Mapping[SSAValue, Any],
        symbols: Mapping[str, int],
        module: ModuleOp | None,
        name: str,
    ) -> Sequence[Any]:
        slots = op.slots() if isinstance(op, PlainSyntax | Launch) else op.operands
        operands = [None if slot is None else values[slot] for slot in slots]
        if isinstance(op, Weight):
            return [_weight(self._weights(op.symbol.data))]
        callee = callee_of(op, module)
        if callee is not None:
            return self._run(callee, operands, symbols, f"{name}/")
        actual = stand_in(op)
        try:
            return rule_of(actual).reference(actual, operands)
        except IRError:
            raise
        # A reference may raise anything torch raises; the reader needs the op that did.
        except Exception as error:
            raise IRError(f"{op.name} failed: {error}\n  in: {line_of(op)}") from error

    def _report(self, op: Operation, result: SSAValue, value: Any, symbols: Mapping[str, int], name: str) -> None:
        if not isinstance(value, torch.Tensor):
            return
        if isinstance(result.type, TensorType):
            _check(op, result.type, value, symbols)
        if self._observe is None:
            return
        # A cache may be written in place later; the observer keeps what it is now.
        self._observe(name, value.clone() if isinstance(result.type, CacheType) else value)


def bind_symbols(func: FuncOp, inputs: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Find the values of a function's symbols from its inputs, and check all sizes and dtypes against them.

    Raises:
        IRError: naming the argument that does not fit, or the symbol that is out of range or not bound.
    """
    types = {str(argument.name_hint): _tensor_type(argument.type) for argument in func.args}
    ranges = get_symbols(func)
    symbols: dict[str, int] = {}
    for name, type_ in types.items():
        if inputs[name].dim() != len(type_.dims):
            raise IRError(f"input '{name}' has shape {list(inputs[name].shape)}; it must be {type_}")
        for dim, size in zip(type_.dims, inputs[name].shape, strict=True):
            if isinstance(dim, str) and dim.isidentifier():
                symbols.setdefault(dim, size)
    for name, (low, high) in ranges.items():
        if name in symbols and not low <= symbols[name] <= high:
            raise IRError(f"symbol {name} is {symbols[name]}; '{func.sym_name.data}' is for {low} to {high}")
    for name, type_ in types.items():
        _check_input(name, type_, inputs[name], symbols)
    return symbols


def _check_input(name: str, type_: TensorType, value: torch.Tensor, symbols: Mapping[str, int]) -> None:
    try:
        wanted = [evaluate(dim, symbols) for dim in type_.dims]
    except ValueError as error:
        raise IRError(f"input '{name}' is {type_}: {error}") from error
    if list(value.shape) != wanted or value.dtype != type_.dtype:
        raise IRError(f"input '{name}' is {value.dtype} {list(value.shape)}; it must be {type_}, here {wanted}")


def _tensor_type(type_: object) -> TensorType:
    if isinstance(type_, CacheType):
        return type_.storage
    if isinstance(type_, TensorType):
        return type_
    raise IRError(f"an argument of type {type_} cannot be an input; inputs are tensors and caches")


def _own(value: torch.Tensor, type_: object) -> torch.Tensor:
    return value.clone() if isinstance(type_, CacheType) else value


def _weight(found: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    return found if isinstance(found, torch.Tensor) else torch.stack(list(found))


def _check(op: Operation, type_: TensorType, value: torch.Tensor, symbols: Mapping[str, int]) -> None:
    wanted = tuple(evaluate(dim, symbols) for dim in type_.dims)
    if tuple(value.shape) == wanted and value.dtype == type_.dtype:
        return
    found = f"{list(value.shape)} {element_of(value.dtype)}"
    raise IRError(f"{op.name} gave {found}; declared is {type_}, here {list(wanted)}\n  in: {line_of(op)}")
