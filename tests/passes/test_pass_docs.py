"""The pages in docs/passes are what the passes say and do today."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from dsv41c.compiler.cli import cli
from dsv41c.compiler.pass_docs import INDEX, pages
from dsv41c.passes.pipeline import REGISTRY

ROOT = Path(__file__).parents[2]
DOCS, CASES = ROOT / "docs" / "passes", Path(__file__).parent / "cases"
AGAIN = "make them again: python -m dsv41c.compiler.pass_docs tests/passes/cases docs/passes"


def test_the_pages_are_current() -> None:
    written = {path.name: path.read_text() for path in DOCS.glob("*.md")}
    made = pages(CASES)
    assert set(written) == set(made) == {INDEX, *(f"{name}.md" for name in REGISTRY)}, AGAIN
    assert [name for name in made if written[name] != made[name]] == [], AGAIN


@pytest.mark.parametrize("name", REGISTRY)
def test_opt_reproduces_the_documented_example(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text()
    command = next(line for line in page.splitlines() if line.startswith("`dsv41c opt "))
    file, passes = command.split(" ")[2], command.split("'")[1]
    result = CliRunner().invoke(cli, ["opt", str(ROOT / file), "-p", passes, "--no-origins"])
    assert result.exit_code == 0, result.output
    assert page.rstrip().endswith(f"```mlir\n{result.stdout.strip()}\n```")
