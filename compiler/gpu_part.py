"""What a plan holds for its GPU targets; imports Triton."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ModuleOp

from dsv41c.compiler.codegen.triton.configs import Configs
from dsv41c.compiler.codegen.triton.families import kernels_of
from dsv41c.compiler.codegen.triton.lowering import lower_for_gpu
from dsv41c.compiler.codegen.triton.targets import GpuTarget
from dsv41c.compiler.gpu_bill import gpu_bill_of
from dsv41c.compiler.gpu_kernels import compile_for_gpus
from dsv41c.compiler.gpu_programs import default_buckets, gpu_programs
from dsv41c.ir.builder import functions
from dsv41c.models.config import ModelConfig
from dsv41c.passes.manager import PassReport
from dsv41c.passes.pipeline import gpu_pipeline
from dsv41c.runtime.plan_format import DeviceProgram, KernelEntry, PassRecord

if TYPE_CHECKING:
    from dsv41c.compiler.driver import CompileOptions, Lowered, Progress

__all__ = ["GpuPart", "gpu_part"]


@dataclass(frozen=True)
class GpuPart:
    """What a plan holds for its GPU targets.

    Attributes:
        module: the programs as they were lowered for GPUs.
        passes: what lowered them.
        programs: their launches, by name.
        kernels: entries of the manifest, one for each kernel and target.
        files: binaries, assembly and sources, by their path in the plan.
        bill: as of `gpu_bill.gpu_bill_of`.
    """

    module: ModuleOp
    passes: tuple[PassRecord, ...]
    programs: Mapping[str, DeviceProgram]
    kernels: tuple[KernelEntry, ...]
    files: Mapping[str, bytes]
    bill: dict[str, Any]


def gpu_part(
    config: ModelConfig,
    options: CompileOptions,
    lowered: Lowered,
    names: Sequence[str],
    targets: Sequence[GpuTarget],
    configs: Mapping[str, Configs],
    progress: Progress,
) -> GpuPart:
    """Lowers the programs of a model for GPUs and compiles their kernels.

    Args:
        config, options: the model's, and what its plan is made for.
        lowered: the programs as traced, and the network that costs are counted on.
        names: of the programs, the step first.
        targets: what to compile for. configs: tuned configs by target.
        progress: called after each pass and each kernel.
    Raises:
        CompileError: an op has no kernels, or a kernel fits a target with none of its tiles.
    """
    passes = gpu_pipeline()
    done = itertools.count(1)

    def on_pass(report: PassReport, module: ModuleOp) -> None:
        progress(f"pass {report.name} for GPUs", next(done), len(passes))

    symbols = lowered.ranges.symbols()
    module = lower_for_gpu(lowered.traced, config, symbols, on_pass)
    buckets = options.buckets or default_buckets(min(options.max_rows, options.max_sequences))
    made = gpu_programs(module, names, options.max_rows, buckets)
    # Those of the programs, and those that choose tokens from their logits.
    kernels = [*made.kernels.values(), *kernels_of(config, ("sampling",))]
    compiled = compile_for_gpus(kernels, targets, configs, options.cache, options.jobs, progress)
    highest = {name: high for name, (_, high) in symbols.items()}
    bill = gpu_bill_of(config, options.page_tokens, lowered.network, functions(module)[names[0]], made, highest)
    records = tuple(PassRecord(pass_.text(), pass_.digest()) for pass_ in passes)
    return GpuPart(module, records, made.programs, compiled.entries, compiled.files, bill)
