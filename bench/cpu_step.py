"""A plan's step against the eager model and torch.compile, on the CPU; the table in docs/cpu-target.md comes from here.

    python bench/cpu_step.py                                   mini6 and a generated model of 100M parameters
    python bench/cpu_step.py --models mini6 --skip-torch-compile

One process, one checkpoint for all candidates, one sequence:

    plan       the compiled plan
    eager      models.Backbone as it is: weights are dequantized at each use
    bf16       the same with all weights dequantized to bf16 before: 2 to 4 times the memory, for whoever has it
    compiled   torch.compile of eager (custom ops stay opaque to it)
    compiled bf16   torch.compile of bf16

Candidates are timed in turn, round after round; medians. Each warms up before, and what torch.compile needs to compile
is not in the times but given beside them. A decode step is repeated at one position: it writes the same rows again.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from generate_checkpoint import GOLDEN, generate, lengthened
from rich.console import Console
from rich.table import Table
from torch import Tensor

from dsv41c.compiler.codegen.mlir.iree import KernelCache
from dsv41c.compiler.driver import CompileOptions, compile_checkpoint
from dsv41c.models import quant
from dsv41c.models.backbone import Backbone
from dsv41c.models.checkpoint import Checkpoint
from dsv41c.models.layers import Fp8Linear
from dsv41c.models.moe import RoutedExperts
from dsv41c.models.ops import swiglu
from dsv41c.models.rows import Chunk, step_inputs
from dsv41c.models.state import state_specs
from dsv41c.models.weights import load_backbone
from dsv41c.runtime.executor_cpu import CpuExecutor
from dsv41c.runtime.plan import Plan

Inputs = dict[str, Tensor]
Step = Callable[[Inputs], Tensor]

PAGE_TOKENS = 16
TOKENS = 640  # of the one sequence
REPEAT_SECONDS = 0.05  # a sample repeats the step for so long
CASES = {"decode at 64": (1, 64), "decode at 500": (1, 500), "prefill of 512": (512, 0)}  # rows, context


@dataclass
class Candidate:
    """Something that runs steps; its caches are its own."""

    name: str
    step: Step
    warm_up_seconds: dict[str, float] = field(default_factory=dict)
    error: str = ""


# --- the model with weights in bf16 -----------------------------------------------------------------------------------


@torch.library.custom_op("dsv41_bench::plain_experts", mutates_args=())
def plain_experts(x: Tensor, ids: Tensor, weights: Tensor, w1: Tensor, w3: Tensor, w2: Tensor, limit: float) -> Tensor:
    """`ops.experts` for weights bf16 [E, ...]."""
    linear = torch.nn.functional.linear
    total = torch.zeros(x.shape, dtype=torch.float32)
    for expert in torch.unique(ids[ids >= 0]).tolist():
        row, choice = torch.where(ids == expert)
        own = x[row]
        hidden = swiglu(linear(own, w1[expert]), linear(own, w3[expert]), limit) * weights[row, choice].unsqueeze(-1)
        total[row] += linear(quant.fake_quantize(hidden.to(torch.bfloat16), "fp8_e8m0"), w2[expert]).to(torch.float32)
    return total


@plain_experts.register_fake
def _(x: Tensor, ids: Tensor, weights: Tensor, w1: Tensor, w3: Tensor, w2: Tensor, limit: float) -> Tensor:
    return torch.empty_like(x, dtype=torch.float32)


def dequantize_once(model: Backbone) -> Backbone:
    """Gives every packed weight of a model its bf16 values for good."""
    for module in model.modules():
        if isinstance(module, Fp8Linear):
            plain = quant.dequantize_weight(module.weight, module.scale)
            module.dequantized = lambda plain=plain: plain  # type: ignore[method-assign]
        elif isinstance(module, RoutedExperts):
            module.forward = _plain_forward(module)  # type: ignore[method-assign]
    return model


def _plain_forward(module: RoutedExperts) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    w1, w3, w2 = (
        torch.stack([quant.dequantize_fp4_weight(*pair) for pair in zip(stack.weight, stack.scale, strict=True)])
        for stack in (module.w1, module.w3, module.w2)
    )
    return lambda x, ids, weights: plain_experts(x, ids, weights, w1, w3, w2, module.limit)


# --- candidates -------------------------------------------------------------------------------------------------------


def empty_caches(checkpoint: Checkpoint) -> dict[str, Tensor]:
    sizes = {"pages": TOKENS // PAGE_TOKENS, "rings": 1}
    return {spec.name: spec.empty(sizes[spec.pool]) for spec in state_specs(checkpoint.config, PAGE_TOKENS)}


def eager_step(run: Callable[..., Any], checkpoint: Checkpoint) -> Step:
    caches = empty_caches(checkpoint)

    def step(inputs: Inputs) -> Tensor:
        with torch.no_grad():
            logits: Tensor = run(**inputs, caches=caches)[0]
        return logits

    return step


def compiled_step(model: Backbone, checkpoint: Checkpoint) -> Step:
    # Each size is compiled for itself, the best case: a decode step has no symbolic size then.
    torch._dynamo.config.cache_size_limit = 64
    return eager_step(torch.compile(model, dynamic=False), checkpoint)


def inputs_of(rows: int, context: int, vocab: int) -> Inputs:
    generator = torch.Generator().manual_seed(rows + context)
    tokens = torch.randint(5, vocab, (rows,), generator=generator).tolist()
    pages = list(range(TOKENS // PAGE_TOKENS))
    return step_inputs([Chunk(tokens, context, 0, pages)], [rows - 1])


def seconds_of(step: Step, inputs: Inputs) -> float:
    start, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < REPEAT_SECONDS or count == 0:
        step(inputs)
        count += 1
    return passed / count


def warm_up(candidate: Candidate, case: str, filling: Inputs, inputs: Inputs) -> None:
    """Fills the caches and runs the case once or twice; notes how long the first run took."""
    candidate.step(filling)
    start = time.perf_counter()
    try:
        candidate.step(inputs)
    except Exception as error:
        # A compiler that cannot take the model is a result of this benchmark, and no reason to lose the others.
        candidate.error = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return
    candidate.warm_up_seconds[case] = round(time.perf_counter() - start, 3)
    candidate.step(inputs)


def measure(
    candidates: list[Candidate], checkpoint: Checkpoint, rounds: int, console: Console
) -> dict[str, dict[str, list[float]]]:
    """Seconds by case, candidate and round."""
    found: dict[str, dict[str, list[float]]] = {}
    for case, (rows, context) in CASES.items():
        vocab = checkpoint.config.vocab_size
        filling, inputs = inputs_of(max(context, 1), 0, vocab), inputs_of(rows, context, vocab)
        for candidate in candidates:
            # torch.compile would compile the filling prefill too; eager fills the same caches.
            if not candidate.error:
                warm_up(candidate, case, filling, inputs)
        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(rounds):
            for candidate in candidates:
                if not candidate.error:
                    times[candidate.name].append(seconds_of(candidate.step, inputs))
        found[case] = dict(times)
        console.print(f"{case}: " + ", ".join(f"{k} {statistics.median(v) * 1e3:.2f} ms" for k, v in times.items()))
    return found


# --- where the time of a plan goes ------------------------------------------------------------------------------------


def breakdown(executor: CpuExecutor, inputs: Inputs, rounds: int = 15) -> list[dict[str, Any]]:
    """Launches, microseconds and share by kernel: the median of each launch, summed over a kernel's launches."""
    samples = [executor.timed_run("step", inputs, time.perf_counter) for _ in range(rounds)]
    by_kernel: dict[str, list[float]] = defaultdict(list)
    for launches in zip(*samples, strict=True):
        by_kernel[launches[0][0]].append(statistics.median(seconds for _, seconds in launches))
    total = sum(map(sum, by_kernel.values()))
    rows = [
        {
            "kernel": kernel,
            "launches": len(times),
            "us": round(sum(times) * 1e6, 1),
            "share": round(sum(times) / total, 4),
        }
        for kernel, times in by_kernel.items()
    ]
    return sorted(rows, key=lambda row: -float(str(row["us"])))


# --- one model --------------------------------------------------------------------------------------------------------


def bench_model(name: str, folder: Path, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Compiles, measures and prints one model; gives its part of the result file."""
    checkpoint_folder = folder / name
    if name == "mini6":
        lengthened(GOLDEN / "mini6", checkpoint_folder)
    else:
        console.print(f"{name}: {generate(checkpoint_folder, name) / 1e6:.1f}M parameters in the backbone")
    checkpoint = Checkpoint.open(checkpoint_folder)
    cache = KernelCache.default() if options.kernel_cache else KernelCache(None)
    start = time.perf_counter()
    compile_checkpoint(checkpoint_folder, folder / f"{name}.plan", CompileOptions(page_tokens=PAGE_TOKENS, cache=cache))
    compile_seconds = time.perf_counter() - start
    plan = Plan.load(folder / f"{name}.plan")
    executor = CpuExecutor(plan, empty_caches(checkpoint), options.threads)
    tokenizer = str(checkpoint_folder / "tokenizer.json")
    models = {
        "eager": load_backbone(checkpoint, tokenizer, PAGE_TOKENS),
        "bf16": dequantize_once(load_backbone(checkpoint, tokenizer, PAGE_TOKENS)),
    }
    candidates = [Candidate("plan", lambda inputs: executor.run("step", inputs)["logits"])]
    candidates += [Candidate(kind, eager_step(model, checkpoint)) for kind, model in models.items()]
    if not options.skip_torch_compile:
        for kind, label in (("eager", "compiled"), ("bf16", "compiled bf16")):
            candidates.append(Candidate(label, compiled_step(models[kind], checkpoint)))
    times = measure(candidates, checkpoint, options.rounds, console)
    launches = {
        case: breakdown(executor, inputs_of(rows, context, checkpoint.config.vocab_size))
        for case, (rows, context) in CASES.items()
    }
    _print_times(name, times, console)
    _print_launches(name, launches, console)
    return {
        "plan_compile_seconds": round(compile_seconds, 1),
        "kernel_cache": f"{cache.hits} hits, {cache.misses} misses",
        "milliseconds": {
            case: {kind: _spread(values) for kind, values in by_kind.items()} for case, by_kind in times.items()
        },
        "warm_up_seconds": {candidate.name: candidate.warm_up_seconds for candidate in candidates},
        "errors": {candidate.name: candidate.error for candidate in candidates if candidate.error},
        "launches": launches,
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {
        word: round(take(values) * 1e3, 3)
        for word, take in (("median", statistics.median), ("lowest", min), ("highest", max))
    }


def _print_times(name: str, times: dict[str, dict[str, list[float]]], console: Console) -> None:
    table = Table(title=f"{name}: median ms (times as long as the plan)")
    table.add_column("case")
    kinds = list(dict.fromkeys(kind for by_kind in times.values() for kind in by_kind))
    for kind in kinds:
        table.add_column(kind, justify="right")
    for case, by_kind in times.items():
        medians = {kind: statistics.median(values) * 1e3 for kind, values in by_kind.items()}
        cells = [f"{medians[k]:.2f} ({medians[k] / medians['plan']:.2f})" if k in medians else "failed" for k in kinds]
        table.add_row(case, *cells)
    console.print(table)


def _print_launches(name: str, launches: dict[str, list[dict[str, Any]]], console: Console) -> None:
    for case, rows in launches.items():
        table = Table(title=f"{name}, {case}: where the plan's time goes")
        for column in ("kernel", "launches", "us", "share"):
            table.add_column(column, justify="left" if column == "kernel" else "right")
        for row in rows[:12]:
            table.add_row(row["kernel"], str(row["launches"]), f"{row['us']:.0f}", f"{row['share']:.1%}")
        console.print(table)


@dataclass(frozen=True)
class Conditions:
    """What the numbers of a run depend on."""

    command: str
    date: str
    machine: str
    cores: int
    load_average: float
    torch_threads: int
    plan_threads: int
    versions: dict[str, str]


def conditions(options: argparse.Namespace) -> Conditions:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    packages = ("torch", "iree-base-compiler", "iree-base-runtime", "torch-mlir")
    return Conditions(
        command="python " + " ".join([f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=model,
        cores=os.cpu_count() or 0,
        load_average=round(os.getloadavg()[0], 2),
        torch_threads=torch.get_num_threads(),
        plan_threads=options.threads,
        versions={name: version(name) for name in packages},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["mini6", "100m"], choices=["mini6", "100m"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1, help="of torch and of the plan")
    parser.add_argument("--skip-torch-compile", action="store_true")
    parser.add_argument("--kernel-cache", action="store_true", help="take compiled kernels from the cache")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "cpu_step.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console(width=120)
    result: dict[str, Any] = {"conditions": asdict(conditions(options)), "models": {}}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "inductor")  # it compiles all it runs here
        for name in options.models:
            result["models"][name] = bench_model(name, Path(folder), options, console)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    console.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
