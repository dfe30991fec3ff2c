"""docs/passes: a page for each pass, made from its docstring, its place in the pipeline, and a case of the text tests.

    python -m dsv41c.compiler.pass_docs tests/passes/cases docs/passes

A test makes the pages again and compares, so a page shows what the pass does today.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from dsv41c.compiler.definitions import context_of
from dsv41c.ir.text import parse_module, print_module
from dsv41c.passes.manager import PassManager
from dsv41c.passes.pass_base import Pass, Tolerance
from dsv41c.passes.pipeline import PHASES, REGISTRY, parse_pipeline, phases_of

EXAMPLE = "{name}_matches.mlir"
INDEX = "README.md"
_SECTION = re.compile(r"(?m)^(What|Why|Needs|How|Does not handle|Bound):")


def pages(cases: Path) -> dict[str, str]:
    """The page of every registered pass, and the index of all.

    Args:
        cases: the folder of the text tests; `<pass>_matches.mlir` is the example of a page.
    Returns:
        texts by file name.
    """
    texts = {f"{name}.md": _page(kind, cases / EXAMPLE.format(name=name)) for name, kind in sorted(REGISTRY.items())}
    return {INDEX: _index(), **texts}


def _index() -> str:
    lines = [
        "# Passes",
        "",
        "In the order in which they run; `passes/pipeline.py` says why each stands where it does.",
        "",
    ]
    lines += ["| phase | pass | what |", "|---|---|---|"]
    listed: set[str] = set()
    for phase in PHASES:
        for pass_ in phase.passes:
            lines.append(
                f"| {phase.number} {phase.title} | [{pass_.name}]({pass_.name}.md) | {_sentence(type(pass_))} |"
            )
            listed.add(pass_.name)
    for name, kind in sorted(REGISTRY.items()):
        if name not in listed:
            lines.append(_row("on request", kind))
    return "\n".join([*lines, "", "Made by `python -m dsv41c.compiler.pass_docs tests/passes/cases docs/passes`.", ""])


def _row(phase: str, kind: type[Pass]) -> str:
    return f"| {phase} | [{kind.name}]({kind.name}.md) | {_sentence(kind)} |"


def _page(kind: type[Pass], example: Path) -> str:
    body = list(_body(inspect.getdoc(kind) or ""))
    return "\n".join([f"# {kind.name}", "", *_facts(kind), "", *body, "", *_example(example), ""])


def _facts(kind: type[Pass]) -> Iterator[str]:
    yield "| | |"
    yield "|---|---|"
    yield f"| phase | {', '.join(phases_of(kind.name)) or 'on request'} |"
    yield f"| takes | a module of stage {' or '.join(kind.requires)} |"
    if kind.produces:
        yield f"| gives | a module of stage {kind.produces} |"
    yield f"| values | {_values(kind)} |"
    options = ", ".join(f"`{field.name}={str(field.default).lower()}`" for field in fields(kind))
    yield f"| options | {options or 'none'} |"


def _values(kind: type[Pass]) -> str:
    if not kind.comparable:
        return "not compared: the programs have other inputs or outputs afterwards"
    if kind.tolerance == Tolerance():
        return "equal bits"
    return f"within {kind.tolerance.absolute:g} + {kind.tolerance.relative:g} x |value|"


def _body(doc: str) -> Iterator[str]:
    """A docstring as Markdown: what is indented below a section's word is IR text or a drawing."""
    text = re.sub(r"(?m)^(?:(?: {4}.*)?\n)* {4}.*$", _fenced, doc)
    yield _SECTION.sub(r"**\1.**", text)


def _fenced(match: re.Match[str]) -> str:
    language = "mlir" if "%" in match[0] else ""
    return f"\n```{language}\n{inspect.cleandoc(match[0])}\n```"


def _example(path: Path) -> Iterator[str]:
    """The case's program before and after, as `dsv41c opt` prints it."""
    text = path.read_text()
    match = re.search(r"^// RUN: (.*)$", text, re.MULTILINE)
    assert match is not None, f"{path} says which passes to run"
    module = parse_module(text)
    after = PassManager(parse_pipeline(match[1]), context_of(module)).run(module)
    yield "## Example"
    yield ""
    yield f"`dsv41c opt tests/passes/cases/{path.name} -p '{match[1].strip()}' --no-origins` makes of"
    yield from ("", "```mlir", print_module(module, origins=False).strip(), "```", "", "this:", "", "```mlir")
    yield from (print_module(after, origins=False).strip(), "```")


def _sentence(kind: type[Pass]) -> str:
    return (inspect.getdoc(kind) or "").splitlines()[0]


def main() -> None:
    """Writes all pages and removes those of passes that are gone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    texts = pages(options.cases)
    for old in set(options.output.glob("*.md")) - {options.output / name for name in texts}:
        old.unlink()
    for name, text in texts.items():
        (options.output / name).write_text(text)


if __name__ == "__main__":
    main()
