"""What regions are made of: definitions equal their ops, roundings and sums are torch's, layers share regions."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from test_ops import CASES
from torch import Tensor

from dsv41c.compiler.codegen.mlir.elementary import torch_arithmetic
from dsv41c.compiler.codegen.mlir.iree import CpuTarget, KernelCache, compile_linalg
from dsv41c.compiler.codegen.mlir.lower import lower_regions
from dsv41c.compiler.codegen.mlir.rounding import explicit_rounding
from dsv41c.compiler.codegen.mlir.views import compile_views
from dsv41c.compiler.definitions import DEFINITIONS, ROW_SUMS, Definitions
from dsv41c.compiler.importer import import_definition
from dsv41c.compiler.trace import trace_definition
from dsv41c.ir.builder import FunctionBuilder, module_of
from dsv41c.ir.interpreter import Interpreter
from dsv41c.ir.ops.aten import AtenOp
from dsv41c.ir.types import TensorType
from dsv41c.ir.verify import verify
from dsv41c.models import ops
from dsv41c.runtime.iree_device import IreeDevice, aligned_empty
from dsv41c.runtime.plan import Plan

NO_WEIGHTS = {}.__getitem__


# --- definitions ------------------------------------------------------------------------------------------------------


def definition_cases() -> list[tuple[str, tuple[Any, ...]]]:
    return [(name, arguments) for name, arguments in CASES if f"dsv41.{name}" in DEFINITIONS]


@pytest.mark.parametrize(("name", "arguments"), definition_cases(), ids=[name for name, _ in definition_cases()])
def test_a_definition_is_its_op(name: str, arguments: tuple[Any, ...]) -> None:
    """Traced, imported, verified and interpreted, on the operands of the op's own tests; products may sum otherwise."""
    given = [(tuple(value.shape), value.dtype) if isinstance(value, Tensor) else value for value in arguments]
    func = import_definition("definition", trace_definition(DEFINITIONS[f"dsv41.{name}"], given, {}))
    verify(module_of([func]))
    tensors = [value for value in arguments if isinstance(value, Tensor)]
    results = Interpreter(NO_WEIGHTS).run(func, {f"arg{i}": tensor for i, tensor in enumerate(tensors)})
    expected = getattr(torch.ops.dsv41, name)(*arguments)
    for ours, want in zip(results.values(), expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert (ours.shape, ours.dtype) == (want.shape, want.dtype)
        bound = {"linear_fp8": 2**-7, "sparse_attention": 2**-7, "attend": 2**-7}.get(name, 0.0)
        assert torch.allclose(ours.float(), want.float(), rtol=bound, atol=bound / 8, equal_nan=True)


@pytest.mark.parametrize("row_format", ["fp8_e8m0", "fp4_e4m3", "fp4_e8m0", "f32", "i32"])
def test_a_load_by_addresses_is_a_load_by_pages(row_format: str) -> None:
    """Slots at page borders, twice the same, and none; with alignment bytes behind the rows of a page."""
    page, width = 5, 10 if row_format in ops.PLAIN_FORMATS else ops.quant.FORMATS[row_format].row_bytes(64)
    dtype = ops.PLAIN_FORMATS.get(row_format, torch.uint8)
    cache = torch.randint(0, 200, (4, page * width + (0 if row_format in ops.PLAIN_FORMATS else 17))).to(dtype)
    slots = torch.tensor([[0, 4, 5], [19, 19, -1], [14, 15, -1]])
    arguments = (cache, slots, row_format, page, width)
    assert torch.equal(ops.load_definition(*arguments), ops.load_rows(*arguments))


@pytest.mark.parametrize("columns", [32, 96, 128, 512, 1024, 5120])
@pytest.mark.parametrize("name", ROW_SUMS)
def test_a_row_sum_is_torchs_to_the_last_bit(name: str, columns: int) -> None:
    x = torch.randn(64, columns, generator=torch.Generator().manual_seed(columns)) ** 3
    builder = FunctionBuilder("f", {"x": TensorType.of(["T", columns], "f32")}, {"T": (1, 512)})
    packet = name.removeprefix("torch.aten.")
    builder.finish(
        {"sum": builder.aten(packet, [builder.args["x"], [-1], False, None], [TensorType.of(["T"], "f32")])[0]}
    )
    (op,) = [op for op in builder.block.ops if isinstance(op, AtenOp)]
    definition = Definitions({"T": (1, 512)}).define(op)
    assert definition is not None
    (ours,) = Interpreter(NO_WEIGHTS).run(definition, {"arg0": x}).values()
    assert torch.equal(ours, x.mean(-1) if "mean" in name else x.sum(-1))


# --- arithmetic of compiled kernels -----------------------------------------------------------------------------------

Kernel = Callable[[Tensor], Tensor]

_ELEMENTWISE = """\
module {{
  func.func @kernel(%arg0: tensor<?xf32>) -> tensor<?x{element}> {{
    %c0 = arith.constant 0 : index
    %size = tensor.dim %arg0, %c0 : tensor<?xf32>
    %empty = tensor.empty(%size) : tensor<?x{element}>
    %result = linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}} ins(%arg0 : tensor<?xf32>) outs(%empty : tensor<?x{element}>) {{
    ^bb0(%in: f32, %out: {element}):
{body}
    }} -> tensor<?x{element}>
    return %result : tensor<?x{element}>
  }}
}}
"""  # noqa: E501


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> IreeDevice:
    path = tmp_path_factory.mktemp("views") / "views.vmfb"
    path.write_bytes(compile_views())
    return IreeDevice(path)


def run(device: IreeDevice, folder: Path, text: str, *inputs: Tensor, dtype: torch.dtype) -> Tensor:
    path = folder / "kernel.vmfb"
    path.write_bytes(compile_linalg(text, CpuTarget(), KernelCache.default()))
    views = [device.to_view(aligned_empty(x.shape, x.dtype).copy_(x)) for x in inputs]
    return device.to_tensor(device.load_module(path).function("kernel")(views)[0], dtype)


@cache
def every_kind_of_float() -> Tensor:
    """All bf16 values, a comb through all f32, and every rounding tie of e4m3 and of bf16 with its neighbours."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    codes = codes[codes.isfinite()].sort().values
    ties = (codes[1:] + codes[:-1]) / 2
    around = [ties, *(torch.nextafter(ties, torch.tensor(float(end))) for end in (-1e9, 1e9))]
    halves = torch.arange(0, 1 << 16) << 16
    bits = torch.cat((halves, halves | 0x8000, halves | 0x7FFF, halves | 0x8001, torch.arange(0, 1 << 32, 99991)))
    return torch.cat((bits.to(torch.uint32).view(torch.float32), *around, codes))


def same_values(ours: Tensor, expected: Tensor) -> Tensor:
    return (ours == expected) | (ours.isnan() & expected.isnan())


@pytest.mark.parametrize(
    ("element", "dtype", "bits"), [("bf16", torch.bfloat16, "i16"), ("f8E4M3FN", torch.float8_e4m3fn, "i8")]
)
def test_rounding_is_torchs_for_every_float(
    device: IreeDevice, tmp_path: Path, element: str, dtype: torch.dtype, bits: str
) -> None:
    """IREE's own rounding to e4m3 makes zero of what rounds up to the smallest normal number."""
    body = f"""\
      %1 = arith.truncf %in : f32 to {element}
      %2 = arith.bitcast %1 : {element} to {bits}
      %3 = arith.extui %2 : {bits} to i32
      linalg.yield %3 : i32"""
    text = explicit_rounding(_ELEMENTWISE.format(element="i32", body=body))
    assert "truncf" not in text
    x = every_kind_of_float()
    raw = run(device, tmp_path, text, x, dtype=torch.int32).to({"i16": torch.int16, "i8": torch.uint8}[bits])
    ours, expected = raw.view(dtype).float(), x.to(dtype).float()
    assert same_values(ours, expected).all()
    assert torch.equal(ours.signbit()[~ours.isnan()], expected.signbit()[~expected.isnan()]), "-0 keeps its sign"


def test_a_sigmoid_is_torchs_to_the_last_bit(device: IreeDevice, tmp_path: Path) -> None:
    body = """\
      %cst = arith.constant 1.000000e+00 : f32
      %1 = arith.negf %in : f32
      %2 = math.exp %1 : f32
      %3 = arith.addf %2, %cst : f32
      %4 = arith.divf %cst, %3 : f32
      linalg.yield %4 : f32"""
    x = torch.cat(
        (torch.randn(1 << 16) * 8, torch.linspace(-87, 110, 1 << 16), torch.tensor([float("inf"), 0.0, -0.0]))
    )
    ours = run(
        device, tmp_path, torch_arithmetic(_ELEMENTWISE.format(element="f32", body=body)), x, dtype=torch.float32
    )
    assert torch.equal(ours, x.sigmoid())


def test_a_sinkhorn_is_torchs_to_the_last_bit(device: IreeDevice, tmp_path: Path) -> None:
    """Softmax over four columns, and twenty normalizations of rows and columns."""
    trace = trace_definition(ops.sinkhorn_definition, [(("T", 4, 4), torch.float32), 20, 1e-6], {"T": (1, 512)})
    text = lower_regions({"kernel": import_definition("kernel", trace)})
    logits = torch.randn(300, 4, 4, generator=torch.Generator().manual_seed(3)) * 3
    ours = run(device, tmp_path, text, logits, dtype=torch.float32)
    assert torch.equal(ours, torch.ops.dsv41.sinkhorn(logits, 20, 1e-6))


def test_a_rounding_between_two_ops_stays(device: IreeDevice, tmp_path: Path) -> None:
    """linear -> bf16 -> float -> product: IREE's pass for bf16 arithmetic would take the rounding away (1.7e-3)."""
    T = TensorType.of
    b = FunctionBuilder(
        "kernel", {"x": T(["T", 64], "bf16"), "w": T([32, 64], "bf16"), "g": T(["T", 4, 1], "f32")}, {"T": (1, 64)}
    )
    y = b.aten("linear", [b.args["x"], b.args["w"], None], [T(["T", 32], "bf16")])[0]
    wide = b.aten("to.dtype", [y, torch.float32, False, False, None], [T(["T", 32], "f32")])[0]
    row = b.aten("unsqueeze", [wide, 1], [T(["T", 1, 32], "f32")])[0]
    func = b.finish({"z": b.aten("mul.Tensor", [b.args["g"], row], [T(["T", 4, 32], "f32")])[0]})
    generator = torch.Generator().manual_seed(1)
    x, w = (torch.randn(size, generator=generator).bfloat16() for size in ((17, 64), (32, 64)))
    g = torch.rand((17, 4, 1), generator=generator) + 0.5
    ours = run(device, tmp_path, lower_regions({"kernel": func}), x, w, g, dtype=torch.float32)
    rounded = (ours / g)[:, 0]
    assert torch.equal((rounded * (1 + 1e-7)).bfloat16().float(), rounded.bfloat16().float())
    assert ((rounded - rounded.bfloat16().float()).abs() <= 2e-7 * rounded.abs()).all(), "every value is a bf16 number"


def test_products_are_not_contracted_with_sums(device: IreeDevice, tmp_path: Path) -> None:
    """x * y + z with two roundings, as torch; an fma would keep the product's low bits."""
    T = TensorType.of
    names = ("x", "y", "z")
    b = FunctionBuilder("kernel", {name: T(["T", 32], "f32") for name in names}, {"T": (1, 64)})
    product = b.aten("mul.Tensor", [b.args["x"], b.args["y"]], [T(["T", 32], "f32")])[0]
    func = b.finish({"r": b.aten("add.Tensor", [product, b.args["z"], 1], [T(["T", 32], "f32")])[0]})
    x, y = torch.randn(2, 64, 32, generator=torch.Generator().manual_seed(2))
    z = -(x * y) + torch.randn(64, 32) * 1e-6
    ours = run(device, tmp_path, lower_regions({"kernel": func}), x, y, z, dtype=torch.float32)
    assert torch.equal(ours, x * y + z)


# --- sharing ----------------------------------------------------------------------------------------------------------


def test_forty_layers_share_their_regions(sched40_plan: Path) -> None:
    """The released schedule has few kinds of layers; a region more a layer would be forty kernels more to compile."""
    programs = Plan.load(sched40_plan).programs
    every: set[str] = set()
    for name, program in programs.items():
        launched = [launch.kernel for launch in program.launches if launch.kernel.startswith("region_")]
        assert len(set(launched)) == SHARED_REGIONS[name]
        assert len(launched) > 5 * len(set(launched))
        every |= set(launched)
    assert len(every) == SHARED_BY_PROGRAMS


SHARED_REGIONS = {"step": 18, "encode": 13, "encode_replay": 13, "tail": 12, "step_one_row": 18}
SHARED_BY_PROGRAMS = 40  # encode, its replay and tail have the regions of step, but for where it is cut
