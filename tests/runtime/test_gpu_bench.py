"""What of `bench/gpu.sh` runs without a GPU: arguments, floors, the table, checks over the host's memory."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from gpu_plan import STORE, TARGETS, WIDTH
from host_driver import HostDriver, known_to
from safetensors.torch import load_file, save_file
from torch import Tensor

import dsv41c
from dsv41c.compiler.codegen.triton.timing import REPLAYS, Launcher, copies_of, replayed
from dsv41c.compiler.codegen.triton.trials import Trial, trials_of
from dsv41c.errors import CompileError
from dsv41c.runtime.cuda_driver import DriverError
from dsv41c.runtime.device_checks import kernels_for
from dsv41c.runtime.executor_cuda import CudaExecutor, load_kernel
from dsv41c.runtime.plan import Plan

SCRIPT = Path(dsv41c.__file__).parent / "bench" / "gpu.py"
# What the machine with the GPU lacks.
ABSENT = ("triton", "iree", "xdsl", "torch_mlir", "click", "rich", "networkx", "cuda")


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_bench", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_bench"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    for name in ("plan", "kernels", "checkpoint"):
        (tmp_path / name).mkdir()
    (tmp_path / "checks.safetensors").touch()
    return tmp_path


def test_arguments(gpu: ModuleType, prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = gpu.parsed([str(prepared), "out", "--only", "attend,gemm_fp8"])
    assert (found.only, found.seconds) == (["attend", "gemm_fp8"], 420.0)
    (prepared / "plan").rmdir()
    with pytest.raises(SystemExit):
        gpu.parsed([str(prepared), "out"])
    assert "has no plan; make it with `python bench/gpu_prepare.py" in capsys.readouterr().err


def test_floors(gpu: ModuleType) -> None:
    ceilings = gpu.Ceilings(bytes_per_second=1e12, flops_per_second=1e14)
    assert ceilings.floor_us(4_000_000, 0) == pytest.approx(4)
    assert ceilings.floor_us(4_000_000, 10**9) == pytest.approx(10)
    trial = Trial("here", {}, {}, (), 4_000_000)
    made = gpu.timing("k", trial, [8.0, 5.0, 6.0, 7.0, 20.0], ceilings)
    assert (made.median_us, made.low_us, made.high_us) == (7.0, 5.0, 20.0)
    assert made.share == pytest.approx(4 / 7)


def test_copies_go_beyond_the_l2_cache() -> None:
    def trial(size: int) -> Trial:
        return Trial("here", {"x": torch.arange(size), "rows": torch.arange(9)}, {}, (), size, redrawn=("rows",))

    sized = [Trial("here", {}, {}, (), size) for size in (1, 128 << 20, 1 << 30)]
    assert [copies_of(one) for one in sized] == [64, 2, 2]
    first, second = trial(8).copies(2)
    assert isinstance(first["x"], Tensor)
    assert isinstance(second["x"], Tensor)
    assert first["x"].data_ptr() != second["x"].data_ptr()
    assert torch.equal(first["x"], second["x"])
    assert not torch.equal(first["rows"], second["rows"])  # type: ignore[arg-type]
    assert trial(8).copies(2, most_bytes=9)[1]["x"] is not None


def test_the_table(gpu: ModuleType) -> None:
    one = {"kernel": "attend", "label": "batch 1", "median_us": 10.0, "low_us": 9.0, "high_us": 12.0, "floor_us": 4.0}
    check = {"kernel": "select", "label": "3 rows", "error": 0.5, "bound": 0.0, "holds": False}
    results = {
        "conditions": {"device": "A GPU", "driver": 13000, "torch": "2.11.0", "date": "2026-01-02"},
        "ceilings": {"bytes_per_second": 4e12, "flops_per_second": 7e14},
        "timings": [one],
        "decode": [{"model": "mini6", "rows": 4, "median_us": 900.0, "low_us": 880.0, "high_us": 950.0}],
        "checks": [check, {**check, "holds": True}],
        "skipped": ["swiglu"],
        "untried": ["other", "another"],
        "failures": [{"what": "route", "error": "DriverError: refused"}],
    }
    text = gpu.report(results)
    assert "A GPU, driver 13000, torch 2.11.0, 2026-01-02" in text
    assert "copy 4.00 TB/s, bf16 product 700 Tflop/s" in text
    assert "| attend | batch 1 | 10.0 | 9.0..12.0 | 4.0 | 40% |" in text
    assert "| mini6 | 4 | 900 | 880..950 |" in text
    assert "Checks: 2, of which 1 do not hold." in text
    assert "- select 3 rows: 0.5, bound 0" in text
    assert "Skipped: swiglu." in text
    assert "Without a trial, neither checked nor timed here: other, another." in text
    assert "Failed: 1.\n- route: DriverError: refused\n" in text


def test_values_are_compared(gpu: ModuleType) -> None:
    wanted = torch.tensor([1.0, float("-inf"), 2.0])
    assert gpu.compared("k", "here", wanted + 1e-4, wanted)["holds"]
    assert not gpu.compared("k", "here", wanted * 1.1, wanted)["holds"]
    assert not gpu.compared("k", "here", torch.tensor([1.0, 5.0, 2.0]), wanted)["holds"]
    ids = torch.tensor([1, 2])
    assert gpu.compared("k", "here", ids, ids)["holds"]
    assert gpu.compared("k", "here", ids + 1, ids) == {
        "kernel": "k", "label": "here", "error": 1.0, "bound": 0.0, "holds": False
    }  # fmt: skip


def test_a_kernels_trial_over_the_hosts_memory(gpu: ModuleType, gpu_plan: Path) -> None:
    plan, driver = Plan.load(gpu_plan, target=TARGETS[0]), HostDriver()
    entry = kernels_for(plan.manifest.kernels, TARGETS[0])["store_tail"]
    assert entry.gpu is not None
    (trial,) = trials_of("store_plain_kernel", entry.gpu, "cpu", timing=False)
    for one in trial.arguments.values():
        if isinstance(one, Tensor):
            driver.allocations[one.data_ptr()] = one.view(torch.uint8).flatten()
    function, _ = load_kernel(driver, plan.path, entry)
    (found,) = gpu.checked(Launcher(driver, entry.name, entry.gpu, function), trial)
    assert found == {
        "kernel": "store_tail",
        "label": f"7 x {WIDTH}: cache_ptr",
        "error": 0.0,
        "bound": 0.0,
        "holds": True,
    }
    assert driver.launched[0][0] == STORE.function
    assert len(replayed(driver, [])) == REPLAYS


def test_a_failure_costs_no_other_part(gpu: ModuleType, tmp_path: Path) -> None:
    """Results are written behind each part, and the one that runs is named while it runs."""

    def written() -> dict[str, Any]:
        found = json.loads((tmp_path / "gpu.json").read_text())
        assert isinstance(found, dict)
        return found

    conditions = {"device": "this machine", "driver": 1, "torch": "2", "date": "2026-01-02"}
    run = gpu.Run(HostDriver(), tmp_path, gpu.new_results(conditions, gpu.Ceilings(1e12, 1e14)), time.monotonic() + 99)
    run.part("first", lambda: run.results["untried"].append(written()["running"]))
    assert (written()["untried"], written()["running"], run.status()) == (["first"], None, 0)
    for error in (DriverError("refused", "CUDA_ERROR_OUT_OF_MEMORY"), MemoryError("no room"), AssertionError("\nwhy")):
        run.part(type(error).__name__, Mock(side_effect=error))
    run.part("last", lambda: run.results["untried"].append("last"))
    assert written()["failures"] == [
        {"what": "DriverError", "error": "DriverError: refused"},
        {"what": "MemoryError", "error": "MemoryError: no room"},
        {"what": "AssertionError", "error": "AssertionError: why"},
    ]
    assert (written()["untried"], written()["skipped"], run.status()) == (["first", "last"], [], 1)
    assert "- MemoryError: MemoryError: no room" in (tmp_path / "gpu.md").read_text()


def test_behind_a_lost_gpu_and_behind_the_deadline_parts_are_skipped(gpu: ModuleType, tmp_path: Path) -> None:
    class Lost(HostDriver):
        def synchronize(self) -> None:
            raise DriverError("lost", "CUDA_ERROR_ILLEGAL_ADDRESS")

    conditions = {"device": "this machine", "driver": 1, "torch": "2", "date": "2026-01-02"}
    for driver, deadline, skipped in ((Lost(), 99, ["b", "c"]), (HostDriver(), -1, ["a", "b", "c"])):
        results = gpu.new_results(conditions, gpu.Ceilings(1e12, 1e14))
        run = gpu.Run(driver, tmp_path, results, time.monotonic() + deadline)
        for what in "abc":
            run.part(what, Mock(side_effect=DriverError("lost", "CUDA_ERROR_ILLEGAL_ADDRESS")))
        assert json.loads((tmp_path / "gpu.json").read_text())["skipped"] == skipped
        assert run.status() == (skipped == ["b", "c"])


def test_only_names_kernels(gpu: ModuleType, gpu_plan: Path) -> None:
    entries = [entry for entry in Plan.load(gpu_plan, target=TARGETS[0]).manifest.kernels if entry.gpu is not None]
    names = {entry.name for entry in gpu.chosen(entries, [])}
    assert names == {"store_tail", "sum_parts_fp32", "write_index"}
    assert {entry.name for entry in gpu.chosen(entries, ["store", "sum"])} == names - {"write_index"}
    message = "no kernel begins with 'nosuch'; there are .*store_tail, sum_parts_fp32, .*write_index"
    with pytest.raises(CompileError, match=message):
        gpu.chosen(entries, ["store", "nosuch"])


def test_all_trials_of_a_plans_kernel(gpu: ModuleType, gpu_plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks run; a graph is recorded and takes no time."""
    driver = HostDriver()
    known_to(driver, monkeypatch)
    monkeypatch.setattr(driver, "replay", lambda graph: driver.launched.append(("graph", (1, 1, 1), 1)))
    plan = Plan.load(gpu_plan, target=TARGETS[0])
    entries = kernels_for(plan.manifest.kernels, TARGETS[0])
    results = gpu.new_results({}, gpu.Ceilings(1e12, 1e14))
    for name in ("store_tail", "write_index"):
        gpu.try_kernel(driver, plan, entries[name], gpu.Ceilings(1e12, 1e14), results, "cpu")
    assert {one["kernel"] for one in results["checks"]} == {"store_tail"}
    assert {one["kernel"] for one in results["timings"]} == {"store_tail"}
    assert results["untried"] == ["write_index"]


def test_a_step_over_the_hosts_memory(gpu: ModuleType, gpu_plan: Path, tmp_path: Path) -> None:
    """Each value is compared and then replaced, so that a wrong one shows once."""
    plan = Plan.load(gpu_plan, target=TARGETS[0])
    total = load_file(gpu_plan / "constants.safetensors")["frequencies"].view(4, WIDTH)
    caches = {spec.name: spec.empty(2) for spec in plan.manifest.state}
    positions = torch.tensor([3, 5, -1, -1])
    stored = caches["tail.1"].clone().view(-1, WIDTH)
    stored[positions[:2]] = 2 * total[:2]
    after = {**caches, "tail.1": stored.view(2, -1)}
    tensors = {
        "input/positions": positions,
        "value/%total": 2 * total,
        "value/%again": (2 * total).view(-1)[256:].clone(),
    }
    tensors["value/%again"] = (2 * total).flatten()[WIDTH * 2 :].view(4, WIDTH // 2).clone()
    tensors |= {f"before/{name}": one for name, one in caches.items()}
    tensors |= {f"after/{name}": one.clone() for name, one in after.items()}
    path = tmp_path / "checks.safetensors"
    save_file(tensors, path, {"program": "tails", "ops": json.dumps({"0": ["sum", "%total"], "2": ["sum", "%again"]})})
    executor = CudaExecutor(plan, HostDriver(), pages=2, rings=2)
    found = {one["label"]: one["holds"] for one in gpu.check_step(executor, path)}
    assert found.pop("launch 0: %total") is False
    assert len(found) == 1 + len(caches)
    assert all(found.values())


def test_needs_nothing_of_the_compiler(tmp_path: Path) -> None:
    text = (
        "import importlib.abc, runpy, sys\n"
        "class Absent(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {ABSENT}: raise ImportError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='bench')\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    shell = subprocess.run(["sh", SCRIPT.with_suffix(".sh")], capture_output=True, text=True, timeout=60)
    assert shell.returncode != 0
    assert "give the folder that bench/gpu_prepare.py wrote" in shell.stderr
