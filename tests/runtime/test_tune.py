"""Tuning without a GPU: which tiles are tried, which one is kept, and that a machine without a GPU is refused."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from gpu_plan import STORE, SUM
from hand_made import CHECKPOINT
from host_driver import HostDriver, known_to

from dsv41c.compiler.cli import cli
from dsv41c.compiler.codegen.triton.configs import read_configs, with_config, write_configs
from dsv41c.compiler.codegen.triton.families import Kernel, Tile
from dsv41c.compiler.codegen.triton.kernels import sparse_attention
from dsv41c.compiler.codegen.triton.targets import parse_target
from dsv41c.compiler.codegen.triton.tune import tune, variants
from dsv41c.runtime.plan_format import GpuKernel

SM_80 = parse_target("cuda:sm_80")


class Clock(HostDriver):
    """Checks run in the interpreter; a graph takes as many milliseconds as its programs have threads."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = 0

    def launch(
        self, function: str, grid: tuple[int, int, int], threads: int, shared_bytes: int, arguments: int
    ) -> None:
        self.threads = threads
        super().launch(function, grid, threads, shared_bytes, arguments)

    def replay(self, graph: Any) -> None:
        pass

    def elapsed_ms(self, start: int, end: int) -> float:
        return float(self.threads)


def load(kernel: Kernel, tile: Tile) -> tuple[GpuKernel, Any] | None:
    """A record as a plan has it; the interpreter always runs blocks of two rows."""
    if tile.stages == 4:
        return None
    rows = int(tile.holes["ROWS"])
    source = f"kernels/sources/{kernel.source_file}"
    return GpuKernel(dict(kernel.arguments), (("n_rows", rows),), tile.warps, holes=kernel.holes, source=source), (
        kernel.function
    )


def test_variants_differ_in_one_thing() -> None:
    tiles = variants(STORE.with_tiles(Tile({"ROWS": 4})), SM_80)
    assert tiles[0] == Tile({"ROWS": 4})
    assert [(tile.holes["ROWS"], tile.warps, tile.stages) for tile in tiles[1:]] == [
        (4, 2, 2), (4, 8, 2), (4, 4, 1), (4, 4, 3), (4, 4, 4), (2, 4, 2), (8, 4, 2)
    ]  # fmt: skip
    attend = sparse_attention.attend("a", 64, 512, (128, 128, 1), (512, 64, 1))
    assert all(SM_80.name.startswith(tile.targets) for tile in variants(attend, SM_80))
    assert all(isinstance(tile.holes["HELD"], bool) for tile in variants(attend, SM_80))


def test_the_fastest_right_tile_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Blocks of four rows leave rows out, as the interpreter takes two: they are fast, and wrong."""
    driver = Clock()
    known_to(driver, monkeypatch)
    kernel = STORE.with_tiles(Tile({"ROWS": 2}, warps=4), Tile({"ROWS": 8}, warps=1))
    lines: list[str] = []
    found = tune([kernel], SM_80, driver, load, "cpu", lines.append)
    (config,) = found.configs
    assert config.tile == Tile({"ROWS": 2}, warps=2)
    assert config.default_microseconds == pytest.approx(2 * config.microseconds)
    assert lines[0].startswith("store_tail: ")
    write_configs(tmp_path / "tuned.json", found)
    tuned, is_tuned = with_config(kernel, SM_80, read_configs(tmp_path / "tuned.json"))
    assert (is_tuned, tuned.tiles) == (True, (config.tile, *kernel.tiles))


def test_kernels_without_trials_are_left_alone() -> None:
    untried = Kernel("other", "gemm", "other_kernel", dict(SUM.arguments), {}, (Tile({"ROWS": 2}),), ())
    assert tune([untried], SM_80, HostDriver(), load, "cpu").configs == ()


def test_refuses_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    output = tmp_path / "tuned.json"
    result = CliRunner().invoke(cli, ["bench", str(CHECKPOINT), "--tune", "-o", str(output)])
    assert (result.exit_code, output.exists()) == (1, False)
    assert result.stderr.startswith("error: no NVIDIA GPU can be used here: cuda-bindings is not installed")
    result = CliRunner().invoke(cli, ["bench", str(CHECKPOINT)])
    assert result.exit_code == 2
    assert "say what to measure and where it goes: --tune -o FILE" in result.stderr


class NoGpu:
    """A driver that is opened and asked for nothing."""

    target = "cuda:sm_80"
    description: Mapping[str, Any] = {}

    def __init__(self, device: int) -> None:
        pass


def test_what_cannot_be_written_or_is_not_there_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv41c.compiler.cli.bench.CudaDriver", NoGpu)
    output = tmp_path / "nowhere" / "tuned.json"
    result = CliRunner().invoke(cli, ["bench", str(CHECKPOINT), "--tune", "-o", str(output)])
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: -o {output}: no file can be written there, {output.parent} is no folder; choose another place\n"
    )
    result = CliRunner().invoke(cli, ["bench", str(CHECKPOINT), "--tune", "-o", str(tmp_path)])
    assert (result.exit_code, result.stderr) == (1, f"error: -o {tmp_path}: that is a folder; name a file in it\n")
    output = tmp_path / "tuned.json"
    result = CliRunner().invoke(cli, ["bench", str(CHECKPOINT), "--tune", "--only", "gemm,nosuch", "-o", str(output)])
    assert (result.exit_code, output.exists()) == (1, False)
    assert result.stderr.startswith("error: --only: no kernel begins with 'nosuch'; there are ")
    assert "route" in result.stderr
