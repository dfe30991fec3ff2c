"""The CUDA executor without a GPU: packed arguments, buckets, addresses, graphs, one allocation; no driver at all."""

import ctypes
import re
import struct
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from gpu_plan import PROGRAM, SUM, TARGETS, WIDTH
from host_driver import HostDriver
from safetensors.torch import load_file

from dsv41c.errors import PlanError
from dsv41c.runtime import executor_cuda
from dsv41c.runtime.cuda_driver import CudaDriver, DriverError
from dsv41c.runtime.device_checks import kernels_for
from dsv41c.runtime.device_memory import Layout, bound_sizes, bucket_of
from dsv41c.runtime.executor_cuda import CudaExecutor, load_kernel, open_plan
from dsv41c.runtime.launch_args import PackedArguments, grid_of
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.plan_format import Bucket, DeviceBuffer, GpuKernel, encode_manifest

GPU = GpuKernel(
    {"x_ptr": "*bf16", "byte_ptr": "*u8", "n_rows": "i32", "n_all": "i64", "eps": "fp32"},
    (("n_rows", 16), ("n_heads", 1)),
    4,
    sizes=("n_heads",),
    unaligned=("byte_ptr",),
    multiples=("n_all",),
)
VALUES = (0x7000, 0x7001, 33, 64, 0.5)


@pytest.fixture
def plan(gpu_plan: Path) -> Plan:
    return Plan.load(gpu_plan, target=TARGETS[0])


@pytest.fixture
def executor(plan: Plan) -> CudaExecutor:
    return CudaExecutor(plan, HostDriver(), pages=3, rings=2)


def test_arguments_lie_as_the_driver_reads_them() -> None:
    packed = PackedArguments("k", GPU, VALUES)
    assert packed.cells() == [
        *(struct.pack("<Q", address) for address in VALUES[:2]),
        struct.pack("<i", 33),
        struct.pack("<q", 64),
        struct.pack("<f", 0.5),
        *[bytes(8)] * 2,
    ]
    pointers = (ctypes.c_void_p * 7).from_address(packed.address)
    assert ctypes.c_int32.from_address(pointers[2] or 0).value == 33
    assert PackedArguments("k", GPU, (None, 1, -1, -16, 2)).cells()[0] == bytes(8)


@pytest.mark.parametrize("target", TARGETS[:1])
def test_the_signature_is_that_of_the_binary(plan: Plan, target: str) -> None:
    """What is passed has the sizes of the parameters in the PTX, in order."""
    for entry in kernels_for(plan.manifest.kernels, target).values():
        assert entry.gpu is not None
        text = (plan.path / str(entry.gpu.assembly)).read_text()
        head = text[text.index(f".entry {entry.function}") :].partition(")")[0]
        parameters = [int(bits) // 8 for bits in re.findall(r"\.param \.[a-z](\d+)", head)]
        values = [0 if kind.startswith("*") else 16 for kind in entry.gpu.arguments.values()]
        assert [len(cell) for cell in PackedArguments(entry.name, entry.gpu, values).cells()] == parameters


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 0x7008, "argument x_ptr is the address 0x7008, and .* 16 bytes divide"),
        (0, 1.5, "argument x_ptr is [*]bf16, given 1.5, which is no address"),
        (0, -16, "which is no address"),
        (0, 1 << 64, "which is no address"),
        (2, 0.5, "argument n_rows is i32, given 0.5"),
        (2, None, "argument n_rows is i32, given None"),
        (2, 1 << 31, "argument n_rows is i32, given 2147483648"),
        (2, True, "argument n_rows is i32, given True"),
        (3, 1 << 63, "argument n_all is i64"),
        (3, 24, "argument n_all is 24, and the kernel was compiled for multiples of 16"),
        (4, None, "argument eps is fp32, given None"),
    ],
)
def test_arguments_that_do_not_fit(at: int, value: Any, message: str) -> None:
    values = [*VALUES[:at], value, *VALUES[at + 1 :]]
    with pytest.raises(PlanError, match=f"^kernel k, {message}" if "argument" in message else message):
        PackedArguments("k", GPU, values)


@pytest.mark.parametrize("count", [4, 6])
def test_another_number_of_arguments(count: int) -> None:
    with pytest.raises(PlanError, match=rf"launched with {count} arguments, its signature has 5: x_ptr, byte_ptr"):
        PackedArguments("k", GPU, (*VALUES, 0)[:count])


def test_grids() -> None:
    assert grid_of("k", GPU, VALUES, {"n_heads": 7}) == (3, 7, 1)
    assert grid_of("k", GPU, (*VALUES[:2], 0, *VALUES[3:]), {"n_heads": 7}) is None
    with pytest.raises(PlanError, match="would run 65536 programs along axis 1, a GPU runs 65535"):
        grid_of("k", GPU, VALUES, {"n_heads": 1 << 16})
    with pytest.raises(PlanError, match="its grid needs 'n_heads', which is None"):
        grid_of("k", GPU, VALUES, {})


def test_the_smallest_bucket_that_takes_a_call() -> None:
    assert [bucket_of("tails", PROGRAM, rows).rows for rows in (1, 2, 3, 4)] == [1, 4, 4, 4]
    with pytest.raises(PlanError, match="5 rows fits no bucket of the GPU program tails; it has 1, 4: split"):
        bucket_of("tails", PROGRAM, 5)


def test_sizes_follow_from_the_inputs() -> None:
    assert bound_sizes(PROGRAM.inputs, {"positions": (3,)}) == {"T": 3}
    with pytest.raises(PlanError, match=r"input positions is None, the program takes \['T'\]"):
        bound_sizes(PROGRAM.inputs, {})
    with pytest.raises(PlanError, match=r"input positions is \(3, 1\)"):
        bound_sizes(PROGRAM.inputs, {"positions": (3, 1)})
    two = (*PROGRAM.inputs, replace(PROGRAM.inputs[0], name="tokens", shape=("T", 2)))
    with pytest.raises(PlanError, match=r"input tokens has shape \[4, 2\], with the other inputs .* is \[3, 2\]"):
        bound_sizes(two, {"positions": (3,), "tokens": (4, 2)})


FIXED = {"@frequencies": 0x10000, "$tail.1": 0x20000}


def layout(program: Any = PROGRAM, bucket: Bucket = PROGRAM.buckets[1], rows: int = 3) -> Layout:
    return Layout.of(program, bucket, {"T": rows}, 0x30000, 0x40000, FIXED)


def test_addresses_follow_from_the_bucket() -> None:
    found = layout()
    assert found.addresses == {
        **FIXED,
        "%positions": 0x30000,
        "%total": 0x40000,
        "%again": 0x40000 + 2048,
        "%half": 0x40000 + 2 * WIDTH * 3,
    }
    assert found.lengths["%total"] == 4 * WIDTH * 3


@pytest.mark.parametrize(
    ("offsets", "arena", "message"),
    [
        ({"%total": 0}, 4096, "has no place for %again"),
        (
            {"%total": 0, "%again": 4000},
            4096,
            "%again of 768 bytes at 4000 is not in its 4096 bytes, or not at a multiple",
        ),
        ({"%total": 0, "%again": 3584}, 4096, "is not in its 4096 bytes"),
        # The last launch reads a part of %total while it writes %again.
        ({"%total": 0, "%again": 1280}, 4096, "%total and %again share memory between launches 2 and 2"),
    ],
)
def test_places_that_do_not_hold(offsets: dict[str, int], arena: int, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        layout(bucket=Bucket(4, arena, offsets))


def test_memory_may_be_used_again_behind_its_last_reader() -> None:
    later = replace(
        PROGRAM, launches=(*PROGRAM.launches[:2], replace(PROGRAM.launches[2], args=("@frequencies", "%again", 64, 1)))
    )
    found = layout(later, Bucket(4, 2048, {"%total": 0, "%again": 0}))
    assert found.addresses["%total"] == found.addresses["%again"]


def test_a_value_inside_itself() -> None:
    loop = replace(PROGRAM, buffers={**PROGRAM.buffers, "half": DeviceBuffer("f32", (1,), "%half")})
    with pytest.raises(PlanError, match="%half lies in itself"):
        layout(loop)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_call_runs_as_on_a_gpu(rows: int, plan: Plan, executor: CudaExecutor) -> None:
    """Padded rows have position -1 and store nothing; outputs are cut to the call's rows."""
    driver: Any = executor._driver
    frequencies = load_file(plan.path / "constants.safetensors")["frequencies"]
    total = frequencies.view(4, WIDTH)
    bucket = 1 if rows == 1 else 4
    for repeat in (1, 2):
        positions = torch.arange(rows) * 2 + repeat
        result = executor.run("step", {"positions": positions})
        halves = frequencies.view(-1)[bucket * WIDTH // 2 :][: rows * WIDTH // 2].view(rows, WIDTH // 2)
        assert torch.equal(result["again"], halves)
        tail = torch.empty(2 * 8, WIDTH)
        driver.copy_out(tail.data_ptr(), executor._addresses["$tail.1"], tail.nbytes)
        assert torch.equal(tail[positions], total[:rows])
        assert not tail[positions.max() + 1 :].any()
    assert list(executor.graphs) == [("tails", bucket, 0)]
    values, per = bucket * WIDTH, SUM.tiles[0].holes["BLOCK"]
    assert driver.launched[0] == ("sum_parts_kernel", (-(-values // int(per)), 1, 1), 4 * 32)
    # The tuned tile: two rows a program, two warps.
    assert driver.launched[1] == ("store_plain_kernel", (-(-bucket // 2), 1, 1), 2 * 32)


def test_block_tables_have_few_widths(executor: CudaExecutor) -> None:
    """A graph is for one width: powers of two, and the plan's widest."""
    widths = []
    for used in (1, 3, 5, 8, 9, 12):
        given = {"positions": torch.arange(3), "pages": torch.ones(3, used, dtype=torch.int64)}
        pages = executor._padded(given, PROGRAM.buckets[1])["pages"]
        assert pages[:3, :used].all()
        assert not pages[3:].any()
        assert not pages[:, used:].any()
        widths.append(tuple(pages.shape))
    assert widths == [(4, 1), (4, 4), (4, 8), (4, 8), (4, 12), (4, 12)]


def test_launch_by_launch(plan: Plan, executor: CudaExecutor) -> None:
    """Behind each launch its result is there, and what is written over it is what the next one reads."""
    frequencies = load_file(plan.path / "constants.safetensors")["frequencies"]
    total, tail = frequencies.view(4, WIDTH), torch.zeros(2, 8 * WIDTH)
    for place in executor.launch_by_launch("tails", {"positions": torch.tensor([3, 5])}):
        if place == 0:
            assert torch.equal(executor.read("%total", total), total)
            executor.write("%total", total + 1)
    assert place == 2
    stored = executor.read("$tail.1", tail).view(-1, WIDTH)
    assert torch.equal(stored[[3, 5]], total[:2] + 1)
    with pytest.raises(PlanError, match=r"there is no %lost to read; caches are .*\$tail\.1"):
        executor.read("%lost", total)


def test_memory_is_allocated_once(executor: CudaExecutor) -> None:
    driver: Any = executor._driver
    (pool,) = driver.allocations
    for rows in (1, 4, 3):
        executor.run("step", {"positions": torch.arange(rows)})
    assert list(driver.allocations) == [pool]
    assert len(executor.graphs) == 2
    assert all(pool <= address < pool + executor.pool_bytes for address in executor._addresses.values())
    assert all(address % 256 == 0 for address in executor._addresses.values())
    executor.close()
    assert driver.freed == [pool]


def test_calls_that_are_not_padded_are_launched_one_by_one(plan: Plan) -> None:
    plan = replace(plan, device={"tails": replace(PROGRAM, padded=False)})
    executor = CudaExecutor(plan, HostDriver(), pages=3, rings=2)
    executor.run("step", {"positions": torch.arange(3)})
    driver: Any = executor._driver
    assert driver.launched[1][1] == (2, 1, 1)
    assert executor.graphs == {}


def test_prompts_of_many_lengths_keep_no_more_memory(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_cuda, "_PREPARED", 2)
    executor = CudaExecutor(replace(plan, device={"tails": replace(PROGRAM, padded=False)}), HostDriver(), 3, 2)
    results = [executor.run("step", {"positions": torch.arange(rows)}) for rows in (1, 2, 1, 3, 1)]
    assert len(executor._prepared) == 2
    assert all(torch.equal(again[name], results[0][name]) for again in (results[2], results[4]) for name in again)


def test_calls_that_nothing_takes(executor: CudaExecutor, plan: Plan) -> None:
    with pytest.raises(PlanError, match="no GPU program for encode; it has tails"):
        executor.run("encode", {"positions": torch.arange(1)})
    with pytest.raises(PlanError, match="take calls of one row a sequence, at most 4; split the call"):
        executor.run("step", {"positions": torch.arange(5)})
    with pytest.raises(PlanError, match=r"has no GPU programs; compile it again with --target cuda:sm_80"):
        CudaExecutor(replace(plan, device={}), HostDriver(), 1, 1)


def test_an_old_driver_gets_the_ptx(plan: Plan) -> None:
    old = HostDriver({b"\x7fELF": "CUDA_ERROR_NO_BINARY_FOR_GPU"})
    executor = CudaExecutor(plan, old, pages=1, rings=1)
    assert set(executor.loaded_from.values()) == {
        f"kernels/cuda_sm_80/{name}.ptx" for name in ("store_tail", "sum_parts_fp32")
    }
    refuses = {b"\x7fELF": "CUDA_ERROR_INVALID_IMAGE", b"//": "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}
    with pytest.raises(
        PlanError, match=r"takes neither binary nor PTX of kernel store_tail .*cubin: CUDA_ERROR_INVALID"
    ):
        CudaExecutor(plan, HostDriver(refuses), pages=1, rings=1)
    with pytest.raises(DriverError, match="OUT_OF_MEMORY"):
        CudaExecutor(plan, HostDriver({b"": "CUDA_ERROR_OUT_OF_MEMORY"}), pages=1, rings=1)


def test_a_plan_for_hip_alone_is_refused_before_a_gpu_is_looked_for(gpu_plan: Path, tmp_path: Path) -> None:
    manifest = Plan.load(gpu_plan, target=None).manifest
    only_hip = replace(manifest, targets=tuple(one for one in manifest.targets if one.name.startswith("hip:")))
    for name, data in encode_manifest(only_hip).items():
        (tmp_path / name).write_bytes(data)
    message = r"compiled for hip:gfx942, and this runtime launches kernels for CUDA only: .*--target cuda:sm_XX"
    with pytest.raises(PlanError, match=message):
        open_plan(tmp_path)


def test_kernels_for_hip_are_not_launched(plan: Plan) -> None:
    entry = kernels_for(plan.manifest.kernels, "hip:gfx942")["store_tail"]
    with pytest.raises(PlanError, match=r"store_tail is for hip:gfx942; this runtime launches kernels for CUDA only"):
        load_kernel(HostDriver(), plan.path, entry)


def bindings(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    """A `cuda.bindings.driver` that has these functions."""
    driver = ModuleType("cuda.bindings.driver")
    for name, function in functions.items():
        setattr(driver, name, function)
    package: Any = ModuleType("cuda.bindings")
    package.driver = driver
    for name, module in (("cuda", ModuleType("cuda")), ("cuda.bindings", package), ("cuda.bindings.driver", driver)):
        monkeypatch.setitem(sys.modules, name, module)


class Status(int):
    """A result code of the driver."""

    name = "CUDA_ERROR_NO_DEVICE"


def test_without_a_driver_the_reason_is_given(monkeypatch: pytest.MonkeyPatch, gpu_plan: Path) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.raises(
        PlanError, match=r"no NVIDIA GPU can be used here: cuda-bindings is not installed; install dsv41c.gpu"
    ):
        open_plan(gpu_plan)

    def missing(flags: int) -> None:
        raise RuntimeError('"cuda" is an NVIDIA driver library')

    bindings(monkeypatch, cuInit=missing)
    with pytest.raises(PlanError, match=r'the CUDA driver does not start \("cuda" is an NVIDIA driver library\)'):
        CudaDriver()
    bindings(monkeypatch, cuInit=lambda flags: (Status(100),))
    with pytest.raises(PlanError, match="refuses cuInit: CUDA_ERROR_NO_DEVICE"):
        CudaDriver()
    bindings(monkeypatch, cuInit=lambda flags: (Status(0),), cuDeviceGetCount=lambda: (Status(0), 1))
    with pytest.raises(PlanError, match="there is no GPU 3, the CUDA driver lists 1"):
        CudaDriver(3)


def test_the_runtime_is_named_by_the_gpu(monkeypatch: pytest.MonkeyPatch, gpu_plan: Path) -> None:
    """A plan for sm_80 on a GPU of capability 9.0 is refused with both names."""
    done = Status(0)
    attributes = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=9, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=0
    )
    bindings(
        monkeypatch,
        CUdevice_attribute=attributes,
        CUstream_flags=SimpleNamespace(CU_STREAM_NON_BLOCKING=1),
        cuInit=lambda flags: (done,),
        cuDeviceGetCount=lambda: (done, 1),
        cuDeviceGet=lambda device: (done, device),
        cuDevicePrimaryCtxRetain=lambda device: (done, "context"),
        cuCtxSetCurrent=lambda context: (done,),
        cuStreamCreate=lambda flags: (done, "stream"),
        cuDeviceGetAttribute=lambda which, device: (done, which),
        cuDeviceGetName=lambda length, device: (done, b"GPU\0\0"),
        cuDriverGetVersion=lambda: (done, 13000),
        cuDeviceTotalMem=lambda device: (done, 1 << 30),
    )
    assert CudaDriver().description == {"device": "GPU", "driver": 13000, "memory_bytes": 1 << 30}
    message = r"compiled for cuda:sm_80, hip:gfx942, this runtime runs cuda:sm_90; compile it with --target cuda:sm_90"
    with pytest.raises(PlanError, match=message):
        open_plan(gpu_plan)
