"""The option type of `--target`."""

from __future__ import annotations

import click

from dsv41c.compiler.driver import TARGETS


class Targets(click.ParamType):
    """Names of targets with commas between them: "cuda:sm_80,cuda:sm_90"."""

    name = "targets"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The names; a usage error names one that is no target."""
        names = tuple(name.strip() for name in str(value).split(","))
        for name in names:
            if name not in TARGETS:
                self.fail(f"{name!r} is no target; choose among {', '.join(TARGETS)}", param, ctx)
        return names
