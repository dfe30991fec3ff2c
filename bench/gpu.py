"""Checks and times the kernels of a plan on an NVIDIA GPU; `bench/gpu.sh` calls it.

    python bench/gpu.py PREPARED RESULTS [--seconds 420] [--only attend,gemm]

1. ceilings     bandwidth of a copy and rate of a bf16 matrix product, measured by torch in the same run
2. checks       a decode step of the prepared model launch by launch: each value against the IR interpreter's, which
                then replaces it, so that every launch gets exact inputs; and kernels of the released sizes on small
                random inputs against their references
3. timings      kernels of the released sizes in a CUDA graph that goes through copies of their inputs, together larger
                than the L2 cache: median and spread over replays, beside the time that their bytes and flops need at
                the ceilings
4. decode       the graph of a whole decode step of the prepared model, for each bucket

Whatever does not fit into the seconds is left out and listed as skipped. A kernel that fails is listed with its error,
and the others are measured all the same; where the GPU takes no more work behind it, they are skipped. Results are
written behind each kernel; `running` names the one that was under way. The exit status is 1 where a value is wrong or
something failed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from dsv41c.compiler.codegen.triton.timing import Launcher, chosen, replayed, spread
from dsv41c.compiler.codegen.triton.trials import Trial, trials_of
from dsv41c.errors import Dsv41Error
from dsv41c.runtime.cuda_driver import CudaDriver, Driver, DriverError
from dsv41c.runtime.executor_cuda import CudaExecutor, load_kernel
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.plan_format import KernelEntry

_COPY_BYTES = 2 << 30
_MATRIX = 8192
# Sums in another order, rounded once; relative L2 of a value. What is not a float must be equal.
STEP_BOUND = 2.0**-8


@dataclass(frozen=True)
class Ceilings:
    """What this GPU reached: bytes a second of a copy (read and written), flops a second of a bf16 product."""

    bytes_per_second: float
    flops_per_second: float

    def floor_us(self, trial_bytes: int, flops: int) -> float:
        """Microseconds that a kernel needs at least: the longer of what its bytes and its flops need."""
        return max(trial_bytes / self.bytes_per_second, flops / self.flops_per_second) * 1e6


@dataclass(frozen=True)
class Timing:
    """One kernel at one size; times in microseconds: median, 10th and 90th percentile over replays."""

    kernel: str
    label: str
    median_us: float
    low_us: float
    high_us: float
    floor_us: float
    bytes: int
    flops: int

    @property
    def share(self) -> float:
        """Of the floor in the median: 1 is as fast as the GPU allows."""
        return self.floor_us / self.median_us


def timing(kernel: str, trial: Trial, microseconds: list[float], ceilings: Ceilings) -> Timing:
    """The summary of a trial's replays."""
    low, high = spread(microseconds)
    floor = ceilings.floor_us(trial.bytes, trial.flops)
    return Timing(kernel, trial.label, statistics.median(microseconds), low, high, floor, trial.bytes, trial.flops)


def report(results: dict[str, Any]) -> str:
    """The results as a page for people."""
    conditions = results["conditions"]
    lines = [
        "# Kernels on a GPU",
        "",
        f"{conditions['device']}, driver {conditions['driver']}, torch {conditions['torch']}, {conditions['date']}; "
        f"`bench/gpu.sh`. Ceilings in the same run: copy {results['ceilings']['bytes_per_second'] / 1e12:.2f} TB/s, "
        f"bf16 product {results['ceilings']['flops_per_second'] / 1e12:.0f} Tflop/s.",
        "",
        "| kernel | sizes | median us | 10%..90% us | floor us | of the floor |",
        "|---|---|---|---|---|---|",
    ]
    for one in results["timings"]:
        lines.append(
            f"| {one['kernel']} | {one['label']} | {one['median_us']:.1f} | "
            f"{one['low_us']:.1f}..{one['high_us']:.1f} | {one['floor_us']:.1f} | "
            f"{one['floor_us'] / one['median_us']:.0%} |"
        )
    lines += ["", "| decode step of | rows | median us | 10%..90% us |", "|---|---|---|---|"]
    for one in results["decode"]:
        lines.append(
            f"| {one['model']} | {one['rows']} | {one['median_us']:.0f} | {one['low_us']:.0f}..{one['high_us']:.0f} |"
        )
    wrong = [one for one in results["checks"] if not one["holds"]]
    lines += ["", f"Checks: {len(results['checks'])}, of which {len(wrong)} do not hold."]
    lines += [f"- {one['kernel']} {one['label']}: {one['error']:.3g}, bound {one['bound']:.3g}" for one in wrong]
    if results["failures"]:
        lines += ["", f"Failed: {len(results['failures'])}."]
        lines += [f"- {one['what']}: {one['error']}" for one in results["failures"]]
    for title, key in (("Skipped", "skipped"), ("Without a trial, neither checked nor timed here", "untried")):
        if results[key]:
            lines += ["", f"{title}: {', '.join(results[key])}."]
    return "\n".join(lines) + "\n"


def checked(launcher: Launcher, trial: Trial) -> list[dict[str, Any]]:
    """A small trial's outputs against its reference."""
    return [
        {
            "kernel": launcher.name,
            "label": f"{trial.label}: {output}",
            "error": error,
            "bound": trial.relative,
            "holds": error <= trial.relative,
        }
        for output, error in launcher.errors(trial).items()
    ]


def measured_ceilings() -> Ceilings:
    """Bandwidth and rate that torch reaches here, best of several runs."""
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    a, b = (torch.randn(_MATRIX, _MATRIX, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    copy = _best_seconds(lambda: target.copy_(source))
    product = _best_seconds(lambda: a @ b)
    return Ceilings(2 * _COPY_BYTES / copy, 2 * _MATRIX**3 / product)


def _best_seconds(run: Callable[[], object]) -> float:
    times = []
    for _ in range(6):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return min(times[1:])


def check_step(executor: CudaExecutor, path: Path) -> Iterator[dict[str, Any]]:
    """A decode step launch by launch against the values of `checks.safetensors`, and its caches at the end."""
    metadata, inputs = metadata_of(path), tensors_of(path, "input/")
    for name, one in tensors_of(path, "before/").items():
        executor.write(f"${name}", one)
    held = tensors_of(path, "value/")
    ops = json.loads(metadata["ops"])
    for place in executor.launch_by_launch(metadata["program"], inputs):
        kernel, *values = ops.get(str(place), [""])
        for value in values:
            wanted = held[value]
            yield compared(kernel, f"launch {place}: {value}", executor.read(value, wanted), wanted)
            executor.write(value, wanted)
    for name, one in tensors_of(path, "after/").items():
        yield compared("caches", f"${name}", executor.read(f"${name}", one), one)


def tensors_of(path: Path, start: str) -> dict[str, Tensor]:
    """The tensors of a file whose names begin so, without that beginning."""
    return {name.removeprefix(start): one for name, one in load_file(path).items() if name.startswith(start)}


def metadata_of(path: Path) -> dict[str, str]:
    """The texts that a safetensors file has beside its tensors."""
    with safe_open(path, "pt") as file:
        return dict(file.metadata())


def compared(kernel: str, label: str, ours: Tensor, wanted: Tensor) -> dict[str, Any]:
    """One value of a step: equal where it is no float, else within `STEP_BOUND` of its norm."""
    if wanted.is_floating_point():
        finite = torch.isfinite(wanted)
        error = float((ours - wanted).double()[finite].norm() / wanted.double()[finite].norm().clamp(min=1e-30))
        same = bool((torch.isfinite(ours) == finite).all())
        bound = STEP_BOUND
    else:
        error, same, bound = float((ours != wanted).float().mean()) if wanted.numel() else 0.0, True, 0.0
    return {"kernel": kernel, "label": label, "error": error, "bound": bound, "holds": same and error <= bound}


def time_decode(executor: CudaExecutor, driver: CudaDriver, path: Path) -> Iterator[dict[str, Any]]:
    """The graph of a whole step for each bucket, over the sequences of the checks, repeated at one position."""
    inputs = tensors_of(path, "input/")
    for rows in (1, 2, 4):
        given = {name: one[:rows] for name, one in inputs.items()}
        executor.run("step", given)
        for graph in [graph for (_, bucket, _), graph in executor.graphs.items() if bucket == rows][:1]:
            times = replayed(driver, graph)
            low, high = spread(times)
            yield {"model": "mini6", "rows": rows, "median_us": statistics.median(times)} | {
                "low_us": low,
                "high_us": high,
            }


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench/gpu.py", description=__doc__.partition("\n")[0])
    parser.add_argument("prepared", type=Path, help="what bench/gpu_prepare.py wrote")
    parser.add_argument("results", type=Path, help="folder for gpu.json and gpu.md")
    parser.add_argument("--seconds", type=float, default=420.0, help="after which nothing new is begun")
    parser.add_argument("--only", default="", help="beginnings of kernel names, with commas")
    given = parser.parse_args(arguments)
    for name in ("plan", "kernels", "checks.safetensors", "checkpoint"):
        if not (given.prepared / name).exists():
            parser.error(f"{given.prepared} has no {name}; make it with `python bench/gpu_prepare.py {given.prepared}`")
    given.only = [word for word in given.only.split(",") if word]
    return given


def main(arguments: Sequence[str]) -> int:
    """Runs all parts; the exit status is 1 where a check does not hold or something failed."""
    given = parsed(arguments)
    deadline = time.monotonic() + given.seconds
    checks = given.prepared / "checks.safetensors"
    try:
        driver = CudaDriver()
        kernels = Plan.load(given.prepared / "kernels", target=driver.target)
        entries = chosen([entry for entry in kernels.manifest.kernels if entry.gpu is not None], given.only)
        plan = Plan.load(given.prepared / "plan", checkpoint=given.prepared / "checkpoint", target=driver.target)
        caches = tensors_of(checks, "before/")
        pools = {spec.pool: len(caches[spec.name]) for spec in plan.manifest.state}
        executor = CudaExecutor(plan, driver, pools["pages"], pools["rings"])
    except Dsv41Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    torch.cuda.init()
    conditions = {**driver.description, "torch": torch.__version__, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    ceilings = measured_ceilings()
    run = Run(driver, given.results, new_results(conditions, ceilings), deadline)
    run.part("decode step, checks", lambda: run.results["checks"].extend(check_step(executor, checks)))
    run.part("decode step, timings", lambda: run.results["decode"].extend(time_decode(executor, driver, checks)))
    for entry in entries:
        run.part(entry.name, partial(try_kernel, driver, kernels, entry, ceilings, run.results))
    print(report(run.results))
    return run.status()


def new_results(conditions: dict[str, Any], ceilings: Ceilings) -> dict[str, Any]:
    """Results without any."""
    empty: dict[str, Any] = {name: [] for name in ("checks", "timings", "decode", "failures", "skipped", "untried")}
    return {"conditions": conditions, "ceilings": asdict(ceilings), **empty, "loaded_from": {}, "running": None}


class Run:
    """Parts one after the other, each for itself: what one of them does wrong costs the others nothing.

    Args:
        driver: the GPU. folder: for gpu.json and gpu.md, written behind each part.
        results: what parts add to. deadline: on the monotonic clock, after which no part begins.
    """

    def __init__(self, driver: Driver, folder: Path, results: dict[str, Any], deadline: float) -> None:
        self.results = results
        self._driver, self._folder, self._deadline, self._works = driver, folder, deadline, True

    def part(self, what: str, run: Callable[[], None]) -> None:
        """Runs a part, or lists it as skipped; its error is listed, whatever it is."""
        if not self._works or time.monotonic() > self._deadline:
            self.results["skipped"].append(what)
            self._write(None)
            return
        self._write(what)
        try:
            run()
            print(f"{what} done", flush=True)
        except Exception as error:  # a failed kernel may come out of the driver, of torch or of a check
            self._failed(what, error)
        self._write(None)

    def status(self) -> int:
        """The exit status: 0 where nothing failed and all checks hold."""
        return int(bool(self.results["failures"]) or any(not one["holds"] for one in self.results["checks"]))

    def _failed(self, what: str, error: Exception) -> None:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        self.results["failures"].append({"what": what, "error": text})
        print(f"{what} failed: {text}", file=sys.stderr, flush=True)
        try:
            self._driver.synchronize()
            torch.cuda.empty_cache()
        except (DriverError, RuntimeError):
            # Behind an illegal access, say, a process gets no more work done on its GPU.
            self._works = False

    def _write(self, running: str | None) -> None:
        self.results["running"] = running
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "gpu.json").write_text(json.dumps(self.results, indent=1) + "\n")
        (self._folder / "gpu.md").write_text(report(self.results))


def try_kernel(
    driver: Driver, plan: Plan, entry: KernelEntry, ceilings: Ceilings, results: dict[str, Any], device: str = "cuda"
) -> None:
    """All trials of a kernel, into the results."""
    assert entry.gpu is not None
    function, results["loaded_from"][entry.name] = load_kernel(driver, plan.path, entry)
    launcher = Launcher(driver, entry.name, entry.gpu, function)
    found = 0
    for trial in trials_of(str(entry.function), entry.gpu, device, timing=False):
        results["checks"] += checked(launcher, trial)
        found += 1
    for trial in trials_of(str(entry.function), entry.gpu, device, timing=True):
        results["timings"].append(asdict(timing(entry.name, trial, launcher.microseconds(trial), ceilings)))
        found += 1
    if not found:
        results["untried"].append(entry.name)
    torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
