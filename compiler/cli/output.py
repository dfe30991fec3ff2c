"""What the verbs print: tables, byte counts, progress."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

_PIPE_WIDTH = 120  # of tables that go to a file or a pipe
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Report(Protocol):
    """Called with what is being done, steps done, steps in all."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


def console(file: IO[str] | None = None) -> Console:
    """A console on stdout or a given stream."""
    stream = file or sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = ()) -> Table:
    """A table; the columns named in `numbers` are right-aligned."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*(str(cell) for cell in row))
    return made


def bytes_text(count: float) -> str:
    """A byte count for people, e.g. "2.8 MiB"."""
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit takes every count")


@contextmanager
def progress() -> Iterator[Report]:
    """A progress bar on stderr; a line for each step where stderr is no terminal."""
    stream = sys.stderr
    if not stream.isatty():
        yield _print_line
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("start", total=1)

        def report(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield report


def _print_line(what: str, done: int, total: int) -> None:
    click.echo(what if total == 1 else f"{what} ({done}/{total})", err=True)
