"""What must hold of the GPU programs of a plan before anything of it runs: every launch fits its kernel's signature."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from dsv41c.errors import PlanError
from dsv41c.runtime.plan_format import (
    ELEMENT_TYPES,
    DeviceBuffer,
    DeviceLaunch,
    DeviceProgram,
    KernelEntry,
    LaunchList,
    Manifest,
)

__all__ = ["check_device_kernels", "check_device_programs", "is_pointer", "kernels_for"]

_NUMBERS = ("i32", "i64", "fp32")


def is_pointer(kind: str) -> bool:
    """Whether an argument of that type is an address."""
    return kind.startswith("*")


def kernels_for(kernels: Iterable[KernelEntry], target: str) -> dict[str, KernelEntry]:
    """The GPU kernels for one target, by name."""
    return {kernel.name: kernel for kernel in kernels if kernel.kind == "triton" and kernel.target == target}


def check_device_kernels(manifest: Manifest) -> None:
    """Every GPU kernel has a record of its launch, for a target of the plan, and once for each.

    Raises:
        PlanError: one has not.
    """
    targets = [target.name for target in manifest.targets]
    seen: set[tuple[str, str | None]] = set()
    for kernel in (kernel for kernel in manifest.kernels if kernel.kind == "triton"):
        where = f"kernel {kernel.name} for {kernel.target}"
        if kernel.gpu is None or kernel.file is None or kernel.function is None or kernel.gpu.assembly is None:
            raise PlanError(f"{where} names no binary, function, assembly and signature; compile the plan again")
        if kernel.target not in targets:
            raise PlanError(f"{where}: the plan's targets are {', '.join(targets)}; compile the plan again")
        if (kernel.name, kernel.target) in seen:
            raise PlanError(f"{where} is listed twice; compile the plan again")
        seen.add((kernel.name, kernel.target))
        unknown = [kind for kind in kernel.gpu.arguments.values() if not is_pointer(kind) and kind not in _NUMBERS]
        if unknown:
            raise PlanError(
                f"{where} takes an argument of type {unknown[0]}; this runtime passes pointers and "
                f"{', '.join(_NUMBERS)}; compile the plan again"
            )


def check_device_programs(launches: LaunchList, manifest: Manifest) -> None:
    """Every launch of a GPU program fits its kernel on all GPU targets of the plan.

    Raises:
        PlanError: the first that does not, by program, launch and argument.
    """
    targets = [target.name for target in manifest.targets if target.name != "cpu"]
    kernels = {target: kernels_for(manifest.kernels, target) for target in targets}
    caches = {state.name for state in manifest.state}
    for name, program in launches.device.items():
        where = f"GPU program {name}"
        if program.of is not None and program.of not in manifest.programs:
            raise PlanError(f"{where} computes {program.of}, which the plan lacks; compile the plan again")
        missing = sorted(set(program.caches) - caches)
        if missing:
            raise PlanError(f"{where} uses cache {missing[0]}, which the state table lacks; compile the plan again")
        known = _names(program, manifest)
        for buffer_name, buffer in program.buffers.items():
            _check_buffer(f"{where}, buffer {buffer_name}", buffer, known)
        for output in program.outputs:
            _expect_known(f"{where}, output {output.name}", output.value, known)
        for index, launch in enumerate(program.launches):
            for target in targets:
                _check_launch(f"{where}, launch {index} ({launch.kernel})", launch, kernels[target], target, known)
        _check_buckets(where, program)


def _names(program: DeviceProgram, manifest: Manifest) -> set[str]:
    """All that a launch may take a pointer of, in the texts of arguments."""
    values = {f"%{spec.name}" for spec in program.inputs} | {f"%{name}" for name in program.buffers}
    return values | {f"@{name}" for name in manifest.weights} | {f"${name}" for name in program.caches}


def _check_buffer(where: str, buffer: DeviceBuffer, known: Collection[str]) -> None:
    if buffer.dtype not in ELEMENT_TYPES:
        raise PlanError(f"{where} has type {buffer.dtype}; this runtime knows {', '.join(ELEMENT_TYPES)}")
    if buffer.of is not None:
        _expect_known(where, buffer.of, known)


def _expect_known(where: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise PlanError(f"{where}: there is no {name}; compile the plan again")


def _check_launch(
    where: str, launch: DeviceLaunch, kernels: Mapping[str, KernelEntry], target: str, known: Collection[str]
) -> None:
    entry = kernels.get(launch.kernel)
    if entry is None or entry.gpu is None:
        raise PlanError(f"{where}: there is no such kernel for {target}; compile the plan again")
    gpu = entry.gpu
    if len(launch.args) != len(gpu.arguments):
        raise PlanError(
            f"{where}: {len(launch.args)} arguments, its signature has {len(gpu.arguments)} "
            f"({', '.join(gpu.arguments)}); compile the plan again"
        )
    if set(launch.sizes) != set(gpu.sizes):
        raise PlanError(
            f"{where}: sizes {_listed(launch.sizes)}, its grid needs {_listed(gpu.sizes)}; compile the plan again"
        )
    for (name, kind), arg in zip(gpu.arguments.items(), launch.args, strict=True):
        _check_argument(f"{where}, argument {name}", kind, arg, known)


def _check_argument(where: str, kind: str, arg: int | float | str | None, known: Collection[str]) -> None:
    named = isinstance(arg, str) and arg[:1] in ("%", "@", "$")
    if is_pointer(kind):
        if arg is not None and not named:
            raise PlanError(f"{where} is {kind}, given {arg!r}; compile the plan again")
        if named:
            _expect_known(where, str(arg), known)
        return
    # A text that names no memory is a size.
    fits = isinstance(arg, str | int) or (kind == "fp32" and isinstance(arg, float))
    if named or not fits:
        raise PlanError(f"{where} is {kind}, given {arg!r}; compile the plan again")


def _check_buckets(where: str, program: DeviceProgram) -> None:
    used = {arg for launch in program.launches for arg in launch.args} | {one.value for one in program.outputs}
    used |= {buffer.of for name, buffer in program.buffers.items() if f"%{name}" in used}
    own = {f"%{name}" for name, buffer in program.buffers.items() if buffer.of is None} & used
    for bucket in program.buckets:
        if not own <= set(bucket.offsets):
            raise PlanError(
                f"{where}, bucket of {bucket.rows} rows: places for {_listed(bucket.offsets)}, its buffers are "
                f"{_listed(own)}; compile the plan again"
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
