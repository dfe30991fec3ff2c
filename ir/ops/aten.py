"""aten ops: one class an overload, made on demand from torch's own schema, spelled as torch-mlir spells it.

`torch.aten.mul.Tensor` is `torch.ops.aten.mul.Tensor`, `torch.aten.linear` its default overload. Every argument of the
schema is an operand; scalars are `torch.constant.*`, lists `torch.prim.ListConstruct`, dtypes torch's integer codes.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import torch
from xdsl.ir import Operation, OpTraits
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from dsv41c.errors import IRError
from dsv41c.ir.ops.syntax import PlainSyntax
from dsv41c.ir.ops.table import Argument, Cost, Effect, OpRule, Shaped, moved_bytes, precision_of
from dsv41c.ir.types import dtype_of, element_of

PREFIX = "torch.aten."
# torch's ScalarType codes, by which dtype arguments are spelled.
SCALAR_TYPES: dict[int, torch.dtype] = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
    24: torch.float8_e4m3fn,
}
SCALAR_TYPE_CODES = {dtype: code for code, dtype in SCALAR_TYPES.items()}
_MEMORY_FORMATS = {0: torch.contiguous_format, 1: torch.preserve_format}
MEMORY_FORMAT_CODES = {value: code for code, value in _MEMORY_FORMATS.items()}
_MATMULS = {"mm": 0, "bmm": 0, "matmul": 0, "linear": 0, "addmm": 1, "baddbmm": 1, "einsum": 0}
_REDUCTIONS = {"sum", "mean", "amax", "amin", "argmax", "argmin", "any", "all", "prod", "var", "logsumexp"}
# These read as many elements of their first operand as they give.
_GATHERS = {"embedding", "index", "index_select", "gather", "take_along_dim"}
# These move values, make them from nothing or change their type; none of it is arithmetic.
_MOVES = _GATHERS | {
    *("to", "_to_copy", "contiguous", "clone", "cat", "stack", "where", "masked_fill", "constant_pad_nd", "pad"),
    *("zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "empty", "empty_like", "arange"),
}
# These may alias in torch's schema, but move bytes whenever they do anything.
_COPIES = {"to", "contiguous", "clone"}


class AtenOp(PlainSyntax):
    """An aten op; the subclass for an overload carries its torch operator."""

    overload: ClassVar[torch._ops.OpOverload]
    traits: ClassVar[OpTraits] = OpTraits(lambda: (Pure(),))

    def verify_(self) -> None:
        schema = self.overload._schema
        if len(self.operands) != len(schema.arguments):
            names = ", ".join(argument.name for argument in schema.arguments)
            raise VerifyException(f"{self.name} has {len(self.operands)} operands; its schema asks for ({names})")
        if len(self.results) != len(schema.returns):
            given = len(schema.returns)
            raise VerifyException(f"{self.name} has {len(self.results)} results; its schema gives {given}")


@lru_cache(maxsize=4096)
def aten_class(name: str) -> type[AtenOp]:
    """Give the op class for a name such as `torch.aten.mul.Tensor`.

    Raises:
        IRError: torch knows no such operator, or it mutates an operand.
    """
    packet, _, overload_name = name.removeprefix(PREFIX).partition(".")
    try:
        overload = getattr(getattr(torch.ops.aten, packet), overload_name or "default")
    except AttributeError as error:
        raise IRError(f"op '{name}' is unknown: torch has no aten::{name.removeprefix(PREFIX)}") from error
    if overload._schema.is_mutable:
        raise IRError(f"op '{name}' mutates an operand; programs are functional, state changes only in dsv41.store")
    members = {"name": name, "overload": overload, "__doc__": str(overload)}
    return type(f"Aten_{packet}_{overload_name}", (AtenOp,), members)


def aten_name(overload: torch._ops.OpOverload) -> str:
    """Spell a torch operator as torch-mlir does."""
    packet, _, overload_name = overload.name().removeprefix("aten::").partition(".")
    if (packet, overload_name) in (("index", "Tensor"),):
        return f"{PREFIX}index.Tensor_hacked_twin"
    packet = "size" if packet == "sym_size" else packet
    return f"{PREFIX}{packet}.{overload_name}" if overload_name else f"{PREFIX}{packet}"


def call_aten(op: Operation, operands: Sequence[Any], device: str | None = None) -> list[Any]:
    """Run an aten op on Python and torch values.

    Args:
        operands: one value an argument of the schema.
        device: where factories put their result when the program names no device.

    Returns:
        One value a result.
    """
    assert isinstance(op, AtenOp)
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for argument, converter, value in zip(op.overload._schema.arguments, _converters(type(op)), operands, strict=True):
        value = converter(value) if converter and value is not None else value
        value = device if argument.name == "device" and value is None else value
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            positional.append(value)
    if op.name.startswith("torch.aten.view"):
        # Values have no strides: a view of a transposed value is legal here though torch would refuse it.
        positional[0] = positional[0].contiguous()
    result = op.overload(*positional, **keywords)
    return list(result) if len(op.overload._schema.returns) > 1 else [result]


@lru_cache(maxsize=4096)
def _converters(op: type[AtenOp]) -> tuple[Any, ...]:
    return tuple(_converter(str(argument.real_type)) for argument in op.overload._schema.arguments)


def _converter(type_text: str) -> Any:
    if "ScalarType" in type_text:
        return lambda code: SCALAR_TYPES[code]
    if "MemoryFormat" in type_text:
        return lambda code: _MEMORY_FORMATS[code]
    if "Layout" in type_text:
        return lambda code: torch.strided
    return None


def _shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    results = call_aten(op, [_to_meta(operand) for operand in operands], device="meta")
    return [_from_meta(result) for result in results]


def _to_meta(argument: Argument) -> Any:
    if isinstance(argument, Shaped):
        return torch.empty(argument.shape, dtype=dtype_of(argument.element), device="meta")
    return [_to_meta(item) for item in argument] if isinstance(argument, list) else argument


def _from_meta(value: Any) -> Argument:
    if isinstance(value, torch.Tensor):
        return Shaped(tuple(value.shape), element_of(value.dtype))
    return [_from_meta(item) for item in value] if isinstance(value, list | tuple) else value


def _cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    assert isinstance(op, AtenOp)
    packet = op.name.removeprefix(PREFIX).split(".")[0]
    tensors = [operand for operand in operands if isinstance(operand, Shaped)]
    outputs = [result for result in results if isinstance(result, Shaped)]
    if not outputs or (is_view(op) and packet not in _COPIES):
        return Cost()
    read = moved_bytes(operands)
    if packet in _GATHERS:
        read = moved_bytes(operands[1:]) + moved_bytes(outputs)
    if packet in _MOVES:
        return Cost(read, moved_bytes(results))
    # What gives integers or booleans compares or counts; else the first operand says how it is computed.
    element = outputs[0].element if precision_of(dtype_of(outputs[0].element)) == "int" else tensors[0].element
    precision = precision_of(dtype_of(element))
    return Cost(read, moved_bytes(results), {precision: _flops(packet, operands, tensors, outputs)})


def is_gather(op: Operation) -> bool:
    """Whether an aten op reads only those elements of its first operand that it gives."""
    return isinstance(op, AtenOp) and op.name.removeprefix(PREFIX).split(".")[0] in _GATHERS


def is_view(op: Operation) -> bool:
    """Whether an aten op's result aliases an operand, so that it moves no bytes."""
    return isinstance(op, AtenOp) and any(returned.alias_info for returned in op.overload._schema.returns)


def _flops(packet: str, operands: Sequence[Argument], tensors: list[Shaped], outputs: list[Shaped]) -> int:
    count = sum(output.count for output in outputs)
    if packet == "einsum":
        return 2 * _einsum_extent(str(operands[0]), operands[1])
    if packet in _MATMULS:
        return 2 * count * tensors[_MATMULS[packet]].shape[-1]
    if packet.startswith("conv"):
        return 2 * count * math.prod(tensors[1].shape[1:])
    # A reduction touches its operand once an element, elementwise work its result.
    return tensors[0].count if packet in _REDUCTIONS else count


def _einsum_extent(equation: str, operands: Argument) -> int:
    assert isinstance(operands, list)
    terms = equation.replace(" ", "").split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, operands, strict=True):
        sizes.update(zip(term, tensor.shape, strict=True))
    return math.prod(sizes.values())


def aten_rule(op: Operation) -> OpRule:
    """Give the rule that all aten ops share."""
    return OpRule(type(op), shape=_shape, effect=Effect(), cost=_cost, reference=call_aten)
