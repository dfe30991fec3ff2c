"""The bill: what `dsv41c inspect` says of bytes, flops and launches, against figures computed by hand."""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdsl.dialects.func import FuncOp

from dsv41c.compiler.bill import bill_of, state_bill
from dsv41c.compiler.driver import CompileOptions, Lowered, lower_config
from dsv41c.compiler.layers import NO_LAYER, launches_by_kind, launches_by_layer
from dsv41c.ir.builder import FunctionBuilder, functions
from dsv41c.ir.text import parse_module
from dsv41c.ir.transient import Transient, transient_peak
from dsv41c.ir.types import CacheType, TensorType
from dsv41c.models.config import ModelConfig
from dsv41c.models.state import state_specs
from dsv41c.runtime.kernels.scratch import scratch_bytes
from dsv41c.runtime.plan import Plan

GOLDEN = Path(__file__).parents[1] / "golden"
MILLION = 1 << 20


def config_of(model: str) -> ModelConfig:
    return ModelConfig.from_json(GOLDEN / model)


# --- caches ----------------------------------------------------------------------------------------------------------


def test_caches_of_the_released_model() -> None:
    """SPEC 11.2: three sources of ratio 2 and one of ratio 1; SPEC 0: 43 windows of 128 rows."""
    bill = state_bill(config_of("released"), 128)
    assert bill["global_cache_bytes_per_token"] == 3 * (288 + 68) / 2 + (288 + 68) == 890
    assert bill["window_bytes_per_sequence"] == (40 + 3) * 128 * 528 == 2_906_112


def test_caches_of_mini6() -> None:
    """Windows of 16 rows; main rows of 64 channels, index rows of 32; one source of each ratio, two draft layers."""
    config = config_of("mini6")
    main, index = config.head_dim // 2 + config.head_dim // 16, config.index_head_dim // 2 + config.index_head_dim // 32
    rows = sum((main + index) / config.ratio(layer) for layer in config.kv_source_layer_ids)
    window = config.sliding_window * (config.head_dim + config.head_dim // 32)
    bill = state_bill(config, 16)
    assert bill["global_cache_bytes_per_token"] == rows
    assert bill["window_bytes_per_sequence"] == (config.num_hidden_layers + 2) * window


@pytest.mark.parametrize("page_tokens", [128, 256])
def test_pages_add_little_to_a_million_tokens(page_tokens: int) -> None:
    specs = state_specs(config_of("released"), page_tokens)
    page = sum(spec.page_bytes for spec in specs if spec.pool == "pages")
    assert 890 <= -(-MILLION // page_tokens) * page / MILLION <= 892


# --- what a step computes and moves: the released model --------------------------------------------------------------

CONTEXTS = (4096, 65536, MILLION)


@cache
def lowered(model: str) -> Lowered:
    # The step program alone: its slices are lowered by the same passes and take three times as long.
    return lower_config(config_of(model), CompileOptions(max_rows=16384), skip=frozenset({"split-ced"}))


@cache
def bill(model: str) -> dict[str, Any]:
    return bill_of(config_of(model), 128, lowered(model).bill_programs())


def index_rows(context: int) -> int:
    """SPEC 15.2."""
    return 3 * (context // 2) + context + 4 * min(context, 16384)


@pytest.mark.parametrize("context", CONTEXTS)
def test_flops_of_a_released_decode_step(context: int) -> None:
    """By precision, as docs/costs.md derives them; what is left of f32 is elementwise work."""
    (found,) = (one for one in bill("released")["step_cost"] if one["context"] == context)
    flops = found["flops"]
    d, inner, projections = 5120, 2304, 1280 * 5120 + 32768 * 1280 + 512 * 5120 + 5120 * 8192
    assert flops["fp4_fp8"] == 40 * 6 * 2 * 3 * d * inner
    assert flops["fp8_fp8"] == 40 * 2 * (projections + 3 * d * inner) + 8 * 2 * 4096 * 1280 + 2 * 2 * 25600 * 6144
    assert flops["fp4_fp4"] == index_rows(context) * 32 * 2 * 128
    attention = 38 * 640 + 2 * 128
    small = 8 * 2 * 32 * d + 2 * 512 * d + 4 * 2 * 128 * 512 + 8 * 32
    assert flops["bf16"] == 40 * 2 * 8192 * 4096 + attention * 4 * 64 * 512 + small
    heavy = 2 * 129280 * d + 40 * 2 * 384 * d + 3 * 2 * 2 * 512 * d + index_rows(context) * 32 * 3
    predictors = 80 * 2 * 24 * 20480
    elementwise = flops["f32"] + flops.get("f64", 0) - heavy - predictors
    assert 0 < elementwise < 60e6


def test_the_report_puts_a_decode_step_at_22_and_28() -> None:
    found = {one["context"]: one["flops_bf16_equivalent"] / 1e9 for one in bill("released")["step_cost"]}
    assert abs(found[4096] - 22) < 1
    assert abs(found[MILLION] - 28) < 1
    assert found[4096] == pytest.approx(21.58, abs=0.05)
    assert found[MILLION] == pytest.approx(27.28, abs=0.05)


def test_least_bytes_of_a_released_decode_step() -> None:
    """Weights of what the row uses, rows of caches and streams; docs/costs.md has the table."""
    d, inner = 5120, 2304

    def fp8(outputs: int, inputs: int) -> int:
        return outputs * inputs + (outputs // 32) * (inputs // 32)

    attention = fp8(1280, d) + fp8(32768, 1280) + fp8(512, d) + fp8(8192, 4096) + fp8(d, 8192)
    shared = 2 * fp8(inner, d) + fp8(d, inner)
    routed = 6 * 3 * (d * inner // 2 + d * inner // 32)
    layer = attention + shared + routed + 2 * 384 * d + 4 * 2 * 24 * 20480
    others = 2 * 129280 * d + 2 * fp8(25600, 6144) + 8 * (fp8(4096, 1280) + 2 * 32 * d) + 7 * 2 * 512 * d
    cached = 38 * (512 * 288 + 128 * 528) + 2 * 128 * 528
    for found in bill("released")["step_cost"]:
        known = 40 * layer + others + cached + index_rows(found["context"]) * 68 + 80 * 10 * d * 2
        small = found["minimal_bytes"] - known
        assert 0 < small < 4e6  # norms, sinks, biases, logits, positions
        assert found["bytes"] >= found["minimal_bytes"]


def test_a_step_moves_little_more_than_it_must() -> None:
    """Compiled kernels count by what they read and write; what they spill inside, nobody counts."""
    for found in bill("released")["step_cost"]:
        assert found["bytes"] <= 1.05 * found["minimal_bytes"]


# --- transient bytes -------------------------------------------------------------------------------------------------


def rows(width: int, element: str = "f32") -> TensorType:
    return TensorType.of(["T", width], element)


def chain() -> FuncOp:
    """Three launches on 8 x 4 bytes a row; the second reads its input for the last time."""
    b = FunctionBuilder("step", {"x": rows(2)}, {"T": (1, 64)})
    (a,) = b.launch("region_0", [b.args["x"]], [rows(8)])
    (c,) = b.launch("region_1", [a], [rows(8)])
    dead, y = b.launch("region_2", [c], [rows(8), rows(2)])
    assert dead
    return b.finish({"y": y})


def test_values_live_to_their_last_reader() -> None:
    """At most: x, one value of the chain, a result that nobody reads, and y; never all three."""
    assert transient_peak(chain(), {"T": 10}, scratch_bytes) == Transient(10 * 4 * (2 + 8 + 8 + 2), 0)


def indexer(rows_: int, k: int, blocks: int) -> FuncOp:
    """A selection with its lists, the slots of its entries, and a reader of slots and blocks."""
    index = CacheType.of("index", 0, 1, 4, "fp4_e8m0", 32)
    ids, pages = TensorType.of(["T"], "si64"), TensorType.of(["B", "P"], "si64")
    query, weights = TensorType.of(["T", 2, 32], "bf16"), rows(2, "bf16")
    arguments = {"query": query, "weights": weights, "index": index, "pages": pages, "ids": ids}
    b = FunctionBuilder("step", arguments, {"T": (1, rows_), "B": (1, 4), "P": (1, 64), "N": (1, 64)})
    q, w, cache, table, i = b.args.values()
    attrs = {"ratio": 1, "k": k, "page": 4, "block": 2, "n_blocks": blocks}
    lists = [rows(k, "si32"), rows(blocks, "si32")]
    topk, published = b.launch("index_topk", [q, w, cache, table, i, i, None], lists, attrs)
    (slots,) = b.launch("region_0", [topk], [rows(k, "si32")])
    (y,) = b.launch("region_1", [slots, published], [rows(2)])
    return b.finish({"y": y})


def test_the_indexer_has_lists_scratch_and_slots() -> None:
    func = indexer(64, 16, 8)
    small = {"T": 10, "B": 1, "P": 8, "N": 8}
    found = transient_peak(func, small, scratch_bytes)
    assert found.indexer_bytes > 10 * 4 * (16 + 8)
    assert found.bytes > found.indexer_bytes + 10 * 2 * 2 * 33
    longer = transient_peak(func, {**small, "P": 64, "N": 64}, scratch_bytes)
    assert longer.indexer_bytes > found.indexer_bytes


def test_lists_of_the_largest_chunk_are_four_bytes_an_entry() -> None:
    """16,384 rows of 512 entries and 2,048 blocks; the context is so short that the lists outweigh the scratch."""
    sizes = {"T": 16384, "B": 1, "P": 1, "N": 1}
    found = transient_peak(indexer(16384, 512, 2048), sizes, scratch_bytes)
    entries, blocks = 16384 * 512 * 4, 16384 * 2048 * 4
    assert entries + blocks == 160 << 20
    assert found.indexer_bytes == entries + entries + blocks, "entries, their slots and the blocks at once"


def test_the_released_indexer_at_its_largest() -> None:
    """The goal is 256 MiB; the candidate blocks and one list of entries take 160 MiB, the rest is scratch."""
    found = {(one["chunk"], one["context"]): one["indexer_bytes"] for one in bill("released")["transient_peak_bytes"]}
    assert 160 << 20 < found[16384, MILLION] <= 256 << 20
    assert found[16384, MILLION] - found[16384, 65536] <= 1 << 20, "candidate blocks in a pool, by the context"
    assert found[1, MILLION] <= 64 << 20


def test_the_released_step_at_its_largest() -> None:
    """The goal is 2 GiB, of which the four streams are 640 MiB."""
    found = {(one["chunk"], one["context"]): one["bytes"] for one in bill("released")["transient_peak_bytes"]}
    assert 4 * 5120 * 2 * 16384 < found[16384, MILLION] <= 2 << 30


def test_transient_bytes_grow_with_chunk_and_context() -> None:
    found = {(one["chunk"], one["context"]): one for one in bill("released")["transient_peak_bytes"]}
    assert set(found) == {(min(c, n), n) for c in (1, 512, 16384) for n in CONTEXTS}
    for (chunk, context), one in found.items():
        assert 0 < one["indexer_bytes"] <= one["bytes"]
        larger = [other for (c, n), other in found.items() if c >= chunk and n >= context]
        assert one["bytes"] == min(other["bytes"] for other in larger)


# --- launches --------------------------------------------------------------------------------------------------------

WINDOW = CacheType.of("window", 1, 0, 8, "fp8_e8m0", 64)
MAIN = CacheType.of("main", 0, 2, 4, "fp4_e4m3", 64)


def test_a_launch_belongs_to_a_layer() -> None:
    """Weights, own windows, writes; then where results come from; the later of two."""
    b = FunctionBuilder("step", {"x": rows(2), "w1": WINDOW, "m0": MAIN}, {"T": (1, 64)})
    norm = TensorType.of([2], "bf16")
    own = [b.weight(f"layers.{layer}.attn_norm.weight", norm) for layer in (0, 1)]
    head = b.weight("head.weight", norm)
    frequencies = b.weight("rotary.window", TensorType.of([2], "f32"), "derived")
    (start,) = b.launch("region_0", [b.args["x"], frequencies], [rows(2)])
    (zero,) = b.launch("region_1", [start, own[0]], [rows(2)])
    (inherits,) = b.launch("region_2", [zero, start], [rows(2)])
    (both,) = b.launch("region_3", [inherits, own[0], own[1]], [rows(2)])
    (window,) = b.launch("region_4", [zero, b.args["w1"]], [rows(2)])
    (reuse,) = b.launch("region_5", [both, b.args["m0"]], [rows(2)])
    (y,) = b.launch("region_6", [reuse, window, head], [rows(2)])
    found = launches_by_layer(b.finish({"y": y}))
    assert found == Counter({0: 2, 1: 3, NO_LAYER: 2})


@pytest.fixture(scope="module")
def sched40(sched40_plan: Path) -> dict[str, FuncOp]:
    """The lowered programs, from the text that a plan keeps for people."""
    return functions(parse_module((sched40_plan / "programs" / "step.mlir").read_text()))


@pytest.fixture(scope="module")
def sched40_bill(sched40_plan: Path) -> Mapping[str, Any]:
    return Plan.load(sched40_plan).manifest.bill


def test_every_launch_of_sched40_has_its_place(sched40: dict[str, FuncOp], sched40_bill: Mapping[str, Any]) -> None:
    for name in ("step", "step_one_row"):
        counts = launches_by_layer(sched40[name])
        assert set(counts) == {NO_LAYER, *range(40)}
        assert counts[NO_LAYER] <= 6
    found = sched40_bill
    assert set(found["kernels_per_layer"]) == {"swa", "swa+engram", "full", "full+engram", "reindex", "reuse"}
    assert found["launches_per_step"] == {
        form: sum(launches_by_layer(sched40[name]).values())
        for form, name in (("prefill", "step"), ("decode", "step_one_row"))
    }


def test_layers_of_a_kind_take_equally_many_launches(sched40: dict[str, FuncOp]) -> None:
    """Reuse layers of the decoder are all alike, but for the last, to which a launch before the head counts."""
    for name in ("step", "step_one_row"):
        counts = launches_by_layer(sched40[name])
        kinds = launches_by_kind(sched40[name], config_of("sched40"))
        *reuse, last = [layer for layer in range(21, 40) if config_of("sched40").layer_mode(layer) == "reuse"]
        assert {counts[layer] for layer in reuse} == {kinds["reuse"] - 1}
        assert counts[last] == kinds["reuse"]
        assert kinds["reuse"] < kinds["reindex"] < kinds["full"]


def test_decode_takes_no_more_than_the_goal(sched40_bill: Mapping[str, Any]) -> None:
    """A Reuse layer: at most nine launches, of which `experts` runs its body once for each chosen expert."""
    assert sched40_bill["kernels_per_layer"]["reuse"]["decode"] <= 9
