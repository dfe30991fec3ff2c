"""Writes a plan folder so that it appears whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from dsv41c.errors import CompileError
from dsv41c.runtime.plan_format import MANIFEST

_STAGING = ".dsv41c-"
_CURRENT_FOLDER = -100  # AT_FDCWD of linux/fcntl.h
_RENAME_EXCHANGE = 2  # of linux/fs.h


@contextmanager
def staged_folder(output: Path) -> Iterator[Path]:
    """A folder beside `output` that takes its place when the block ends well, and vanishes when it does not.

    A process that is killed leaves at most the hidden staging folder; the next compilation beside it removes that.

    Args:
        output: the plan's place; an older plan there is replaced, anything else is refused.
    Errors: CompileError when `output` is something else than a plan, or cannot be written (a full disk, no permission).
    """
    _check_place(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(output)
        staging = Path(tempfile.mkdtemp(prefix=f"{_STAGING}{output.name}-{os.getpid()}-", dir=output.parent))
    except OSError as error:
        raise _unwritable(output, error) from error
    try:
        yield staging
        _finish(staging, output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files by their path inside the folder.

    Errors: CompileError when one cannot be written.
    """
    for name, data in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            raise _unwritable(path, error) from error


def _finish(staging: Path, output: Path) -> None:
    try:
        _sync(staging)
        _move(staging, output)
    except OSError as error:
        raise _unwritable(output, error) from error


def _unwritable(path: Path, error: OSError) -> CompileError:
    cause = "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
    return CompileError(
        f"plan file {path} cannot be written: {cause}; nothing was left behind, free space or choose another -o"
    )


def _check_place(output: Path) -> None:
    if output.is_dir() and ((output / MANIFEST).is_file() or not any(output.iterdir())):
        return
    if output.exists():
        raise CompileError(f"{output} exists and is no plan; choose another place with -o, or remove it")


def _remove_leftovers(output: Path) -> None:
    """Removes staging folders of this plan whose process is gone."""
    for folder in output.parent.glob(f"{_STAGING}{output.name}-*"):
        pid = folder.name.removeprefix(f"{_STAGING}{output.name}-").partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Puts every file on the disk before the folder gets its name."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _move(staging: Path, output: Path) -> None:
    staging.chmod(0o755)
    if not output.exists():
        staging.rename(output)
    elif not _exchange(staging, output):
        _replace(staging, output)


def _exchange(one: Path, other: Path) -> bool:
    """Lets two folders trade names in one step; False where the system or its file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return rename is not None and not rename(
        _CURRENT_FOLDER, os.fsencode(one), _CURRENT_FOLDER, os.fsencode(other), _RENAME_EXCHANGE
    )


def _replace(staging: Path, output: Path) -> None:
    """In two steps: the old plan steps aside, and comes back if the new one cannot take its place."""
    old = output.parent / f"{staging.name}-old"
    output.rename(old)
    try:
        staging.rename(output)
    except OSError:
        with suppress(OSError):
            old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)
