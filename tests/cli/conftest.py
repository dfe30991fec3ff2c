"""Calls of the command line: in this process, and as users do."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dsv41c.compiler.cli import cli

Dsv41c = Callable[..., Result]
Process = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def dsv41c() -> Dsv41c:
    """Runs a verb in this process; its result has stdout, stderr and the exit code."""

    def call(*args: str | Path, stdin: str | None = None) -> Result:
        return CliRunner().invoke(cli, [str(arg) for arg in args], input=stdin, prog_name="dsv41c")

    return call


@pytest.fixture(scope="session")
def process() -> Process:
    """Runs a verb in a process of its own."""

    def call(*args: str | Path) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "dsv41c.compiler.cli", *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    return call
