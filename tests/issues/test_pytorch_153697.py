"""Symptom: an artifact that was compiled on one GPU fails on another, late and without a word about why
(pytorch#153697, #160303; TensorRT-LLM#222).

Cause: the architecture is baked into binaries, and nothing beside them says which one.

Why this input: a plan of three kernels for an NVIDIA and an AMD target. It loads for either; for a third GPU and for
the CPU it is refused before anything is read, with what it is for and what was asked. Each binary is of the target that
its entry names, and a manifest that claims another target than its kernels are for is refused too.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from gpu_plan import TARGETS, write_gpu_plan
from hand_made import write_plan

from dsv41c.errors import PlanError
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.plan_format import Target

MACHINES = {"cuda:sm_80": 190, "hip:gfx942": 224}  # e_machine of ELF: EM_CUDA, EM_AMDGPU


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("targets") / "plan"
    write_gpu_plan(folder)
    return folder


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_has_its_own_binaries(plan: Path, target: str) -> None:
    kernels = [kernel for kernel in Plan.load(plan, target=target).manifest.kernels if kernel.target == target]
    assert len(kernels) == 3
    for kernel in kernels:
        assert kernel.gpu is not None
        binary = (plan / str(kernel.file)).read_bytes()
        assert int.from_bytes(binary[18:20], "little") == MACHINES[target]
        assert target.partition(":")[2] in (plan / str(kernel.gpu.assembly)).read_text()


@pytest.mark.parametrize("target", ["cuda:sm_90", "hip:gfx1100", "cpu"])
def test_another_target_is_refused_with_both_names(plan: Path, target: str) -> None:
    with pytest.raises(PlanError, match=rf"compiled for {', '.join(TARGETS)}, this runtime runs {target}; .*--target"):
        Plan.load(plan, target=target)


def test_a_manifest_that_claims_another_target(plan: Path, tmp_path: Path) -> None:
    manifest = Plan.load(plan, target=None).manifest
    write_gpu_plan(tmp_path / "plan")
    write_plan(tmp_path / "plan", replace(manifest, targets=(*manifest.targets, Target("cuda:sm_90"))))
    with pytest.raises(PlanError, match="no such kernel for cuda:sm_90; compile the plan again"):
        Plan.load(tmp_path / "plan", target="cuda:sm_90")
