"""A model's programs as GPUs run them, and the kernels that they launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xdsl.dialects.builtin import ModuleOp

from dsv41c.compiler.codegen.triton.device_program import DeviceCode, device_program
from dsv41c.compiler.codegen.triton.families import Kernel
from dsv41c.errors import CompileError
from dsv41c.ir.builder import functions
from dsv41c.runtime.plan_format import DeviceProgram

__all__ = ["DECODE", "GpuPrograms", "default_buckets", "gpu_programs"]

DECODE = "decode"  # the step for one row a sequence


@dataclass(frozen=True)
class GpuPrograms:
    """Programs by name, and all kernels that they launch, by name.

    Attributes:
        counts: for each launch of a program's lowered form, how many launches of the GPU it became, by program.
    """

    programs: Mapping[str, DeviceProgram]
    kernels: Mapping[str, Kernel]
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def default_buckets(most: int) -> tuple[int, ...]:
    """Powers of two up to so many rows, and that number."""
    powers = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return (*powers, most)


def gpu_programs(module: ModuleOp, names: Sequence[str], max_rows: int, buckets: Iterable[int]) -> GpuPrograms:
    """The programs of a lowered module.

    Args:
        module: as `lowering.lower_for_gpu` makes it.
        names: of its programs, the step first. The step has another form for one row a sequence.
        max_rows: of a call of any of them.
        buckets: numbers of rows of that form, ascending.
    Raises:
        CompileError: an op has no kernels, or two kernels have one name.
    """
    found = functions(module)
    made: dict[str, DeviceCode] = {
        name: device_program(found[name], module, [max_rows], few=False, of=name) for name in names if name in found
    }
    decode = device_program(found[names[0]], module, buckets, few=True, of=names[0])
    made[DECODE] = replace(decode, program=replace(decode.program, padded=True))
    kernels: dict[str, Kernel] = {}
    for code in made.values():
        for name, kernel in code.kernels.items():
            if kernels.setdefault(name, kernel) != kernel:
                raise CompileError(f"two kernels have the name {name}; give them names that tell them apart")
    programs = {name: code.program for name, code in made.items()}
    return GpuPrograms(programs, kernels, {name: code.counts for name, code in made.items()})
