"""A process that compiles kernels: one JSON request a line on stdin, one JSON reply a line on stdout.

Its own process, since Triton's interpreter and its compiler cannot share one, and since a crash inside LLVM or the
assembler must cost one kernel and not the compiler.
"""

import base64
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsv41c.compiler.codegen.triton.families import Kernel, Tile, fits
from dsv41c.compiler.codegen.triton.targets import GpuTarget

# What a tile may take to compile, of one core: the released model's slowest takes 15, and LLVM was seen to take hours
# for code with many more values than registers.
TILE_SECONDS = 120
# A tile's report, and why it cannot be taken.
Attempt = tuple[dict[str, Any], list[str]]

_MMA = re.compile(r"\b(UTC[A-Z]*MMA|HGMMA|IGMMA|QGMMA|HMMA|IMMA|QMMA|OMMA|v_mfma_\w+|v_smfmac_\w+|v_wmma_\w+)")
_CUDA_LOAD = re.compile(r"\bLDG(?:STS)?\.[\w.]*")
_HIP_LOAD = re.compile(r"\b(?:global|buffer)_load_(?:dwordx?(\d*)|b(\d+)|\w+)")
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


def main() -> None:
    """Serves requests until stdin ends."""
    replies, sys.stdout = sys.stdout, sys.stderr  # whatever Triton prints must not look like a reply
    with tempfile.TemporaryDirectory(prefix="dsv41c-triton-") as folder:
        _quiet_cache(folder)
        for line in sys.stdin:
            request = json.loads(line)
            kernel, target = Kernel.from_json(request["kernel"]), GpuTarget(**request["target"])
            _limit_time(request["seconds"])
            reply = attempt(kernel, target, kernel.tiles[request["tile"]], Path(folder))
            print(json.dumps(reply), file=replies, flush=True)


def compile_tiles(kernel: Kernel, target: GpuTarget, attempt_of: Callable[[int], Attempt]) -> dict[str, Any]:
    """Compiles the first of a kernel's tiles that fits the target without spills; else the one that spills least.

    Args:
        attempt_of: compiles the tile of a number.

    Returns:
        `{"refused": [reason, ...]}`, one reason a tile, or the fields of `aot.Compiled` without kernel and target.
    """
    reasons: dict[int, str] = {}
    spilling: list[dict[str, Any]] = []
    for number, tile in enumerate(kernel.tiles):
        if not target.name.startswith(tile.targets):
            continue
        report, problems = attempt_of(number)
        if not problems and report["spill_bytes"]:
            spilling.append({"tile": number, **report})
            problems = [f"{report['spill_bytes']} bytes spill"]
        if not problems:
            return {"tile": number, "refused": list(reasons.values()), **report}
        reasons[number] = f"tile {tile.holes}: {', '.join(problems)}"
    if not spilling:
        return {"refused": list(reasons.values())}
    best = min(spilling, key=lambda report: report["spill_bytes"])
    del reasons[best["tile"]]
    return {"refused": list(reasons.values()), **best}


def attempt(kernel: Kernel, target: GpuTarget, tile: Tile, folder: Path) -> Attempt:
    """Compiles one tile; files that tools need go to the folder."""
    try:
        compiled = _compile(kernel, target, tile)
    # Triton, LLVM and the assemblers raise exceptions of many kinds; each means that this tile does not compile.
    except Exception as error:
        return {}, [_first_line(error)]
    report = _report(compiled, target, folder)
    problems = fits(target, report["shared_bytes"], report["tensor_memory"])
    return report, problems + _body_problems(compiled.asm[target.assembly], target)


def _limit_time(seconds: int) -> None:
    """Ends this process once it, or an assembler that it starts, has computed for so long from now on."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    end = int(time.process_time()) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (end if hard == resource.RLIM_INFINITY else min(end, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _quiet_cache(folder: str) -> None:
    """Triton's own cache goes where it dies with the process: ours is keyed by more than Triton's."""
    from triton import knobs

    knobs.cache.dir = folder


def _compile(kernel: Kernel, target: GpuTarget, tile: Tile) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend

    function = kernel.load()
    holes = kernel.filled(tile, target.fp8_casts)
    signature = {name: kernel.arguments.get(name, "constexpr") for name in function.arg_names}
    unknown = sorted((set(kernel.arguments) | set(holes)) ^ set(function.arg_names))
    if unknown:
        raise ValueError(f"arguments and holes do not match {kernel.function}: {', '.join(unknown)}")
    aligned = [n for n, kind in kernel.arguments.items() if kind.startswith("*") and n not in kernel.unaligned]
    aligned += kernel.multiples
    attributes = {(function.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    gpu = GPUTarget(target.backend, target.arch, target.warp)
    options = {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": kernel.fp_fusion}
    parsed = make_backend(gpu).parse_options(options).__dict__
    source = ASTSource(fn=function, signature=signature, constexprs=holes, attrs=attributes)
    return triton.compile(source, target=gpu, options=parsed)


def _report(compiled: Any, target: GpuTarget, folder: Path) -> dict[str, Any]:
    """The binary, its text, and what the compiler's own tools say about it."""
    metadata = compiled.metadata
    binary, text = compiled.asm[target.binary], compiled.asm[target.assembly]
    usage = _cuda_usage(binary, folder) if target.backend == "cuda" else _hip_usage(text)
    return {
        "symbol": metadata.name,
        "warps": metadata.num_warps,
        "shared_bytes": metadata.shared,
        "tensor_memory": getattr(metadata, "tmem_size", None) or 0,
        "scratch_bytes": getattr(metadata, "global_scratch_size", 0) or 0,
        **usage,
        "binary": base64.b64encode(binary).decode(),
        "assembly": text,
    }


def _cuda_usage(binary: bytes, folder: Path) -> dict[str, Any]:
    file = folder / "kernel.cubin"
    file.write_bytes(binary)
    usage = _USAGE.search(_cuobjdump("-res-usage", file))
    if usage is None:
        raise ValueError("cuobjdump does not report registers")
    code = _cuobjdump("-sass", file)
    widths = [int(m.group(1)) for load in _CUDA_LOAD.findall(code) if (m := re.search(r"\.(64|128|256)\b", load))]
    return {
        "registers": int(usage.group(1)),
        "spill_bytes": int(usage.group(2)),
        "load_bits": max(widths, default=32),
        "mma": sorted(set(_MMA.findall(code))),
    }


def _cuobjdump(option: str, file: Path) -> str:
    from triton import knobs

    tool = Path(knobs.nvidia.cuobjdump.path)
    return subprocess.run([tool, option, file], capture_output=True, text=True, check=True).stdout


def _hip_usage(text: str) -> dict[str, Any]:
    def count(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", text)
        return int(found.group(1)) if found else 0

    widths = [32 * int(words or 1) if not bits else int(bits) for words, bits in _HIP_LOAD.findall(text)]
    return {
        "registers": count("vgpr_count"),
        # The stack of a thread: spills are what lies there, as no kernel keeps arrays.
        "spill_bytes": count("private_segment_fixed_size"),
        "load_bits": max(widths, default=32),
        "mma": sorted(set(_MMA.findall(text))),
    }


def _body_problems(text: str, target: GpuTarget) -> list[str]:
    """Triton was seen to leave nothing but a trap where tensor memory did not suffice, and to say nothing."""
    store = r"\bst\.global|\bst\.async|cp\.async\.bulk" if target.backend == "cuda" else r"\b(?:global|buffer)_store"
    if re.search(store, text):
        return []
    return [f"the compiled body stores nothing ({'it is a trap' if 'trap;' in text else 'it is empty'})"]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[-2:])[:300]}" if lines else type(error).__name__


if __name__ == "__main__":
    main()
