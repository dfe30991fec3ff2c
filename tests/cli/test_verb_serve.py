"""`dsv41c serve`: as a process of its own, and what it refuses."""

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from dsv41c.compiler.cli.serve import _is_loopback


def test_a_server_comes_up_answers_and_goes(mini6_plan: Path) -> None:
    command = [sys.executable, "-m", "dsv41c.compiler.cli", "serve", str(mini6_plan), "--port", "0", "--model", "m"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        lines = []
        for line in server.stderr:
            lines.append(line)
            if "running on" in line:
                break
        found = re.search(r"http://127\.0\.0\.1:\d+", "".join(lines))
        assert found, lines
        with urllib.request.urlopen(f"{found[0]}/v1/models", timeout=60) as answer:
            assert b'"id":"m"' in answer.read()
        server.send_signal(signal.SIGTERM)
        rest = server.stderr.read()
    assert "Traceback" not in rest
    assert "Application shutdown complete" in rest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--chat-template", "nowhere.jinja"), "chat template nowhere.jinja cannot be read"),
        (("--api-key-file", "nowhere.key"), "--api-key-file nowhere.key cannot be read"),
        (("--memory-bytes", "1000"), "memory_bytes is 1000; a call of 512 tokens takes"),
        (("--no-prefix", "--store", "pages"), "--store pages keeps prefixes, and --no-prefix keeps none"),
        (("--max-sequences", "65"), "the plan was compiled for 1..64"),
    ],
)
def test_what_cannot_be_served(
    dsv41c: Callable[..., Result], mini6_plan: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = dsv41c("serve", mini6_plan, *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["--request-seconds", "--state-seconds"])
def test_times_are_positive(dsv41c: Callable[..., Result], option: str) -> None:
    result = dsv41c("serve", "plan", option, "-5")
    assert result.exit_code == 2
    assert "-5.0 is not in the range x>0" in result.stderr


def test_an_empty_key_is_refused(
    dsv41c: Callable[..., Result], mini6_plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(" \n")
    assert "is empty" in dsv41c("serve", mini6_plan, "--api-key-file", tmp_path / "key").stderr
    monkeypatch.setenv("DSV41C_API_KEY", "")
    assert "is set and empty" in dsv41c("serve", mini6_plan).stderr


@pytest.mark.parametrize(
    ("host", "expected"), [("localhost", True), ("127.0.0.2", True), ("::1", True), ("0.0.0.0", False), ("a.b", False)]
)
def test_which_addresses_stay_on_this_machine(host: str, expected: bool) -> None:
    assert _is_loopback(host) == expected
