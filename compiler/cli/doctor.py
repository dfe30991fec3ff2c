"""`dsv41c doctor`: what this machine can compile and run."""

from __future__ import annotations

import json
from typing import Any

import click

from dsv41c.compiler.cli.output import bytes_text, console, table
from dsv41c.compiler.doctor import examine


@click.command("doctor", short_help="Say what this machine can compile and run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def doctor_command(ctx: click.Context, as_json: bool) -> None:
    """Says what this machine can compile and run, by compiling and running a small kernel for every target.

    Exit code 1 if no target works.

    \b
    Example:
      dsv41c doctor
      dsv41c doctor --json | jq .targets
    """
    found = examine()
    if as_json:
        click.echo(json.dumps(found))
    else:
        out = console()
        out.print(table("machine", ("what", "value"), _machine(found)))
        out.print(table("targets", ("target", "compiles and runs here", "seconds", "features"), _targets(found)))
    if not any(target["works"] for target in found["targets"].values()):
        ctx.exit(1)


def _machine(found: dict[str, Any]) -> list[tuple[str, str]]:
    cache, disk = found["cache"], found["disk"]
    kept = f"{cache['path']}: {cache['kernels']} kernels, {bytes_text(cache['bytes'])}" if cache["path"] else "off"
    return [
        ("machine", found["machine"]),
        ("cpu", f"{found['cpu']['model']}, {found['cpu']['cores']} cores"),
        ("python", found["python"]),
        *((name, number or "[red]missing[/]") for name, number in found["tools"].items()),
        ("kernel cache", kept),
        ("disk", f"{disk['path']}: {bytes_text(disk['free'])} free of {bytes_text(disk['total'])}"),
    ]


def _targets(found: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    return [
        (name, "[green]yes[/]", str(target["seconds"]), " ".join(target["features"]))
        if target["works"]
        else (name, f"[red]no[/]: {target['reason']}", "", "")
        for name, target in found["targets"].items()
    ]
