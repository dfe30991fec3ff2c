"""Text tests: cases/<pass>_<what>.mlir holds a program, the pipeline to run (RUN), what must come out (CHECK) and how
often the last pass matched (MATCHES), or the refusal (ERROR)."""

import re
from pathlib import Path

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser

from dsv41c.compiler.definitions import context_of
from dsv41c.errors import Dsv41Error
from dsv41c.ir.text import parse_module, print_module
from dsv41c.passes.manager import PassManager
from dsv41c.passes.pipeline import REGISTRY, parse_pipeline

CASES = sorted((Path(__file__).parent / "cases").glob("*.mlir"))
# Every pass shows one program that it changes, one that it must not change, and one with something it must keep.
KINDS = ("matches", "must_not", "keeps")


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_case(path: Path) -> None:
    text = path.read_text()
    module = parse_module(text)
    manager = PassManager(parse_pipeline(_directive(text, "RUN")), context_of(module))
    if reason := _directive(text, "ERROR"):
        with pytest.raises(Dsv41Error, match=re.escape(reason)):
            manager.run(module)
        return
    output = print_module(manager.run(module))
    assert _filecheck(path, output), output
    assert str(sum(manager.reports[-1].matches.values())) == _directive(text, "MATCHES")


@pytest.mark.parametrize("name", REGISTRY)
def test_every_pass_has_its_three_cases(name: str) -> None:
    stems = {path.stem for path in CASES}
    assert {f"{name}_{kind}" for kind in KINDS} <= stems


def _directive(text: str, word: str) -> str:
    match = re.search(rf"^// {word}: (.*)$", text, re.MULTILINE)
    return match[1].strip() if match else ""


def _filecheck(path: Path, output: str) -> bool:
    """Match the CHECK lines of a file; what does not match is printed by filecheck."""
    options = Options(str(path))
    return Matcher(options, FInput("output", output), Parser.from_opts(options)).run() == 0
