"""Regions through torch-mlir and IREE against torch, at several sizes; texts, refusals, the kernel cache."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from xdsl.dialects.func import FuncOp

from dsv41c.compiler.codegen.mlir import iree
from dsv41c.compiler.codegen.mlir.iree import CpuTarget, KernelCache, compile_linalg, module_key
from dsv41c.compiler.codegen.mlir.lower import lower_regions, lower_text
from dsv41c.compiler.codegen.mlir.torch_text import torch_text
from dsv41c.compiler.codegen.mlir.views import compile_views
from dsv41c.errors import CompileError
from dsv41c.ir.builder import FunctionBuilder
from dsv41c.ir.types import CacheType, TensorType
from dsv41c.runtime.iree_device import IreeDevice

T = TensorType.of
SYMBOLS = {"T": (1, 512)}
Reference = Callable[..., list[torch.Tensor]]


def _to(b: FunctionBuilder, value, dims, dtype: torch.dtype):  # type: ignore[no-untyped-def]
    return b.aten("to.dtype", [value, dtype, False, False, None], [T(dims, dtype)])[0]


def linear_region() -> tuple[FuncOp, Reference]:
    """bf16 activations, f8E4M3FN weights."""
    b = FunctionBuilder("linear", {"x": T(["T", 64], "bf16"), "w": T([48, 64], "f8E4M3FN")}, SYMBOLS)
    weight = _to(b, b.args["w"], [48, 64], torch.bfloat16)
    y = b.aten("linear", [b.args["x"], weight, None], [T(["T", 48], "bf16")])[0]
    return b.finish({"y": y}), lambda x, w: [torch.nn.functional.linear(x, w.bfloat16())]


def scales_region() -> tuple[FuncOp, Reference]:
    """ui8 exponents to fp32 powers of two, through a bit cast with a dynamic size."""
    b = FunctionBuilder("scales", {"s": T(["T", 4], "ui8")}, SYMBOLS)
    wide = _to(b, b.args["s"], ["T", 4], torch.int32)
    moved = b.aten("__lshift__.Scalar", [wide, 23], [T(["T", 4], "si32")])[0]
    value = b.aten("view.dtype", [moved, torch.float32], [T(["T", 4], "f32")])[0]
    return b.finish({"value": value}), lambda s: [(s.int() << 23).view(torch.float32)]


def gather_region() -> tuple[FuncOp, Reference]:
    """softmax (a decomposed op), int64 gather, and two results."""
    b = FunctionBuilder("gather", {"x": T(["T", 16], "f32"), "i": T(["T", 3], "si64")}, SYMBOLS)
    weights = b.aten("_softmax", [b.args["x"], -1, False], [T(["T", 16], "f32")])[0]
    picked = b.aten("gather", [weights, 1, b.args["i"], False], [T(["T", 3], "f32")])[0]
    reference: Reference = lambda x, i: [x.softmax(-1), x.softmax(-1).gather(1, i)]  # noqa: E731
    return b.finish({"weights": weights, "picked": picked}), reference


def double_region() -> tuple[FuncOp, Reference]:
    """fp64 in the middle stays fp64."""
    b = FunctionBuilder("double", {"x": T(["T"], "f32")}, SYMBOLS)
    wide = _to(b, b.args["x"], ["T"], torch.float64)
    shifted = b.aten("add.Scalar", [wide, 1e9, 1], [T(["T"], "f64")])[0]
    back = b.aten("sub.Scalar", [shifted, 1e9, 1], [T(["T"], "f64")])[0]
    return b.finish({"y": _to(b, back, ["T"], torch.float32)}), lambda x: [((x.double() + 1e9) - 1e9).float()]


REGIONS = {f.__name__: f for f in (linear_region, scales_region, gather_region, double_region)}


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> IreeDevice:
    path = tmp_path_factory.mktemp("views") / "views.vmfb"
    path.write_bytes(compile_views())
    return IreeDevice(path)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "cpu.vmfb"
    path.write_bytes(compile_linalg(lower_regions({name: make()[0] for name, make in REGIONS.items()}), CpuTarget()))
    return path


def _inputs(func: FuncOp, sizes: Mapping[str, int]) -> list[torch.Tensor]:
    made = []
    for argument in func.args:
        assert isinstance(argument.type, TensorType)
        shape, dtype = argument.type.shape(sizes), argument.type.dtype
        if dtype in (torch.int64, torch.uint8):
            made.append(torch.randint(0, 16, shape).to(dtype) + (120 if dtype == torch.uint8 else 0))
        else:
            made.append(torch.randn(shape).to(dtype))
    return made


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("name", REGIONS)
def test_region_computes_what_torch_computes(device: IreeDevice, kernels: Path, name: str, rows: int) -> None:
    func, reference = REGIONS[name]()
    tensors = _inputs(func, {"T": rows})
    views = device.load_module(kernels).function(name)([device.to_view(tensor) for tensor in tensors])
    for view, expected in zip(views, reference(*tensors), strict=True):
        result = device.to_tensor(view, expected.dtype)
        assert result.shape == expected.shape
        bound = 2**-7 if expected.dtype == torch.bfloat16 else 1e-6
        assert torch.allclose(result.float(), expected.float(), rtol=bound, atol=bound)


def test_text_is_the_region_with_other_types() -> None:
    func, _ = linear_region()
    text = torch_text(func, "k")
    assert "func.func @k(%arg0: !torch.vtensor<[?,64],bf16>, %arg1: !torch.vtensor<[48,64],f8E4M3FN>)" in text
    assert (
        ": !torch.vtensor<[?,64],bf16>, !torch.vtensor<[48,64],bf16>, !torch.none -> !torch.vtensor<[?,48],bf16>"
        in text
    )
    assert "!torch.vtensor<[1,64],bf16>" in torch_text(func, "k", {"T": 1})


def test_equal_regions_have_equal_text_whatever_their_names() -> None:
    b = FunctionBuilder("other", {"hidden": T(["T", 64], "bf16"), "wq": T([48, 64], "f8E4M3FN")}, SYMBOLS)
    b.origin = "attention.py:7"
    weight = b.aten("to.dtype", [b.args["wq"], torch.bfloat16, False, False, None], [T([48, 64], "bf16")], ["cast"])[0]
    y = b.aten("linear", [b.args["hidden"], weight, None], [T(["T", 48], "bf16")], ["q"])[0]
    assert torch_text(b.finish({"q": y})) == torch_text(linear_region()[0])


def test_one_size_only(device: IreeDevice, tmp_path: Path) -> None:
    func, reference = linear_region()
    (tmp_path / "k").write_bytes(compile_linalg(lower_regions({"k": func}, {"T": 1}), CpuTarget()))
    run = device.load_module(tmp_path / "k").function("k")
    x, w = _inputs(func, {"T": 1})
    (y,) = run([device.to_view(x), device.to_view(w)])
    assert torch.allclose(
        device.to_tensor(y, torch.bfloat16).float(), reference(x, w)[0].float(), rtol=2**-7, atol=2**-7
    )


def test_a_cache_does_not_go_to_torch_mlir() -> None:
    b = FunctionBuilder("r", {"window": CacheType.of("window", 0, 0, 128, "fp8_e8m0", 512)}, SYMBOLS)
    with pytest.raises(CompileError, match=r"region 'r': a value of type !dsv41.cache.*outside of regions"):
        torch_text(b.finish({}))


def test_a_custom_op_does_not_go_to_torch_mlir() -> None:
    b = FunctionBuilder("r", {"x": T(["T", 64], "bf16")}, SYMBOLS)
    y = b.dsv41("fake_quantize", [b.args["x"]], [T(["T", 64], "bf16")], {"row_format": "fp8_e8m0"})[0]
    with pytest.raises(CompileError, match=r"op 'dsv41\.fake_quantize' cannot go to torch-mlir"):
        torch_text(b.finish({"y": y}))


def test_a_bit_cast_between_widths_is_refused() -> None:
    b = FunctionBuilder("r", {"x": T(["T", 64], "bf16")}, SYMBOLS)
    y = b.aten("view.dtype", [b.args["x"], torch.uint8], [T(["T", 128], "ui8")])[0]
    with pytest.raises(CompileError, match="from bf16 to ui8: supported are two element types of equal width"):
        torch_text(b.finish({"y": y}))


def test_an_op_without_a_lowering_is_named() -> None:
    b = FunctionBuilder("r", {"x": T(["T", 4], "f32")}, SYMBOLS)
    y = b.aten("neg", [b.args["x"]], [T(["T", 4], "f32")])[0]
    y = b.aten("bucketize.Tensor", [y, b.args["x"], False, False], [T(["T", 4], "si64")])[0]
    y = b.aten("neg", [y], [T(["T", 4], "si64")])[0]
    with pytest.raises(CompileError, match=r"region 'r': .*because of %v\d+ = torch.aten.bucketize.Tensor.*legalize"):
        lower_regions({"r": b.finish({"y": y})})


def test_text_that_does_not_parse_is_a_compile_error() -> None:
    with pytest.raises(CompileError, match="region 'r': torch-mlir does not take its text"):
        lower_text({"r": "func.func @r() { %0 = torch.aten.nonsense : () -> () }"})


def test_overwriting_an_argument_is_refused() -> None:
    b = FunctionBuilder("r", {"x": T(["T", 8], "f32")}, SYMBOLS)
    values = b.aten("sort", [b.args["x"], -1, True], [T(["T", 8], "f32"), T(["T", 8], "si64")])[0]
    with pytest.raises(CompileError, match="would overwrite an argument"):
        lower_regions({"r": b.finish({"values": values})})


def test_iree_refusals_name_the_diagnostic() -> None:
    with pytest.raises(CompileError, match=r"error: .*nonsense"):
        compile_linalg("module { func.func @f() { nonsense.op } }", CpuTarget())


def test_cache_hits_misses_and_survives_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, target, cache = lower_regions({"k": scales_region()[0]}), CpuTarget(), KernelCache(tmp_path / "cache")
    first = compile_linalg(text, target, cache)
    assert (cache.hits, cache.misses) == (0, 1)
    assert compile_linalg(text, target, cache) == first
    assert (cache.hits, cache.misses) == (1, 1)
    (entry,) = (tmp_path / "cache").iterdir()
    assert entry.stem == module_key(text, target)
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    assert len(compile_linalg(text, target, cache)) == len(first)
    assert (cache.hits, cache.misses) == (1, 2)
    monkeypatch.setattr(iree, "_FLAGS", (*iree._FLAGS, "--iree-opt-level=O1"))
    assert module_key(text, target) != entry.stem


def test_cache_directory_is_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV41C_CACHE", str(tmp_path))
    assert KernelCache.default().directory == tmp_path
    monkeypatch.setenv("DSV41C_CACHE", "off")
    off = KernelCache.default()
    off.store("key", b"module")
    assert off.load("key") is None


def test_named_cpus_have_their_features() -> None:
    assert "avx512f" not in CpuTarget("x86-64-v3").required_features
    assert {"avx2", "fma"} <= set(CpuTarget("x86-64-v3").required_features)
    assert "fma" not in CpuTarget("x86-64-v3", ("-fma",)).required_features
