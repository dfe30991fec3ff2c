"""A region to torch-mlir's text: the same ops with other type names, one op a line.

`!dsv41.tensor<[T, 128], bf16>` becomes `!torch.vtensor<[?,128],bf16>`; every op keeps its name and operand order. Two
ops are translated: `torch.aten.view.dtype`, for which torch-mlir has no lowering to linalg, becomes a `linalg.generic`
around `arith.bitcast`; a softmax over a short row, whose last bits are part of the model, becomes the steps that torch
takes.

Values are numbered, so the texts of two regions are equal exactly if the regions compute the same: this is what makes
forty layers share one kernel.
"""

from collections.abc import Mapping

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from dsv41c.errors import CompileError
from dsv41c.ir.builder import fixed_sizes
from dsv41c.ir.dims import evaluate, symbols_of
from dsv41c.ir.ops.aten import AtenOp
from dsv41c.ir.ops.torch_ops import ListConstruct, constant_value, is_constant
from dsv41c.ir.text import line_of
from dsv41c.ir.types import SCALARS, TensorType, type_text

__all__ = ["torch_text"]

_BITCAST = "torch.aten.view.dtype"
_SOFTMAX = "torch.aten.softmax.int"
_SHORT_ROW = 16
# Builtin tensors have no signed integers; torch_c converts ui8 to i8 and so on.
_SIGNLESS = {"ui8": "i8", "si8": "i8", "si16": "i16", "si32": "i32", "si64": "i64"}
_BITS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f8E4M3FN": 8, "i8": 8, "i16": 16, "i32": 32, "i64": 64}


def torch_text(func: FuncOp, name: str = "region", sizes: Mapping[str, int] | None = None) -> str:
    """Prints a region as a torch-mlir function.

    Args:
        func: its body holds aten ops, torch constants and lists; arguments and results are tensors.
        name: the function's name in the text; regions are compared under one and the same name.
        sizes: values for symbols, to make a kernel for these sizes only ({"T": 1} for decoding). A symbol whose range
            holds one value has that value; the others stay dynamic.

    Returns:
        One `func.func`, ending in a newline.

    Raises:
        CompileError: an op or type that torch-mlir does not have.
    """
    return _Writer(func, fixed_sizes(func) | dict(sizes or {})).function(name)


class _Writer:
    """Prints one region; holds the names of its values."""

    def __init__(self, func: FuncOp, sizes: Mapping[str, int]) -> None:
        self._func = func
        self._sizes = sizes
        self._names: dict[SSAValue, str] = {argument: f"%arg{i}" for i, argument in enumerate(func.args)}

    def function(self, name: str) -> str:
        arguments = ", ".join(f"{self._names[a]}: {self._tensor(a.type)}" for a in self._func.args)
        results = ", ".join(map(self._tensor, self._func.function_type.outputs))
        # All sizes of one symbol are equal and broadcasting is spelled out in the program: without this attribute each
        # dynamic size is compared with 1 at run time, and fusion stops there.
        attributes = "attributes {torch.assume_strict_symbolic_shapes}"
        lines = [f"  func.func @{name}({arguments}) -> ({results}) {attributes} {{"]
        for op in self._func.body.block.ops:
            lines += [f"    {line}" for line in self._lines(op)]
        return "\n".join([*lines, "  }", ""])

    def _lines(self, op: Operation) -> list[str]:
        self._name_results(op)
        operands = ", ".join(self._names[v] for v in op.operands)
        operand_types = ", ".join(self._type(v.type) for v in op.operands)
        result_types = ", ".join(self._type(v.type) for v in op.results)
        if isinstance(op, ReturnOp):
            return [f"return {operands} : {operand_types}"]
        if is_constant(op):
            return [f"{self._names[op.results[0]]} = {_constant_text(op)}"]
        if isinstance(op, ListConstruct):
            items = f"{operands} " if operands else ""
            return [f"{self._names[op.result]} = {op.name} {items}: ({operand_types}) -> {result_types}"]
        if op.name == _BITCAST:
            return self._bitcast_lines(op)
        if op.name == _SOFTMAX and _is_over_a_short_row(op):
            return self._softmax_lines(op)
        if isinstance(op, AtenOp):
            count = f":{len(op.results)}" if len(op.results) > 1 else ""
            results = self._names[op.results[0]].partition("#")[0] + count
            return [f"{results} = {op.name} {operands} : {operand_types} -> {result_types}"]
        raise self._error(
            f"op '{op.name}' cannot go to torch-mlir, which takes torch.aten.*, torch.constant.* and "
            f"torch.prim.ListConstruct; leave it outside of regions: {line_of(op)}"
        )

    def _name_results(self, op: Operation) -> None:
        base = f"%v{len(self._names)}"
        for i, result in enumerate(op.results):
            self._names[result] = base if len(op.results) == 1 else f"{base}#{i}"

    def _bitcast_lines(self, op: Operation) -> list[str]:
        source, target = op.operands[0].type, op.results[0].type
        assert isinstance(source, TensorType)
        assert isinstance(target, TensorType)
        from_element, to_element = (_SIGNLESS.get(t.element, t.element) for t in (source, target))
        if _BITS.get(from_element) is None or _BITS.get(from_element) != _BITS.get(to_element):
            raise self._error(
                f"{_BITCAST} from {source.element} to {target.element}: supported are two element types of equal "
                f"width, not i1; take bytes apart with shifts instead: {line_of(op)}"
            )
        value, sizes = self._names[op.results[0]], self._size_texts(source)
        from_type, to_type = (f"tensor<{''.join(f'{s}x' for s in sizes)}{e}>" for e in (from_element, to_element))
        dynamic = [i for i, size in enumerate(sizes) if size == "?"]
        dims = ", ".join(f"d{i}" for i in range(len(sizes)))
        identity = f"affine_map<({dims}) -> ({dims})>"
        loops = ", ".join(['"parallel"'] * len(sizes))
        operand = f"{self._names[op.operands[0]]} : {self._tensor(source)}"
        lines = [f"{value}_in = torch_c.to_builtin_tensor {operand} -> {from_type}"]
        for i in dynamic:
            lines.append(f"{value}_c{i} = arith.constant {i} : index")
            lines.append(f"{value}_d{i} = tensor.dim {value}_in, {value}_c{i} : {from_type}")
        return [
            *lines,
            f"{value}_init = tensor.empty({', '.join(f'{value}_d{i}' for i in dynamic)}) : {to_type}",
            f"{value}_out = linalg.generic {{indexing_maps = [{identity}, {identity}], iterator_types = [{loops}]}} "
            f"ins({value}_in : {from_type}) outs({value}_init : {to_type}) {{",
            f"^bb0(%bits: {from_element}, %unused: {to_element}):",
            f"  %cast = arith.bitcast %bits : {from_element} to {to_element}",
            f"  linalg.yield %cast : {to_element}",
            f"}} -> {to_type}",
            f"{value} = torch_c.from_builtin_tensor {value}_out : {to_type} -> {self._tensor(target)}",
        ]

    def _softmax_lines(self, op: Operation) -> list[str]:
        """As torch computes it: exponentials summed first to last, times the reciprocal of their sum."""
        source = op.operands[0].type
        assert isinstance(source, TensorType)
        x, result = self._names[op.operands[0]], self._names[op.results[0]]
        row, one = self._tensor(source), self._tensor(TensorType.of([*source.dims[:-1], 1], source.element))
        columns = range(int(source.dims[-1]))
        v = f"{result}_"
        lines = [
            f"{v}last = torch.constant.int -1",
            f"{v}step = torch.constant.int 1",
            f"{v}keep = torch.constant.bool true",
            f"{v}dims = torch.prim.ListConstruct {v}last : (!torch.int) -> !torch.list<int>",
            f"{v}max = torch.aten.amax {x}, {v}dims, {v}keep : {row}, !torch.list<int>, !torch.bool -> {one}",
            f"{v}shift = torch.aten.sub.Tensor {x}, {v}max, {v}step : {row}, {one}, !torch.int -> {row}",
            f"{v}exp = torch.aten.exp {v}shift : {row} -> {row}",
        ]
        ints = ", ".join(["!torch.int"] * 4)
        for i in columns:
            lines += [
                f"{v}from{i} = torch.constant.int {i}",
                f"{v}to{i} = torch.constant.int {i + 1}",
                f"{v}e{i} = torch.aten.slice.Tensor {v}exp, {v}last, {v}from{i}, {v}to{i}, {v}step "
                f": {row}, {ints} -> {one}",
            ]
        total = f"{v}e0"
        for i in columns[1:]:
            lines.append(
                f"{v}sum{i} = torch.aten.add.Tensor {total}, {v}e{i}, {v}step : {one}, {one}, !torch.int -> {one}"
            )
            total = f"{v}sum{i}"
        return [
            *lines,
            f"{v}inverse = torch.aten.reciprocal {total} : {one} -> {one}",
            f"{result} = torch.aten.mul.Tensor {v}exp, {v}inverse : {row}, {one} -> {row}",
        ]

    def _type(self, type_: Attribute) -> str:
        return type_text(type_) if isinstance(type_, SCALARS) else self._tensor(type_)

    def _tensor(self, type_: Attribute) -> str:
        if isinstance(type_, TensorType):
            return f"!torch.vtensor<[{','.join(self._size_texts(type_))}],{type_.element}>"
        raise self._error(
            f"a value of type {type_text(type_)} cannot go to torch-mlir; tensors and torch scalars can, caches and "
            f"what reads them stay outside of regions"
        )

    def _size_texts(self, type_: TensorType) -> list[str]:
        known = self._sizes.keys()
        return [str(evaluate(dim, self._sizes)) if symbols_of(dim) <= known else "?" for dim in type_.dims]

    def _error(self, text: str) -> CompileError:
        return CompileError(f"region '{self._func.sym_name.data}': {text}")


def _is_over_a_short_row(op: Operation) -> bool:
    """Whether a softmax goes over a last dimension of few columns, in fp32."""
    x = op.operands[0].type
    assert isinstance(x, TensorType)
    dim, dtype = (constant_value(operand.owner) for operand in op.operands[1:] if isinstance(operand.owner, Operation))
    columns = x.dims[-1]
    is_last = dim in (-1, len(x.dims) - 1) and dtype is None and x.element == "f32"
    return is_last and isinstance(columns, int) and columns <= _SHORT_ROW


def _constant_text(op: Operation) -> str:
    # Without the name, and without the origin that may follow the value.
    return line_of(op).partition(" = ")[2].split(" {", 1)[0]
