"""Building programs op by op; what the importer and the passes write against."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FloatAttr, IntegerAttr, ModuleOp, StringAttr, f64, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from dsv41c.errors import IRError
from dsv41c.ir.dialect import OP_TABLE
from dsv41c.ir.names import set_name
from dsv41c.ir.ops.aten import MEMORY_FORMAT_CODES, PREFIX, SCALAR_TYPE_CODES, aten_class
from dsv41c.ir.ops.custom import CustomOp
from dsv41c.ir.ops.program import Call, Launch, Weight
from dsv41c.ir.ops.torch_ops import ListConstruct, constant
from dsv41c.ir.types import CacheType, TensorType, TorchList

SYMBOLS = "dsv41.symbols"
OUTPUTS = "dsv41.outputs"
ORIGIN = "origin"
# Marks a program that is only for many rows: it gets no form for a single one.
MANY_ROWS = "dsv41.many_rows"
Ranges = Mapping[str, tuple[int, int]]


def attribute(value: Any) -> Attribute:
    """Turn a Python int, float, str or sequence of these into an attribute; attributes pass through."""
    match value:
        case Attribute():
            return value
        case int():
            return IntegerAttr(value, i64)
        case float():
            return FloatAttr(value, f64)
        case str():
            return StringAttr(value)
        case list() | tuple():
            return ArrayAttr([attribute(item) for item in value])
    raise IRError(f"attribute value {value!r} is not an int, a float, a str or a list of these")


def set_symbols(func: FuncOp, ranges: Ranges) -> None:
    """Declare a function's symbols with their (smallest, largest) values."""
    func.attributes[SYMBOLS] = DictionaryAttr({name: attribute(list(bounds)) for name, bounds in ranges.items()})


def get_symbols(func: FuncOp) -> dict[str, tuple[int, int]]:
    """Give a function's symbols with their (smallest, largest) values."""
    declared = func.attributes.get(SYMBOLS)
    if declared is None:
        return {}
    assert isinstance(declared, DictionaryAttr)
    return {name: _range(bounds) for name, bounds in declared.data.items()}


def fixed_sizes(func: FuncOp) -> dict[str, int]:
    """The symbols whose range holds one value, with that value."""
    return {name: low for name, (low, high) in get_symbols(func).items() if low == high}


def has_one_row(func: FuncOp) -> bool:
    """Whether a function is for a single row: its number of rows, T, has no other value."""
    return fixed_sizes(func).get("T") == 1


def _range(bounds: Attribute) -> tuple[int, int]:
    assert isinstance(bounds, ArrayAttr)
    low, high = (item.value.data for item in bounds.data if isinstance(item, IntegerAttr))
    return low, high


def output_names(func: FuncOp) -> list[str]:
    """Give the names of a function's results; `result0`, ... where it declares none."""
    declared = func.attributes.get(OUTPUTS)
    if declared is None:
        return [f"result{index}" for index in range(len(func.function_type.outputs))]
    assert isinstance(declared, ArrayAttr)
    return [name.data for name in declared.data if isinstance(name, StringAttr)]


def functions(module: ModuleOp) -> dict[str, FuncOp]:
    """Give a module's functions by name."""
    return {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, FuncOp)}


class FunctionBuilder:
    """Appends ops to one function.

    Example:
        b = FunctionBuilder("step", {"x": TensorType.of(["T", 8], "f32")}, {"T": (1, 512)})
        b.origin = "norm.py:12"
        y = b.aten("mul.Tensor", [b.args["x"], b.args["x"]], [TensorType.of(["T", 8], "f32")], names=["y"])
        func = b.finish({"y": y[0]})

    Attributes:
        origin: written on every op that follows, e.g. "attention.py:41"; None writes nothing.
        args: the arguments by name.
    """

    def __init__(self, name: str, inputs: Mapping[str, Attribute], symbols: Ranges) -> None:
        self.block = Block(arg_types=list(inputs.values()))
        self.args: dict[str, SSAValue] = dict(zip(inputs, self.block.args, strict=True))
        for argument, value in self.args.items():
            set_name(value, argument)
        self.origin: str | None = None
        self._name = name
        self._symbols = symbols
        self._constants: dict[tuple[type, Any], SSAValue] = {}

    def add(self, op: Operation, names: Sequence[str] | None = None) -> Sequence[SSAValue]:
        """Append an op, note its origin, name its results, and give them."""
        if self.origin is not None and ORIGIN not in op.attributes:
            op.attributes[ORIGIN] = StringAttr(self.origin)
        for result, name in zip(op.results, names or (), strict=False):
            set_name(result, name)
        self.block.add_op(op)
        return op.results

    def const(self, value: int | float | bool | str | None) -> SSAValue:
        """Give the constant for a Python scalar; equal constants are one op."""
        # -0.0 equals 0.0 and nan nothing: the text tells floats apart.
        key = (type(value), repr(value))
        if key not in self._constants:
            op = constant(value)
            set_name(op.results[0], _constant_name(value))
            self.block.add_op(op)
            self._constants[key] = op.results[0]
        return self._constants[key]

    def list(self, items: Sequence[Any], element: str | None = None) -> SSAValue:
        """Make a list of values or Python scalars; `element` ("int", "vtensor", ...) only for an empty one."""
        values = [self.operand(item) for item in items]
        word = element or ("vtensor" if isinstance(values[0].type, TensorType) else values[0].type.name.split(".")[-1])
        op = ListConstruct.build(operands=[values], result_types=[TorchList(word)])
        return self.add(op, ["list"])[0]

    def operand(self, value: Any) -> SSAValue:
        """Turn a Python scalar, dtype, memory format or list into a value; values pass through."""
        if isinstance(value, SSAValue):
            return value
        if isinstance(value, torch.dtype):
            return self.const(SCALAR_TYPE_CODES[value])
        if isinstance(value, torch.memory_format):
            return self.const(MEMORY_FORMAT_CODES[value])
        if isinstance(value, torch.layout):
            return self.const(0)
        if isinstance(value, list | tuple):
            return self.list(value)
        return self.const(value)

    def aten(
        self,
        name: str,
        operands: Sequence[Any],
        result_types: Sequence[Attribute],
        names: Sequence[str] | None = None,
        **keywords: Any,
    ) -> Sequence[SSAValue]:
        """Append an aten op.

        Args:
            name: torch-mlir's spelling without `torch.aten.`, e.g. "mul.Tensor", "linear".
            operands: values, Python scalars, dtypes and lists, in schema order.
            result_types: one type a result.
            names: names for the results.
            keywords: further arguments by schema name; the rest take the schema's defaults.
        """
        op_class = aten_class(PREFIX + name.removeprefix(PREFIX))
        arguments = op_class.overload._schema.arguments
        if len(operands) > len(arguments):
            raise IRError(f"{op_class.name} takes {len(arguments)} arguments; {len(operands)} were given")
        values = list(operands)
        for argument in arguments[len(operands) :]:
            if argument.name not in keywords and not argument.has_default_value():
                raise IRError(f"{op_class.name} lacks its argument '{argument.name}'")
            values.append(keywords.pop(argument.name, argument.default_value))
        if keywords:
            raise IRError(f"{op_class.name} has no argument {', '.join(keywords)}")
        op = op_class.create(operands=[self.operand(value) for value in values], result_types=list(result_types))
        return self.add(op, names)

    def dsv41(
        self,
        name: str,
        operands: Sequence[SSAValue | None],
        result_types: Sequence[Attribute],
        attributes: Mapping[str, Any] | None = None,
        names: Sequence[str] | None = None,
    ) -> Sequence[SSAValue]:
        """Append a custom op by its torch name, e.g. `b.dsv41("quantize", [x], [t], {"row_format": "fp8_e8m0"})`.

        Args:
            operands: in the torch op's order; None for an absent optional one.
            attributes: its non-tensor arguments by name.
        """
        rule = OP_TABLE.get(f"dsv41.{name}")
        if rule is None or not issubclass(rule.op, CustomOp):
            known = [key.removeprefix("dsv41.") for key, known in OP_TABLE.items() if issubclass(known.op, CustomOp)]
            raise IRError(f"custom op '{name}' is unknown; supported are {', '.join(known)}")
        converted = {key: attribute(value) for key, value in (attributes or {}).items()}
        return self.add(rule.op.from_slots(operands, result_types, converted), names)

    def weight(self, name: str, type_: TensorType, source: str = "checkpoint") -> SSAValue:
        """Append a weight by its checkpoint name."""
        attributes: dict[str, Attribute] = {"name": StringAttr(name), "source": StringAttr(source)}
        return self.add(Weight.build(result_types=[type_], attributes=attributes), [name])[0]

    def call(
        self, callee: FuncOp, operands: Sequence[SSAValue], names: Sequence[str] | None = None
    ) -> Sequence[SSAValue]:
        """Append a call of an outlined function."""
        return self.add(Call.of(callee.sym_name.data, operands, callee.function_type.outputs.data), names)

    def launch(
        self,
        kernel: str,
        operands: Sequence[SSAValue | None],
        result_types: Sequence[Attribute],
        attributes: Mapping[str, Any] | None = None,
        names: Sequence[str] | None = None,
    ) -> Sequence[SSAValue]:
        """Append a launch of a kernel by name."""
        converted = {key: attribute(value) for key, value in (attributes or {}).items()}
        return self.add(Launch.of(kernel, operands, result_types, converted), names)

    def finish(self, outputs: Mapping[str, SSAValue]) -> FuncOp:
        """Return the named outputs and give the function."""
        self.block.add_op(ReturnOp(*outputs.values()))
        types = [argument.type for argument in self.block.args], [value.type for value in outputs.values()]
        func = FuncOp(self._name, types, Region(self.block))
        set_symbols(func, self._symbols)
        func.attributes[OUTPUTS] = attribute(list(outputs))
        return func


def module_of(funcs: Iterable[FuncOp]) -> ModuleOp:
    """Put functions into a module."""
    return ModuleOp(list(funcs))


def cache_inputs(func: FuncOp) -> dict[str, SSAValue]:
    """Give a function's cache arguments by name."""
    return {str(arg.name_hint): arg for arg in func.args if isinstance(arg.type, CacheType)}


def _constant_name(value: int | float | bool | str | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "str" if isinstance(value, str) else f"{type(value).__name__}{value}"
