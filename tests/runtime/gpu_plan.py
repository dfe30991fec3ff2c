"""A small GPU plan made by hand: three kernels for two targets, one program of two launches."""

import shutil
from dataclasses import replace
from pathlib import Path

import torch
from hand_made import GOLDEN, hand_made_manifest, write_plan
from safetensors.torch import save_file

from dsv41c.compiler.codegen.mlir.iree import KernelCache
from dsv41c.compiler.codegen.triton.configs import Config, Configs
from dsv41c.compiler.codegen.triton.families import Tile
from dsv41c.compiler.codegen.triton.kernels import cache_rows, gemm
from dsv41c.compiler.codegen.triton.targets import parse_target
from dsv41c.compiler.gpu_kernels import GpuKernels, compile_for_gpus
from dsv41c.runtime.plan_format import (
    Bucket,
    DeviceBuffer,
    DeviceLaunch,
    DeviceProgram,
    InputSpec,
    LaunchList,
    OutputSpec,
    Target,
    encode_launches,
)

TARGETS = ("cuda:sm_80", "hip:gfx942")
WIDTH = 128  # of mini6's compressor tail
STORE = cache_rows.store_plain("store_tail", "fp32", WIDTH)
INDEX = cache_rows.writer("write_index", "fp4_e8m0", 32, 16, True, 8, 256)
SUM = gemm.sum_parts("sum_parts_fp32", "fp32")
TUNED = Tile({"ROWS": 2}, warps=2, stages=1)
CONFIGS = {
    "cuda:sm_80": Configs("cuda:sm_80", (Config("store_plain_kernel", dict(STORE.holes), TUNED, 3.5, 4.0),), {}),
}
# Rows of the derived weight are summed up over one part, stored at the slots that positions are, and cut.
PROGRAM = DeviceProgram(
    inputs=(InputSpec("positions", "si64", ("T",)),),
    caches=("tail.1",),
    outputs=(OutputSpec("again", "%again"),),
    buffers={
        "total": DeviceBuffer("f32", ("T", WIDTH)),
        "again": DeviceBuffer("f32", ("T", WIDTH // 2)),
        "half": DeviceBuffer("f32", ("T", WIDTH // 2), "%total", f"{WIDTH * 2}*T"),
    },
    launches=(
        DeviceLaunch("sum_parts_fp32", ("@frequencies", "%total", f"{WIDTH}*T", 1)),
        DeviceLaunch("store_tail", ("%total", "%positions", "$tail.1", "T")),
        DeviceLaunch("sum_parts_fp32", ("%half", "%again", f"{WIDTH // 2}*T", 1)),
    ),
    of="step",
    buckets=(
        Bucket(1, 1024, {"%total": 0, "%again": 512}),
        Bucket(4, 4096, {"%total": 0, "%again": 2048}),
    ),
    padded=True,
)


def kernels() -> GpuKernels:
    """The three kernels for both targets."""
    targets = [parse_target(name) for name in TARGETS]
    return compile_for_gpus((STORE, INDEX, SUM), targets, CONFIGS, KernelCache.default())


def write_gpu_plan(folder: Path) -> None:
    """Writes the plan into a new folder."""
    made = kernels()
    files = {**made.files, "launches.json": encode_launches(LaunchList({}, {"tails": PROGRAM}))}
    files["programs/step.mlir"] = b"// by hand\n"
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    shutil.copy(GOLDEN / "tokenizer.json", folder / "tokenizer.json")
    save_file({"frequencies": torch.linspace(0.1, 3, 512)}, folder / "constants.safetensors")
    write_plan(
        folder, replace(hand_made_manifest(), targets=tuple(map(Target, TARGETS)), kernels=made.entries, bill={})
    )
