"""A plan folder appears whole or not at all: full disks, kills, older plans, places that are no plan."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsv41c.compiler import artifact
from dsv41c.compiler.artifact import staged_folder, write_files
from dsv41c.errors import CompileError

FILES = {"kernels/a.vmfb": b"a" * 1000, "launches.json": b"{}", "manifest.json": b"new"}


def write(output: Path) -> None:
    with staged_folder(output) as folder:
        write_files(folder, FILES)


def old_plan(output: Path) -> None:
    output.mkdir()
    (output / "manifest.json").write_bytes(b"old")
    (output / "stale.vmfb").write_bytes(b"")


def contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_plan_and_a_second_one_in_its_place(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "plan"
    write(output)
    assert contents(output) == {"kernels", *FILES}
    (output / "stale.vmfb").write_bytes(b"")
    write(output)
    assert contents(output.parent) == {"plan", "plan/kernels", *(f"plan/{name}" for name in FILES)}


def test_a_system_that_cannot_exchange_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "_exchange", lambda one, other: False)
    old_plan(tmp_path / "plan")
    write(tmp_path / "plan")
    assert contents(tmp_path) == {"plan", "plan/kernels", *(f"plan/{name}" for name in FILES)}


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("at", range(len(FILES)))
def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, replaces: bool) -> None:
    writes = iter(range(len(FILES)))
    real = Path.write_bytes

    def limited(path: Path, data: bytes) -> int:
        if next(writes) == at:
            real(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, data)

    if replaces:
        old_plan(tmp_path / "plan")
    before = contents(tmp_path)
    monkeypatch.setattr(Path, "write_bytes", limited)
    with pytest.raises(CompileError, match="cannot be written: the disk is full; nothing was left behind, free space"):
        write(tmp_path / "plan")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("step", ["_sync", "_move"])
def test_a_disk_that_fails_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def fail(*_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(artifact, step, fail)
    old_plan(tmp_path / "plan")
    with pytest.raises(CompileError, match="plan cannot be written: Input/output error"):
        write(tmp_path / "plan")
    assert contents(tmp_path) == {"plan", "plan/manifest.json", "plan/stale.vmfb"}
    assert (tmp_path / "plan" / "manifest.json").read_bytes() == b"old"


def test_other_errors_are_not_blamed_on_the_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), staged_folder(tmp_path / "plan"):
        (tmp_path / "nothing").read_bytes()
    assert not contents(tmp_path)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_place_that_is_no_plan_is_left_alone(tmp_path: Path, kind: str) -> None:
    output = tmp_path / "mine"
    if kind == "folder":
        output.mkdir()
        (output / "thesis.txt").write_text("a year of work")
    else:
        output.write_text("a year of work")
    with pytest.raises(CompileError, match="exists and is no plan; choose another place with -o, or remove it"):
        write(output)
    assert contents(tmp_path) == ({"mine", "mine/thesis.txt"} if kind == "folder" else {"mine"})


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(artifact.tempfile, "mkdtemp", refuse)
    with pytest.raises(CompileError, match="plan cannot be written: Permission denied"):
        write(tmp_path / "plan")


# --- killed processes -------------------------------------------------------------------------------------------------

# Writes a plan and stops for good at the moment that the first argument names.
_STOPS = """
import sys, time
from pathlib import Path
from dsv41c.compiler import artifact
from dsv41c.compiler.artifact import staged_folder, write_files

moment, output, files = sys.argv[1], Path(sys.argv[2]), eval(sys.argv[3])

def stop(*_):
    print("stopped", flush=True)
    time.sleep(60)

def stopping(function):
    def run(*args):
        result = function(*args)
        stop()
        return result
    return run

if moment in ("_sync", "_exchange"):
    setattr(artifact, moment, stopping(getattr(artifact, moment)))
with staged_folder(output) as folder:
    if moment == "begin":
        stop()
    for count, name in enumerate(files):
        write_files(folder, {name: files[name]})
        if moment == f"write{count}":
            stop()
"""


@pytest.mark.parametrize("moment", ["begin", "write0", "write2", "_sync"])
def test_a_kill_leaves_the_old_plan_and_the_next_compilation_cleans_up(tmp_path: Path, moment: str) -> None:
    output = tmp_path / "plan"
    old_plan(output)
    kill_at(moment, output)
    assert contents(output) == {"manifest.json", "stale.vmfb"}
    assert len(list(tmp_path.iterdir())) == 2, "the hidden staging folder of the killed process"
    write(output)
    assert contents(tmp_path) == {"plan", "plan/kernels", *(f"plan/{name}" for name in FILES)}


def test_a_kill_without_an_old_plan_leaves_none(tmp_path: Path) -> None:
    kill_at("write1", tmp_path / "plan")
    assert not (tmp_path / "plan").exists()
    write(tmp_path / "plan")
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]


def test_a_kill_right_after_the_exchange_leaves_the_new_plan(tmp_path: Path) -> None:
    output = tmp_path / "plan"
    old_plan(output)
    kill_at("_exchange", output)
    assert contents(output) == {"kernels", *FILES}


def test_a_running_compilation_is_not_cleaned_up(tmp_path: Path) -> None:
    process = stopped_process("write0", tmp_path / "plan")
    try:
        write(tmp_path / "plan")
        assert len(list(tmp_path.iterdir())) == 2
    finally:
        process.kill()
        process.wait()


def kill_at(moment: str, output: Path) -> None:
    process = stopped_process(moment, output)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{process.pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def stopped_process(moment: str, output: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", _STOPS, moment, str(output), repr(FILES)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "stopped\n"
    return process
