"""Sizes on the command line."""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class Bytes(click.ParamType[int]):
    """A number of bytes such as 2GiB, 512MiB or 1048576."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number; another text is a usage error."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(KiB|MiB|GiB|)", str(value))
        if match is None:
            self.fail(f"'{value}' is no size; write e.g. 2GiB, 512MiB or a number of bytes", param, ctx)
        return int(float(match[1]) * _UNITS[match[2]])


class Rows(click.ParamType[tuple[int, ...]]):
    """Numbers of rows such as 1,4,16, each once, ascending."""

    name = "rows"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The numbers; another text is a usage error."""
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",") if value else []
        if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
            self.fail(f"'{value}' is no list of numbers of rows; write e.g. 1,4,16", param, ctx)
        return tuple(sorted({int(part) for part in parts}))
