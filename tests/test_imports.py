"""Imports point one way: models <- ir <- passes <- compiler, and the runtime needs nothing of the compiler."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_checkpoint import write_tiny_checkpoint

import dsv41c

ROOT = Path(dsv41c.__file__).parent
# What the modules of a folder may import of the others; errors.py is everybody's.
ALLOWED = {
    "models": {"models"},
    "ir": {"ir", "models"},
    "passes": {"passes", "ir", "models"},
    "compiler": {"compiler", "passes", "ir", "models", "runtime"},
    "runtime": {"runtime", "models"},
}
COMPILER_TOOLS = ("xdsl", "torch_mlir", "iree.compiler", "networkx")
# Modules that must load where these are not there.
ABSENT = {
    "models": ("dsv41c.ir", "dsv41c.passes", "dsv41c.compiler", "dsv41c.runtime", *COMPILER_TOOLS, "iree"),
    "ir": ("dsv41c.passes", "dsv41c.compiler", "dsv41c.runtime", "torch_mlir", "iree"),
    "passes": ("dsv41c.compiler", "dsv41c.runtime", "torch_mlir", "iree"),
    "runtime": ("dsv41c.ir", "dsv41c.passes", "dsv41c.compiler", *COMPILER_TOOLS),
}
# What compiles for GPUs loads Triton; all else of the compiler must load without it.
NEED_TRITON = (
    "dsv41c.compiler.codegen.triton.device_program",
    "dsv41c.compiler.codegen.triton.kernels",
    "dsv41c.compiler.codegen.triton.recipes",
    "dsv41c.compiler.gpu_bill",
    "dsv41c.compiler.gpu_part",
    "dsv41c.compiler.gpu_programs",
)
MAIN = "dsv41c.compiler.cli.__main__"
# The verbs that serve a plan live in the command line, and load the runtime alone.
SERVING = ("run", "serve", "inspect", "output")

BLOCKER = """
import importlib, importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in BLOCKED) and name not in EXEMPT:
            raise ImportError(f"{name} is blocked")
        return None

sys.meta_path.insert(0, Blocker())
"""


def modules(folder: str) -> dict[str, Path]:
    """Files of a package by module name."""
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(("dsv41c", *parts)).removesuffix(".__init__")] = path
    return found


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, at any depth, absolute."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("folder", ALLOWED)
def test_imports_point_one_way(folder: str) -> None:
    others = set(ALLOWED) - ALLOWED[folder]
    banned = tuple(f"dsv41c.{name}" for name in others) + (COMPILER_TOOLS if folder in ("models", "runtime") else ())
    for path in modules(folder).values():
        for name in imports(path):
            assert not is_under(name, banned), f"{path.relative_to(ROOT)} imports {name}"


def test_verbs_that_serve_import_the_runtime_alone() -> None:
    for verb in SERVING:
        for name in imports(ROOT / "compiler" / "cli" / f"{verb}.py"):
            is_own = is_under(name, ("dsv41c.compiler.cli",))
            banned = ("dsv41c.compiler", "dsv41c.passes", "dsv41c.ir", *COMPILER_TOOLS)
            assert is_own or not is_under(name, banned), f"compiler/cli/{verb}.py imports {name}"


@pytest.mark.parametrize("folder", ABSENT)
def test_loads_without_what_stands_above(folder: str) -> None:
    names = sorted(modules(folder))
    run_blocked(ABSENT[folder], (), f"for name in {names}: importlib.import_module(name)")


def test_serves_from_the_command_line_without_the_compiler(mini6_plan: Path) -> None:
    cli = [name for name in modules("compiler/cli") if name.rpartition(".")[2] in ("cli", *SERVING)]
    output = run_blocked(
        ("dsv41c.ir", "dsv41c.passes", "dsv41c.compiler", *COMPILER_TOOLS),
        ("dsv41c.compiler", *cli),
        f"from dsv41c.compiler.cli import cli\n"
        f"cli(['inspect', {str(mini6_plan)!r}], standalone_mode=False)\n"
        f"cli(['run', {str(mini6_plan)!r}, '--tokens', '5,9,2', '--max-new-tokens', '3'], standalone_mode=False)",
    )
    assert output.splitlines()[-1].count(",") == 2


def test_compiles_for_a_cpu_without_triton(tmp_path: Path) -> None:
    """Triton is an extra: without it a CPU's compiler loads whole, and a GPU's target is refused at once."""
    names = sorted(name for name in modules("compiler") if not is_under(name, (*NEED_TRITON, MAIN)))
    checkpoint = write_tiny_checkpoint(tmp_path / "checkpoint")
    compile_ = f"['compile', {str(checkpoint)!r}, '-o', {str(tmp_path / 'plan')!r}, '--target', 'cuda:sm_90']"
    output = run_blocked(
        (),
        (),
        f"sys.modules['triton'] = None\nfor name in {names}: importlib.import_module(name)\n"
        "from click.testing import CliRunner\nfrom dsv41c.compiler.cli import cli\n"
        f"print(CliRunner().invoke(cli, {compile_}).output)",
    )
    assert "error: compiling for cuda:sm_90 needs Triton; install dsv41c[triton], or compile for cpu" in output


def is_under(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def run_blocked(blocked: tuple[str, ...], exempt: tuple[str, ...], program: str) -> str:
    """Runs a program in a process in which some packages cannot be imported."""
    text = f"BLOCKED, EXEMPT = {blocked!r}, {exempt!r}\n{BLOCKER}\n{program}\n"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
