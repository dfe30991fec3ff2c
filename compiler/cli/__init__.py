"""The command line: one verb a module, imported only when it is called.

So `dsv41c run` and `dsv41c inspect` load the runtime and no compiler, and `dsv41c --help` loads neither.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import click

from dsv41c.errors import Dsv41Error

FAILED = 1
INTERRUPTED = 130

# Verb -> its line in `dsv41c --help`; the verb's module in this package has a click command of the verb's name.
VERBS = {
    "compile": "Compile a checkpoint to a plan.",
    "run": "Continue a prompt from a plan.",
    "serve": "Answer OpenAI's completions over HTTP from a plan.",
    "inspect": "Show what a plan holds.",
    "opt": "Run passes on a program's text.",
    "bench": "Tune kernels on this machine's GPU.",
    "doctor": "Say what this machine can compile and run.",
}


class Verbs(click.Group):
    """Imports a verb's module when the verb is called, and gives every failure its exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = getattr(importlib.import_module(f"{__name__}.{cmd_name}"), f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except Dsv41Error as error:
            click.echo(f"error: {one_line(error)}", err=True)
            raise click.exceptions.Exit(FAILED) from None
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None


def one_line(error: Exception) -> str:
    """An error's message on one line, the lines of a program joined by bars."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " | ".join(line for line in lines if line)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="dsv41c", message="%(package)s %(version)s")
def cli() -> None:
    """Compiles DeepSeek-V4.1-Flash checkpoints to plans, and serves plans.

    Exit codes: 0 done; 1 the input cannot be used, with one line `error: ...` that says why; 2 wrong usage; 130
    interrupted.

    \b
    Example:
      dsv41c compile checkpoints/mini6 --target cpu -o plans/mini6
      dsv41c run plans/mini6 --prompt "The cat"
    """


def main(args: Sequence[str] | None = None) -> None:
    """The console script `dsv41c`."""
    cli(args, prog_name="dsv41c")
