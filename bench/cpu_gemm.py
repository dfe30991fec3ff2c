"""Which form of a product with packed weights is fast on the CPU; the table in docs/cpu-target.md comes from here.

    python bench/cpu_gemm.py --rows 1 4 64 --size 1024 4096

Each candidate computes y bf16 [M, N] = x bf16 [M, K] @ dequantize(w).T with N = K, sums in fp32, and is checked against
torch before it is timed. Candidates are timed in turn, round after round, on one thread; the median is printed as JSON.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from dsv41c.compiler.codegen.mlir.iree import CpuTarget, compile_linalg
from dsv41c.compiler.codegen.mlir.lower import lower_regions
from dsv41c.compiler.codegen.mlir.views import compile_views
from dsv41c.ir.builder import FunctionBuilder
from dsv41c.ir.types import Dim, TensorType
from dsv41c.models.quant import dequantize_fp4_weight, dequantize_weight
from dsv41c.runtime.iree_device import IreeDevice

Rows = int | str
Dims = list[Dim]


@dataclass
class Form:
    """A region under construction: aten ops with their result shapes."""

    b: FunctionBuilder

    def cast(self, x: SSAValue, dims: Dims, dtype: torch.dtype) -> SSAValue:
        return self.b.aten("to.dtype", [x, dtype, False, False, None], [TensorType.of(dims, dtype)])[0]

    def view(self, x: SSAValue, dims: Dims) -> SSAValue:
        # A dynamic size is -1: a region has at most one.
        sizes = [dim if isinstance(dim, int) else -1 for dim in dims]
        return self.b.aten("view", [x, sizes], [TensorType.of(dims, _element(x))])[0]

    def bits(self, x: SSAValue, dims: Dims, dtype: torch.dtype) -> SSAValue:
        return self.b.aten("view.dtype", [x, dtype], [TensorType.of(dims, dtype)])[0]

    def scalar(self, name: str, x: SSAValue, dims: Dims, value: int) -> SSAValue:
        return self.b.aten(f"{name}.Scalar", [x, value], [TensorType.of(dims, _element(x))])[0]

    def mul(self, x: SSAValue, y: SSAValue, dims: Dims) -> SSAValue:
        return self.b.aten("mul.Tensor", [x, y], [TensorType.of(dims, "f32")])[0]

    def add(self, x: SSAValue, y: SSAValue, dims: Dims) -> SSAValue:
        return self.b.aten("add.Tensor", [x, y, 1], [TensorType.of(dims, "f32")])[0]

    def sum(self, x: SSAValue, over: list[int], dims: Dims) -> SSAValue:
        return self.b.aten("sum.dim_IntList", [x, over, False, None], [TensorType.of(dims, "f32")])[0]

    def power_of_two(self, scale: SSAValue, dims: Dims, shift: int) -> SSAValue:
        """2^(scale - 127 + shift) in fp32: the byte is the exponent field."""
        exponent = self.scalar("add", self.cast(scale, dims, torch.int32), dims, shift)
        return self.bits(self.scalar("__lshift__", exponent, dims, 23), dims, torch.float32)

    def e4m3_by_shifts(self, w: SSAValue, dims: Dims) -> SSAValue:
        """e4m3 values times 2^-8: the byte's fields moved to their places in fp16, whose exponents reach lower."""
        half = self.cast(self.bits(w, dims, torch.int8), dims, torch.int16)  # sign extended: bits 15..7 are the sign
        half = self.scalar("bitwise_and", self.scalar("__lshift__", half, dims, 7), dims, ~0x4000)
        return self.cast(self.bits(half, dims, torch.float16), dims, torch.float32)

    def e2m1_by_shifts(self, w: SSAValue, dims: Dims, odd: bool) -> SSAValue:
        """The even or odd columns' e2m1 values times 2^-14, in the same way."""
        half = self.cast(self.bits(w, dims, torch.int8), dims, torch.int16)
        half = self.scalar("__lshift__", half, dims, 8 if odd else 12)  # the code is now bits 15..12
        half = self.scalar("bitwise_and", self.scalar("__rshift__", half, dims, 3), dims, 0x8E00 - 0x10000)
        return self.cast(self.bits(half, dims, torch.float16), dims, torch.float32)


def _element(x: SSAValue) -> str:
    assert isinstance(x.type, TensorType)
    return x.type.element


def fp8_region(form: str, m: Rows, n: int, k: int) -> FuncOp:
    """y[M, N] for w f8E4M3FN [N, K] and scale ui8 [N/32, K/32].

    Args:
        form: "weights times scales, sum" (one reduction over decoded and scaled weights), "sum, then scales" (sums over
            32 columns, scaled, summed), "convert, sum" (the first with torch's conversion instead of shifts),
            "linear f32", "linear bf16" (a matrix product with dequantized weights), or "dequantize" (no product).
    """
    blocks, columns = n // 32, k // 32
    dims: Dims = [blocks, 32, columns, 32]
    inputs = {"w": TensorType.of([n, k], "f8E4M3FN"), "s": TensorType.of([blocks, columns], "ui8")}
    if form != "dequantize":
        inputs = {"x": TensorType.of([m, k], "bf16"), **inputs}
    b = FunctionBuilder("product", inputs, {m: (1, 512)} if isinstance(m, str) else {})
    f = Form(b)
    packed = f.view(b.args["w"], dims)
    shifts = form != "convert, sum"
    w = f.e4m3_by_shifts(packed, dims) if shifts else f.cast(packed, dims, torch.float32)
    scale = f.power_of_two(b.args["s"], [blocks, columns], 8 if shifts else 0)
    if form == "sum, then scales":
        x = f.view(f.cast(b.args["x"], [m, k], torch.float32), [m, 1, 1, columns, 32])
        partial = f.sum(f.mul(x, w, [m, *dims]), [4], [m, blocks, 32, columns])
        scaled = f.mul(partial, f.view(scale, [blocks, 1, columns]), [m, blocks, 32, columns])
        return _finish(f, f.view(f.sum(scaled, [3], [m, blocks, 32]), [m, n]), [m, n])
    w = f.mul(w, f.view(scale, [blocks, 1, columns, 1]), dims)
    if form == "dequantize":
        return _finish(f, f.view(w, [n, k]), [n, k])
    if form.startswith("linear"):
        dtype = torch.float32 if form == "linear f32" else torch.bfloat16
        w = f.view(f.cast(w, dims, dtype) if dtype != torch.float32 else w, [n, k])
        x = f.cast(b.args["x"], [m, k], dtype) if dtype == torch.float32 else b.args["x"]
        return _finish(f, b.aten("linear", [x, w, None], [TensorType.of([m, n], dtype)])[0], [m, n])
    x = f.view(f.cast(b.args["x"], [m, k], torch.float32), [m, 1, 1, columns, 32])
    y = f.sum(f.mul(x, w, [m, *dims]), [3, 4], [m, blocks, 32])
    return _finish(f, f.view(y, [m, n]), [m, n])


def fp4_region(form: str, m: Rows, n: int, k: int) -> FuncOp:
    """y[M, N] for w ui8 [N, K/2] (even column in the low four bits) and scale ui8 [N, K/32].

    Args:
        form: "even and odd of x stored apart" (x's even and odd columns become one tensor [2, M, K/2] first, then one
            reduction over bytes), "even and odd in one sum" (the same without that), or "two sums" (one reduction each
            for the even and the odd columns).
    """
    columns = k // 32
    dims: Dims = [n, columns, 16]
    out: Dims = [m, *dims]
    inputs = {
        "x": TensorType.of([m, k], "bf16"),
        "w": TensorType.of([n, k // 2], "ui8"),
        "s": TensorType.of([n, columns], "ui8"),
    }
    b = FunctionBuilder("product", inputs, {m: (1, 512)} if isinstance(m, str) else {})
    f = Form(b)
    packed = f.view(b.args["w"], dims)
    scale = f.view(f.power_of_two(b.args["s"], [n, columns], 14), [n, columns, 1])
    pairs = f.view(f.cast(b.args["x"], [m, k], torch.float32), [m, k // 2, 2])
    x = [b.aten("select.int", [pairs, 2, odd], [TensorType.of([m, k // 2], "f32")])[0] for odd in (0, 1)]
    if form == "even and odd of x stored apart":
        x = [f.view(part, [1, m, k // 2]) for part in x]
        both = b.aten("cat", [x, 0], [TensorType.of([2, m, k // 2], "f32")])[0]
        x = [b.aten("select.int", [both, 0, odd], [TensorType.of([m, k // 2], "f32")])[0] for odd in (0, 1)]
    w = [f.mul(f.e2m1_by_shifts(packed, dims, odd), scale, dims) for odd in (False, True)]
    products = [f.mul(f.view(part, [m, 1, columns, 16]), w[odd], out) for odd, part in enumerate(x)]
    if form == "two sums":
        even, odd_sum = (f.sum(product, [2, 3], [m, n]) for product in products)
        return _finish(f, f.add(even, odd_sum, [m, n]), [m, n])
    return _finish(f, f.sum(f.add(*products, out), [2, 3], [m, n]), [m, n])


def _finish(f: Form, y: SSAValue, dims: Dims) -> FuncOp:
    result = y if _element(y) == "bf16" else f.cast(y, dims, torch.bfloat16)
    return f.b.finish({"y": result})


FP8_FORMS = ("weights times scales, sum", "sum, then scales", "convert, sum", "linear f32", "linear bf16")
FP4_FORMS = ("even and odd of x stored apart", "two sums", "even and odd in one sum")


@dataclass
class Bench:
    """Compiles candidates, checks them, and times them in turn."""

    device: IreeDevice
    folder: Path

    def kernel(self, region: FuncOp, tensors: list[torch.Tensor]) -> Callable[[], torch.Tensor]:
        path = self.folder / f"{len(list(self.folder.iterdir()))}.vmfb"
        path.write_bytes(compile_linalg(lower_regions({"product": region}), CpuTarget()))
        function = self.device.load_module(path).function("product")
        views = [self.device.to_view(tensor) for tensor in tensors]
        return lambda: self.device.to_tensor(function(views)[0], torch.bfloat16)

    def times(self, candidates: dict[str, Callable[[], torch.Tensor]], expected: torch.Tensor, rounds: int) -> None:
        measured: dict[str, list[float]] = {name: [] for name in candidates}
        for name, run in candidates.items():
            error = (run().float() - expected).abs().max() / expected.abs().max()
            assert error < 1e-2, f"{name}: relative error {error}"
        for _ in range(rounds):
            for name, run in candidates.items():
                measured[name].append(_seconds(run))
        for name, seconds in measured.items():
            median, low, high = (round(f(seconds) * 1e6, 1) for f in (statistics.median, min, max))
            print(json.dumps({"candidate": name, "median_us": median, "min_us": low, "max_us": high}))


def _seconds(run: Callable[[], torch.Tensor], at_least: float = 0.03) -> float:
    start, count = time.perf_counter(), 0
    while (now := time.perf_counter() - start) < at_least or count == 0:
        run()
        count += 1
    return now / count


def bench_fp8(bench: Bench, m: int, size: int, rounds: int) -> None:
    x = torch.randn(m, size).bfloat16()
    w = (torch.randn(size, size) * 3).to(torch.float8_e4m3fn)
    s = torch.randint(120, 130, (size // 32, size // 32), dtype=torch.uint8)
    plain = dequantize_weight(w, s)
    candidates = {
        "torch linear, weights dequantized before": lambda: torch.nn.functional.linear(x, plain),
        "torch dequantize and linear": lambda: torch.nn.functional.linear(x, dequantize_weight(w, s)),
    }
    dequantize = bench.kernel(fp8_region("dequantize", m, size, size), [w, s])
    candidates["iree dequantize, torch linear"] = lambda: torch.nn.functional.linear(x, dequantize())
    for form in FP8_FORMS:
        candidates[f"iree {form}, M = {m}"] = bench.kernel(fp8_region(form, m, size, size), [x, w, s])
    for form in (FP8_FORMS[0], "linear f32"):
        candidates[f"iree {form}, M dynamic"] = bench.kernel(fp8_region(form, "T", size, size), [x, w, s])
    bench.times(candidates, x.float() @ plain.float().T, rounds)


def bench_fp4(bench: Bench, m: int, size: int, rounds: int) -> None:
    x = torch.randn(m, size).bfloat16()
    w = torch.randint(0, 256, (size, size // 2), dtype=torch.uint8)
    s = torch.randint(120, 130, (size, size // 32), dtype=torch.uint8)
    plain = dequantize_fp4_weight(w, s)
    candidates = {
        "torch linear, weights dequantized before": lambda: torch.nn.functional.linear(x, plain),
        "torch dequantize and linear": lambda: torch.nn.functional.linear(x, dequantize_fp4_weight(w, s)),
    }
    for form in FP4_FORMS:
        candidates[f"iree {form}, M = {m}"] = bench.kernel(fp4_region(form, m, size, size), [x, w, s])
    candidates["iree two sums, M dynamic"] = bench.kernel(fp4_region("two sums", "T", size, size), [x, w, s])
    bench.times(candidates, x.float() @ plain.float().T, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 64])
    parser.add_argument("--size", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        views = Path(folder) / "views.vmfb"
        views.write_bytes(compile_views())
        bench = Bench(IreeDevice(views), Path(folder))
        for size in options.size:
            for m in options.rows:
                for weights, run in (("fp8", bench_fp8), ("fp4", bench_fp4)):
                    print(json.dumps({"weights": weights, "M": m, "N": size, "K": size}), flush=True)
                    run(bench, m, size, options.rounds)


if __name__ == "__main__":
    main()
