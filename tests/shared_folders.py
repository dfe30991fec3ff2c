"""Folders that are made once and that all workers of a test run share: compiled plans, traced programs.

A folder lies in the system's temporary folder under the hash of all that made it, so the next run finds it too.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import dsv41c

ROOT = Path(dsv41c.__file__).parent
GOLDEN = Path(__file__).parent / "golden"
_PACKAGES = ("compiler", "ir", "models", "passes", "runtime")
_KEPT_SECONDS = 24 * 3600


def once(name: str, make: Callable[[Path], object]) -> Path:
    """A folder that one process makes and all others use.

    Args:
        name: different for every content.
        make: writes the folder so that it appears whole or not at all.
    """
    shared = Path(tempfile.gettempdir()) / f"dsv41c-plans-{os.getuid()}"
    shared.mkdir(exist_ok=True)
    folder = shared / name
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _remove_old(shared)
            make(folder)
    return folder


def tree_hash(model: str) -> str:
    """The hash of the sources, the checkpoint and the CPU."""
    sources = [path for package in _PACKAGES for path in (ROOT / package).rglob("*.py")]
    digest = hashlib.sha256(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].encode())
    for path in sorted([*sources, *(GOLDEN / model).iterdir()]):
        digest.update(f"\0{path}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _remove_old(shared: Path) -> None:
    for path in shared.iterdir():
        if time.time() - path.stat().st_mtime < _KEPT_SECONDS:
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
