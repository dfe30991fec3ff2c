"""linalg text to a CPU module, by IREE; compiled modules are kept in a cache directory under their content's hash."""

import hashlib
import os
import platform
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import iree.compiler as iree_compiler
from iree.compiler.version import VERSION as IREE_VERSION

from dsv41c.errors import CompileError

__all__ = ["CpuTarget", "KernelCache", "compile_linalg", "module_key"]

# Why each flag stands here is in docs/cpu-target.md.
_FLAGS = (
    # Weights lie in the checkpoint file at any byte offset; without this a kernel may use aligned moves and crash.
    "--iree-stream-resource-min-offset-alignment=1",
    # The default, O0, leaves one-row products with decoded weights at a seventh of the speed.
    "--iree-opt-level=O2",
    # By default IREE computes f64 in f32 and says nothing.
    "--iree-input-demote-f64-to-f32=false",
)
# What generated code may use; IREE lists many more that only an operating system uses (rdseed, xsave, ...).
_CODE_FEATURES = re.compile(
    r"(sse|ssse|avx|avx512|amx-|bmi|fma|f16c|popcnt|lzcnt|movbe|gfni|vaes|vpclmul)(?!10)[\w.\-]*"
)
_PROBE = """\
func.func @probe(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""
_CACHE_VARIABLE = "DSV41C_CACHE"


@dataclass(frozen=True)
class CpuTarget:
    """The CPU that kernels are compiled for.

    Args:
        cpu: an LLVM CPU name ("x86-64-v3", "skylake-avx512", "znver4"), "generic", or "host" for this machine.
        features: LLVM features to add or remove ("+avx512bf16", "-avx512f").
    """

    cpu: str = "host"
    features: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """IREE's flags for this CPU."""
        named = (f"--iree-llvmcpu-target-cpu={self.cpu}",)
        return (*named, f"--iree-llvmcpu-target-cpu-features={','.join(self.features)}") if self.features else named

    @cached_property
    def required_features(self) -> tuple[str, ...]:
        """The features that kernels for this CPU may use, sorted; loading refuses a machine that lacks one.

        Raises:
            CompileError: IREE does not know the CPU.
        """
        text = _compile(_PROBE, (*self.flags, "--compile-to=executable-targets")).decode()
        listed = re.search(r'cpu_features = "([^"]*)"', text)
        signs = {item[1:]: item[0] for item in (listed.group(1).split(",") if listed and listed.group(1) else ())}
        return tuple(sorted(f for f, sign in signs.items() if sign == "+" and _CODE_FEATURES.fullmatch(f)))


class KernelCache:
    """Compiled modules under the hash of all that went into them.

    Entries are written beside their place and renamed, so several compilers may share a directory. An entry that does
    not match its own digest is compiled again. The directory grows without bound and may be deleted at any time.

    Args:
        directory: where; None turns the cache off.
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.hits = 0
        self.misses = 0

    @classmethod
    def default(cls) -> "KernelCache":
        """The directory that $DSV41C_CACHE names, else ~/.cache/dsv41c; DSV41C_CACHE=off turns the cache off."""
        named = os.environ.get(_CACHE_VARIABLE)
        if named == "off":
            return cls(None)
        return cls(Path(named) if named else Path.home() / ".cache" / "dsv41c")

    def load(self, key: str) -> bytes | None:
        """The module under `key`, or None."""
        data = self._read(key)
        if data is None or hashlib.sha256(data[32:]).digest() != data[:32]:
            self.misses += 1
            return None
        self.hits += 1
        return data[32:]

    def store(self, key: str, module: bytes) -> None:
        """Keeps a module under `key`; a directory that cannot be written keeps nothing, and nobody waits for it."""
        if self.directory is None:
            return
        with suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            handle, staged = tempfile.mkstemp(dir=self.directory, prefix=".staged-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(module).digest() + module)
                os.replace(staged, self._path(key))
            except OSError:
                os.unlink(staged)

    def _read(self, key: str) -> bytes | None:
        if self.directory is None:
            return None
        try:
            return self._path(key).read_bytes()
        except OSError:
            return None

    def _path(self, key: str) -> Path:
        assert self.directory is not None
        return self.directory / f"{key}.kernel"


def compile_linalg(text: str, target: CpuTarget, cache: KernelCache | None = None) -> bytes:
    """Compiles a module of linalg functions for the CPU.

    Args:
        text: the module; each function takes and returns tensors.
        target: the CPU.
        cache: where to look first and keep the result; None compiles always.

    Returns:
        The module file's bytes ("vmfb"). The same arguments and IREE version give the same functions.

    Raises:
        CompileError: IREE refuses the module or the CPU; the message holds its first diagnostic.
    """
    flags = (*target.flags, *_FLAGS)
    if cache is None:
        return _compile(text, flags)
    key = module_key(text, target)
    kept = cache.load(key)
    if kept is not None:
        return kept
    module = _compile(text, flags)
    cache.store(key, module)
    return module


def module_key(text: str, target: CpuTarget) -> str:
    """The hash of everything that decides a compiled module: text, IREE's version, flags, CPU features.

    "host" means another CPU on another machine, so its features are in the key and not only its name.
    """
    parts = (text, IREE_VERSION, *target.flags, *_FLAGS, *target.required_features, platform.machine())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _compile(text: str, flags: tuple[str, ...]) -> bytes:
    try:
        return iree_compiler.compile_str(text, target_backends=["llvm-cpu"], extra_args=list(flags))
    except iree_compiler.CompilerToolError as error:
        raise CompileError(
            f"IREE {IREE_VERSION} cannot compile with {' '.join(flags)}: {diagnostic(str(error))}"
        ) from error


def diagnostic(text: str, limit: int = 3) -> str:
    """The first error lines of a compiler's output, without the program text that they quote."""
    lines = [line.strip() for line in text.splitlines() if "error:" in line]
    return " | ".join(lines[:limit]) if lines else (text.strip().splitlines() or ["no diagnostic"])[0]
