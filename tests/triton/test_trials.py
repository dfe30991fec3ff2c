"""Trials of kernels, as `bench/gpu.sh` runs them on a GPU: in the interpreter their outputs are their references'."""

import pytest
import torch
from interpreter import run
from torch import Tensor

from dsv41c.compiler.codegen.triton import trials
from dsv41c.compiler.codegen.triton.families import Kernel, Tile
from dsv41c.compiler.codegen.triton.kernels import (
    activations,
    cache_rows,
    experts,
    gemm,
    indexer,
    mhc,
    shared_expert,
    sparse_attention,
)
from dsv41c.compiler.codegen.triton.trials import Trial, trials_of
from dsv41c.runtime.plan_format import GpuKernel

PROJECTION = Tile({"BLOCK_ROWS": 16, "BLOCK_OUTPUTS": 64, "BLOCK_INPUTS": 128})
PRODUCT = Tile({**PROJECTION.holes, "SLICES": 1})
WINDOW, MAIN = (16, 16, 1280), (32, 8, 512)
INDEX = (8, 32, 2, (8, 256), 4)
KERNELS = (
    activations.norm_rows("norm", 160).with_tiles(Tile({"ROWS": 16})),
    activations.norm_rows("quantize", 64, norm=False).with_tiles(Tile({"ROWS": 16})),
    activations.rotate_rows("rotate", 64, 16, inverse=True),
    activations.rotate_rows("rotate_index", 32, 16, quantize=True),
    cache_rows.store_plain("store", "fp32", 64),
    cache_rows.store_plain("store_ids", "i32", 4),
    experts.route(),
    experts.up("up", 256, 128).with_tiles(PROJECTION),
    experts.down("down", 256, 128).with_tiles(PROJECTION),
    gemm.gemm("tiled", "fp8").with_tiles(PRODUCT),
    gemm.gemm("fp4", "fp4", width=32, in_parts=True),
    gemm.gemm("groups", "fp8", 2, 64).with_tiles(PRODUCT),
    gemm.gemm("wide", "bf16", result="fp32").with_tiles(PRODUCT),
    gemm.sum_parts("sum"),
    gemm.sum_parts("sum_wide", "fp32"),
    indexer.scores("scores", *INDEX, 1),
    indexer.scores("publish", *INDEX, 4, publish=True),
    indexer.scores("pool", *INDEX, pool=True),
    indexer.select("select", 0, 64),
    indexer.select("select_pool", 4, 64),
    mhc.site("site", 96, True, 2).with_tiles(Tile({"ROWS": 16, "BLOCK": 32})),
    mhc.site("enter", 96, False, 1).with_tiles(Tile({"ROWS": 16, "BLOCK": 32})),
    mhc.leave("leave", 96),
    shared_expert.shared_up("shared_up", 256, 128, few=True),
    sparse_attention.attend("attend", 4, 64, WINDOW, MAIN),
    sparse_attention.attend("window", 4, 64, WINDOW, (0, 1, 0)),
    sparse_attention.attend("split", 4, 64, WINDOW, (96, 8, 512), split=True),
    sparse_attention.combine("combine", 4, 64),
    experts.route_experts("route_experts", 12, 3),
    gemm.gemm_pair("pair", "fp8", width=16),
    gemm.gemm_pair("pair_tiled", "fp8").with_tiles(PRODUCT),
)


def record(kernel: Kernel) -> GpuKernel:
    """What a plan says of a kernel."""
    holes = kernel.filled(kernel.tiles[0], fp8_casts=True)
    source = f"kernels/sources/{kernel.source_file}"
    return GpuKernel(dict(kernel.arguments), (), 4, sizes=kernel.sizes, holes=holes, source=source)


def launch(kernel: Kernel, trial: Trial) -> None:
    """A pointer that the kernel does not read is null on a GPU, and an empty tensor here."""
    unused = {"*u8": torch.uint8, "*bf16": torch.bfloat16}
    given = {
        name: torch.empty(0, dtype=unused[kernel.arguments[name]]) if one is None else one
        for name, one in trial.arguments.items()
    }
    run(kernel, **given, **trial.sizes)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_kernel_gives_what_its_trial_says(kernel: Kernel) -> None:
    made = list(trials_of(kernel.function, record(kernel), "cpu", timing=False))
    assert made
    for trial in made:
        assert set(trial.arguments) == set(kernel.arguments)
        assert set(trial.sizes) == set(kernel.sizes)
        assert trial.bytes > 0
        launch(kernel, trial)
        errors = trial.errors()
        assert errors
        assert max(errors.values()) <= trial.relative, errors


def test_a_trial_sees_a_wrong_value() -> None:
    kernel = KERNELS[0]
    (trial,) = trials_of(kernel.function, record(kernel), "cpu", timing=False)
    launch(kernel, trial)
    out = trial.arguments["normalized_ptr"]
    assert isinstance(out, Tensor)
    out[0, 0] += 1
    assert trial.errors()["normalized_ptr"] > trial.relative


@pytest.mark.parametrize("output", ["out_ptr", "maximum_ptr", "total_ptr"])
def test_a_trial_of_splits_sees_each_of_their_outputs(output: str) -> None:
    kernel = next(kernel for kernel in KERNELS if kernel.name == "split")
    (trial,) = trials_of(kernel.function, record(kernel), "cpu", timing=False)
    launch(kernel, trial)
    assert trial.errors()["out_ptr"] <= trial.relative
    wrong = trial.arguments[output]
    assert isinstance(wrong, Tensor)
    wrong[1, 1] += 1
    assert trial.errors()["out_ptr"] > trial.relative


def test_every_function_with_trials_is_tried() -> None:
    assert {f"{kernel.family}.{kernel.function}" for kernel in KERNELS} == set(trials.FAMILIES)


@pytest.mark.parametrize(
    "kernel", [KERNELS[7], KERNELS[15], KERNELS[20], KERNELS[23], KERNELS[25]], ids=lambda kernel: kernel.name
)
def test_trials_for_timing_have_no_reference(kernel: Kernel) -> None:
    first = next(trials_of(kernel.function, record(kernel), "cpu", timing=True, contexts=(64,)))
    assert first.reference is None
    assert set(first.arguments) == set(kernel.arguments)
    assert first.bytes > 0
    assert first.flops > 0
