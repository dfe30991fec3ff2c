"""From an exported program to dsv41 IR: one op a node, in the order of the trace.

What changes on the way:

    parameter, buffer                     -> dsv41.weight, from the checkpoint or derived from the config
    a cache input that `store` mutates    -> a chain of cache values; readers take the value they read
    split_with_sizes, chunk               -> one torch.aten.slice.Tensor a piece, so that no op has a list of results
    _assert_tensor_metadata and the like  -> nothing: the types of the IR say the same
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.export.graph_signature import InputKind
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue

from dsv41c.compiler.trace import Trace
from dsv41c.errors import CompileError
from dsv41c.ir.builder import FunctionBuilder
from dsv41c.ir.ops.aten import aten_name
from dsv41c.ir.types import INT, CacheType, TensorType
from dsv41c.models.config import ModelConfig
from dsv41c.models.state import state_specs
from dsv41c.models.weights import checkpoint_name

_SOURCE_LINE = re.compile(r'File "[^"]*?([^/"]+\.py)", line (\d+)')
_DROPPED = {
    torch.ops.aten._assert_tensor_metadata.default,
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
}
_SIZE_ARITHMETIC = {
    operator.mul: "mul.int",
    operator.add: "add.int",
    operator.sub: "sub.int",
    operator.floordiv: "floordiv.int",
}
_PYTHON_SPELLED = {
    torch.ops.aten.__and__.Tensor: torch.ops.aten.bitwise_and.Tensor,
    torch.ops.aten.__or__.Tensor: torch.ops.aten.bitwise_or.Tensor,
}


def import_program(name: str, trace: Trace, config: ModelConfig, page_tokens: int) -> FuncOp:
    """Imports a step program.

    Args:
        name: the function's name.
        trace: its inputs that are caches carry the names of `state_specs`.
        config, page_tokens: give the caches their layouts.
    Errors: CompileError for a node that has no place in the IR.
    """
    caches = {
        spec.name: CacheType.of(spec.kind, spec.owner, spec.ratio, spec.page, spec.row_format, spec.channels)
        for spec in state_specs(config, page_tokens)
    }
    return _Importer(name, trace, caches).run()


def import_definition(name: str, trace: Trace) -> FuncOp:
    """Imports the trace of a custom op's definition; all its inputs are tensors."""
    return _Importer(name, trace, {}).run()


class _Importer:
    def __init__(self, name: str, trace: Trace, caches: Mapping[str, CacheType]) -> None:
        self.trace = trace
        self.graph = trace.program.graph
        self.values: dict[fx.Node, Any] = {}
        self.pieces: dict[tuple[fx.Node, int], SSAValue] = {}
        self.user_inputs = self._user_inputs()
        self.symbols = self._symbol_names()
        inputs: dict[str, Attribute] = {
            label: caches.get(label, self._tensor_type(node.meta["val"])) for label, node in self.user_inputs.items()
        }
        self.builder = FunctionBuilder(name, inputs, trace.symbols)

    def _user_inputs(self) -> dict[str, fx.Node]:
        nodes = {node.name: node for node in self.graph.nodes if node.op == "placeholder"}
        specs = self.trace.program.graph_signature.input_specs
        names = [spec.arg.name for spec in specs if spec.kind == InputKind.USER_INPUT and hasattr(spec.arg, "name")]
        tensors = [name for name in names if isinstance(nodes[name].meta.get("val"), torch.Tensor)]
        return {label: nodes[name] for label, name in zip(self.trace.inputs, tensors, strict=True)}

    def _symbol_names(self) -> dict[sympy.Symbol, sympy.Symbol]:
        """The exporter's symbols by the names that the trace declared."""
        names: dict[sympy.Symbol, sympy.Symbol] = {}
        for label, node in self.user_inputs.items():
            for size, name in zip(node.meta["val"].shape, self.trace.inputs[label], strict=True):
                if isinstance(name, str) and isinstance(size, torch.SymInt):
                    names[size.node.expr] = sympy.Symbol(name, integer=True, positive=True)
        return names

    def _tensor_type(self, value: torch.Tensor) -> TensorType:
        return TensorType.of([self._dim(size) for size in value.shape], value.dtype)

    def _dim(self, size: int | torch.SymInt) -> int | str:
        if isinstance(size, int):
            return size
        return str(size.node.expr.xreplace(self.symbols))

    def run(self) -> FuncOp:
        for label, node in self.user_inputs.items():
            self.values[node] = self.builder.args[label]
        for spec in self.trace.program.graph_signature.input_specs:
            if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                self._import_weight(spec)
        for node in self.graph.nodes:
            if node.op == "call_function":
                self._import_call(node)
        output = next(node for node in self.graph.nodes if node.op == "output")
        results = dict(zip(self.trace.outputs, output.args[0], strict=True))
        outputs = {label: self.values[node] for label, node in results.items()}
        for label, node in self.user_inputs.items():
            if isinstance(self.builder.args[label].type, CacheType):
                outputs[label] = self.values[node]
        return self.builder.finish(outputs)

    def _import_weight(self, spec: Any) -> None:
        node = next(node for node in self.graph.nodes if node.name == spec.arg.name)
        if not node.users:
            return
        is_parameter = spec.kind == InputKind.PARAMETER
        name = checkpoint_name(spec.target) if is_parameter else spec.target
        source = "checkpoint" if is_parameter else "derived"
        self.values[node] = self.builder.weight(name, self._tensor_type(node.meta["val"]), source)

    def _import_call(self, node: fx.Node) -> None:
        self.builder.origin = _origin(node)
        target: Any = node.target
        if target in _DROPPED:
            return
        if target is operator.getitem:
            self.values[node] = self._piece(node)
        elif target in _SIZE_ARITHMETIC:
            operands = [self._operand(argument) for argument in node.args]
            self.values[node] = self.builder.aten(_SIZE_ARITHMETIC[target], operands, [INT], [node.name])[0]
        elif not isinstance(target, torch._ops.OpOverload):
            raise self._refusal(node, "is no torch operator")
        elif target.namespace == "dsv41":
            self._import_custom(node, target)
        elif target.namespace == "aten":
            self._import_aten(node, target)
        else:
            raise self._refusal(node, f"belongs to '{target.namespace}'; aten and dsv41 ops are supported")

    def _refusal(self, node: fx.Node, reason: str) -> CompileError:
        where = _origin(node) or "the trace"
        return CompileError(f"node '{node.name}' ({node.target}) {reason}; it comes from {where}")

    def _import_aten(self, node: fx.Node, target: torch._ops.OpOverload) -> None:
        if target is torch.ops.aten.sym_size.int:
            self.values[node] = self.builder.aten("size.int", self._operands(node.args), [INT], [node.name])[0]
            return
        if target in (torch.ops.aten.split_with_sizes.default, torch.ops.aten.chunk.default):
            self._import_split(node)
            return
        target = _with_scalar(_PYTHON_SPELLED.get(target, target), node)
        operands = self._operands(node.args)
        keywords = {key: self._operand(value) for key, value in node.kwargs.items()}
        types = [self._tensor_type(value) for value in _results(node)]
        results = self.builder.aten(aten_name(target), operands, types, [node.name], **keywords)
        self.values[node] = results[0] if len(results) == 1 else list(results)

    def _import_split(self, node: fx.Node) -> None:
        source, axis = node.args[0], node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
        assert isinstance(source, fx.Node)
        assert isinstance(axis, int)
        start, pieces = 0, []
        for index, piece in enumerate(node.meta["val"]):
            end = start + piece.shape[axis]
            operands = [self.values[source], axis, start, end, 1]
            name = f"{node.name}_{index}"
            pieces.append(self.builder.aten("slice.Tensor", operands, [self._tensor_type(piece)], [name])[0])
            start = end
        self.values[node] = pieces

    def _import_custom(self, node: fx.Node, target: torch._ops.OpOverload) -> None:
        arguments = target._schema.arguments
        given = dict(zip((argument.name for argument in arguments), node.args, strict=False)) | dict(node.kwargs)
        operands, attributes = [], {}
        for argument in arguments:
            value: Any = given.get(argument.name, argument.default_value)
            if "Tensor" in str(argument.type):
                operands.append(None if value is None else self.values[value])
            else:
                attributes[argument.name] = value
        op = target._opname
        if op == "store":
            cache = node.args[0]
            assert isinstance(cache, fx.Node)
            old = self.values[cache]
            # Later readers of the cache's node take the new value; those before keep the old one.
            self.values[cache] = self.builder.dsv41(op, operands, [old.type], attributes, [str(old.name_hint)])[0]
            return
        types = [self._tensor_type(value) for value in _results(node)]
        results = self.builder.dsv41(op, operands, types, attributes, [node.name])
        self.values[node] = results[0] if len(results) == 1 else list(results)

    def _piece(self, node: fx.Node) -> SSAValue:
        source, index = node.args
        assert isinstance(source, fx.Node)
        assert isinstance(index, int)
        return self.values[source][index]

    def _operands(self, arguments: Sequence[Any]) -> list[Any]:
        return [self._operand(argument) for argument in arguments]

    def _operand(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return self.values[argument]
        if isinstance(argument, list | tuple):
            return [self._operand(item) for item in argument]
        if isinstance(argument, torch.device):
            return None  # placement is the plan's business, not the trace's
        return argument


def _with_scalar(target: torch._ops.OpOverload, node: fx.Node) -> torch._ops.OpOverload:
    """The overload for a number as the second operand: torch takes `mul.Tensor(x, 2)`, torch-mlir only `mul.Scalar`."""
    takes_tensors = [argument for argument in target._schema.arguments[:2] if str(argument.type) == "Tensor"]
    second = node.args[1] if len(node.args) > 1 else None
    value = second.meta["val"] if isinstance(second, fx.Node) else second
    if len(takes_tensors) < 2 or not isinstance(value, int | float | torch.SymInt):
        return target
    return getattr(target.overloadpacket, "Scalar", target)


def _results(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta["val"]
    return list(value) if isinstance(value, list | tuple) else [value]


def _origin(node: fx.Node) -> str | None:
    """The line of the network that a node comes from, e.g. "attention.py:41"."""
    lines = _SOURCE_LINE.findall(node.meta.get("stack_trace") or "")
    return f"{lines[-1][0]}:{lines[-1][1]}" if lines else None
