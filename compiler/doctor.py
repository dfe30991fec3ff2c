"""What this machine can compile and run, found out by doing it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

TOOLS = ("torch", "torch-mlir", "iree-base-compiler", "iree-base-runtime", "xdsl", "safetensors", "tokenizers")
_CPUINFO = Path("/proc/cpuinfo")
_PROBE = """\
func.func @kernel(%x: tensor<?xf32>) -> tensor<?xf32> {
  %y = arith.addf %x, %x : tensor<?xf32>
  return %y : tensor<?xf32>
}
"""


def examine() -> dict[str, Any]:
    """Tools, CPU, targets, kernel cache and disk, as JSON values; sizes in bytes.

    Returns:
        `tools`: version by package, null for one that is missing. `cpu`: model, cores, features that kernels use.
        `targets`: for each, whether it `works`, and if not the `reason`. `cache`, `disk`: where and how large.
    """
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "tools": {name: _version(name) for name in TOOLS},
        "cpu": _cpu(),
        "targets": {name: _try_target(probe) for name, probe in _PROBES.items()},
        "cache": _cache(),
        "disk": _disk(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> dict[str, Any]:
    text = _CPUINFO.read_text() if _CPUINFO.is_file() else ""
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return {"model": model[1] if model else platform.processor(), "cores": len(os.sched_getaffinity(0))}


def _try_target(probe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    started = time.perf_counter()
    try:
        found = probe()
    # Whatever a missing or broken tool raises is the finding.
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return {"works": False, "reason": f"{type(error).__name__}: {lines[0]}"}
    return {"works": True, "seconds": round(time.perf_counter() - started, 2), **found}


def _probe_cpu() -> dict[str, Any]:
    """Compiles a kernel of one op for this CPU, runs it and checks what it gives."""
    import torch

    from dsv41c.compiler.codegen.mlir.iree import CpuTarget, compile_linalg
    from dsv41c.compiler.codegen.mlir.lower import lower_text
    from dsv41c.compiler.codegen.mlir.views import compile_views
    from dsv41c.runtime.iree_device import IreeDevice

    target = CpuTarget()
    lower_text({})  # torch-mlir loads and knows its pipeline
    with tempfile.TemporaryDirectory() as folder:
        kernel, views = Path(folder, "kernel.vmfb"), Path(folder, "views.vmfb")
        kernel.write_bytes(compile_linalg(_PROBE, target))
        views.write_bytes(compile_views(target))
        device = IreeDevice(views)
        x = torch.arange(16, dtype=torch.float32)
        y = device.load_module(kernel).function("kernel")([device.to_view(x)])[0]
        if not torch.equal(device.to_tensor(y, torch.float32), x + x):
            raise RuntimeError("a compiled kernel gives wrong numbers on this machine")
    return {"features": list(target.required_features)}


_PROBES = {"cpu": _probe_cpu}


def _cache() -> dict[str, Any]:
    from dsv41c.compiler.codegen.mlir.iree import KernelCache

    folder = KernelCache.default().directory
    if folder is None:
        return {"path": None, "kernels": 0, "bytes": 0}
    sizes = [path.stat().st_size for path in folder.glob("*.kernel")] if folder.is_dir() else []
    return {"path": str(folder), "kernels": len(sizes), "bytes": sum(sizes)}


def _disk() -> dict[str, Any]:
    usage = shutil.disk_usage(Path.cwd())
    return {"path": str(Path.cwd()), "free": usage.free, "total": usage.total}
