"""The ops that read or write caches; a reader or writer whose layout is not the cache's does not verify."""

from collections.abc import Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, StringAttr, UnitAttr
from xdsl.ir import Operation
from xdsl.irdl import (
    AttrSizedOperandSegments,
    attr_def,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    opt_operand_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from dsv41c.ir.ops.custom import CustomOp, run_reference, shaped
from dsv41c.ir.ops.table import Argument, Cost, Effect, OpRule, Shaped, moved_bytes
from dsv41c.ir.types import FORMATS, CacheType, TensorType

# Notes of the pass group-csa2 on attentions and selections; no kernel gets them.
GROUP_NOTES = ("mode", "source", "group")
LIST = "si32"  # entries, blocks and slots in lists of many a row


class StateOp(CustomOp):
    """An op with cache operands."""

    def cache_type(self, operand: str) -> CacheType:
        """Give the type of a cache operand."""
        type_ = getattr(self, operand).type
        assert isinstance(type_, CacheType)
        return type_

    def check_layout(self, operand: str, row_format: str, page: int, columns: int) -> None:
        """Refuse when the layout that the op asks for is not the cache's."""
        cache = self.cache_type(operand)
        element, scale, group = FORMATS.get(row_format, (row_format, None, 0))
        asked = f"page {page}, planar<{element} x {columns}{f' | {scale} / {group}' if scale else ''}>"
        if asked != cache.layout_text():
            raise VerifyException(
                f"{self.name} asks for {operand} as {asked}; the cache is laid out as {cache.layout_text()}; "
                "change the op's attributes or the cache's type so that both agree"
            )

    def check_row(self, operand: str, row: TensorType, role: str) -> None:
        """Refuse rows whose width or element is not the cache's."""
        cache = self.cache_type(operand)
        if row.element != cache.row_element or row.dims[-1] != cache.row_width:
            raise VerifyException(
                f"{self.name} has {role} of {row.dims[-1]} x {row.element} a row; {operand} is laid out as "
                f"{cache.layout_text()}, rows of {cache.row_width} x {cache.row_element}"
            )

    def check_lists(self, *operands: str) -> None:
        """Refuse lists of entries, blocks or slots of another element than `LIST`; an absent one is no list."""
        for operand in operands:
            value = getattr(self, operand)
            if value is not None and value.type.element != LIST:
                raise VerifyException(
                    f"{self.name} has {operand} of {value.type.element}; such lists are {LIST}: convert it"
                )


@irdl_op_definition
class Store(StateOp):
    """Writes rows into their slots (-1: none) and gives the new cache; `in_place` once no reader needs the old one."""

    name = "dsv41.store"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("row_format", "page")
    cache = operand_def(CacheType)
    rows = operand_def(TensorType)
    slots_ = operand_def(TensorType)
    row_format = attr_def(StringAttr)
    page = attr_def(IntegerAttr)
    in_place = opt_attr_def(UnitAttr)
    result = result_def(CacheType)

    def verify_(self) -> None:
        cache = self.cache_type("cache")
        if self.result.type != cache:
            raise VerifyException(f"dsv41.store takes {cache} and gives {self.result.type}; both must be one type")
        self.check_layout("cache", self.row_format.data, self.page.value.data, cache.data.columns)
        assert isinstance(self.rows.type, TensorType)
        self.check_row("cache", self.rows.type, "rows")


@irdl_op_definition
class Load(StateOp):
    """Reads the rows of slots [...]: [..., row width]; slot -1 gives row 0, for the caller to mask."""

    name = "dsv41.load"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("row_format", "page", "row_width")
    cache = operand_def(CacheType)
    slots_ = operand_def(TensorType)
    row_format = attr_def(StringAttr)
    page = attr_def(IntegerAttr)
    row_width = attr_def(IntegerAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        cache = self.cache_type("cache")
        self.check_layout("cache", self.row_format.data, self.page.value.data, cache.data.columns)
        self.check_row("cache", TensorType.of([self.row_width.value.data], cache.row_element), "a row_width")
        assert isinstance(self.result.type, TensorType)
        self.check_row("cache", self.result.type, "results")


@irdl_op_definition
class Storage(StateOp):
    """The buffer of a cache as a tensor, e.g. ui8 [N, page stride]: how a definition reads a cache.

    It stands directly before its reader; outlining gives the cache itself to the region instead.
    """

    name = "dsv41.storage"
    cache = operand_def(CacheType)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        storage = self.cache_type("cache").storage
        if self.result.type != storage:
            raise VerifyException(f"dsv41.storage gives {self.result.type}; the cache is stored as {storage}")


class AttentionOp(StateOp):
    """An op that attends to a window cache, fresh rows and, where it has one, a main cache."""

    def check_caches(self, columns: int) -> None:
        """Refuse caches whose layout does not fit keys of `columns` channels, and half of a main cache.

        Operands and attributes have the names that `SparseAttention` gives them.
        """
        window_page, main_page = (self.attributes[name] for name in ("window_page", "main_page"))
        fresh, main, main_slots = (getattr(self, name) for name in ("fresh", "main", "main_slots"))
        assert isinstance(window_page, IntegerAttr)
        assert isinstance(main_page, IntegerAttr)
        self.check_layout("window", "fp8_e8m0", window_page.value.data, columns)
        self.check_row("window", fresh.type, "fresh rows")
        if (main is None) != (main_slots is None):
            raise VerifyException(f"{self.name} has one of main and main_slots; it takes both or neither")
        if main is not None:
            self.check_layout("main", "fp4_e4m3", main_page.value.data, columns)
        self.check_lists("window_index", "main_slots")

    def attention_cost(
        self, operands: Sequence[Argument], results: Sequence[Argument], heads: int, columns: int
    ) -> Cost:
        """What it reads, writes and multiplies; the window index and the main slots are among the operands.

        Keys are values too: one product for the logits, one for the output. Every dequantized key and every rounded
        probability is a bf16 value.
        """
        named = dict(zip((name for name, _ in self.get_irdl_definition().operands), operands, strict=True))
        rows, window_keys = shaped(named["window_index"]).shape
        main_keys = shaped(named["main_slots"]).shape[1] if named["main_slots"] is not None else 0
        read = moved_bytes(operands) + rows * window_keys * self.cache_type("window").row_bytes
        if main_keys:
            read += rows * main_keys * self.cache_type("main").row_bytes
        flops = 4 * rows * heads * columns * (window_keys + main_keys)
        return Cost(read, moved_bytes(results), {"bf16": flops})


@irdl_op_definition
class SparseAttention(AttentionOp):
    """Attention over window rows, fresh rows and selected main rows with a sink: bf16 [T, H, D]."""

    name = "dsv41.sparse_attention"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("scale", "window_page", "main_page")
    query = operand_def(TensorType)
    window = operand_def(CacheType)
    fresh = operand_def(TensorType)
    window_index = operand_def(TensorType)
    main = opt_operand_def(CacheType)
    main_slots = opt_operand_def(TensorType)
    sink = operand_def(TensorType)
    scale = attr_def(FloatAttr)
    window_page = attr_def(IntegerAttr)
    main_page = attr_def(IntegerAttr)
    mode = opt_attr_def(StringAttr)
    source = opt_attr_def(StringAttr)
    group = opt_attr_def(IntegerAttr)
    result = result_def(TensorType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        assert isinstance(self.query.type, TensorType)
        self.check_caches(_static(self.query.type.dims[-1]))


class _IndexOp(StateOp):
    """An op that scores the entries of an index cache."""

    def verify_(self) -> None:
        query, ratio, page = self.operands[0].type, self.attributes["ratio"], self.attributes["page"]
        assert isinstance(query, TensorType)
        assert isinstance(ratio, IntegerAttr)
        assert isinstance(page, IntegerAttr)
        self.check_layout("index", "fp4_e8m0", page.value.data, _static(query.dims[-1]))
        held = self.cache_type("index").data.ratio
        if held != ratio.value.data:
            raise VerifyException(
                f"{self.name} asks for ratio {ratio.value.data}; the cache holds one entry for {held} tokens"
            )
        self.check_lists("candidates")


@irdl_op_definition
class IndexTopk(_IndexOp):
    """Scores visible index entries and keeps the best: topk si32 [T, k], candidate blocks si32 [T, n_blocks].

    Every visible entry is scored; those outside a row's candidate blocks are masked afterwards.
    """

    name = "dsv41.index_topk"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("ratio", "k", "page", "block", "n_blocks")
    query = operand_def(TensorType)
    weights = operand_def(TensorType)
    index = operand_def(CacheType)
    pages = operand_def(TensorType)
    sequence = operand_def(TensorType)
    positions = operand_def(TensorType)
    candidates = opt_operand_def(TensorType)
    ratio = attr_def(IntegerAttr)
    k = attr_def(IntegerAttr)
    page = attr_def(IntegerAttr)
    block = attr_def(IntegerAttr)
    n_blocks = attr_def(IntegerAttr)
    mode = opt_attr_def(StringAttr)
    source = opt_attr_def(StringAttr)
    group = opt_attr_def(IntegerAttr)
    topk = result_def(TensorType)
    blocks = result_def(TensorType)
    traits = traits_def(Pure())


@irdl_op_definition
class IndexPoolTopk(_IndexOp):
    """The same choice from a row's candidate blocks, of which alone it scores entries: topk si32 [T, k]."""

    name = "dsv41.index_pool_topk"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("ratio", "k", "page", "block")
    query = operand_def(TensorType)
    weights = operand_def(TensorType)
    index = operand_def(CacheType)
    pages = operand_def(TensorType)
    sequence = operand_def(TensorType)
    positions = operand_def(TensorType)
    candidates = operand_def(TensorType)
    ratio = attr_def(IntegerAttr)
    k = attr_def(IntegerAttr)
    page = attr_def(IntegerAttr)
    block = attr_def(IntegerAttr)
    mode = opt_attr_def(StringAttr)
    source = opt_attr_def(StringAttr)
    group = opt_attr_def(IntegerAttr)
    topk = result_def(TensorType)
    traits = traits_def(Pure())


def _static(dim: int | str) -> int:
    if isinstance(dim, int):
        return dim
    raise VerifyException(f"the head size is '{dim}'; a cache row needs a constant size")


def _store_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    return [operands[0]]


def _load_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    assert isinstance(op, Load)
    cache = op.cache_type("cache")
    return [Shaped((*shaped(operands[1]).shape, cache.row_width), cache.row_element)]


def _attention_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    return [Shaped(shaped(operands[0]).shape, "bf16")]


def _topk_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    assert isinstance(op, IndexTopk)
    rows = shaped(operands[0]).shape[0]
    return [Shaped((rows, op.k.value.data), LIST), Shaped((rows, op.n_blocks.value.data), LIST)]


def _pool_topk_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    assert isinstance(op, IndexPoolTopk)
    return [Shaped((shaped(operands[0]).shape[0], op.k.value.data), LIST)]


def _storage_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    # Sizes of pools are symbols that no operand shows, so the declared type, which the verifier checks, is the rule.
    return []


def _no_cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    return Cost()


def _run_storage(op: Operation, operands: Sequence[Any]) -> list[Any]:
    return [operands[0]]


def _store_cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    rows = shaped(operands[1])
    return Cost(moved_bytes(operands), rows.bytes, {})


def _load_cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    written = moved_bytes(results)
    return Cost(moved_bytes(operands) + written, written, {})


def _attention_cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    assert isinstance(op, SparseAttention)
    _, heads, columns = shaped(operands[0]).shape
    return op.attention_cost(operands, results, heads, columns)


def rows_scored(op: IndexTopk | IndexPoolTopk, operands: Sequence[Argument]) -> int:
    """Index rows that one query scores when its block table is full (SPEC 15.2).

    Args:
        op: the selection.
        operands: its operands with their sizes.
    """
    entries = shaped(operands[3]).shape[1] * op.page.value.data
    if isinstance(op, IndexTopk):
        return entries
    return min(entries, shaped(operands[6]).shape[1] * op.block.value.data)


def _topk_cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    """Every row scores the entries that its block table holds, or those of its candidate blocks alone (SPEC 15.2).

    Exact for rows that see all entries of full pages, such as a decode step at the end of a page. Queries and keys are
    fp4 values; an entry's score is a sum over heads of relu(dot) * weight, three operations each. Index rows are read
    once a sequence, or those of a row's candidate blocks where that is less.
    """
    assert isinstance(op, IndexTopk | IndexPoolTopk)
    rows, heads, columns = shaped(operands[0]).shape
    sequences, pages = shaped(operands[3]).shape
    scored, keys = rows_scored(op, operands), sequences * pages * op.page.value.data
    if isinstance(op, IndexPoolTopk):
        keys = min(keys, rows * scored)
    read = moved_bytes(operands) + keys * op.cache_type("index").row_bytes
    flops = {"fp4_fp4": 2 * rows * heads * columns * scored, "f32": 3 * rows * heads * scored}
    return Cost(read, moved_bytes(results), flops)


def _run_store(op: Operation, operands: Sequence[Any]) -> list[Any]:
    assert isinstance(op, Store)
    cache = operands[0] if op.in_place is not None else operands[0].clone()
    run_reference(op, [cache, *operands[1:]])
    return [cache]


RULES = [
    OpRule(Store, _store_shape, Effect(reads=("cache",), writes=("cache",)), _store_cost, _run_store),
    OpRule(Load, _load_shape, Effect(reads=("cache",)), _load_cost, run_reference),
    OpRule(Storage, _storage_shape, Effect(reads=("cache",)), _no_cost, _run_storage),
    OpRule(SparseAttention, _attention_shape, Effect(reads=("window", "main")), _attention_cost, run_reference),
    OpRule(IndexTopk, _topk_shape, Effect(reads=("index",)), _topk_cost, run_reference),
    OpRule(IndexPoolTopk, _pool_topk_shape, Effect(reads=("index",)), _topk_cost, run_reference),
]
