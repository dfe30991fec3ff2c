"""`dsv41c compile`: a checkpoint to a plan."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from pathlib import Path

import click

from dsv41c.compiler.cli.output import bytes_text, console, progress, table
from dsv41c.compiler.cli.sizes import Bytes, Rows
from dsv41c.compiler.cli.targets import Targets
from dsv41c.compiler.codegen.mlir.iree import KernelCache
from dsv41c.compiler.driver import CompileOptions, compile_checkpoint
from dsv41c.passes.manager import PassReport
from dsv41c.runtime.inspect import describe
from dsv41c.runtime.plan import Plan

_DEFAULTS = CompileOptions()


@click.command("compile", short_help="Compile a checkpoint to a plan.")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", metavar="PLAN", required=True, type=click.Path(path_type=Path), help="The plan's folder."
)
@click.option(
    "--target",
    "targets",
    type=Targets(),
    multiple=True,
    default=_DEFAULTS.targets,
    show_default=True,
    help="cpu, cuda:sm_XX or hip:gfxXXX; several with commas, or the option several times.",
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="tokenizer.json.  [default: the one in the checkpoint's folder or in the folder above]",
)
@click.option(
    "--page-tokens",
    type=click.IntRange(min=1),
    default=_DEFAULTS.page_tokens,
    show_default=True,
    help="Tokens a page of the global caches.",
)
@click.option(
    "--max-rows",
    type=click.IntRange(min=1),
    default=_DEFAULTS.max_rows,
    show_default=True,
    help="Most rows of one forward: a prefill chunk, or a batch of decode steps.",
)
@click.option(
    "--max-sequences",
    type=click.IntRange(min=1),
    default=_DEFAULTS.max_sequences,
    show_default=True,
    help="Most sequences of one forward.",
)
@click.option(
    "--transient-budget",
    type=Bytes(),
    default=_DEFAULTS.transient_budget,
    help="Most bytes that a forward may hold besides weights and caches, for every chunk and context.  [default: 2GiB]",
)
@click.option(
    "--buckets",
    type=Rows(),
    default="",
    help="Numbers of rows, e.g. 1,4,16, for which values get places in one buffer; calls with fewer rows are padded.",
)
@click.option("--cpu", metavar="NAME", default=_DEFAULTS.cpu, show_default=True, help="LLVM CPU, e.g. x86-64-v3.")
@click.option("--jobs", type=click.IntRange(min=1), help="Kernel compilers at once.  [default: one a core]")
@click.option("--no-cache", is_flag=True, help="Compile all kernels, also those that are in the kernel cache.")
@click.option(
    "--configs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of `dsv41c bench --tune`: tuned configs of a GPU target.  [default: those of the package]",
)
@click.option("--dump-ir", metavar="DIR", type=click.Path(path_type=Path), help="Write the program after each pass.")
@click.option("--verify-each", is_flag=True, help="Interpret the program before and after each pass and compare.")
@click.option("--print-passes", is_flag=True, help="Show what each pass did.")
def compile_command(
    checkpoint: Path,
    output: Path,
    targets: tuple[tuple[str, ...], ...],
    tokenizer: Path | None,
    page_tokens: int,
    max_rows: int,
    max_sequences: int,
    transient_budget: int,
    buckets: tuple[int, ...],
    cpu: str,
    jobs: int | None,
    no_cache: bool,
    configs: tuple[Path, ...],
    dump_ir: Path | None,
    verify_each: bool,
    print_passes: bool,
) -> None:
    """Compiles a checkpoint to a plan.

    CHECKPOINT is a folder with config.json and safetensors files; the plan maps its weights from there. The plan's
    folder appears whole or not at all; an older plan in its place is replaced.

    \b
    Example:
      dsv41c compile checkpoints/mini6 --target cpu -o plans/mini6
      dsv41c compile checkpoints/mini6 --target cuda:sm_80,cuda:sm_90 --target hip:gfx942 -o plans/mini6
    """
    options = CompileOptions(
        targets=tuple(itertools.chain.from_iterable(targets)),
        tokenizer=tokenizer,
        page_tokens=page_tokens,
        max_rows=max_rows,
        max_sequences=max_sequences,
        transient_budget=transient_budget,
        buckets=buckets,
        cpu=cpu,
        jobs=jobs,
        cache=None if no_cache else KernelCache.default(),
        configs=configs,
        dump_ir=dump_ir,
        verify_each=verify_each,
    )
    reports: list[PassReport] = []
    started = time.perf_counter()
    with progress() as report:
        compile_checkpoint(checkpoint, output, options, report, reports.append)
    seconds = time.perf_counter() - started
    out = console()
    if print_passes:
        out.print(table("passes", *_pass_rows(reports)))
    out.print(table(str(output), ("what", "value"), _summary(output, seconds)))


def _pass_rows(reports: list[PassReport]) -> tuple[tuple[str, ...], list[tuple[object, ...]], tuple[str, ...]]:
    numbers = ("seconds", "ops before", "after")
    rows: list[tuple[object, ...]] = []
    for report in reports:
        matches = ", ".join(f"{name} {count}" for name, count in report.matches.items())
        rows.append((report.name, f"{report.seconds:.3f}", report.ops_before, report.ops_after, matches))
    return ("pass", *numbers, "matches"), rows, numbers


def _summary(output: Path, seconds: float) -> list[tuple[str, str]]:
    # Loading checks every digest: what the table describes is what lies on the disk.
    found = describe(Plan.load(output, target=None))
    kernels, reference = found["kernels"], found["reference_kernels"]
    programs = found["programs"]
    own = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    compiled = sum(kernel["kind"] == "iree" for kernel in kernels)
    cpu = [
        ("programs", ", ".join(programs)),
        ("launches", ", ".join(f"{name} {program['launches']}" for name, program in programs.items())),
        ("kernels", f"{compiled} compiled, {len(reference)} reference ({', '.join(reference)})"),
    ]
    gpu = Counter(kernel["target"] for kernel in kernels if kernel["kind"] == "triton")
    return [
        *(cpu if programs else []),
        *((f"kernels for {target}", str(count)) for target, count in gpu.items()),
        ("plan on disk", bytes_text(own)),
        ("resident when loaded", bytes_text(found["resident_bytes"]["total"])),
        ("cache a token", bytes_text(found["global_cache_bytes_per_token"])),
        ("cache a sequence", bytes_text(found["ring_bytes_per_sequence"])),
        ("transient peak", bytes_text(max(one["bytes"] for one in found["transient_peak_bytes"]))),
        ("seconds", f"{seconds:.1f}"),
    ]
