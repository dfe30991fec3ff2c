"""Opens a plan folder and refuses, with one message that names both sides, whatever cannot run here.

The checks go from the outside in: the folder, the manifest's text, its format version, its own digest, its fields, the
target, the digest of every file, the checkpoint's files, the launch list's references. Nothing of the plan is executed.
"""

from __future__ import annotations

import json
import math
import platform
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from dsv41c.errors import PlanError
from dsv41c.models.state import LIFETIMES, RESTORED, ROLLBACKS, StateSpec
from dsv41c.runtime.cpu_features import missing_features
from dsv41c.runtime.device_checks import check_device_kernels, check_device_programs
from dsv41c.runtime.plan_format import (
    BANDS,
    ELEMENT_TYPES,
    FORMAT_VERSION,
    KERNEL_KINDS,
    LAUNCHES,
    MANIFEST,
    MANIFEST_DIGEST,
    VIEWS,
    DeviceProgram,
    KernelEntry,
    Launch,
    LaunchList,
    Manifest,
    Program,
    Target,
    WeightEntry,
    file_digest,
    header_digest,
    is_bundle,
    launches_from_json,
    manifest_from_json,
    part_names,
    to_json,
)

CPU = "cpu"
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Plan:
    """A plan whose checks have passed.

    Attributes:
        path: the plan folder.
        manifest: its manifest.
        programs: the launch lists by program name.
        checkpoint: the folder the weights are mapped from.
        device: what GPUs run, by name.
    """

    path: Path
    manifest: Manifest
    programs: dict[str, Program]
    checkpoint: Path
    device: dict[str, DeviceProgram] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        checkpoint: str | Path | None = None,
        cpuinfo: Path = CPUINFO,
        target: str | None = CPU,
    ) -> Plan:
        """Reads and checks a plan folder.

        Args:
            path: the folder.
            checkpoint: where the checkpoint lies now, if it was moved since the compilation.
            cpuinfo: where the system lists this machine's CPU features.
            target: what it is to run on; None only to look at it.
        Returns:
            the plan.
        Raises:
            PlanError: the first check that fails, see the module text.
        """
        folder = Path(path)
        manifest = _read_manifest(folder)
        _check_target(manifest.targets, target, cpuinfo)
        _check_state(manifest.state)
        _check_kernels(manifest.kernels)
        check_device_kernels(manifest)
        _check_files(folder, manifest)
        checkpoint_folder = Path(checkpoint) if checkpoint is not None else Path(manifest.checkpoint.path)
        _check_checkpoint(checkpoint_folder, manifest)
        _check_weights(manifest)
        launches = launches_from_json(_read_json(folder / LAUNCHES))
        _check_launches(launches, manifest)
        check_device_programs(launches, manifest)
        return cls(folder, manifest, launches.programs, checkpoint_folder, launches.device)

    def to_json(self) -> dict[str, Any]:
        """The manifest and the launch lists as JSON values."""
        return {"manifest": to_json(self.manifest), "launches": to_json(LaunchList(self.programs, self.device))}

    @property
    def interfaces(self) -> dict[str, Program | DeviceProgram]:
        """Every program with its inputs, caches and outputs, whatever runs it."""
        return {**self.device, **self.programs}

    def kernel(self, name: str) -> KernelEntry:
        """The CPU's kernel of that name; the loader has checked that launches name no other."""
        return next(one for one in self.manifest.kernels if one.name == name and one.kind != "triton")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise PlanError(f"{path} is no JSON ({error}); compile the plan again") from None


def check_launchable(path: str | Path) -> None:
    """Refuses, before any GPU is looked for, a plan all of whose GPU kernels are HIP's.

    Raises:
        PlanError: it is such a plan, or none at all.
    """
    gpus = [target.name for target in _read_manifest(Path(path)).targets if target.name != CPU]
    if gpus and all(name.startswith("hip:") for name in gpus):
        raise PlanError(
            f"the plan was compiled for {', '.join(gpus)}, and this runtime launches kernels for CUDA only: compile it "
            "with --target cuda:sm_XX for an NVIDIA GPU, or with --target cpu"
        )


def _read_manifest(folder: Path) -> Manifest:
    if not folder.is_dir():
        raise PlanError(f"there is no plan folder {folder}; make one with `dsv41c compile CHECKPOINT -o {folder}`")
    path = folder / MANIFEST
    if not path.is_file():
        raise PlanError(f"{folder} has no {MANIFEST}, so it is no plan; plans are written by `dsv41c compile`")
    value = _read_json(path)
    version = value.get("format") if isinstance(value, dict) else None
    if version != FORMAT_VERSION:
        raise PlanError(
            f"{folder} has plan format {version}, this runtime reads format {FORMAT_VERSION}; "
            "compile it again, or use the dsv41c release that wrote it"
        )
    _check_manifest_digest(folder)
    return manifest_from_json(value)


def _check_manifest_digest(folder: Path) -> None:
    path = folder / MANIFEST_DIGEST
    if not path.is_file():
        raise PlanError(f"{folder} has no {MANIFEST_DIGEST}; compile the plan again")
    words = path.read_text(errors="replace").split()
    recorded = words[0] if words else ""
    found = file_digest(folder / MANIFEST)
    if recorded != found:
        raise PlanError(_changed(MANIFEST, recorded, found))


def _changed(name: str, recorded: str, found: str) -> str:
    return (
        f"{name} was changed after it was written: its sha256 was recorded as {recorded[:16]}..., "
        f"it is {found[:16]}...; compile the plan again"
    )


def _check_target(targets: tuple[Target, ...], wanted: str | None, cpuinfo: Path) -> None:
    if wanted is None:
        return
    if wanted not in (target.name for target in targets):
        names = ", ".join(target.name for target in targets) or "nothing"
        other = ", or run it on its GPU with --gpu 0" if wanted == CPU and "cuda:" in names else ""
        raise PlanError(
            f"the plan was compiled for {names}, this runtime runs {wanted}; compile it with --target {wanted}{other}"
        )
    missing: list[list[str]] = [missing_features(target.features, cpuinfo) for target in targets if target.name == CPU]
    if wanted == CPU and all(missing):
        raise PlanError(
            f"the plan's kernels use CPU features that this machine ({platform.machine()}) lacks: "
            f"{', '.join(sorted(missing, key=len)[0])}; compile it on this machine"
        )


def _check_state(state: tuple[StateSpec, ...]) -> None:
    known = {"lifetime": tuple(LIFETIMES), "restored": RESTORED, "rollback": ROLLBACKS}
    for spec in state:
        for column, words in known.items():
            if getattr(spec, column) not in words:
                raise PlanError(
                    f"state {spec.name} has {column} {getattr(spec, column)!r}; this runtime knows {', '.join(words)}; "
                    "compile the plan again"
                )
        if LIFETIMES[spec.lifetime] != spec.pool:
            raise PlanError(
                f"state {spec.name} lives as long as a {spec.lifetime} and lies in {spec.pool}; this runtime keeps it "
                f"in {LIFETIMES[spec.lifetime]}; compile the plan again"
            )


def _check_kernels(kernels: tuple[KernelEntry, ...]) -> None:
    for kernel in kernels:
        if kernel.kind not in KERNEL_KINDS or kernel.band not in BANDS:
            raise PlanError(
                f"kernel {kernel.name} is of kind {kernel.kind}, band {kernel.band}; this runtime knows the kinds "
                f"{', '.join(KERNEL_KINDS)} and the bands {', '.join(BANDS)}; compile the plan again"
            )
        if kernel.kind == "iree" and (kernel.file is None or kernel.function is None):
            raise PlanError(f"kernel {kernel.name} names no file and function to load; compile the plan again")


def _check_files(folder: Path, manifest: Manifest) -> None:
    named = {LAUNCHES: "the runtime"}
    if any(target.name == CPU for target in manifest.targets):
        named[VIEWS] = "the runtime"
    for kernel in manifest.kernels:
        assembly = kernel.gpu.assembly if kernel.gpu is not None else None
        named |= {file: f"kernel {kernel.name}" for file in (kernel.file, assembly) if file is not None}
    named |= {file: f"program {name}" for name, file in manifest.programs.items()}
    named |= {weight.file: f"weight {name}" for name, weight in manifest.weights.items() if weight.file is not None}
    if manifest.tokenizer is not None:
        named[manifest.tokenizer] = "the tokenizer"
    for file, reader in named.items():
        if file not in manifest.digests:
            raise PlanError(f"{file}, which {reader} needs, is not among the plan's digests; compile the plan again")
    for file, recorded in manifest.digests.items():
        _check_file(folder, file, recorded)


def _check_file(folder: Path, file: str, recorded: str) -> None:
    relative = PurePosixPath(file)
    if relative.is_absolute() or ".." in relative.parts:
        raise PlanError(f"the manifest lists {file}, which lies outside the plan folder; compile the plan again")
    path = folder / relative
    if not path.is_file():
        raise PlanError(f"{file} is listed in the manifest but is not in {folder}; compile the plan again")
    found = file_digest(path)
    if found != recorded:
        raise PlanError(_changed(file, recorded, found))


def _check_checkpoint(folder: Path, manifest: Manifest) -> None:
    for name, recorded in manifest.checkpoint.files.items():
        path = folder / name
        if not path.is_file():
            raise PlanError(
                f"the plan maps its weights from {path}, which is not there; "
                "put the checkpoint back, name its new folder, or compile again"
            )
        size = path.stat().st_size
        if size != recorded.bytes:
            raise PlanError(f"{path}: the plan was compiled with {recorded.bytes} bytes, found {size}; compile again")
        found = header_digest(path).header_sha256
        if found != recorded.header_sha256:
            raise PlanError(
                f"{path}: the plan was compiled with header sha256 {recorded.header_sha256[:16]}..., "
                f"found {found[:16]}...; compile again"
            )


def _check_weights(manifest: Manifest) -> None:
    for name, weight in manifest.weights.items():
        if weight.dtype not in ELEMENT_TYPES:
            raise PlanError(f"weight {name} has type {weight.dtype}; this runtime knows {', '.join(ELEMENT_TYPES)}")
        if weight.source == "derived":
            if weight.file is None or weight.tensor is None:
                raise PlanError(f"weight {name} is derived but names no file and tensor; compile the plan again")
            continue
        if weight.source != "checkpoint" or not weight.parts:
            raise PlanError(f"weight {name} has source {weight.source} and {len(weight.parts)} parts; compile again")
        _check_parts(name, weight, manifest)


def _check_parts(name: str, weight: WeightEntry, manifest: Manifest) -> None:
    bundle = is_bundle(name)
    if len(weight.parts) != (weight.shape[0] if bundle else 1):
        raise PlanError(f"weight {name} has shape {list(weight.shape)} but {len(weight.parts)} parts; compile again")
    shape = weight.shape[1:] if bundle else weight.shape
    expected = math.prod(shape) * ELEMENT_TYPES[weight.dtype].itemsize
    for part in weight.parts:
        file = manifest.checkpoint.files.get(part.file)
        if file is None:
            raise PlanError(f"weight {name} lies in {part.file}, which the plan does not list; compile again")
        if part.bytes != expected or part.offset < 0 or part.offset + part.bytes > file.bytes:
            raise PlanError(
                f"weight {name}: {part.tensor} at {part.offset}+{part.bytes} of {part.file} ({file.bytes} bytes) "
                f"does not hold {weight.dtype} {list(shape)} ({expected} bytes); compile again"
            )


def _check_launches(launches: LaunchList, manifest: Manifest) -> None:
    kernels = {kernel.name: kernel for kernel in manifest.kernels if kernel.kind != "triton"}
    caches = {state.name for state in manifest.state}
    for name, program in launches.programs.items():
        for cache in program.caches:
            if cache not in caches:
                raise PlanError(f"program {name} uses cache {cache}, which the state table lacks; compile again")
        _check_form(name, program, launches, kernels)
        _check_program(name, program, set(kernels), set(manifest.weights))


def _check_form(name: str, program: Program, launches: LaunchList, kernels: dict[str, KernelEntry]) -> None:
    """A form of another program has its interface, and a kernel for certain sizes is launched at these sizes only."""
    base = program if program.of is None else launches.programs.get(program.of)
    if base is None or base.of is not None or _interface(base) != _interface(program):
        raise PlanError(f"program {name} is no form of {program.of}, as it says; compile the plan again")
    for launch in program.launches:
        sizes = kernels[launch.kernel].sizes if launch.kernel in kernels else {}
        if any(program.sizes.get(symbol) != size for symbol, size in sizes.items()):
            raise PlanError(
                f"program {name} launches {launch.kernel}, which is for {sizes}, with sizes {program.sizes}; "
                "compile the plan again"
            )


def _interface(program: Program) -> tuple[Any, ...]:
    return program.inputs, program.caches, tuple(output.name for output in program.outputs)


def _check_program(name: str, program: Program, kernels: set[str], weights: set[str]) -> None:
    values = {f"%{spec.name}" for spec in program.inputs}
    for index, launch in enumerate(program.launches):
        where = f"program {name}, launch {index} ({launch.kernel})"
        for kernel in (launch.kernel, *(launch.attrs[name] for name in part_names(launch.attrs))):
            if kernel not in kernels:
                raise PlanError(f"{where}: there is no kernel {kernel}; compile the plan again")
        _check_arguments(where, launch, program, values, weights)
        values |= set(launch.results)
        values -= set(launch.frees)
    for output in program.outputs:
        if output.value not in values:
            raise PlanError(
                f"program {name}: output {output.name} reads {output.value}, which does not exist at its end"
            )


def _check_arguments(where: str, launch: Launch, program: Program, values: set[str], weights: set[str]) -> None:
    for arg in launch.args:
        if arg is None or arg in values:
            continue
        if arg.startswith("@") and arg[1:] in weights:
            continue
        if arg.startswith("$") and arg[1:] in program.caches:
            continue
        raise PlanError(f"{where}: there is no {arg} at that point; compile the plan again")
