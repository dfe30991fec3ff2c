"""The package list is complete, and a wheel works without the checkout."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import dsv41c

ROOT = Path(dsv41c.__file__).parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
DATA = ("runtime/server/chat.jinja",)
FOLDERS = ("compiler", "ir", "models", "passes", "runtime")


def python_files() -> list[Path]:
    """Files of all packages, relative to the checkout."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return sorted(path.relative_to(ROOT) for path in [*files, *ROOT.glob("*.py")])


def test_every_folder_with_modules_is_a_listed_package() -> None:
    folders = {path.parent for path in python_files()}
    packages = {".".join(("dsv41c", *folder.parts)) for folder in folders}
    assert sorted(SETUPTOOLS["packages"]) == sorted(packages)
    assert {path.parent for path in python_files() if path.name == "__init__.py"} == folders
    assert {"dsv41c": ".", **{f"dsv41c.{name}": name for name in FOLDERS}} == SETUPTOOLS["package-dir"]


def test_wheel_holds_and_loads_every_module(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    for path in [*python_files(), *map(Path, DATA), Path("pyproject.toml"), Path("README.md")]:
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, source / path)
    build = "import setuptools.build_meta as b, sys; b.build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=source, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("dsv41c-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith("dsv41c/")}
        archive.extractall(site)
    assert names == {f"dsv41c/{path.as_posix()}" for path in [*python_files(), *map(Path, DATA)]}
    modules = [".".join(("dsv41c", *path.with_suffix("").parts)).removesuffix(".__init__") for path in python_files()]
    modules = [name for name in modules if not name.endswith("__main__")]
    program = (
        f"import importlib, dsv41c\nassert dsv41c.__file__.startswith({str(site)!r}), dsv41c.__file__\n"
        f"for name in {modules}: importlib.import_module(name)"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert loaded.returncode == 0, loaded.stderr


@pytest.mark.parametrize("folder", [*FOLDERS, "bench", "tests"])
def test_every_folder_of_the_checkout_is_importable(folder: str) -> None:
    name = f"import dsv41c.{folder}"
    assert subprocess.run([sys.executable, "-c", name], cwd="/", timeout=60).returncode == 0
