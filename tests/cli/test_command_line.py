"""What all verbs share: help, exit codes, errors of one line."""

import json
from importlib.metadata import entry_points, version
from pathlib import Path

import click
import pytest

from dsv41c.compiler import cli as command_line
from dsv41c.compiler.cli import VERBS, main, one_line
from dsv41c.errors import IRError


def test_help_lists_the_verbs_and_imports_none(process) -> None:
    done = process("--help")
    assert done.returncode == 0
    for verb, line in VERBS.items():
        assert f"{verb} " in done.stdout
        assert line in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_an_example(verb: str, dsv41c) -> None:
    result = dsv41c(verb, "--help")
    assert result.exit_code == 0
    assert f"Usage: dsv41c {verb}" in result.stdout
    assert f"Example:\n    dsv41c {verb}" in result.stdout
    command = command_line.cli.get_command(click.Context(command_line.cli), verb)
    assert command is not None
    assert command.short_help == VERBS[verb]


def test_version(dsv41c) -> None:
    assert dsv41c("--version").stdout == f"dsv41c {version('dsv41c')}\n"


def test_console_script() -> None:
    (script,) = entry_points(group="console_scripts", name="dsv41c")
    assert script.load() is main


@pytest.mark.parametrize(
    "args", [["fly"], ["run"], ["compile", "somewhere"], ["inspect", "--yaml", "plan"], ["doctor", "x"]]
)
def test_wrong_usage_is_2(args: list[str], dsv41c) -> None:
    result = dsv41c(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage: dsv41c" in result.stderr


@pytest.mark.parametrize("verb", ["run", "inspect"])
def test_an_error_is_one_line_and_1(verb: str, process, tmp_path: Path) -> None:
    arguments = ["--tokens", "5"] if verb == "run" else []
    done = process(verb, tmp_path / "nothing", *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: there is no plan folder")
    assert "dsv41c compile CHECKPOINT" in done.stderr


def test_an_error_with_program_text_stays_one_line() -> None:
    assert one_line(IRError("op failed\n  in: %a = x\n\n  because")) == "op failed | in: %a = x | because"


def test_interrupt_is_130(dsv41c, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dsv41c.compiler.cli.doctor.examine", interrupt)
    result = dsv41c("doctor")
    assert result.exit_code == 130
    assert result.stderr == "interrupted\n"


def test_doctor_compiles_and_runs_a_kernel(dsv41c) -> None:
    result = dsv41c("doctor", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["targets"]["cpu"]["works"] is True
    assert found["targets"]["cpu"]["features"]
    assert found["tools"]["torch"] == version("torch")
    assert found["disk"]["free"] > 0


def test_doctor_names_what_is_missing(dsv41c, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ImportError("No module named 'iree'")

    monkeypatch.setattr("dsv41c.compiler.doctor._PROBES", {"cpu": broken})
    monkeypatch.setattr("dsv41c.compiler.doctor.TOOLS", ("no-such-package",))
    result = dsv41c("doctor")
    assert result.exit_code == 1
    assert "no: ImportError: No module named 'iree'" in result.stdout
    assert "missing" in result.stdout
