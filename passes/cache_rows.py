"""What the three passes share that make one op of a cache row's norm, RoPE, quantization, packing and store."""

from collections.abc import Iterator, Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.utils.test_value import create_ssa_value

from dsv41c.errors import CompileError
from dsv41c.ir.builder import attribute, functions
from dsv41c.ir.names import replace_op
from dsv41c.ir.ops.custom import Quantize, Rotary
from dsv41c.ir.ops.pack import PackRows, WriteRows
from dsv41c.ir.ops.state import Store
from dsv41c.ir.ops.torch_ops import constant_value, is_constant
from dsv41c.ir.text import line_of
from dsv41c.ir.types import TensorType
from dsv41c.passes.pass_base import PassContext, PassResult
from dsv41c.passes.patterns import match_definition


def lower_rows(module: ModuleOp, ctx: PassContext, kind: str, has_norm: bool, stores: bool) -> PassResult:
    """Lower the rows of all stores to caches of a kind.

    Args:
        kind: of the caches, e.g. "window".
        has_norm: whether a norm stands before the rotation, as part of the row.
        stores: whether the store becomes part of the op.
    Returns:
        counts `row` and `store`.
    """
    counts = {"row": 0, "store": 0}
    for func in functions(module).values():
        for store in list(stores_of(func, kind)):
            quantize = store.rows.owner
            packed = _pack(quantize, func, ctx, has_norm) if isinstance(quantize, Quantize) else None
            if packed is None:
                continue
            replace_op(quantize, packed)  # type: ignore[arg-type]  # a Quantize, above
            counts["row"] += 1
            if stores and len(list(packed.result.uses)) == 1:
                replace_op(store, _write(store, packed))
                packed.detach()
                packed.erase()
                counts["store"] += 1
    return PassResult(counts["row"] > 0, counts)


def expected_rows(module: ModuleOp, ctx: PassContext, kind: str, stores: bool) -> Mapping[str, int] | None:
    """Every store of a traced model's cache is one to lower; None for a module without a config."""
    if ctx.config is None:
        return None
    count = sum(1 for func in functions(module).values() for _ in stores_of(func, kind))
    return {"row": count, "store": count if stores else 0}


def stores_of(func: FuncOp, kind: str) -> Iterator[Store]:
    """The stores to caches of a kind, in program order."""
    for op in func.body.block.ops:
        if isinstance(op, Store) and op.cache_type("cache").data.kind == kind:
            yield op


def _pack(quantize: Quantize, func: FuncOp, ctx: PassContext, has_norm: bool) -> PackRows | None:
    """The op that computes the same rows, or None where they are computed otherwise."""
    x = quantize.x.type
    assert isinstance(x, TensorType)
    eps = _norm_eps(quantize) if has_norm else 0.0
    if eps is None or not isinstance(x.dims[-1], int):
        return None
    weight = TensorType.of([x.dims[-1]], "bf16") if has_norm else None
    attributes = {"norm_eps": attribute(eps), "row_format": quantize.row_format}
    for rotation in rotations(func):
        types = (x, rotation, rotation, weight)
        sample = PackRows.from_slots(
            [None if type_ is None else create_ssa_value(type_) for type_ in types],
            quantize.result_types,
            dict(attributes),
        )
        definition = ctx.define(sample)
        if definition is None:
            raise CompileError(f"the target defines no dsv41.pack_rows, which {line_of(quantize)} would become")
        found = match_definition(definition, quantize.result)
        if found is not None:
            return PackRows.from_slots([*found, *([] if has_norm else [None])], quantize.result_types, attributes)
    return None


def _write(store: Store, packed: PackRows) -> WriteRows:
    operands = [store.cache, packed.x, packed.cos, packed.sin, packed.weight, store.slots_]
    attributes = {**packed.attributes, **store.attributes}
    return WriteRows.from_slots(operands, store.result_types, attributes)


def rotations(func: FuncOp) -> list[TensorType]:
    """The types of the program's rotations, each once."""
    found = [op.cos.type for op in func.body.block.ops if isinstance(op, Rotary)]
    return [type_ for type_ in dict.fromkeys(found) if isinstance(type_, TensorType)]


def _norm_eps(quantize: Quantize) -> float | None:
    """What the nearest norm before a quantization adds to its mean square."""
    seen: set[SSAValue] = set()
    waiting: list[SSAValue] = [quantize.x]
    while waiting:
        value = waiting.pop(0)
        if value in seen or not isinstance(value.owner, Operation):
            continue
        seen.add(value)
        if value.owner.name == "torch.aten.rsqrt":
            return _added(value.owner.operands[0])
        waiting += value.owner.operands
    return None


def _added(value: SSAValue) -> float | None:
    op = value.owner
    if not isinstance(op, Operation) or op.name != "torch.aten.add.Scalar":
        return None
    scalar = op.operands[1].owner
    found = constant_value(scalar) if isinstance(scalar, Operation) and is_constant(scalar) else None
    return found if isinstance(found, float) else None
