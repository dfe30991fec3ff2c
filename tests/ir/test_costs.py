"""Cost rules against numbers computed by hand, and the precision under which products are counted."""

import pytest
import torch
from programs import EVERYTHING
from xdsl.dialects.func import FuncOp

from dsv41c.ir.builder import FunctionBuilder, functions, module_of
from dsv41c.ir.cost import cost_of
from dsv41c.ir.ops.table import BF16_EQUIVALENT, Cost, bf16_equivalents
from dsv41c.ir.text import parse_module
from dsv41c.ir.types import CacheType, TensorType

SIZES = {"T": 3, "B": 2, "P": 2, "N": 4, "S": 2}
ONE = {"T": 1, "B": 1, "P": 4, "N": 4, "S": 1}
RANGES = {"T": (1, 512), "S": (1, 4)}


@pytest.fixture(scope="module")
def step() -> FuncOp:
    return functions(parse_module(EVERYTHING))["step"]


def cost(func: FuncOp, name: str, sizes: dict[str, int], which: int = 0) -> Cost:
    """The cost of the `which`-th op of a name."""
    return [share for op, share in cost_of(func, sizes).ops if op.name == name][which]


def tensor(*sizes: int | str, element: str = "bf16") -> TensorType:
    return TensorType.of(sizes, element)


# --- custom ops ------------------------------------------------------------------------------------------------------


def test_attention_counts_two_products_of_every_key(step: FuncOp) -> None:
    """Three rows, two heads of 64, eight window keys of 66 bytes and four main keys of 36."""
    found = cost(step, "dsv41.sparse_attention", SIZES)
    assert found.flops == {"bf16": 2 * 2 * 3 * 2 * 64 * (8 + 4)}
    tensors = 2 * 3 * 2 * 64 + 3 * 66 + 4 * 3 * 8 + 4 * 3 * 4 + 4 * 2
    assert found.read == tensors + 3 * 8 * 66 + 3 * 4 * 36
    assert cost(step, "dsv41.sparse_attention", SIZES, 1).flops == {"bf16": 2 * 2 * 3 * 2 * 64 * 8}


def test_attend_is_an_attention_between_two_rotations(step: FuncOp) -> None:
    """The queries and the output of two heads are turned in 16 channels: two products and a sum each."""
    inner, found = cost(step, "dsv41.sparse_attention", SIZES), cost(step, "dsv41.attend", SIZES)
    assert found.flops == {**inner.flops, "f32": 2 * 3 * 3 * 2 * 16}
    assert found.read == inner.read + 2 * 4 * 3 * 8
    assert found.written == inner.written


def test_index_scores_are_fp4_products_and_a_weighted_sum(step: FuncOp) -> None:
    """Two pages of four entries; two heads of 32: a product of 32, then relu, weight and sum."""
    found = cost(step, "dsv41.index_topk", SIZES)
    assert found.flops == {"fp4_fp4": 3 * 8 * 2 * 2 * 32, "f32": 3 * 8 * 2 * 3}
    tensors = 2 * 3 * 2 * 32 + 2 * 3 * 2 + 8 * 2 * 2 + 8 * 3 + 8 * 3
    assert found.read == tensors + 2 * 8 * 17


def test_a_mask_does_not_spare_scores_and_a_pool_does(step: FuncOp) -> None:
    """One row, sixteen entries, three blocks of two; and not more than there are entries."""
    masked, found = cost(step, "dsv41.index_topk", ONE, 1), cost(step, "dsv41.index_pool_topk", ONE)
    assert masked.flops == {"fp4_fp4": 16 * 2 * 2 * 32, "f32": 16 * 2 * 3}
    assert found.flops == {"fp4_fp4": 6 * 2 * 2 * 32, "f32": 6 * 2 * 3}
    tensors = 2 * 2 * 32 + 2 * 2 + 8 * 4 + 8 + 8 + 4 * 3
    assert (masked.read, found.read) == (tensors + 16 * 17, tensors + 6 * 17)
    longer = cost(step, "dsv41.index_pool_topk", {**ONE, "P": 4000})
    assert longer.flops == found.flops
    assert longer.read - found.read == 8 * (4000 - 4)
    assert cost(step, "dsv41.index_pool_topk", {**ONE, "P": 1}).flops["f32"] == 4 * 2 * 3


def test_experts_count_the_chosen_ones(step: FuncOp) -> None:
    """Rows of 64, 32 inner channels, two of four experts each; an expert is 2 x 32 x 34 and 64 x 17 bytes."""
    expert = 2 * (32 * 32 + 32 * 2) + 64 * 16 + 64
    one, three = cost(step, "dsv41.experts", ONE), cost(step, "dsv41.experts", SIZES)
    assert one.flops == {"fp4_fp8": 2 * 3 * 2 * 64 * 32}
    assert one.read == 2 * 64 + 8 * 2 + 4 * 2 + 2 * expert
    assert three.flops == {"fp4_fp8": 3 * 2 * 3 * 2 * 64 * 32}
    assert three.read == 3 * (2 * 64 + 8 * 2 + 4 * 2) + 4 * expert


def test_a_moe_counts_its_experts_and_reads_the_shared_weights_once(step: FuncOp) -> None:
    """As the routed experts, with a bf16 result; the shared expert has 64 inner channels and weights of 64 x 64."""
    for sizes in (ONE, SIZES):
        routed, found = cost(step, "dsv41.experts", sizes), cost(step, "dsv41.moe", sizes)
        assert found.read == routed.read + 3 * (64 * 64 + 2 * 2)
        assert found.written == 2 * sizes["T"] * 64
        assert found.flops == {**routed.flops, "fp8_fp8": 3 * 2 * sizes["T"] * 64 * 64}


def test_lookup_reads_rows_and_not_the_table(step: FuncOp) -> None:
    assert cost(step, "dsv41.lookup", SIZES) == Cost(8 * 3 * 4 + 3 * 4 * 33, 2 * 3 * 128)


@pytest.mark.parametrize("name", ["dequantize", "dequantize_weight", "lookup"])
def test_decoding_is_no_arithmetic(step: FuncOp, name: str) -> None:
    found = cost(step, f"dsv41.{name}", SIZES)
    assert found.flops == {}
    assert found.read > 0


# --- precision of products -------------------------------------------------------------------------------------------


def product(activations: str | None, weight: str, op: str = "linear") -> dict[str, int]:
    """Flops of a [3, 64] by [64, 32] product: x quantized to a row format or plain, an fp8 or a plain weight."""
    types = {"x": tensor("T", 64), "wide": tensor(32, 64)}
    b = FunctionBuilder("f", types, {"T": (1, 512)})
    x = b.args["x"]
    if activations:
        x = b.dsv41("fake_quantize", [x], [x.type], {"row_format": activations})[0]
    packed = b.weight("w", tensor(32, 64, element="f8E4M3FN")), b.weight("s", tensor(1, 2, element="ui8"))
    w = b.dsv41("dequantize_weight", packed, [tensor(32, 64)])[0] if weight == "fp8" else b.args["wide"]
    if op == "linear":
        y = b.aten("linear", [x, w], [tensor("T", 32)])[0]
    elif op == "dsv41.linear_fp8":
        y = b.dsv41("linear_fp8", [x, *packed], [tensor("T", 32)], {"groups": 1})[0]
    elif op == "dsv41.linears":
        y = b.dsv41("linears", [x, *packed], [tensor("T", 32)], {"groups": 1, "quantize": 0})[0]
    else:
        turned = b.aten("transpose.int", [w, 0, 1], [tensor(64, 32)])[0]
        y = b.aten("matmul", [x, turned], [tensor("T", 32)])[0]
    func = b.finish({"y": y})
    module_of([func])
    return dict(next(share for one, share in cost_of(func, SIZES).ops if one is y.owner).flops)


FLOPS = 2 * 3 * 64 * 32


@pytest.mark.parametrize("op", ["linear", "matmul", "dsv41.linears", "dsv41.linear_fp8"])
@pytest.mark.parametrize(("activations", "precision"), [("fp8_e8m0", "fp8_fp8"), (None, "bf16")])
def test_products_with_fp8_weights(op: str, activations: str | None, precision: str) -> None:
    """All forms of a product count alike; with activations that are not quantized it is a bf16 product."""
    assert product(activations, "fp8", op) == {precision: FLOPS}


def test_linears_read_packed_weights_once(step: FuncOp) -> None:
    """Two weights of 64 x 64 with four scales each; x is quantized: three operations a value."""
    found = cost(step, "dsv41.linears", SIZES)
    assert found.flops == {"fp8_fp8": 2 * 2 * 3 * 64 * 64, "f32": 3 * 3 * 64}
    assert found.read == 2 * 3 * 64 + 2 * (64 * 64 + 4)
    assert found.written == 2 * 2 * 3 * 64


def test_other_pairs_of_formats() -> None:
    assert product("fp8_e8m0", "bf16") == {"bf16": FLOPS}
    assert product("fp4_e8m0", "fp8") == {"fp8_fp8": FLOPS}


def test_bf16_equivalents() -> None:
    assert bf16_equivalents({"bf16": 8, "f32": 8, "fp8_fp8": 8, "fp4_fp8": 8, "fp4_fp4": 8, "int": 8}) == 26
    assert set(BF16_EQUIVALENT.values()) == {1.0, 0.5, 0.25, 0.0}
    with pytest.raises(KeyError):
        bf16_equivalents({"fp3": 1})


# --- aten ------------------------------------------------------------------------------------------------------------


def test_a_gather_reads_what_it_gives() -> None:
    b = FunctionBuilder("f", {"table": tensor(1000, 64), "ids": tensor("T", element="si64")}, {"T": (1, 512)})
    rows = b.aten("embedding", [b.args["table"], b.args["ids"]], [tensor("T", 64)])[0]
    func = b.finish({"rows": rows})
    module_of([func])
    assert cost_of(func, SIZES).total == Cost(8 * 3 + 2 * 3 * 64, 2 * 3 * 64)


def test_casts_are_no_arithmetic_and_comparisons_are_integer_work() -> None:
    b = FunctionBuilder("f", {"x": tensor("T", 64)}, {"T": (1, 512)})
    wide = b.aten("to.dtype", [b.args["x"], torch.float32], [tensor("T", 64, element="f32")])[0]
    positive = b.aten("ge.Scalar", [wide, 0.0], [tensor("T", 64, element="i1")])[0]
    func = b.finish({"positive": positive})
    module_of([func])
    assert cost_of(func, SIZES).total == Cost(6 * 3 * 64, 5 * 3 * 64, {"int": 3 * 64})


def test_a_function_reads_what_it_gathers_of_a_cache_and_a_table() -> None:
    """A launched function that takes rows of a cache and of a table; the cache's pages and the table stay out."""
    cache = CacheType.of("window", -1, 0, 8, "fp8_e8m0", 64)
    arguments = {"cache": cache, "table": tensor(1000, 64), "ids": tensor("T", element="si64")}
    inner = FunctionBuilder("take", arguments, RANGES)
    storage = inner.dsv41("storage", [inner.args["cache"]], [cache.storage])[0]
    flat = inner.aten("flatten.using_ints", [storage], [tensor("528*S", element="ui8")])[0]
    first = inner.aten("index_select", [flat, 0, inner.args["ids"]], [tensor("T", element="ui8")])[0]
    rows = inner.aten("embedding", [inner.args["table"], inner.args["ids"]], [tensor("T", 64)])[0]
    take = inner.finish({"first": first, "rows": rows})
    outer = FunctionBuilder("step", {**arguments, "cache": cache}, RANGES)
    results = outer.launch("take", list(outer.args.values()), [first.type, rows.type])
    step = outer.finish({"first": results[0], "rows": results[1]})
    module_of([step, take])
    assert cost_of(step, SIZES).total == Cost(3 + 2 * 3 * 64 + 8 * 3, 3 + 2 * 3 * 64)
