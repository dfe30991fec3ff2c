"""Kernels to binaries for GPU targets, on a machine without a GPU: in parallel, and through the kernel cache."""

import base64
import hashlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dsv41c.compiler.codegen.mlir.iree import KernelCache
from dsv41c.compiler.codegen.triton.families import KERNELS, Kernel
from dsv41c.compiler.codegen.triton.targets import GpuTarget
from dsv41c.compiler.codegen.triton.worker import TILE_SECONDS, Attempt, compile_tiles
from dsv41c.errors import CompileError

__all__ = ["Compiled", "compile_kernel", "compile_kernels", "imported_sources", "kept", "kernel_key"]

_WORKER = "dsv41c.compiler.codegen.triton.worker"
_HERE = Path(__file__).parent
_KERNELS = r"^from dsv41c\.compiler\.codegen\.triton\.kernels"
# Of one module's functions, as families have it, and of whole modules, as generated sources have it.
_IMPORT = re.compile(rf"{_KERNELS}(?:\.(\w+) import|\s+import\s+([\w, ]+)$)", re.MULTILINE)


@dataclass(frozen=True)
class Compiled:
    """A kernel's binary for one target, with what the compiler's tools report about it.

    Attributes:
        kernel, target: names. tile: which of the kernel's tiles it is; those before it are in `refused`.
        symbol: the function's name in the binary. warps: of one program.
        registers: of one thread. spill_bytes: of one thread, in local memory.
        shared_bytes: of one program. tensor_memory: columns. scratch_bytes: of global scratch, one program.
        load_bits: the widest load from global memory. mma: the matrix instructions in the disassembly.
        binary: cubin or hsaco. assembly: the text that it was assembled from, PTX or AMD's.
        refused: why other tiles were not taken.
    """

    kernel: str
    target: str
    tile: int
    symbol: str
    warps: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    tensor_memory: int
    scratch_bytes: int
    load_bits: int
    mma: list[str]
    binary: bytes
    assembly: str
    refused: list[str]

    def to_json(self) -> dict[str, Any]:
        """All fields by name, for the cache; the binary in base64."""
        return {**asdict(self), "binary": base64.b64encode(self.binary).decode()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Compiled":
        """The inverse of `to_json`."""
        return cls(**{**data, "binary": base64.b64decode(data["binary"])})


def compile_kernel(kernel: Kernel, target: GpuTarget, kernel_cache: KernelCache | None = None) -> Compiled:
    """`compile_kernels` of one kernel for one target."""
    return compile_kernels([(kernel, target)], kernel_cache, workers=1)[0]


def compile_kernels(
    jobs: Sequence[tuple[Kernel, GpuTarget]],
    kernel_cache: KernelCache | None = None,
    workers: int | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    seconds: int = TILE_SECONDS,
) -> list[Compiled]:
    """Compiles kernels for targets, each with the first of its tiles that fits and does not spill.

    Args:
        jobs: what to compile. kernel_cache: where to look first and keep results; None compiles always.
        workers: processes; one a core by default.
        progress: called after each kernel that was compiled with its name, how many are done, and how many jobs are.
        seconds: of one core that a tile may take; then the next one is tried.

    Returns:
        One result a job, in the jobs' order.

    Raises:
        CompileError: no tile of some kernel fits its target; the message names kernel, limit and need.
    """
    # Hashed before anything compiles: a source that is edited meanwhile must not give its name to another's binary.
    keys = [kernel_key(*job) for job in jobs]
    results = [_load(key, kernel_cache) for key in keys]
    missing = [number for number, result in enumerate(results) if result is None]
    refusals = []
    if missing:
        count = min(workers or os.cpu_count() or 1, len(missing))
        done = itertools.count(len(jobs) - len(missing) + 1)
        pool = _Workers(count, kernel_cache, seconds, lambda what: progress(what, next(done), len(jobs)))
        compiled = pool.run([(keys[number], *jobs[number]) for number in missing])
        for number, result in zip(missing, compiled, strict=True):
            if isinstance(result, Compiled):
                results[number] = result
            else:
                refusals.append(result)
    if refusals:
        raise CompileError("; ".join(refusals))
    return [result for result in results if result is not None]


def kernel_key(kernel: Kernel, target: GpuTarget) -> str:
    """The hash of everything that decides a binary: sources, holes, tiles, the target's data, Triton's version."""
    texts = [*imported_sources(kernel).values(), (_HERE / "worker.py").read_text()]
    parts = (*texts, json.dumps(kernel.to_json()), json.dumps(target.to_json()), _triton_version())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def imported_sources(kernel: Kernel) -> dict[str, str]:
    """The text of a kernel's module and of the kernel modules that it imports, by file name and sorted by it."""
    found, waiting = {kernel.source_file: kernel.source}, [kernel.source]
    while waiting:
        for names in _IMPORT.findall(waiting.pop()):
            for name in filter(None, (name.strip() for name in ",".join(names).split(","))):
                if f"{name}.py" not in found:
                    found[f"{name}.py"] = (KERNELS / f"{name}.py").read_text()
                    waiting.append(found[f"{name}.py"])
    return dict(sorted(found.items()))


class _Workers:
    """Worker processes, one a thread of a pool, that live as long as one `run`."""

    def __init__(
        self, count: int, kernel_cache: KernelCache | None, seconds: int, on_done: Callable[[str], None]
    ) -> None:
        self.count = count
        self.kernel_cache = kernel_cache
        self.seconds = seconds
        self._on_done = on_done
        self._local = threading.local()
        self._processes: list[subprocess.Popen[str]] = []

    def run(self, jobs: Iterable[tuple[str, Kernel, GpuTarget]]) -> list[Compiled | str]:
        """For each job its binary, kept at once, or why there is none."""
        try:
            with ThreadPoolExecutor(self.count) as pool:
                return list(pool.map(self._compile, jobs))
        finally:
            for process in self._processes:
                process.stdin.close()  # type: ignore[union-attr]
                process.stdout.close()  # type: ignore[union-attr]
                process.wait()

    def _compile(self, job: tuple[str, Kernel, GpuTarget]) -> Compiled | str:
        key, kernel, target = job
        reply = compile_tiles(kernel, target, lambda tile: self._ask(kernel, target, tile))
        self._on_done(f"compile {kernel.name} for {target.name}")
        if "binary" not in reply:
            return (
                f"kernel {kernel.name!r} does not fit {target.name} with any of its tiles: "
                f"{'; '.join(reply['refused'])}; add a smaller tile to its family ({kernel.family}) or leave the "
                "target out"
            )
        compiled = Compiled.from_json({"kernel": kernel.name, "target": target.name, **reply})
        if self.kernel_cache is not None:
            self.kernel_cache.store(key, json.dumps(compiled.to_json()).encode())
        return compiled

    def _ask(self, kernel: Kernel, target: GpuTarget, tile: int) -> Attempt:
        process = self._process()
        assert process.stdin is not None
        assert process.stdout is not None
        request = {"kernel": kernel.to_json(), "target": target.to_json(), "tile": tile, "seconds": self.seconds}
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            report, problems = json.loads(line)
            return report, problems
        del self._local.process
        return {}, [_end(process.wait(), self.seconds)]

    def _process(self) -> "subprocess.Popen[str]":
        if not hasattr(self._local, "process"):
            command = [sys.executable, "-m", _WORKER]
            # A process that interprets kernels cannot compile them.
            environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
            pipe = subprocess.PIPE
            self._local.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
            self._processes.append(self._local.process)
        return self._local.process


def _end(status: int, seconds: int) -> str:
    """Why a worker ended, by its exit status."""
    if status == -signal.SIGXCPU:
        return f"compiling took more than {seconds} s"
    return f"the compiler's process ended with status {status}"


def kept(kernel: Kernel, target: GpuTarget, kernel_cache: KernelCache) -> Compiled | None:
    """What the cache holds of a kernel for a target, or None."""
    return _load(kernel_key(kernel, target), kernel_cache)


def _load(key: str, kernel_cache: KernelCache | None) -> Compiled | None:
    data = None if kernel_cache is None else kernel_cache.load(key)
    return None if data is None else Compiled.from_json(json.loads(data))


@cache
def _triton_version() -> str:
    return version("triton")
