"""The verifier: layouts, sizes, the discipline of state, calls; each refusal names the op and the reason."""

import re
from typing import Any

import pytest
from programs import EVERYTHING, INDEX, MAIN, ROWS, SLOTS, STORE, SYMBOLS, WINDOW, function, load, state_function

from dsv41c.errors import IRError
from dsv41c.ir.text import parse_module
from dsv41c.ir.verify import verify

BF16 = "!dsv41.tensor<[T, 64], bf16>"
IN_PLACE = STORE.replace("page = 8", "page = 8, in_place")


def check(text: str) -> None:
    verify(parse_module(text))


def refuse(text: str, *reasons: str) -> None:
    with pytest.raises(IRError) as caught:
        check(text)
    for reason in reasons:
        assert reason in str(caught.value)


def test_all_ops_verify() -> None:
    check(EVERYTHING)


def test_a_store_and_a_reader_of_each_value_verify() -> None:
    check(state_function(f"{load('window', 'old')}\n{STORE}\n{load('stored')}\nfunc.return %stored : {WINDOW}"))


# --- layouts: a reader or writer that disagrees with the cache cannot be written down ---------------------------------

OF_WINDOW = "page 8, planar<e4m3 x 64 | ue8m0 / 32>"


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        (("page = 8", "page = 16"), "page 16, planar<e4m3 x 64 | ue8m0 / 32>"),
        (('"fp8_e8m0"', '"fp4_e4m3"'), "page 8, planar<e2m1 x 64 | e4m3 / 16>"),
        (('"fp8_e8m0"', '"f32"'), "page 8, planar<f32 x 64>"),
        (('"fp8_e8m0"', '"fp9"'), "page 8, planar<fp9 x 64>"),
    ],
)
@pytest.mark.parametrize("op", ["store", "load"])
def test_format_and_page_must_be_the_caches(op: str, change: tuple[str, str], asked: str) -> None:
    line = (STORE if op == "store" else load("window")).replace(*change)
    returned = "stored" if op == "store" else "window"
    refuse(state_function(f"{line}\nfunc.return %{returned} : {WINDOW}"), f"dsv41.{op}", asked, OF_WINDOW, "in: %")


def test_stored_rows_must_have_the_caches_width() -> None:
    narrow = "!dsv41.tensor<[T, 36], ui8>"
    text = state_function(f"{STORE}\nfunc.return %stored : {WINDOW}").replace(ROWS, narrow)
    refuse(text, "rows of 36 x ui8", OF_WINDOW, "66 x ui8")


def test_stored_rows_must_have_the_caches_element() -> None:
    text = state_function(f"{STORE}\nfunc.return %stored : {WINDOW}").replace(ROWS, "!dsv41.tensor<[T, 66], f32>")
    refuse(text, "rows of 66 x f32", "66 x ui8")


def test_loaded_rows_must_have_the_caches_width() -> None:
    line = load("window").replace("row_width = 66", "row_width = 64")
    refuse(state_function(f"{line}\nfunc.return %window : {WINDOW}"), "a row_width of 64", OF_WINDOW)
    line = load("window").replace("[T, 66]", "[T, 64]")
    refuse(state_function(f"{line}\nfunc.return %window : {WINDOW}"), "results of 64", OF_WINDOW)


def test_a_store_keeps_the_type() -> None:
    other = WINDOW.replace("owner 0", "owner 1")
    line = STORE.replace(f"-> {WINDOW}", f"-> {other}")
    refuse(state_function(f"{line}\nfunc.return %stored : {other}", other), "both must be one type", "owner 1")


@pytest.mark.parametrize(
    ("old", "new", "reasons"),
    [
        ("window_page = 8, main_page", "window_page = 16, main_page", ("window as page 16", OF_WINDOW)),
        ("main_page = 4", "main_page = 8", ("main as page 8", "page 4, planar<e2m1 x 64 | e4m3 / 16>")),
        ("ratio = 2, k = 4, page = 4", "ratio = 1, k = 4, page = 4", ("asks for ratio 1", "2 tokens")),
        ("ratio = 2, k = 4, page = 4", "ratio = 2, k = 4, page = 8", ("index as page 8", "page 4, planar<e2m1 x 32")),
        ('{row_format = "f32", page = 8}', '{row_format = "f32", page = 4}', ("cache as page 4", "page 8")),
    ],
)
def test_readers_in_the_example_that_disagree(old: str, new: str, reasons: tuple[str, ...]) -> None:
    assert old in EVERYTHING
    refuse(EVERYTHING.replace(old, new), *reasons)


def test_attention_over_another_kind_of_cache() -> None:
    refuse(EVERYTHING.replace(WINDOW, WINDOW.replace("e4m3 x 64", "e4m3 x 128")), "planar<e4m3 x 128 | ue8m0 / 32>")
    refuse(EVERYTHING.replace(MAIN, MAIN.replace("e4m3 / 16", "ue8m0 / 32")), "planar<e2m1 x 64 | ue8m0 / 32>")
    refuse(EVERYTHING.replace(INDEX, INDEX.replace("x 32", "x 64")), "planar<e2m1 x 64 | ue8m0 / 32>")


def test_main_and_its_slots_come_together() -> None:
    text = EVERYTHING.replace("%window_index, none, none, %sink", "%window_index, %main.0, none, %sink")
    text = text.replace("[T, 8], si32>, none, none, ", f"[T, 8], si32>, {MAIN}, none, ")
    refuse(text, "both or neither")


def attend(width: int = 128, heads: int = 2, cos: str = "[T, 8], f32", sin: str = "[T, 8], f32") -> str:
    """A function of one attend; it has a main cache and no slots."""
    types = {
        "q": f"!dsv41.tensor<[T, {width}], bf16>",
        "cos": f"!dsv41.tensor<{cos}>",
        "sin": f"!dsv41.tensor<{sin}>",
        "window": WINDOW,
        "rows": ROWS,
        "index": "!dsv41.tensor<[T, 8], si32>",
        "main": MAIN,
        "sink": f"!dsv41.tensor<[{heads}], f32>",
    }
    slots = {name: (f"%{name}", type_) for name, type_ in types.items() if name != "sink"}
    slots |= {"main_slots": ("none", "none"), "sink": ("%sink", types["sink"])}
    operands, operand_types = (", ".join(column) for column in zip(*slots.values(), strict=True))
    attributes = "{scale = 0.125, window_page = 8, main_page = 4}"
    line = f"%y = dsv41.attend {operands} {attributes} : {operand_types} -> {types['q']}"
    arguments = ", ".join(f"%{name}: {type_}" for name, type_ in types.items())
    return function(arguments, f"{line}\nfunc.return %y : {types['q']}", types["q"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"width": 129}, "query has rows of 129; they hold 2 heads of one size, one for each of sink"),
        ({"heads": 16}, "cos turns 8 pairs of channels; a head has 8 channels"),
        ({"heads": 4}, "page 8, planar<e4m3 x 32 | ue8m0 / 32>"),
        ({"sin": "[T, 4], f32"}, "both have one row for each of query's T"),
        ({"cos": "[B, 8], f32", "sin": "[B, 8], f32"}, "both have one row for each of query's T"),
        ({}, "dsv41.attend has one of main and main_slots; it takes both or neither"),
    ],
)
def test_what_attend_refuses(changes: dict[str, Any], reason: str) -> None:
    refuse(attend(**changes), reason)


@pytest.mark.parametrize(
    ("list_", "width", "op"),
    [
        ("candidates", 3, "dsv41.index_topk"),
        ("window_index", 8, "dsv41.sparse_attention"),
        ("main_slots", 4, "dsv41.sparse_attention"),
    ],
)
def test_lists_are_narrow(list_: str, width: int, op: str) -> None:
    narrow, wide = (f"!dsv41.tensor<[T, {width}], {element}>" for element in ("si32", "si64"))
    lines = EVERYTHING.replace(f"%{list_}: {narrow}", f"%{list_}: {wide}").splitlines()
    lines = [line.replace(narrow, wide) if re.search(f"%{list_}[, ]", line) else line for line in lines]
    refuse("\n".join(lines), f"{op} has {list_} of si64; such lists are si32")


# --- the discipline of state ------------------------------------------------------------------------------------------


def test_a_value_is_stored_to_once() -> None:
    second = STORE.replace("%stored", "%again")
    text = state_function(f"{STORE}\n{second}\nfunc.return %stored, %again : {WINDOW}, {WINDOW}", f"{WINDOW}, {WINDOW}")
    refuse(text, "stores to %window, to which this already stores", "%stored = dsv41.store")


def test_no_store_is_lost() -> None:
    refuse(state_function(f"{STORE}\nfunc.return %window : {WINDOW}"), "last value is not returned")


def test_readers_of_the_old_value_after_a_copying_store_are_fine() -> None:
    check(state_function(f"{STORE}\n{load('window')}\nfunc.return %stored : {WINDOW}"))


def test_readers_of_the_old_value_after_a_store_in_place_are_not() -> None:
    text = state_function(f"{IN_PLACE}\n{load('window')}\nfunc.return %stored : {WINDOW}")
    refuse(text, "dsv41.load: reads %window after this store in place", "%stored = dsv41.store")
    text = state_function(f"{IN_PLACE}\nfunc.return %stored, %window : {WINDOW}, {WINDOW}", f"{WINDOW}, {WINDOW}")
    refuse(text, "func.return: reads %window")


def test_launched_stores_follow_the_same_rules() -> None:
    launch = (
        '%stored = dsv41.launch "store"(%window, %rows, %slots) {row_format = "fp8_e8m0", page = 8, in_place} : '
        f"({WINDOW}, {ROWS}, {SLOTS}) -> ({WINDOW})"
    )
    check(state_function(f"{launch}\nfunc.return %stored : {WINDOW}"))
    refuse(state_function(f"{launch}\n{load('window')}\nfunc.return %stored : {WINDOW}"), "reads %window after")
    copying = launch.replace(", in_place", "")
    refuse(state_function(f"{copying}\nfunc.return %window : {WINDOW}"), "last value is not returned")


# --- sizes and signatures ---------------------------------------------------------------------------------------------


def test_declared_sizes_must_be_the_ops() -> None:
    body = f"%y = torch.aten.mul.Tensor %x, %x : {BF16}, {BF16} -> %s\nfunc.return %y : %s"
    for wrong in ("!dsv41.tensor<[T, 32], bf16>", "!dsv41.tensor<[T, 64], f32>", "!dsv41.tensor<[2*T, 64], bf16>"):
        refuse(function(f"%x: {BF16}", body.replace("%s", wrong), wrong), "torch.aten.mul.Tensor", f"declared {wrong}")
    check(function(f"%x: {BF16}", body.replace("%s", BF16), BF16))


def test_sizes_that_agree_by_chance_are_refused() -> None:
    """With T = 2 the type would be right; two assignments of primes show that it is not."""
    body = "%y = torch.aten.cat %l, %d : !torch.list<vtensor>, !torch.int -> !dsv41.tensor<[T*T, 64], bf16>"
    body = f"""%d = torch.constant.int 0
    %l = torch.prim.ListConstruct %x, %x : ({BF16}, {BF16}) -> !torch.list<vtensor>
    {body}
    func.return %y : !dsv41.tensor<[T*T, 64], bf16>"""
    refuse(function(f"%x: {BF16}", body, "!dsv41.tensor<[T*T, 64], bf16>"), "declared !dsv41.tensor<[T*T, 64], bf16>")
    check(function(f"%x: {BF16}", body.replace("T*T", "2*T"), "!dsv41.tensor<[2*T, 64], bf16>"))


def test_operands_that_do_not_fit_are_refused() -> None:
    other = "!dsv41.tensor<[T, 63], bf16>"
    body = f"%z = torch.aten.mul.Tensor %x, %y : {BF16}, {other} -> {BF16}\nfunc.return %z : {BF16}"
    refuse(function(f"%x: {BF16}, %y: {other}", body, BF16), "operands do not fit", "%z = torch.aten.mul.Tensor")


def test_sizes_may_not_depend_on_data() -> None:
    body = """%n = torch.aten.item %x : !dsv41.tensor<[], si64> -> !torch.int
    %l = torch.prim.ListConstruct %n : (!torch.int) -> !torch.list<int>
    func.return %x : !dsv41.tensor<[], si64>"""
    refuse(function("%x: !dsv41.tensor<[], si64>", body, "!dsv41.tensor<[], si64>"), "torch.aten.item")


def test_all_schema_arguments_are_operands() -> None:
    body = f"%y = torch.aten.add.Tensor %x, %x : {BF16}, {BF16} -> {BF16}\nfunc.return %y : {BF16}"
    refuse(function(f"%x: {BF16}", body, BF16), "its schema asks for (self, other, alpha)")


def test_symbols_must_be_declared() -> None:
    refuse(function("%x: !dsv41.tensor<[Q], f32>", "func.return"), "uses Q", "dsv41.symbols")


def test_values_are_defined_before_use() -> None:
    body = f"%z = torch.aten.mul.Tensor %y, %x : {BF16}, {BF16} -> {BF16}\n%y = torch.aten.neg %x : {BF16} -> {BF16}"
    refuse(function(f"%x: {BF16}", f"{body}\nfunc.return %z : {BF16}", BF16), "used before it is defined")


def test_results_must_be_the_functions() -> None:
    refuse(function(f"%x: {BF16}", f"func.return %x : {BF16}", "!dsv41.tensor<[T], f32>"), "func.return")
    text = function(f"%x: {BF16}", f"func.return %x : {BF16}", BF16)
    refuse(text.replace(SYMBOLS, SYMBOLS + ', dsv41.outputs = ["a", "b"]'), "dsv41.outputs names 2 of 1")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("@square(%linear)", "@cube(%linear)", "runs 'cube', which is neither"),
        ('"square"(%called)', '"cube"(%called)', "runs 'cube', which is neither"),
        (f"@square(%linear) : ({BF16})", f"@square(%linear, %linear) : ({BF16}, {BF16})", "'square' takes"),
        ('source = "derived"', 'source = "elsewhere"', "weight source 'elsewhere' is unknown"),
    ],
)  # fmt: skip
def test_calls_and_weights(old: str, new: str, reason: str) -> None:
    assert old in EVERYTHING
    with pytest.raises(IRError, match=re.escape(reason)):
        check(EVERYTHING.replace(old, new))


WEIGHT, SCALE, WIDE = "!dsv41.tensor<[64, 32], f8E4M3FN>", "!dsv41.tensor<[2, 1], ui8>", "!dsv41.tensor<[T, 64], bf16>"


def linears(operands: str, types: str, notes: str = "groups = 2, quantize = 0") -> str:
    body = f"%y = dsv41.linears {operands} {{{notes}}} : {types} -> {WIDE}\nfunc.return %y : {WIDE}"
    return function(f"%x: {WIDE}, %w: {WEIGHT}, %s: {SCALE}", body, WIDE)


def test_linears_with_groups_verify() -> None:
    check(linears("%x, %w, %s", f"{WIDE}, {WEIGHT}, {SCALE}"))


@pytest.mark.parametrize(
    ("operands", "types", "notes", "reason"),
    [
        ("%x, %w, %s", f"{WIDE}, {WEIGHT}, {SCALE}", "groups = 1, quantize = 0", "in 1 groups takes rows of 32"),
        ("%x, %w, %s", f"{WIDE}, {WEIGHT}, {SCALE}", "groups = 2, quantize = 2", "quantize is 2; it is 0 or 1"),
        ("%x, %w", f"{WIDE}, {WEIGHT}", "groups = 2, quantize = 0", "a weight and its scale for each of its 1 results"),
        ("%x", WIDE, "groups = 2, quantize = 0", "it has 0 operands behind x"),
        ("%x, %w, %w", f"{WIDE}, {WEIGHT}, {WEIGHT}", "groups = 2, quantize = 0", "has scales [2, 1] ui8"),
    ],
)  # fmt: skip
def test_linears_must_fit(operands: str, types: str, notes: str, reason: str) -> None:
    refuse(linears(operands, types, notes), "dsv41.linears" if "rows" not in reason else "weight", reason)


def test_two_functions_of_one_name() -> None:
    text = function(f"%x: {BF16}", f"func.return %x : {BF16}", BF16)
    refuse(text + text, "two functions are named 'step'")


def test_functions_take_all_their_arguments() -> None:
    old = f'(%called) {{origin = "a.py:1, to-launches"}} : ({BF16})'
    assert old in EVERYTHING
    refuse(EVERYTHING.replace(old, f"(%called, none) : ({BF16}, none)"), "'square' takes")
    old = f"@square(%linear) : ({BF16})"
    with pytest.raises(IRError, match="absent argument"):
        parse_module(EVERYTHING.replace(old, f"@square(%linear, none) : ({BF16}, none)"))
