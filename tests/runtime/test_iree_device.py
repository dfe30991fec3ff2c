"""IreeDevice: sharing memory both ways, who keeps it alive, mapped files at any offset, and refusals."""

import gc
import mmap
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch

from dsv41c.compiler.codegen.mlir.iree import CpuTarget, compile_linalg
from dsv41c.compiler.codegen.mlir.views import compile_views
from dsv41c.errors import PlanError
from dsv41c.runtime.cpu_features import missing_features
from dsv41c.runtime.iree_device import IreeDevice, aligned_empty

_ADD = """\
module @kernels {
  func.func @add(%a: tensor<?xf32>, %b: tensor<?xf32>) -> (tensor<?xf32>, tensor<?xf32>) {
    %sum = arith.addf %a, %b : tensor<?xf32>
    %product = arith.mulf %a, %b : tensor<?xf32>
    return %sum, %product : tensor<?xf32>, tensor<?xf32>
  }
"""
_IDENTITIES = "".join(
    f"  func.func @copy_{name}(%a: tensor<?x?x{kind}>) -> tensor<?x?x{kind}> {{\n"
    f"    %z = arith.constant 0 : index\n    %o = arith.constant 1 : index\n"
    f"    %m = tensor.dim %a, %z : tensor<?x?x{kind}>\n    %n = tensor.dim %a, %o : tensor<?x?x{kind}>\n"
    f"    %e = tensor.empty(%m, %n) : tensor<?x?x{kind}>\n"
    f"    %r = linalg.copy ins(%a : tensor<?x?x{kind}>) outs(%e : tensor<?x?x{kind}>) -> tensor<?x?x{kind}>\n"
    f"    return %r : tensor<?x?x{kind}>\n  }}\n"
    for name, kind in {
        "float32": "f32", "bfloat16": "bf16", "float8_e4m3fn": "f8E4M3FN", "int64": "i64", "int32": "i32", "int8": "i8",
        "uint8": "i8", "bool": "i1",
    }.items()
)  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("device")
    (folder / "views.vmfb").write_bytes(compile_views())
    (folder / "kernels.vmfb").write_bytes(compile_linalg(_ADD + _IDENTITIES + "}\n", CpuTarget()))
    return folder


@pytest.fixture(scope="module", params=["local-sync", "local-task"])
def device(request: pytest.FixtureRequest, files: Path) -> IreeDevice:
    return IreeDevice(files / "views.vmfb", request.param, threads=2)


def test_function_returns_all_results(device: IreeDevice, files: Path) -> None:
    add = device.load_module(files / "kernels.vmfb").function("add")
    a, b = torch.randn(1000), torch.randn(1000)
    total, product = add([device.to_view(a), device.to_view(b)])
    assert torch.equal(device.to_tensor(total, torch.float32), a + b)
    assert torch.equal(device.to_tensor(product, torch.float32), a * b)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool],
)
def test_each_dtype_passes_through_a_kernel(device: IreeDevice, files: Path, dtype: torch.dtype) -> None:
    n_bytes = 15 * dtype.itemsize
    raw = torch.randint(0, 2 if dtype == torch.bool else 127, (n_bytes,), dtype=torch.uint8)
    tensor = aligned_empty((3, 5), dtype)
    tensor.view(torch.uint8).copy_(raw.view(3, -1))
    copy = device.load_module(files / "kernels.vmfb").function("copy_" + str(dtype).removeprefix("torch."))
    (result,) = copy([device.to_view(tensor)])
    returned = device.to_tensor(result, dtype)
    assert returned.shape == tensor.shape
    assert torch.equal(returned.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(), (0, 5), (1,), (2, 3, 4, 5, 6)])
def test_view_and_back_share_memory(device: IreeDevice, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = aligned_empty(shape, dtype)
    tensor.view(torch.uint8).zero_() if shape else None
    returned = device.to_tensor(device.to_view(tensor), dtype)
    assert returned.shape == tensor.shape
    assert tensor.numel() == 0 or returned.data_ptr() == tensor.data_ptr()


def test_a_view_outlives_its_tensor_and_a_tensor_its_view(device: IreeDevice) -> None:
    tensor = torch.full((1 << 16,), 3.0)
    view = device.to_view(tensor)
    del tensor
    gc.collect()
    others = [torch.zeros(1 << 16) for _ in range(4)]
    returned = device.to_tensor(view, torch.float32)
    del view
    gc.collect()
    others += [torch.zeros(1 << 16) for _ in range(4)]
    assert bool((returned == 3.0).all())


def test_dropped_views_give_their_memory_back(device: IreeDevice) -> None:
    memory = mmap.mmap(-1, 4096)
    released = weakref.ref(memory)
    tensor = torch.frombuffer(memory, dtype=torch.float32)
    del memory
    returned = [device.to_tensor(device.to_view(tensor.view(dtype)), dtype) for dtype in (torch.float32, torch.int32)]
    del tensor
    gc.collect()
    assert released() is not None
    del returned
    gc.collect()
    assert released() is None


@pytest.mark.parametrize("driver", ["local-sync", "local-task"])
def test_results_outlive_device_and_interpreter_shutdown(files: Path, driver: str) -> None:
    program = f"""
import gc, torch
from dsv41c.runtime.iree_device import IreeDevice
device = IreeDevice({str(files / "views.vmfb")!r}, {driver!r}, threads=2)
module = device.load_module({str(files / "kernels.vmfb")!r})
a = torch.ones(1 << 16)
view = module.function("add")([device.to_view(a)] * 2)[0]
result = device.to_tensor(view, torch.float32)
del device, module
gc.collect()
assert float(result.sum()) == 2 << 16
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("offset", [0, 1, 3, 7, 64, 4097])
def test_mapped_file_at_any_offset(device: IreeDevice, files: Path, tmp_path: Path, offset: int) -> None:
    expected = torch.randn(1000)
    path = tmp_path / "weights"
    path.write_bytes(b"x" * offset + expected.view(torch.uint8).numpy().tobytes())
    mapped = device.map_file(path)
    view = mapped.view(offset, 4000, torch.float32, (1000,))
    tensor = mapped.tensor(offset, 4000, torch.float32, (10, 100))
    del mapped
    gc.collect()
    add = device.load_module(files / "kernels.vmfb").function("add")
    total = device.to_tensor(add([view, view])[0], torch.float32)
    assert torch.equal(total, expected + expected)
    assert torch.equal(tensor.view(-1), expected)


def test_mapped_file_view_has_any_rank(device: IreeDevice, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(120)) * 2)
    mapped = device.map_file(path)
    mapped.will_need(3, 120)
    assert mapped.n_bytes == 240
    for shape in [(120,), (2, 60), (2, 3, 20), (1, 2, 3, 4, 5)]:
        assert list(mapped.view(3, 120, torch.uint8, shape).shape) == list(shape)
    assert list(mapped.view(5, 2, torch.bfloat16, ()).shape) == []


def test_refusals(device: IreeDevice, files: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "weights").write_bytes(b"12345678")
    mapped = device.map_file(tmp_path / "weights")
    misaligned = aligned_empty((17,), torch.float32)[1:]
    cases = [
        (lambda: device.to_view(misaligned), "aligned_empty"),
        (lambda: device.to_view(torch.zeros(4, 4).t()), "contiguous"),
        (lambda: device.to_view(torch.zeros(4, dtype=torch.complex64)), "complex64"),
        (lambda: device.to_tensor(device.to_view(torch.zeros(4)), torch.int32), "int32"),
        (lambda: device.map_file(tmp_path / "empty"), "cannot be mapped"),
        (lambda: device.map_file(tmp_path / "absent"), "cannot be mapped"),
        (lambda: mapped.view(4, 8, torch.uint8, (8,)), "outside"),
        (lambda: mapped.view(0, 8, torch.uint8, (4,)), "shape"),
        (lambda: device.load_module(tmp_path / "weights"), "does not load"),
        (lambda: device.load_module(tmp_path / "absent"), "no such file"),
        (lambda: device.load_module(files / "kernels.vmfb").function("sub"), "add"),
        (lambda: IreeDevice(files / "views.vmfb", "cuda"), "supported"),  # type: ignore[arg-type]
        (lambda: IreeDevice(files / "views.vmfb", threads=0), "at least one"),
    ]
    for action, words in cases:
        with pytest.raises(PlanError, match=words):
            action()


def test_missing_features_reads_the_systems_list(tmp_path: Path) -> None:
    listing = tmp_path / "cpuinfo"
    listing.write_text("flags\t\t: fpu pni sse4_2 abm bmi1 avx512_bf16 avx2\n")
    required = ["avx2", "avx512bf16", "avx512f", "bmi", "lzcnt", "sse3", "sse4.2", "fma"]
    assert missing_features(required, listing) == ["avx512f", "fma"]
    assert missing_features(required, tmp_path / "absent") == []
