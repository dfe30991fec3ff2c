"""One op of each kind through its recipe, replayed on planned memory, against the op's reference."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from dry_executor import DryExecutor
from op_bounds import assert_within_bounds
from test_cache_writers import rotation, rows_of
from test_experts import weights as packed_experts
from torch import Tensor
from xdsl.dialects.builtin import UnitAttr

from dsv41c.compiler.codegen.triton.device_program import device_program
from dsv41c.compiler.codegen.triton.recipes import RECIPES, index, products
from dsv41c.errors import CompileError
from dsv41c.ir.builder import FunctionBuilder, module_of
from dsv41c.ir.interpreter import Interpreter
from dsv41c.ir.types import CacheType, TensorType
from dsv41c.models import quant
from dsv41c.runtime.plan_format import DeviceProgram

ROWS = 13
PAGES = 6
RANGES = {"T": (1, 64), "B": (1, 4), "P": (1, PAGES), "N": (1, 99), "S": (1, 99), "R": (1, 64)}
EPS = {"iterations": 20, "eps": 1e-6, "mix_eps": 1e-20, "norm_eps": 1e-20}
WINDOW = CacheType.of("window", 0, 0, 16, "fp8_e8m0", 64)
MAIN = CacheType.of("main", 0, 1, 4, "fp4_e4m3", 64)
INDEX = CacheType.of("index", 0, 1, 4, "fp4_e8m0", 32)
TAIL = CacheType.of("tail", 0, 2, 8, "f32", 128)
HISTORY = CacheType.of("history", -1, 0, 8, "i32", 1)


@dataclass(frozen=True)
class Given:
    """An operand: its value, and whether it is a weight, a cache of some type, or an input with rows."""

    value: Tensor
    cache: CacheType | None = None
    weight: bool = False


Operands = list[Given | None]
Results = list[tuple[tuple[int | str, ...], str] | CacheType]


def op(kernel: str, operands: Operands, results: Results, attrs: dict[str, Any], few: bool) -> DeviceProgram:
    """Runs one op both ways, and compares all that it makes and writes; gives its program."""
    inputs = {f"a{at}": one for at, one in enumerate(operands) if one is not None and not one.weight}
    types = {name: one.cache or input_type(one.value) for name, one in inputs.items()}
    b = FunctionBuilder("step", types, RANGES)
    slots = [None if one is None else b.args.get(f"a{at}") for at, one in enumerate(operands)]
    for at, one in enumerate(operands):
        if one is not None and one.weight:
            slots[at] = b.weight(f"w{at}", TensorType.of(one.value.shape, one.value.dtype))
    made = [one if isinstance(one, CacheType) else TensorType.of(*one) for one in results]
    notes = {"in_place": UnitAttr()} if any(isinstance(one, CacheType) for one in made) else {}
    outputs = b.launch(kernel, slots, made, attrs | notes)
    func = b.finish({f"y{at}": value for at, value in enumerate(outputs)})
    values = {name: one.value for name, one in inputs.items()}

    def weights(symbol: str) -> Tensor:
        found = operands[int(symbol[1:])]
        assert found is not None
        return found.value

    expected = Interpreter(weights).run(func, values)
    code = device_program(func, module_of([func]), [ROWS], few)
    caches = {name: values[name].clone() for name, type_ in types.items() if isinstance(type_, CacheType)}
    tensors = {name: value for name, value in values.items() if name not in caches}
    made_here = DryExecutor(code.program, code.kernels, weights, caches).run(tensors)
    for name, cache in caches.items():
        written = next((result for result, one in zip(expected, made, strict=True) if one == types[name]), None)
        want = values[name] if written is None else expected[written]
        assert torch.equal(cache, want), f"{kernel} writes other bytes into {name}"
    for name, value in made_here.items():
        assert_within_bounds(kernel, value, expected[name])
    return code.program


def input_type(value: Tensor) -> TensorType:
    rows: int | str = "T" if value.shape[0] == ROWS else "B"
    return TensorType.of((rows, *value.shape[1:]), value.dtype)


def normal(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def whole(high: int, *shape: int, low: int = 0, seed: int = 6) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def fp8_weight(outputs: int, inputs: int, seed: int) -> list[Given | None]:
    weight = normal(outputs, inputs, seed=seed).clamp(-3, 3).to(torch.float8_e4m3fn)
    scale = whole(124, -(-outputs // 32), -(-inputs // 32), low=118, seed=seed).to(torch.uint8)
    return [Given(weight, weight=True), Given(scale, weight=True)]


def filled(cache: CacheType, pages: int, seed: int = 7) -> Given:
    """A cache of packed rows of random values."""
    rows = quant.quantize(normal(pages * cache.data.page, cache.data.columns, seed=seed).bfloat16(), cache.format)
    scale = cache.data.columns // cache.data.group
    planes = rows[:, :-scale].reshape(pages, -1), rows[:, -scale:].reshape(pages, -1)
    packed = torch.cat(planes, dim=1)
    padded = torch.zeros(pages, cache.page_stride_bytes, dtype=torch.uint8)
    padded[:, : packed.shape[1]] = packed
    return Given(padded, cache)


def plain(cache: CacheType, pages: int) -> Given:
    return Given(normal(pages, cache.data.page * cache.data.columns).mul(9).to(cache.storage.dtype), cache)


def slots_of(cache: CacheType, pages: int) -> Given:
    """A slot for each row, some of none."""
    slots = torch.randperm(pages * cache.data.page, generator=torch.Generator().manual_seed(2))[:ROWS]
    slots[3] = -1
    return Given(slots)


def angles() -> Operands:
    return [Given(one) for one in rotation(ROWS, 16)]


def sublayer(dim: int = 160) -> Operands:
    """y, h, post, comb, pre of an mHC site."""
    mixes = [normal(ROWS, *shape).sigmoid() for shape in ((4,), (4, 4), (4,))]
    return [Given(normal(ROWS, dim).bfloat16()), Given(normal(ROWS, 4, dim).bfloat16()), *map(Given, mixes)]


def predictor(dim: int = 160) -> Operands:
    values = normal(24, 4 * dim) / 20, normal(24), normal(3), normal(dim).bfloat16()
    return [Given(value, weight=True) for value in values]


def mixes(dim: int = 160) -> Results:
    return [(("T", dim), "bf16"), (("T", 4), "f32"), (("T", 4), "f32"), (("T", 4, 4), "f32")]


def choice(count: int = 8) -> Tensor:
    ids = torch.stack([torch.randperm(count, generator=torch.Generator().manual_seed(row))[:2] for row in range(ROWS)])
    ids[4], ids[7, 1] = -1, -1
    return ids


def moe_weights(dim: int, inner: int) -> Operands:
    shapes = ((inner, dim, 1), (inner, dim, 2), (dim, inner, 3))
    routed = [Given(part, weight=True) for shape in shapes for part in packed_experts(8, *shape)]
    shared = [fp8_weight(inner, dim, 4), fp8_weight(inner, dim, 5), fp8_weight(dim, inner, 6)]
    return [*routed, *(part for pair in shared for part in pair)]


def attention(selected: bool) -> Operands:
    """window, fresh, window index, main, main slots, sink."""
    fresh = quant.quantize(normal(ROWS, 64, seed=9).bfloat16(), "fp8_e8m0")
    index = whole(48, ROWS, 16, low=-ROWS - 1).int()
    main: Operands = (
        [filled(MAIN, 9), Given(whole(36, ROWS, 8, low=-2).clamp(min=-1).int())] if selected else [None] * 2
    )
    return [filled(WINDOW, 3), Given(fresh), Given(index), *main, Given(normal(4), weight=True)]


def indexing(candidates: Tensor | None) -> Operands:
    """Two sequences of up to 24 entries, the last row padded."""
    query = quant.fake_quantize(normal(ROWS, 8, 32).bfloat16(), "fp4_e8m0")
    pages = torch.randperm(2 * PAGES, generator=torch.Generator().manual_seed(1)).view(2, PAGES)
    positions = torch.cat([torch.arange(11, 18), torch.arange(19, 24), torch.tensor([-1])])
    sequence = (torch.arange(ROWS) >= 7).long()
    values = [query, normal(ROWS, 8).bfloat16(), None, pages, sequence, positions, candidates]
    given: Operands = [None if value is None else Given(value) for value in values]
    given[2] = filled(INDEX, 2 * PAGES)
    return given


Case = Callable[[], tuple[str, Operands, Results, dict[str, Any]]]
ROW = (("T", 64), "bf16")
CASES: dict[str, Case] = {
    "fake_quantize_fp8": lambda: (
        "fake_quantize",
        [Given(rows_of(96))],
        [(("T", 96), "bf16")],
        {"row_format": "fp8_e8m0"},
    ),
    "fake_quantize_fp4": lambda: (
        "fake_quantize",
        [Given(normal(ROWS, 4, 32).bfloat16())],
        [(("T", 4, 32), "bf16")],
        {"row_format": "fp4_e8m0"},
    ),
    "rotary": lambda: (
        "rotary",
        [Given(whole(1 << 20, ROWS)), Given(10000.0 ** (-torch.arange(12) / 12), weight=True)],
        [(("T", 12), "f32")] * 2,
        {},
    ),
    "store_f32": lambda: (
        "store",
        [plain(TAIL, 3), Given(normal(ROWS, 128)), slots_of(TAIL, 3)],
        [TAIL],
        {"row_format": "f32", "page": 8},
    ),
    "store_packed": lambda: (
        "store",
        [filled(WINDOW, 3), Given(quant.quantize(rows_of(64), "fp8_e8m0")), slots_of(WINDOW, 3)],
        [WINDOW],
        {"row_format": "fp8_e8m0", "page": 16},
    ),
    "load": lambda: (
        "load",
        [plain(HISTORY, 3), Given(whole(24, ROWS, 4, low=-1))],
        [(("T", 4, 1), "si32")],
        {"row_format": "i32", "page": 8, "row_width": 1},
    ),
    "pack_rows": lambda: (
        "pack_rows",
        [Given(rows_of(64)), *angles(), Given(normal(64).bfloat16(), weight=True)],
        [(("T", 66), "ui8")],
        {"norm_eps": 1e-20, "row_format": "fp8_e8m0"},
    ),
    "write_rows": lambda: (
        "write_rows",
        [filled(MAIN, 5), Given(rows_of(64)), *angles(), None, slots_of(MAIN, 5)],
        [MAIN],
        {"norm_eps": 0.0, "row_format": "fp4_e4m3", "page": 4},
    ),
    "write_rows_norm": lambda: (
        "write_rows",
        [
            filled(INDEX, 5),
            Given(rows_of(32)),
            *angles(),
            Given(normal(32).bfloat16(), weight=True),
            slots_of(INDEX, 5),
        ],
        [INDEX],
        {"norm_eps": 1e-20, "row_format": "fp4_e8m0", "page": 4},
    ),
    "linears": lambda: (
        "linears",
        [Given(rows_of(96)), *fp8_weight(64, 96, 1), *fp8_weight(160, 96, 2)],
        [ROW, (("T", 160), "bf16")],
        {"groups": 1, "quantize": 1},
    ),
    "linears_three": lambda: (  # a pair and one, and numbers of outputs that no tile divides
        "linears",
        [Given(rows_of(96)), *fp8_weight(72, 96, 1), *fp8_weight(40, 96, 2), *fp8_weight(64, 96, 3)],
        [(("T", outputs), "bf16") for outputs in (72, 40, 64)],
        {"groups": 1, "quantize": 0},
    ),
    "linears_in_groups": lambda: (
        "linears",
        [Given(rows_of(192)), *fp8_weight(64, 96, 1)],
        [ROW],
        {"groups": 2, "quantize": 0},
    ),
    "linears_in_parts": lambda: (
        "linears",
        [Given(rows_of(512).repeat(1, 3).contiguous()), *fp8_weight(64, 1536, 1)],
        [ROW],
        {"groups": 1, "quantize": 0},
    ),
    "linear_bf16": lambda: (
        "linear_bf16",
        [Given(rows_of(96)), Given(normal(40, 96).bfloat16(), weight=True)],
        [(("T", 40), "bf16")],
        {"wide": 0},
    ),
    "linear_bf16_wide": lambda: (
        "linear_bf16",
        [Given(rows_of(96)), Given(normal(40, 96).bfloat16(), weight=True)],
        [(("T", 40), "f32")],
        {"wide": 1},
    ),
    "mhc_site": lambda: (
        "mhc_site",
        [*sublayer(), *predictor()],
        [(("T", 4, 160), "bf16"), *mixes()],
        EPS,
    ),
    "mhc_enter": lambda: (
        "mhc_enter",
        [sublayer()[1], sublayer()[4], *predictor()],
        mixes(),
        EPS,
    ),
    "mhc_leave": lambda: (
        "mhc_leave",
        [*sublayer(), predictor()[3], Given(torch.tensor([12, 3, 3]))],
        [(("B", 160), "bf16")],
        {"norm_eps": 1e-20},
    ),
    "select_experts": lambda: (
        "select_experts",
        [Given(whole(4, ROWS, 12).float())],  # many are equal
        [(("T", 5), "si64")],
        {"k": 5},
    ),
    "route_experts": lambda: (
        "route_experts",
        [Given(whole(4, ROWS, 12).float()), Given(torch.zeros(12), weight=True)],
        [(("T", 5), "si64"), (("T", 5), "f32")],
        {"k": 5, "scale": 1.5},
    ),
    "moe": lambda: (
        "moe",
        [
            Given(quant.fake_quantize(normal(ROWS, 128).bfloat16(), "fp8_e8m0")),
            Given(choice()),
            Given(normal(ROWS, 2).abs()),
            *moe_weights(128, 64),
        ],
        [(("T", 128), "bf16")],
        {"limit": 10.0},
    ),
    "ngram_hash": lambda: (
        "ngram_hash",
        [
            Given(whole(1 << 40, ROWS, 4, low=-(1 << 40))),
            *(Given(whole(1 << 40, size, low=3), weight=True) for size in (4, 9, 9)),
        ],
        [(("T", 9), "si64")],
        {},
    ),
    "lookup": lambda: (
        "lookup",
        [*fp8_weight(64, 32, 3)[:1], Given(whole(130, 64, 1).to(torch.uint8), weight=True), Given(whole(64, ROWS, 6))],
        [(("T", 192), "bf16")],
        {},
    ),
    "attend": lambda: (
        "attend",
        [Given(normal(ROWS, 256).bfloat16()), *angles(), *attention(True)],
        [(("T", 256), "bf16")],
        {"scale": 64**-0.5, "window_page": 16, "main_page": 4},
    ),
    "sparse_attention": lambda: (
        "sparse_attention",
        [Given(normal(ROWS, 4, 64).bfloat16()), *attention(False)],
        [(("T", 4, 64), "bf16")],
        {"scale": 64**-0.5, "window_page": 16, "main_page": 1},
    ),
    "index_topk": lambda: (
        "index_topk",
        indexing(None),
        [(("T", 8), "si32"), (("T", 3), "si32")],
        {"ratio": 1, "k": 8, "page": 4, "block": 4, "n_blocks": 3},
    ),
    "index_pool_topk": lambda: (
        "index_pool_topk",
        indexing(torch.tensor([[0, 2, 4], [1, 2, -1]]).int()[whole(2, ROWS)]),
        [(("T", 5), "si32")],
        {"ratio": 1, "k": 5, "page": 4, "block": 4},
    ),
}


# Ops whose kernels are others for few rows.
CUT = (
    "linears",
    "linears_three",
    "linear_bf16",
    "linear_bf16_wide",
    "linears_in_groups",
    "mhc_site",
    "moe",
    "attend",
    "index_topk",
)
RUNS = [*((case, False) for case in CASES), *((case, True) for case in CUT)]


@pytest.mark.parametrize(("case", "few"), RUNS, ids=[f"{case}-{'few' if few else 'many'}" for case, few in RUNS])
def test_op_equals_its_reference(case: str, few: bool) -> None:
    kernel, operands, results, attrs = CASES[case]()
    op(kernel, operands, results, attrs, few)


def test_index_in_tiles_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirteen rows in tiles of four: the lists are the same, and scratch is there for one tile."""
    monkeypatch.setattr(index, "_BUDGET", 1)
    monkeypatch.setattr(index, "_SMALLEST_TILE", 4)
    for case in ("index_topk", "index_pool_topk"):
        kernel, operands, results, attrs = CASES[case]()
        program = op(kernel, operands, results, attrs, few=False)
        assert [launch.kernel.startswith("index") for launch in program.launches].count(True) == 4
        assert program.buffers["0.scores"].shape[0] == "min(4, T)"


def test_products_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few outputs of very many inputs: the parts are another launch's to add, with many rows there are none."""
    monkeypatch.setattr(products, "_PART_BYTES", 8 << 10)
    kernel, operands, results, attrs = CASES["linears_in_parts"]()
    names = [[launch.kernel for launch in op(kernel, operands, results, attrs, few).launches] for few in (True, False)]
    assert names == [["gemm_fp8_parts", "sum_parts"], ["gemm_fp8_tiled"]]


def test_every_recipe_is_documented_and_run() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gpu-programs.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(RECIPES)
    assert {case()[0] for case in CASES.values()} == set(RECIPES)


def test_op_without_a_recipe() -> None:
    b = FunctionBuilder("step", {"x": TensorType.of(["T", 64], "bf16")}, RANGES)
    func = b.finish({"y": b.launch("quantize", [b.args["x"]], [TensorType.of(["T", 66], "ui8")])[0]})
    with pytest.raises(CompileError, match=r"no kernels for 'dsv41\.quantize' on cuda:sm_90; .*index_topk"):
        device_program(func, module_of([func]), [ROWS], few=True, target="cuda:sm_90")
