"""The GPU programs of mini6 as the CUDA executor reads them: places, arguments and grids of every launch."""

import pytest
from shared_folders import GOLDEN, once, tree_hash
from test_device_step import write_lowered
from xdsl.dialects.builtin import ModuleOp

from dsv41c.compiler import gpu_bill
from dsv41c.compiler.driver import PROGRAMS
from dsv41c.compiler.gpu_programs import GpuPrograms, default_buckets, gpu_programs
from dsv41c.compiler.layers import launches_by_kind, launches_by_layer
from dsv41c.ir.builder import functions
from dsv41c.ir.text import parse_module
from dsv41c.models.checkpoint import Checkpoint
from dsv41c.runtime.device_memory import Layout
from dsv41c.runtime.expressions import size_value
from dsv41c.runtime.launch_args import PackedArguments, grid_of
from dsv41c.runtime.plan_format import DeviceProgram, GpuKernel

MAX_ROWS = 64
# Exact, so that a fusion which no longer matches, and one which matches more, are seen.
LAUNCHES = {"step": 205, "encode": 114, "tail": 95, "encode_replay": 114, "decode": 210}
INPUTS_AT, ARENA_AT, FIXED_AT = 1 << 20, 1 << 30, 1 << 40


@pytest.fixture(scope="module")
def module() -> ModuleOp:
    folder = once(f"mini6-gpu-{tree_hash('mini6')}", write_lowered)
    return parse_module((folder / "lowered.mlir").read_text())


@pytest.fixture(scope="module")
def made(module: ModuleOp) -> GpuPrograms:
    return gpu_programs(module, PROGRAMS, MAX_ROWS, (1, 4))


def records(made: GpuPrograms) -> dict[str, GpuKernel]:
    """What a plan says of the kernels, each in its first tile."""
    found = {}
    for name, kernel in made.kernels.items():
        known = {**kernel.holes, **kernel.tiles[0].holes}
        grid = tuple((known.get(str(size), size), known.get(str(per), per)) for size, per in kernel.grid)
        notes = {"sizes": kernel.sizes, "unaligned": kernel.unaligned, "multiples": kernel.multiples}
        found[name] = GpuKernel(dict(kernel.arguments), grid, kernel.tiles[0].warps, **notes)  # type: ignore[arg-type]
    return found


def fixed(program: DeviceProgram) -> dict[str, int]:
    """Addresses of weights and caches, far apart."""
    named = {arg for launch in program.launches for arg in launch.args if isinstance(arg, str) and arg[:1] in "@$"}
    named |= {buffer.of for buffer in program.buffers.values() if buffer.of is not None and buffer.of[:1] in "@$"}
    return {name: FIXED_AT + (place << 24) for place, name in enumerate(sorted(named))}


@pytest.mark.parametrize(
    ("name", "rows", "sequences"),
    [("decode", 1, 1), ("decode", 4, 4), ("step", 64, 3), ("step", 17, 1), ("encode", 33, 2), ("tail", 64, 1)],
)
def test_every_launch_fits(name: str, rows: int, sequences: int, made: GpuPrograms) -> None:
    program, kernels = made.programs[name], records(made)
    bucket = next(one for one in program.buckets if one.rows >= rows)
    sizes = {"T": rows, "B": sequences, "R": sequences, "P": 4, "N": 16, "S": sequences}
    layout = Layout.of(program, bucket, sizes, INPUTS_AT, ARENA_AT, fixed(program))
    launched = 0
    for launch in program.launches:
        gpu = kernels[launch.kernel]
        values = [
            one if not isinstance(one, str) else layout.addresses[one] if one[:1] in "%@$" else size_value(one, sizes)
            for one in launch.args
        ]
        grid_sizes = {size: size_value(value, sizes) for size, value in launch.sizes.items()}
        launched += grid_of(launch.kernel, gpu, values, grid_sizes) is not None
        PackedArguments(launch.kernel, gpu, values)
    assert launched == len(program.launches) == LAUNCHES[name]


def test_the_bill_counts_what_a_gpu_launches(
    module: ModuleOp, made: GpuPrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches, not ops; bytes of the buckets that are there, for the longest context."""
    monkeypatch.setattr(gpu_bill, "step_cost", lambda *args: {})  # of the network, which this text no longer has
    config, step = Checkpoint.open(GOLDEN / "mini6").config, functions(module)["step"]
    found = gpu_bill.gpu_bill_of(
        config, 16, step, step, made, {"T": MAX_ROWS, "B": 4, "P": 12, "R": 4, "N": 48, "S": 4}
    )
    launches = {form: len(made.programs[name].launches) for form, name in (("prefill", "step"), ("decode", "decode"))}
    assert found["launches_per_step"] == launches
    assert sum(launches_by_layer(step, made.counts["decode"]).values()) == launches["decode"]
    assert found["kernels_per_layer"]["reuse"]["decode"] > launches_by_kind(step, config)["reuse"]
    arenas = {one.rows: one.arena for name in ("decode", "step") for one in made.programs[name].buckets}
    assert [(one["chunk"], one["context"], one["bytes"]) for one in found["transient_peak_bytes"]] == [
        (rows, 192, arenas[rows]) for rows in (1, 4, MAX_ROWS)
    ]
    assert all(0 < one["indexer_bytes"] < one["bytes"] for one in found["transient_peak_bytes"])


def test_programs_of_a_plan(made: GpuPrograms) -> None:
    assert list(made.programs) == [*PROGRAMS, "decode"]
    assert {name: len(program.launches) for name, program in made.programs.items()} == LAUNCHES
    assert [(one.of, one.padded) for one in made.programs.values()] == [
        *((name, False) for name in PROGRAMS),
        ("step", True),
    ]
    named = {launch.kernel for program in made.programs.values() for launch in program.launches}
    assert named == set(made.kernels)
    assert [bucket.rows for bucket in made.programs["decode"].buckets] == [1, 4]
    assert default_buckets(1) == (1,)
    assert default_buckets(12) == (1, 2, 4, 8, 12)
