"""Fixtures over the hand-made plan."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gpu_plan import write_gpu_plan
from hand_made import GOLDEN, KERNELS, hand_made_manifest, programs, write_plan
from safetensors.torch import save_file

from dsv41c.compiler.codegen.mlir.iree import CpuTarget, compile_linalg
from dsv41c.compiler.codegen.mlir.views import compile_views
from dsv41c.runtime.plan_format import encode_launches


@pytest.fixture(scope="session")
def finished_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hand-made plan; tests only read it."""
    folder = tmp_path_factory.mktemp("made") / "plan"
    (folder / "kernels").mkdir(parents=True)
    (folder / "programs").mkdir()
    (folder / "programs" / "step.mlir").write_text("// by hand\n")
    (folder / "kernels" / "views.vmfb").write_bytes(compile_views())
    (folder / "kernels" / "cpu.vmfb").write_bytes(compile_linalg(KERNELS, CpuTarget()))
    shutil.copy(GOLDEN / "tokenizer.json", folder / "tokenizer.json")
    save_file({"frequencies": torch.linspace(0.1, 3, 512)}, folder / "constants.safetensors")
    (folder / "launches.json").write_bytes(encode_launches(programs()))
    write_plan(folder, hand_made_manifest())
    return folder


@pytest.fixture
def plan_folder(finished_plan: Path, tmp_path: Path) -> Path:
    """A copy of the hand-made plan to damage."""
    return Path(shutil.copytree(finished_plan, tmp_path / "plan"))


@pytest.fixture
def rewrite(plan_folder: Path) -> Callable[..., None]:
    """Changes manifest fields of the copied plan and signs it again."""

    def change(**fields: object) -> None:
        write_plan(plan_folder, replace(hand_made_manifest(), **fields))  # type: ignore[arg-type]

    return change


@pytest.fixture(scope="session")
def gpu_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hand-made GPU plan; tests only read it."""
    folder = tmp_path_factory.mktemp("gpu") / "plan"
    write_gpu_plan(folder)
    return folder
