"""Which functions work row by row: row r of every result needs row r of some arguments, and others as a whole.

    func @region(%x: <[T, 8], f32>, %table: <[T, 8], f32>, %row: <[T], si64>) -> <[T, 8], f32>
      %t = torch.aten.index.Tensor_hacked_twin %table, [%row]        any row of %table
      %y = torch.aten.mul.Tensor %x, %t                              row r of %x
    rows_of -> {0, 2}: %x and %row may be cut into tiles of rows, %table may not

Such a function gives the same result over all rows at once and over one tile of them after the other. What is not known
to be row by row counts as not so.
"""

from collections.abc import Collection, Iterator, Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from dsv41c.ir.effects import cache_writes, callee_of
from dsv41c.ir.ops.aten import PREFIX, AtenOp
from dsv41c.ir.ops.program import Launch, Weight
from dsv41c.ir.ops.torch_ops import ListConstruct, constant_value, is_constant
from dsv41c.ir.types import TensorType

ROWS = "T"

# Operands of the custom ops that are read at the row that is written; every other operand is read as a whole.
KERNEL_ROWS: Mapping[str, Collection[int]] = {
    "dsv41.sparse_attention": (0, 3, 5),
    "dsv41.index_topk": (0, 1, 4, 5, 6),
    "dsv41.index_pool_topk": (0, 1, 4, 5, 6),
    "dsv41.attend": (0, 1, 2, 5, 7),
    "dsv41.linears": (0,),
    "dsv41.experts": (0, 1, 2),
    "dsv41.moe": (0, 1, 2),
    "dsv41.lookup": (2,),
    "dsv41.rotary": (0,),
}
# Over the dimensions that these name, the first is never one of them where an op counts as row by row.
_ONE_DIM = {
    **dict.fromkeys(("select.int", "slice.Tensor", "squeeze.dim", "unflatten.int", "argmax", "softmax.int"), 1),
    **dict.fromkeys(("amax", "sum.dim_IntList", "mean.dim", "cat", "stack", "gather"), 1),
}
_TWO_DIMS = {"transpose.int", "flatten.using_ints"}
# The first dimension of their result is a size that is given, or that of their operand.
_SIZED = {"full_like", "zeros_like", "expand", "view", "view.dtype", "alias"}
_ELEMENTWISE = {
    *("add", "sub", "rsub", "mul", "div", "maximum", "minimum", "clamp", "neg", "abs", "square", "sqrt", "rsqrt"),
    *("exp", "sigmoid", "softplus", "silu", "relu", "to", "where", "masked_fill", "eq", "ne", "lt", "le", "gt", "ge"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "logical_and", "logical_or", "logical_not"),
    *("__lshift__", "__rshift__", "remainder", "floor_divide", "pow", "reciprocal", "log", "cos", "sin"),
}


def starts_with_rows(type_: Attribute) -> bool:
    """Whether a type is a tensor with one row a token."""
    return isinstance(type_, TensorType) and bool(type_.dims) and type_.dims[0] == ROWS


def rows_of(func: FuncOp) -> frozenset[int] | None:
    """The arguments that a function reads at the row it writes.

    Args:
        func: an outlined function of aten ops.
    Returns:
        their places; None where the function is not known to work row by row. All other arguments, also those that
        have a row a token, are read as a whole.
    """
    results = func.body.block.last_op
    assert isinstance(results, ReturnOp)
    if not results.operands or not all(starts_with_rows(value.type) for value in results.operands):
        return None
    cut: set[SSAValue] = {argument for argument in func.args if starts_with_rows(argument.type)}
    while (culprits := _read_as_a_whole(func, cut)) is not None:
        if not (found := cut & culprits):
            return None
        cut -= found
    depends = _dependent(func, cut)
    # A result that no cut argument reaches would be made once a tile with the sizes of a tile.
    if not all(value in depends for value in results.operands):
        return None
    return frozenset(place for place, argument in enumerate(func.args) if argument in cut)


def _read_as_a_whole(func: FuncOp, cut: set[SSAValue]) -> set[SSAValue] | None:
    """The arguments behind the first op that does not work on rows of the cut ones alone; None if there is none."""
    sources: dict[SSAValue, set[SSAValue]] = {argument: {argument} for argument in func.args if argument in cut}
    for op in func.body.block.ops:
        if isinstance(op, ReturnOp):
            continue
        bad = _bad_operands(op, sources)
        if bad is not None:
            return {source for value in bad for source in sources[value]}
        own = {source for operand in op.operands for source in sources.get(operand, ())}
        if own:
            sources |= dict.fromkeys(op.results, own)
    return None


def _dependent(func: FuncOp, cut: set[SSAValue]) -> set[SSAValue]:
    found = set(cut)
    for op in func.body.block.ops:
        if found.intersection(op.operands):
            found.update(op.results)
    return found


def _bad_operands(op: Operation, cut: Mapping[SSAValue, object]) -> list[SSAValue] | None:
    """The cut operands of an op that is not row by row over them; None where it is, or where it has no cut operand."""
    rows = [operand for operand in op.operands if operand in cut]
    if not rows or is_constant(op) or isinstance(op, Weight | ListConstruct):
        return None
    if isinstance(op, AtenOp):
        return _bad_of_aten(op, op.name.removeprefix(PREFIX), rows, cut)
    return rows


def _bad_of_aten(op: AtenOp, name: str, rows: list[SSAValue], cut: Mapping[SSAValue, object]) -> list[SSAValue] | None:
    first, result = op.operands[0], op.results[0]
    if not starts_with_rows(result.type) or any(not _is_rows_or_scalars(value) for value in rows):
        # Also the number of rows as a scalar: what is made from it alone, such as an arange, knows of all rows.
        return rows
    if name == "index.Tensor_hacked_twin":
        return [first] if first in cut else None
    if name in ("embedding", "linear"):
        return [value for value in op.operands[1:] if value in cut] or None
    if name == "matmul":
        return None if first in cut and (op.operands[1] not in cut or _rank(op.operands[1]) > 2) else rows
    if name == "unsqueeze":
        return None if _dim(op.operands[1], _rank(first) + 1) != 0 else rows
    if name in _TWO_DIMS:
        dims = {_dim(op.operands[1], _rank(first)), _dim(op.operands[2], _rank(first))}
        return None if None not in dims and 0 not in dims else rows
    if name in _ONE_DIM:
        return None if _keeps_rows(op) else rows
    if name in _SIZED:
        return None if first in cut else rows
    if name.split(".")[0] in _ELEMENTWISE:
        return None if all(_aligned(value, result, cut) for value in op.operands) else rows
    return rows


def _is_rows_or_scalars(value: SSAValue) -> bool:
    if isinstance(value.owner, ListConstruct):
        return all(starts_with_rows(item.type) for item in value.owner.operands if isinstance(item.type, TensorType))
    return starts_with_rows(value.type)


def _keeps_rows(op: AtenOp) -> bool:
    """Whether an op over named dimensions leaves the first one alone."""
    items = list(_items(op.operands[0]))
    place = op.operands[1]
    rank = _rank(items[0]) + (op.name.startswith(f"{PREFIX}stack"))
    dims = [_dim(value, rank) for value in _items(place)]
    if op.name == f"{PREFIX}gather":
        return dims != [0] and None not in dims
    return bool(dims) and None not in dims and 0 not in dims


def _items(value: SSAValue) -> Iterator[SSAValue]:
    if isinstance(value.owner, ListConstruct):
        yield from value.owner.operands
    else:
        yield value


def _aligned(value: SSAValue, result: SSAValue, cut: Mapping[SSAValue, object]) -> bool:
    """Whether an elementwise operand has its rows where the result has them, or no rows at all."""
    if not isinstance(value.type, TensorType):
        return True
    if value in cut:
        return _rank(value) == _rank(result)
    return _rank(value) < _rank(result) or value.type.dims[0] == 1


def _rank(value: SSAValue) -> int:
    return len(value.type.dims) if isinstance(value.type, TensorType) else 0


def _dim(value: SSAValue, rank: int) -> int | None:
    """A constant dimension counted from the front; None where it is not a constant."""
    owner = value.owner
    found = constant_value(owner) if isinstance(owner, Operation) and is_constant(owner) else None
    return found % rank if isinstance(found, int) and not isinstance(found, bool) else None


def reads_other_rows(op: Operation) -> SSAValue | None:
    """The operand of which an op that gives one row a token takes rows by index, if it does: any row of any token."""
    if op.name != f"{PREFIX}index.Tensor_hacked_twin" or not starts_with_rows(op.results[0].type):
        return None
    return op.operands[0] if starts_with_rows(op.operands[0].type) else None


def launch_rows(op: Launch, module: ModuleOp) -> frozenset[int] | None:
    """The operands that a launch reads at the row it writes; None where it is not known to work row by row."""
    if cache_writes(op):
        return None
    callee = callee_of(op, module)
    if callee is not None:
        return rows_of(callee)
    places = KERNEL_ROWS.get(f"dsv41.{op.kernel.data}")
    slots = op.slots()
    return None if places is None else frozenset(place for place in places if slots[place] is not None)
