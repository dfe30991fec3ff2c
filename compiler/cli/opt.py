"""`dsv41c opt`: runs passes on a program's text."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import IO

import click
from xdsl.dialects.builtin import ModuleOp

from dsv41c.compiler.cli.output import console, table
from dsv41c.compiler.definitions import context_of
from dsv41c.errors import CompileError
from dsv41c.ir.text import parse_module, print_module
from dsv41c.passes.manager import PassManager, PassReport
from dsv41c.passes.pass_base import Pass
from dsv41c.passes.pipeline import REGISTRY, parse_pipeline, phases_of


def _list_passes(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    rows = [(name, _options(kind), ", ".join(phases_of(name)), _what(kind)) for name, kind in sorted(REGISTRY.items())]
    console().print(table("passes", ("pass", "options", "phase of the pipeline", "what"), rows))
    ctx.exit()


@click.command("opt", short_help="Run passes on a program's text.")
@click.argument("file", type=click.File("r"))
@click.option("-p", "--passes", default="", metavar="PASSES", help="E.g. 'dead-code,some-pass{limit=4}'.")
@click.option("--print-after", is_flag=True, help="Print the program after each pass to stderr.")
@click.option("--no-verify", is_flag=True, help="Do not verify the program before, between and after the passes.")
@click.option("--no-origins", is_flag=True, help="Print ops without the line and passes that they come from.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where the text goes.  [default: stdout]")
@click.option(
    "--list-passes", is_flag=True, is_eager=True, expose_value=False, callback=_list_passes, help="List them."
)
def opt_command(
    file: IO[str], passes: str, print_after: bool, no_verify: bool, no_origins: bool, output: Path | None
) -> None:
    """Runs passes on a program's text: text in, text out.

    FILE holds the program; - reads stdin. Without -p the program is parsed, verified and printed.

    \b
    Example:
      dsv41c opt plans/mini6/programs/step.mlir
      dsv41c opt in.mlir -p 'dead-code,common-subexpressions' --print-after
    """

    def after_pass(report: PassReport, module: ModuleOp) -> None:
        if print_after:
            click.echo(
                f"// ----- after {report.name} -----\n{print_module(module, not no_origins)}", err=True, nl=False
            )

    pipeline = parse_pipeline(passes)
    module = parse_module(file.read(), file.name)
    manager = PassManager(pipeline, context_of(module), verifies=not no_verify, on_pass=after_pass)
    text = print_module(manager.run(module), not no_origins)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise CompileError(f"-o {output} cannot be written: {error.strerror}; choose another file") from error


def _options(kind: type[Pass]) -> str:
    return ", ".join(f"{field.name}={str(field.default).lower()}" for field in fields(kind))


def _what(kind: type[Pass]) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]
