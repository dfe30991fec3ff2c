"""The definitions of custom ops as IR: their plain torch functions, traced for the operand types of an op.

An op without an entry has none, and runs as a kernel of the runtime on the CPU; docs/cpu-target.md shows why for each:

    store          mutates a cache
    index_topk     reads as many rows as each sequence has, and sorts
    experts        as many rows an expert as chose it; one expert is a function, see `Definitions.define_parts`
    rotary         cos and sin need an argument reduction that is exact to the largest position
    linears        torch's library uses the CPU's matrix instructions, IREE does not; what stands around is functions

For many rows more run there, although they have one:

    moe                as `experts` and `linears`, whose kernels it joins
    sparse_attention   rows share keys: unpacked once for a tile of rows instead of once a use
    attend             the same, with compiled rotations on both sides of a tile
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from dsv41c.compiler.importer import import_definition
from dsv41c.compiler.trace import trace_definition
from dsv41c.ir.builder import functions, get_symbols, has_one_row, set_symbols
from dsv41c.ir.ops.aten import AtenOp
from dsv41c.ir.ops.attend import Attend
from dsv41c.ir.ops.custom import CustomOp, Experts
from dsv41c.ir.ops.moe import Moe
from dsv41c.ir.ops.products import Linears
from dsv41c.ir.ops.state import SparseAttention
from dsv41c.ir.types import CacheType, TensorType
from dsv41c.models import attention_ops, mhc_ops, moe_ops, ops, pack_ops, packed_products, quant
from dsv41c.passes.pass_base import PassContext
from dsv41c.runtime.kernels.scratch import scratch_bytes

DEFINITIONS: Mapping[str, Callable[..., Any]] = {
    "dsv41.quantize": quant.quantize,
    "dsv41.dequantize": quant.dequantize,
    "dsv41.fake_quantize": quant.fake_quantize,
    "dsv41.dequantize_weight": quant.dequantize_weight,
    "dsv41.mhc_site": mhc_ops.mhc_site_definition,
    "dsv41.mhc_enter": mhc_ops.mhc_enter_definition,
    "dsv41.mhc_leave": mhc_ops.mhc_leave_definition,
    "dsv41.moe": moe_ops.moe_definition,
    "dsv41.route_experts": moe_ops.route_experts_definition,
    "dsv41.linear_fp8": packed_products.linear_fp8_by_rows,
    "dsv41.sinkhorn": ops.sinkhorn_definition,
    "dsv41.select_experts": ops.select_experts_definition,
    "dsv41.ngram_hash": ops.ngram_hash_definition,
    "dsv41.lookup": ops.lookup_definition,
    "dsv41.load": ops.load_definition,
    "dsv41.attend": attention_ops.attend_definition,
    "dsv41.sparse_attention": ops.sparse_attention_definition,
    "dsv41.pack_rows": pack_ops.pack_rows_definition,
}
# Sums over the last dimension: a compiler may add in any order, and the golden data shows the order that torch adds in.
ROW_SUMS: Mapping[str, Callable[..., Any]] = {
    "torch.aten.mean.dim": ops.mean_in_chains,
    "torch.aten.sum.dim_IntList": ops.sum_in_chains,
}
WHOLE = frozenset({"dsv41.attend", "dsv41.moe", "dsv41.sparse_attention"})
# Definitions so large that IREE would take most of its time for them, in every region that holds one.
ALONE = frozenset({"dsv41.attend", "dsv41.sparse_attention"})

_MOST_KEYS = 1 << 31  # rows that a kernel unpacks at once

# Definitions that hold custom ops: expanded before regions are cut, the inner ones with their regions.
COMPOSED = frozenset(
    f"dsv41.{name}" for name in ("mhc_site", "mhc_enter", "mhc_leave", "moe", "pack_rows", "route_experts")
)


@dataclass
class Definitions:
    """Gives definitions, each traced once for its operand types.

    Attributes:
        symbols: (smallest, largest) by symbol of the programs that ask.
    """

    symbols: Mapping[str, tuple[int, int]]
    _known: dict[tuple[Any, ...], FuncOp] = field(default_factory=dict, repr=False)

    def define(self, op: CustomOp | AtenOp) -> FuncOp | None:
        """The definition of an op as a function of its tensor operands, caches as their storage; None without one."""
        if isinstance(op, AtenOp):
            return self._define_row_sum(op)
        function = DEFINITIONS.get(op.name)
        if function is None:
            return None
        arguments = [None if slot is None else _argument(slot.type) for slot in op.slots()]
        return self._traced(op.name, function, [*arguments, *op.arguments()])

    def _define_row_sum(self, op: AtenOp) -> FuncOp | None:
        if op.name not in ROW_SUMS:
            return None
        source, result = op.operands[0].type, op.results[0].type
        assert isinstance(source, TensorType)
        assert isinstance(result, TensorType)
        *rows, columns = source.dims
        if list(result.dims) not in ([*rows], [*rows, 1]) or source.element != "f32":
            return None
        if not isinstance(columns, int) or columns % (ops.LANES * ops.CHAINS):
            return None
        keepdim = len(result.dims) == len(source.dims)
        return self._traced(op.name, ROW_SUMS[op.name], [_argument(source), keepdim])

    def define_parts(self, op: CustomOp) -> dict[str, FuncOp]:
        """The functions that the runtime's kernel for an op calls, by the attribute of the op that names each."""
        if isinstance(op, Moe):
            return self._moe_parts(op)
        if isinstance(op, Linears):
            return self._product_parts(op)
        if isinstance(op, Attend | SparseAttention):
            return self._attention_parts(op)
        return self._expert_parts(op) if isinstance(op, Experts) else {}

    def _attention_parts(self, op: Attend | SparseAttention) -> dict[str, FuncOp]:
        """`unpack_0` and `unpack_1`: window and main rows to fp32, as `quant.decode_rows`. And for attend what stands
        before and behind it in the network, `prologue` and `epilogue`; see `attention_ops.turned_heads`, `turned_back`.

        None for one row, whose attention is a function as a whole.
        """
        func = op.parent_op()
        if isinstance(func, FuncOp) and has_one_row(func):
            return {}
        parts = {"unpack_0": self._unpack("fp8_e8m0", op.cache_type("window"))}
        if op.main is not None:
            parts["unpack_1"] = self._unpack("fp4_e4m3", op.cache_type("main"))
        if isinstance(op, Attend):
            parts |= self._rotations(op)
        return {role: part.clone() for role, part in parts.items()}

    def _rotations(self, op: Attend) -> dict[str, FuncOp]:
        query, cos, sin = (_argument(value.type) for value in (op.query, op.cos, op.sin))
        rows, heads, columns = op.head_sizes
        output: Any = ((rows, heads, columns), query[1])
        return {
            "prologue": self._traced("turned_heads", attention_ops.turned_heads, [query, cos, sin, heads]),
            "epilogue": self._traced("turned_back", attention_ops.turned_back, [output, cos, sin]),
        }

    def _unpack(self, row_format: str, cache: CacheType) -> FuncOp:
        form, columns = quant.FORMATS[row_format], cache.data.columns
        planes: list[Any] = [(("M", size(columns)), torch.uint8) for size in (form.data_bytes, form.scale_bytes)]
        return self._traced("rows", quant.decode_rows, [*planes, row_format], {"M": (1, _MOST_KEYS)})

    def _product_parts(self, op: Linears) -> dict[str, FuncOp]:
        """`unpack_0`, ...: a packed weight to bf16, equal for weights of one shape; `prologue`: x to fp8 values."""
        pairs = zip(op.packed[::2], op.packed[1::2], strict=True)
        weights = [[_argument(weight.type), _argument(scale.type)] for weight, scale in pairs]
        parts = {f"unpack_{i}": self._traced("weight", quant.dequantize_weight, w) for i, w in enumerate(weights)}
        if op.quantize.value.data:
            parts["prologue"] = self._traced("rows", quant.fake_quantize, [_argument(op.x.type), "fp8_e8m0"])
        return {role: part.clone() for role, part in parts.items()}

    def _expert_parts(self, op: Experts) -> dict[str, FuncOp]:
        """The functions of one routed expert.

        For one row: `body`, as `ops.expert_definition`. For many: `unpack`, its packed weights to bf16, and `activate`,
        as `ops.expert_activation`; the products stand between them and are the runtime's.
        """
        func = op.parent_op()
        assert isinstance(func, FuncOp)
        if not has_one_row(func):
            return self._routed_parts(op)
        (_, dim), dtype = _argument(op.x.type)
        rows: list[Any] = [(("M", dim), dtype), (("M",), _argument(op.weights.type)[1])]
        arguments = [*rows, *_packed_expert(op), *op.arguments()]
        body = self._traced(op.name, packed_products.expert_by_rows, arguments, self._tile_rows()).clone()
        set_symbols(body, {"M": (1, 1)})
        return {"body": body}

    def _moe_parts(self, op: Moe) -> dict[str, FuncOp]:
        """Those of the routed experts for many rows; `unpack_shared` and `activate_shared`, the same for the shared
        expert; and `epilogue`, as `moe_ops.moe_sum`."""
        shared = [_argument(value.type) for value in op.operands[-6:]]
        (inner, dim), dtype = shared[0][0], _argument(op.x.type)[1]
        hidden: Any = (("M", inner), dtype)
        sums: list[Any] = [(("M", dim), torch.float32), (("M", dim), dtype)]
        return {
            **self._routed_parts(op),
            "unpack_shared": self._part("unpack_shared", moe_ops.unpack_shared, shared),
            "activate_shared": self._part(
                "activate_shared", moe_ops.shared_activation, [hidden, hidden, *op.arguments()]
            ),
            "epilogue": self._part("epilogue", moe_ops.moe_sum, sums),
        }

    def _routed_parts(self, op: Experts | Moe) -> dict[str, FuncOp]:
        packed = _packed_expert(op)
        hidden = (("M", packed[0][0][0]), _argument(op.x.type)[1])
        weights = (("M",), _argument(op.weights.type)[1])
        return {
            "unpack": self._part("unpack", ops.unpack_expert, packed),
            "activate": self._part("activate", ops.expert_activation, [hidden, hidden, weights, *op.arguments()]),
        }

    def _part(self, name: str, function: Callable[..., Any], arguments: list[Any]) -> FuncOp:
        return self._traced(name, function, arguments, self._tile_rows()).clone()

    def _tile_rows(self) -> Mapping[str, tuple[int, int]]:
        """The range of M, the rows that a part is given: at most one choice a row falls on an expert."""
        return {"M": self.symbols["T"]}

    def _traced(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: list[Any],
        symbols: Mapping[str, tuple[int, int]] | None = None,
    ) -> FuncOp:
        key = (name, *map(str, arguments))
        if key not in self._known:
            # A range of one value would become a number; the definition of one row is that of any, at that size.
            ranges = {name: (low, max(high, low + 1)) for name, (low, high) in (symbols or self.symbols).items()}
            trace = trace_definition(function, arguments, ranges)
            self._known[key] = import_definition("definition", trace)
        return self._known[key]


def _argument(type_: Attribute) -> tuple[tuple[int | str, ...], Any]:
    """A tensor's sizes and dtype, as `trace_definition` takes them."""
    storage = type_.storage if isinstance(type_, CacheType) else type_
    assert isinstance(storage, TensorType)
    return storage.dims, storage.dtype


def _packed_expert(op: Experts | Moe) -> list[Any]:
    """One routed expert's six weights, as `trace_definition` takes them."""
    bundles = [_argument(bundle.type) for bundle in (op.w1, op.s1, op.w3, op.s3, op.w2, op.s2)]
    return [(sizes[1:], dtype) for sizes, dtype in bundles]


def context_of(module: ModuleOp) -> PassContext:
    """The CPU target's pass context for a module that was read from text: no config, the symbols it declares."""
    symbols = {name: bounds for func in functions(module).values() for name, bounds in get_symbols(func).items()}
    definitions = Definitions(symbols)
    return PassContext(
        "cpu",
        None,
        frozenset(DEFINITIONS),
        definitions.define,
        definitions.define_parts,
        composed=COMPOSED,
        scratch=scratch_bytes,
    )
