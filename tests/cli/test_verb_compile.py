"""`dsv41c compile`: a whole compilation with every option that shows something, refusals, an interrupt."""

import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from tiny_checkpoint import GOLDEN, write_tiny_checkpoint

from dsv41c.compiler import gpu_part
from dsv41c.compiler.codegen.triton.kernels import cache_rows
from dsv41c.compiler.gpu_programs import GpuPrograms
from dsv41c.passes.pipeline import default_pipeline, gpu_pipeline


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "checkpoint")


def test_compiles_and_verifies_each_pass(
    checkpoint: Path, dsv41c, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One kernel instead of all that the model needs for a GPU.
    kernel = cache_rows.store_plain("store_tail", "fp32", 128)
    monkeypatch.setattr(gpu_part, "kernels_of", lambda config, families: ())
    monkeypatch.setattr(gpu_part, "gpu_programs", lambda *args: GpuPrograms({}, {"store_tail": kernel}))
    monkeypatch.setattr(gpu_part, "gpu_bill_of", lambda *args: {})
    plan, dumps = tmp_path / "deep" / "plan", tmp_path / "ir"
    shown = ("--verify-each", "--print-passes", "--dump-ir", dumps)
    sizes = ("--page-tokens", "16", "--max-rows", "32", "--target", "cpu,cuda:sm_80")
    result = dsv41c("compile", checkpoint, "-o", plan, *sizes, *shown)
    assert result.exit_code == 0, result.output
    passes = [pass_.name for pass_ in default_pipeline()]
    assert sorted(path.name for path in dumps.iterdir()) == [
        f"{i:02d}_{name}.mlir" for i, name in enumerate(["input", *passes])
    ]
    steps = result.stderr.splitlines()
    assert steps[:2] == ["read the checkpoint", "trace the model"]
    assert [f"pass {name} ({i}/{len(passes)})" for i, name in enumerate(passes, 1)] == steps[2 : 2 + len(passes)]
    on_gpus = [pass_.name for pass_ in gpu_pipeline()]
    assert [f"pass {name} for GPUs ({i}/{len(on_gpus)})" for i, name in enumerate(on_gpus, 1)] == steps[
        2 + len(passes) : 2 + len(passes) + len(on_gpus)
    ]
    assert steps[-1] == "write the plan"
    for name in passes:
        assert f"│ {name} " in result.stdout
    assert " reference (" in result.stdout
    assert "kernels for cuda:sm_80 │ 1" in result.stdout
    assert (plan / "kernels/cuda_sm_80/store_tail.cubin").is_file()
    assert dsv41c("run", plan, "--tokens", "5,9,2", "--max-new-tokens", "2").exit_code == 0
    # A sequence longer than a forward's rows goes in chunks.
    assert dsv41c("run", plan, "--tokens", ",".join(["7"] * 50), "--max-new-tokens", "2").exit_code == 0


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((), 2, "Missing option '-o' / '--output'"),
        (("-o", "plan", "--target", "abacus"), 2, "'abacus' is no target; choose among cpu, cuda:sm_75"),
        (("-o", "plan", "--page-tokens", "0"), 2, "0 is not in the range x>=1"),
        (("-o", "plan", "--cpu", "i8008"), 1, "i8008"),
        (("-o", "plan", "--tokenizer", "nowhere.json"), 2, "'nowhere.json' does not exist"),
        (("-o", "full"), 1, "error: full exists and is no plan; choose another place with -o"),
    ],
)
def test_refusals_write_nothing(
    args: tuple[str, ...],
    code: int,
    message: str,
    checkpoint: Path,
    dsv41c,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full", "keep").write_text("mine")
    result = dsv41c("compile", checkpoint, *args)
    assert result.exit_code == code
    assert message in result.stderr
    assert result.stdout == ""
    assert [str(path) for path in sorted(Path().rglob("*"))] == ["full", "full/keep"]


def test_bad_checkpoints(dsv41c, checkpoint: Path, tmp_path: Path) -> None:
    absent = dsv41c("compile", tmp_path / "absent", "-o", tmp_path / "plan")
    assert absent.exit_code == 1
    assert absent.stderr.splitlines()[-1].startswith("error: ")
    assert str(tmp_path / "absent") in absent.stderr
    cut = tmp_path / "cut"
    shutil.copytree(checkpoint, cut)
    file = cut / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    result = dsv41c("compile", cut, "-o", tmp_path / "plan")
    assert result.exit_code == 1
    assert "model.safetensors" in result.stderr.splitlines()[-1]
    assert not (tmp_path / "plan").exists()


def test_a_page_holds_whole_entries(dsv41c, tmp_path: Path) -> None:
    result = dsv41c("compile", GOLDEN / "mini6", "-o", tmp_path / "plan", "--page-tokens", "3")
    assert result.exit_code == 1
    assert "error: page_tokens is 3; " in result.stderr
    assert "ratios 1, 2: choose another with --page-tokens" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_too_large_to_verify(dsv41c, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv41c.compiler.probe.MAX_CHECKPOINT_BYTES", 1 << 20)
    result = dsv41c("compile", checkpoint, "-o", tmp_path / "plan", "--verify-each")
    assert result.exit_code == 1
    assert "check the passes on a smaller config" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "dsv41c.compiler.cli",
        "compile",
        str(GOLDEN / "mini6"),
        "-o",
        str(tmp_path / "plan"),
    ]
    # A shell's background job, which this may be one of, hands on that interrupts are ignored.
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=listening) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("pass "):
                break
        running.send_signal(signal.SIGINT)
        rest = running.stderr.read()
    assert running.returncode == 130
    assert rest.splitlines()[-1] == "interrupted"
    assert list(tmp_path.iterdir()) == []
