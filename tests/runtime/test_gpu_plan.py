"""Plans for GPU targets: what is in them, what is refused, and that one can be looked at on any machine."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpu_plan import INDEX, PROGRAM, STORE, TARGETS
from hand_made import CHECKPOINT, write_plan

from dsv41c.compiler import driver
from dsv41c.compiler.cli import cli
from dsv41c.compiler.codegen.triton.aot import Compiled
from dsv41c.compiler.codegen.triton.configs import Config, Configs, read_configs, with_config, write_configs
from dsv41c.compiler.codegen.triton.families import Tile
from dsv41c.compiler.codegen.triton.targets import parse_target
from dsv41c.compiler.gpu_kernels import entry_of
from dsv41c.errors import CompileError, PlanError
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.plan_format import DeviceBuffer, DeviceLaunch, KernelEntry, LaunchList, encode_launches


@pytest.fixture
def changed(gpu_plan: Path, tmp_path: Path) -> Callable[..., Path]:
    """The plan with some fields of its manifest, or of its program, changed."""

    def change(program: dict[str, object] | None = None, **fields: object) -> Path:
        plan = tmp_path / "plan"
        shutil.copytree(gpu_plan, plan)
        if program is not None:
            launches = LaunchList({}, {"tails": replace(PROGRAM, **program)})  # type: ignore[arg-type]
            (plan / "launches.json").write_bytes(encode_launches(launches))
        write_plan(plan, replace(Plan.load(gpu_plan, target=None).manifest, **fields))  # type: ignore[arg-type]
        return plan

    return change


def entry(plan: Path, name: str, target: str) -> KernelEntry:
    kernels = Plan.load(plan, target=target).manifest.kernels
    return next(kernel for kernel in kernels if (kernel.name, kernel.target) == (name, target))


def test_the_manifest_says_what_a_launch_needs(gpu_plan: Path) -> None:
    found = entry(gpu_plan, "write_index", "cuda:sm_80")
    gpu = found.gpu
    assert gpu is not None
    assert (found.kind, found.band, found.function) == ("triton", "portable", "write_rows_kernel")
    assert gpu.arguments == INDEX.arguments
    assert gpu.grid == (("n_rows", gpu.tile["ROWS"]),)
    assert gpu.holes["FP8_CASTS"] is False
    assert gpu.registers > 4
    assert gpu.spill_bytes == 0
    assert gpu.load_bits >= 32
    assert entry(gpu_plan, "sum_parts_fp32", "cuda:sm_80").gpu.multiples == ("n_values",)  # type: ignore[union-attr]


def test_binaries_texts_and_sources_are_in_the_plan(gpu_plan: Path) -> None:
    for target, binary, text in zip(TARGETS, ("cubin", "hsaco"), ("ptx", "amdgcn"), strict=True):
        folder = gpu_plan / "kernels" / target.replace(":", "_")
        assert (folder / f"store_tail.{binary}").read_bytes()[:4] == b"\x7fELF"
        assert target.partition(":")[2] in (folder / f"store_tail.{text}").read_text()
    assert (gpu_plan / "kernels/sources/cache_rows.py").is_file()
    # What a source imports stands beside it.
    assert (gpu_plan / "kernels/sources/formats.py").is_file()


def test_the_choice_of_a_tile_is_recorded(gpu_plan: Path) -> None:
    tuned, default = (entry(gpu_plan, "store_tail", target) for target in TARGETS)
    assert tuned.gpu is not None
    assert default.gpu is not None
    assert (tuned.band, tuned.gpu.chosen, tuned.gpu.tile) == ("tuned", "tuned", {"ROWS": 2, "warps": 2, "stages": 1})
    assert (default.band, default.gpu.chosen) == ("portable", "default")


def test_loading_for_another_target_names_both(gpu_plan: Path) -> None:
    with pytest.raises(PlanError, match=r"compiled for cuda:sm_80, hip:gfx942, this runtime runs cpu; .*--target cpu"):
        Plan.load(gpu_plan)
    with pytest.raises(PlanError, match=r"this runtime runs cuda:sm_90; compile it with --target cuda:sm_90"):
        Plan.load(gpu_plan, target="cuda:sm_90")
    result = CliRunner().invoke(cli, ["run", str(gpu_plan), "--tokens", "5"])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "this runtime runs cpu" in result.stderr


def test_inspect_shows_a_plan_for_another_machine(gpu_plan: Path) -> None:
    result = CliRunner().invoke(cli, ["inspect", str(gpu_plan), "--json"], catch_exceptions=False)
    kernels = json.loads(result.output)["kernels"]
    assert [(one["name"], one["target"]) for one in kernels[:3]] == [
        (name, TARGETS[0]) for name in ("store_tail", "write_index", "sum_parts_fp32")
    ]
    assert all(one["bytes"] > 1000 for one in kernels)
    result = CliRunner().invoke(cli, ["inspect", str(gpu_plan)], catch_exceptions=False)
    assert all(f"kernels for {target}" in result.output for target in TARGETS)


def test_a_tile_is_explained(gpu_plan: Path) -> None:
    result = CliRunner().invoke(cli, ["inspect", str(gpu_plan), "--explain-kernel", "store_tail"])
    assert result.output.splitlines() == [
        "store_tail for cuda:sm_80: ROWS 2, warps 2, stages 1",
        "  tuned: the fastest that was measured on this target",
        f"store_tail for hip:gfx942: ROWS {STORE.tiles[0].holes['ROWS']}, warps 4, stages 2",
        "  default: the first of the kernel's own tiles for this target; nothing was measured for it",
    ]
    result = CliRunner().invoke(cli, ["inspect", str(gpu_plan), "--explain-kernel", "divide"])
    assert (result.exit_code, result.stderr.strip()) == (
        1,
        "error: the plan has no GPU kernel 'divide'; it has store_tail, sum_parts_fp32, write_index",
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("gpu", None, "kernel store_tail for cuda:sm_80 names no binary, function, assembly and signature"),
        ("target", "cuda:sm_90", "for cuda:sm_90: the plan's targets are cuda:sm_80, hip:gfx942"),
        ("name", "write_index", "kernel write_index for cuda:sm_80 is listed twice"),
        ("kind", "cuda", "is of kind cuda"),
    ],
)
def test_a_kernel_that_cannot_be_launched(
    field: str, value: object, message: str, gpu_plan: Path, changed: Callable[..., Path]
) -> None:
    first, *rest = Plan.load(gpu_plan, target=None).manifest.kernels
    plan = changed(kernels=(replace(first, **{field: value}), *rest))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=message):
        Plan.load(plan, target=None)


def test_an_argument_of_an_unknown_type(gpu_plan: Path, changed: Callable[..., Path]) -> None:
    first, *rest = Plan.load(gpu_plan, target=None).manifest.kernels
    assert first.gpu is not None
    gpu = replace(first.gpu, arguments={**first.gpu.arguments, "n_rows": "fp8"})
    with pytest.raises(PlanError, match="takes an argument of type fp8; this runtime passes pointers and i32, i64"):
        Plan.load(changed(kernels=(replace(first, gpu=gpu), *rest)), target=None)


def launch(kernel: str, *args: int | float | str | None, **sizes: int | str) -> dict[str, object]:
    return {"launches": (DeviceLaunch(kernel, args, sizes),)}


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (launch("divide"), r"launch 0 \(divide\): there is no such kernel for cuda:sm_80"),
        (launch("store_tail", "%total", "%positions", "T"), "3 arguments, its signature has 4 .rows_ptr, slots_ptr"),
        (launch("store_tail", 3, "%positions", "$tail.1", "T"), "argument rows_ptr is .fp32, given 3"),
        (launch("store_tail", "T", "%positions", "$tail.1", "T"), "argument rows_ptr is .fp32, given 'T'"),
        (launch("store_tail", "%total", "%positions", "$tail.1", 0.5), "argument n_rows is i32, given 0.5"),
        (launch("store_tail", "%total", "%positions", "$tail.1", "%total"), "argument n_rows is i32, given '%total'"),
        (launch("store_tail", "%lost", "%positions", "$tail.1", "T"), "there is no %lost"),
        (launch("store_tail", "%total", "%positions", "$tail.9", "T"), r"there is no \$tail.9"),
        (launch("store_tail", "@lost", "%positions", "$tail.1", "T"), "there is no @lost"),
        (launch("store_tail", "%total", "%positions", "$tail.1", "T", n=4), "sizes n, its grid needs none"),
        ({"caches": ("tail.7",)}, "uses cache tail.7, which the state table lacks"),
        ({"of": "encode"}, "computes encode, which the plan lacks"),
        ({"buffers": {"total": DeviceBuffer("f31", (1,))}}, "buffer total has type f31; this runtime knows"),
        ({"buffers": {"total": DeviceBuffer("f32", (1,), "%x")}}, "buffer total: there is no %x"),
        ({"buffers": {}}, "output again: there is no %again"),
        ({"buckets": (replace(PROGRAM.buckets[0], offsets={}),)}, "bucket of 1 rows: places for none, its buffers are"),
    ],
)
def test_a_program_that_fits_no_kernel(program: dict[str, object], message: str, changed: Callable[..., Path]) -> None:
    with pytest.raises(PlanError, match=message):
        Plan.load(changed(program), target=None)


def test_a_kernel_that_asks_for_scratch() -> None:
    """The runtime passes null for Triton's scratch pointers."""
    compiled = Compiled("k", TARGETS[0], 0, "k", 4, 16, 0, 0, 0, 512, 32, [], b"", "", [])
    with pytest.raises(CompileError, match="'store_tail' for cuda:sm_80 needs 512 bytes of global scratch"):
        entry_of(STORE, False, parse_target(TARGETS[0]), compiled)


def test_configs_are_for_a_target_and_fill_the_tiles_holes(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    write_configs(path, Configs("cuda:sm_80", (Config("store_plain_kernel", dict(STORE.holes), Tile({}), 1.0, 2.0),)))
    options = driver.CompileOptions(targets=("hip:gfx942",), configs=(path,))
    with pytest.raises(CompileError, match=r"given for cuda:sm_80, which is no target; add it with --target"):
        driver.compile_checkpoint(CHECKPOINT, tmp_path / "plan", options)
    sm_80, gfx942 = map(parse_target, TARGETS)
    with pytest.raises(CompileError, match=r"kernel 'store_tail' for cuda:sm_80 fills nothing, its tiles fill ROWS"):
        with_config(STORE, sm_80, read_configs(path))
    with pytest.raises(CompileError, match=r"tuned for cuda:sm_80 and would be used for hip:gfx942"):
        with_config(STORE, gfx942, read_configs(path))
    assert with_config(INDEX, sm_80, read_configs(path)) == (INDEX, False)
    for text, message in (
        ("{", "holds no tuned configs"),
        ("[]", "expected an object with"),
        ('{"target": "cuda:sm_80", "configs": [{}]}', r"tuned\.json, config 0: expected the fields"),
    ):
        path.write_text(text)
        with pytest.raises(CompileError, match=message):
            read_configs(path)


@pytest.mark.parametrize("targets", ["cpu,cpu", "cuda:sm_90,cuda:sm_90"])
def test_a_target_named_twice(targets: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["compile", str(CHECKPOINT), "-o", str(tmp_path / "plan"), "--target", targets])
    assert (result.exit_code, result.stderr.strip()) == (
        1,
        f"error: target {targets.partition(',')[0]} is named twice; name each once with --target",
    )
