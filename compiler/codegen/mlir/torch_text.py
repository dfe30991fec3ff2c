"""A region to torch-mlir's text: the same ops with other type names, one op a line.

`!dsv41.tensor<[T, 128], bf16>` becomes `!torch.vtensor<[?,128],bf16>`; every op keeps its name and operand order. The one
op that is translated is `torch.aten.view.dtype`, for which torch-mlir has no lowering to linalg: it becomes a
`linalg.generic` around `arith.bitcast`.

Values are numbered, so the texts of two regions are equal exactly if the regions compute the same: this is what makes
forty layers share one kernel.
"""

from dsv41c.errors import CompileError
from dsv41c.ir.ops.aten import AtenOp
from dsv41c.ir.ops.torch_ops import ListConstruct, is_constant
from dsv41c.ir.text import line_of
from dsv41c.ir.types import SCALARS, TensorType, type_text
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

__all__ = ["torch_text", "vtensor_text"]

_BITCAST = "torch.aten.view.dtype"
# Builtin tensors have no signed integers; torch_c converts ui8 to i8 and so on.
_SIGNLESS = {"ui8": "i8", "si8": "i8", "si16": "i16", "si32": "i32", "si64": "i64"}
_BITS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f8E4M3FN": 8, "i1": 8, "i8": 8, "i16": 16, "i32": 32, "i64": 64}


def torch_text(func: FuncOp, name: str = "region") -> str:
    """Prints a region as a torch-mlir function.

    Args:
        func: its body holds aten ops, torch constants and lists; arguments and results are tensors.
        name: the function's name in the text; regions are compared under one and the same name.

    Returns:
        One `func.func`, ending in a newline; for a module join several and wrap them in `module { }`.

    Raises:
        CompileError: an op or type that torch-mlir does not have.
    """
    region = func.sym_name.data
    names: dict[SSAValue, str] = {argument: f"%arg{i}" for i, argument in enumerate(func.args)}
    arguments = ", ".join(f"{names[a]}: {_tensor_type(a.type, region)}" for a in func.args)
    lines: list[str] = []
    for op in func.body.block.ops:
        lines += _op_lines(op, names, region)
    results = ", ".join(_tensor_type(t, region) for t in func.function_type.outputs)
    # All sizes of one symbol are equal and broadcasting is spelled out in the program: without this attribute each
    # dynamic size is compared with 1 at run time, and fusions stop there.
    head = f"  func.func @{name}({arguments}) -> ({results}) attributes {{torch.assume_strict_symbolic_shapes}} {{"
    return "\n".join([head, *lines, "  }", ""])


def vtensor_text(type_: TensorType) -> str:
    """Spells a tensor type as torch-mlir does; sizes that are not numbers become `?`."""
    return f"!torch.vtensor<[{','.join(_sizes(type_))}],{type_.element}>"


def _op_lines(op: Operation, names: dict[SSAValue, str], region: str) -> list[str]:
    _name_results(op, names)
    if isinstance(op, ReturnOp):
        values = ", ".join(names[v] for v in op.operands)
        return [f"    return {values} : {', '.join(_tensor_type(v.type, region) for v in op.operands)}"]
    if is_constant(op):
        literal = line_of(op).partition(" = ")[2].partition("{")[0].strip()
        return [f"    {names[op.results[0]]} = {literal}"]
    operands = ", ".join(names[v] for v in op.operands)
    operand_types = ", ".join(_type(v.type, region) for v in op.operands)
    if isinstance(op, ListConstruct):
        result = names[op.result]
        return [
            f"    {result} = {op.name} {operands} : ({operand_types}) -> {_type(op.result.type, region)}".replace(
                "  :", " :"
            )
        ]
    if op.name == _BITCAST:
        return _bitcast_lines(op, names, region)
    if isinstance(op, AtenOp):
        result_types = ", ".join(_type(v.type, region) for v in op.results)
        results = names[op.results[0]].partition("#")[0] + (f":{len(op.results)}" if len(op.results) > 1 else "")
        return [f"    {results} = {op.name} {operands} : {operand_types} -> {result_types}"]
    raise CompileError(
        f"region '{region}': op '{op.name}' cannot go to torch-mlir, which takes torch.aten.*, torch.constant.* and "
        f"torch.prim.ListConstruct; leave it outside of regions: {line_of(op)}"
    )


def _name_results(op: Operation, names: dict[SSAValue, str]) -> None:
    base = f"%{len(names)}"
    for i, result in enumerate(op.results):
        names[result] = base if len(op.results) == 1 else f"{base}#{i}"


def _bitcast_lines(op: Operation, names: dict[SSAValue, str], region: str) -> list[str]:
    source, result = op.operands[0], op.results[0]
    from_, to = source.type, result.type
    assert isinstance(from_, TensorType)
    assert isinstance(to, TensorType)
    from_element, to_element = _builtin_element(from_), _builtin_element(to)
    if _BITS[from_element] != _BITS[to_element] or "i1" in (from_element, to_element):
        raise CompileError(
            f"region '{region}': {_BITCAST} from {from_.element} to {to.element}: supported are element types of equal "
            f"width other than i1; take the bytes apart with shifts instead: {line_of(op)}"
        )
    # A name of its own, since MLIR's numbered names are digits only.
    value = names[result] = f"%v{names[result][1:]}"
    rank = len(from_.dims)
    from_type, to_type = (
        f"tensor<{''.join(f'{s}x' for s in _sizes(t))}{e}>" for t, e in ((from_, from_element), (to, to_element))
    )
    dims = ", ".join(f"d{i}" for i in range(rank))
    sizes, lines = (
        [],
        [f"    {value}_in = torch_c.to_builtin_tensor {names[source]} : {vtensor_text(from_)} -> {from_type}"],
    )
    for i, size in enumerate(_sizes(from_)):
        if size != "?":
            continue
        lines += [f"    {value}_c{i} = arith.constant {i} : index"]
        lines += [f"    {value}_d{i} = tensor.dim {value}_in, {value}_c{i} : {from_type}"]
        sizes.append(f"{value}_d{i}")
    identity = f"affine_map<({dims}) -> ({dims})>"
    loops = ", ".join(['"parallel"'] * rank)
    lines += [
        f"    {value}_init = tensor.empty({', '.join(sizes)}) : {to_type}",
        f"    {value}_out = linalg.generic {{indexing_maps = [{identity}, {identity}], iterator_types = [{loops}]}} "
        f"ins({value}_in : {from_type}) outs({value}_init : {to_type}) {{",
        f"    ^bb0(%bits: {from_element}, %unused: {to_element}):",
        f"      %cast = arith.bitcast %bits : {from_element} to {to_element}",
        f"      linalg.yield %cast : {to_element}",
        f"    }} -> {to_type}",
        f"    {value} = torch_c.from_builtin_tensor {value}_out : {to_type} -> {vtensor_text(to)}",
    ]
    return lines


def _builtin_element(type_: TensorType) -> str:
    return _SIGNLESS.get(type_.element, type_.element)


def _sizes(type_: TensorType) -> list[str]:
    return [str(dim) if isinstance(dim, int) else "?" for dim in type_.dims]


def _type(type_: Attribute, region: str) -> str:
    return type_text(type_) if isinstance(type_, SCALARS) else _tensor_type(type_, region)


def _tensor_type(type_: Attribute, region: str) -> str:
    if isinstance(type_, TensorType):
        return vtensor_text(type_)
    raise CompileError(
        f"region '{region}': a value of type {type_text(type_)} cannot go to torch-mlir; tensors and torch scalars can, "
        f"caches and everything that reads them stay outside of regions"
    )
