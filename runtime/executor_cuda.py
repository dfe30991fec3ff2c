"""Runs a plan's GPU programs on one NVIDIA GPU: binaries through the driver API, no Triton and no compiler.

All memory is taken when the plan is loaded: weights, caches, one place for the inputs of a call and one arena for its
values, as large as the largest bucket needs. Calls of one row a sequence are padded to a bucket, and the launches of
each bucket are recorded once as a graph; other calls are launched one by one.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsv41c.errors import PlanError
from dsv41c.runtime.cuda_driver import CudaDriver, Driver, DriverError
from dsv41c.runtime.device_checks import kernels_for
from dsv41c.runtime.device_memory import Layout, aligned, bound_sizes, bucket_of, input_bytes
from dsv41c.runtime.expressions import size_value
from dsv41c.runtime.launch_args import PackedArguments, grid_of
from dsv41c.runtime.padding import pad
from dsv41c.runtime.plan import Plan, check_launchable
from dsv41c.runtime.plan_format import (
    ELEMENT_TYPES,
    Bucket,
    DeviceLaunch,
    DeviceProgram,
    KernelEntry,
    WeightEntry,
    read_safetensors_header,
)

__all__ = ["CudaExecutor", "load_kernel", "open_plan"]

_WARP = 32
_PREPARED = 64  # kinds of calls whose packed arguments are kept; prompts of many lengths come once each
# What a driver says of a binary that its release cannot take; the PTX beside it may do.
_TOO_NEW = ("CUDA_ERROR_INVALID_IMAGE", "CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION")
_ROWS, _PAGES, _SEQUENCES = "T", "P", ("B", "R")
_BLOCK_TABLE = "pages"


def open_plan(path: str | Path, device: int = 0, checkpoint: str | Path | None = None) -> tuple[Plan, CudaDriver]:
    """Opens a GPU, and a plan for it.

    Raises:
        PlanError: there is no GPU, or the plan is not for it; the message names both.
    """
    check_launchable(path)
    driver = CudaDriver(device)
    return Plan.load(path, checkpoint=checkpoint, target=driver.target), driver


def load_kernel(driver: Driver, folder: Path, entry: KernelEntry) -> tuple[Any, str]:
    """A kernel's function, from its binary, or from its PTX where the driver is older than the assembler.

    Returns:
        the function, and the file it comes from.
    Raises:
        PlanError: the driver takes neither, or the kernel is not for CUDA.
    """
    if entry.gpu is None or entry.file is None or not str(entry.target).startswith("cuda:"):
        raise PlanError(
            f"kernel {entry.name} is for {entry.target}; this runtime launches kernels for CUDA only: compile the "
            "plan with --target cuda:sm_XX for the GPU's compute capability"
        )
    refused = []
    for file in (entry.file, str(entry.gpu.assembly)):
        try:
            return driver.load((folder / file).read_bytes(), str(entry.function), entry.gpu.shared_bytes), file
        except DriverError as error:
            if error.code not in _TOO_NEW:
                raise
            refused.append(f"{file}: {error.code}")
    raise PlanError(
        f"the GPU's driver takes neither binary nor PTX of kernel {entry.name} ({'; '.join(refused)}); use a newer "
        "driver, or compile the plan with the Triton of this machine's torch"
    )


@dataclass(frozen=True)
class _Prepared:
    """A launch with its arguments in memory; `grid` is None where there is nothing to do."""

    function: Any
    grid: tuple[int, int, int] | None
    threads: int
    shared_bytes: int
    arguments: PackedArguments


class CudaExecutor:
    """A plan's GPU programs, ready to run over one set of caches.

    Args:
        plan: loaded for the driver's target.
        driver: the GPU.
        pages, rings: pages of every cache in each pool.
    Raises:
        PlanError: the plan has no GPU programs, or the driver refuses a kernel or the memory.

    Attributes:
        pool_bytes: what was allocated.
        loaded_from: the file of each kernel.
        graphs: one for each program, bucket and width of the block table that a call has used.
    """

    def __init__(self, plan: Plan, driver: Driver, pages: int, rings: int) -> None:
        if not plan.device:
            raise PlanError(f"the plan {plan.path} has no GPU programs; compile it again with --target {driver.target}")
        self._plan, self._driver = plan, driver
        self._entries = kernels_for(plan.manifest.kernels, driver.target)
        self._functions: dict[str, Any] = {}
        self.loaded_from: dict[str, str] = {}
        for name in sorted({one.kernel for program in plan.device.values() for one in program.launches}):
            self._functions[name], self.loaded_from[name] = load_kernel(driver, plan.path, self._entries[name])
        weights = _weights_used(plan)
        self._counts = {"N": pages, "S": rings}
        counts = {"pages": pages, "rings": rings}
        caches = {spec.name: spec.page_bytes * counts[spec.pool] for spec in plan.manifest.state}
        sections = {f"@{name}": _weight_bytes(plan.manifest.weights[name]) for name in weights}
        sections |= {f"${name}": size for name, size in caches.items()}
        sections["inputs"] = max(self._most_input_bytes(program) for program in plan.device.values())
        sections["arena"] = max(bucket.arena for program in plan.device.values() for bucket in program.buckets)
        self.pool_bytes = sum(map(aligned, sections.values()))
        self._pool = driver.allocate(self.pool_bytes)
        places = np.cumsum([0, *map(aligned, sections.values())])
        self._addresses = {name: self._pool + int(place) for name, place in zip(sections, places, strict=False)}
        for name in weights:
            _copy_weight(plan, name, self._addresses[f"@{name}"], driver)
        for name, size in caches.items():
            driver.fill(self._addresses[f"${name}"], 0, size)
        driver.synchronize()
        self._layout: Layout | None = None
        self._prepared: OrderedDict[tuple[Any, ...], tuple[Layout, list[_Prepared]]] = OrderedDict()
        self.graphs: dict[tuple[str, int, int], Any] = {}

    def run(self, program: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One call of a program.

        Args:
            program: the name of a program of the plan.
            inputs: tensors in the host's memory by name; caches are not inputs, they are written in place.
        Returns:
            its outputs in the host's memory, those of a padded call cut to the call's rows.
        Raises:
            PlanError: there is no such program, or no bucket of it takes the call.
        """
        return self.launched(program, inputs)()

    def launched(self, program: str, inputs: Mapping[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
        """As `run`, but gives back once all work is in the stream; calling the result waits and fetches the outputs."""
        name, bucket, given = self._choice(program, inputs)
        chosen = self._plan.device[name]
        sizes = self._sizes(chosen, given)
        layout, launches = self._launches(name, bucket, sizes)
        self._copy_inputs(chosen, given, layout)
        if chosen.padded:
            self._driver.replay(self._graph((name, bucket.rows, sizes.get(_PAGES, 0)), launches))
        else:
            self._launch(launches)
        real = self._sizes(chosen, inputs)
        return lambda: {output.name: self._fetch(chosen, output.value, layout, real) for output in chosen.outputs}

    def launch_by_launch(self, name: str, inputs: Mapping[str, Tensor]) -> Iterator[int]:
        """Runs a GPU program launch by launch, for checks: gives the place of each launch behind it.

        Between two of them `read` and `write` reach the program's values.

        Args:
            name: of the GPU program. inputs: as of `run`.
        """
        program = self._plan.device[name]
        bucket = bucket_of(name, program, self._sizes(program, inputs)[_ROWS])
        given = self._padded(inputs, bucket) if program.padded else inputs
        self._layout, launches = self._launches(name, bucket, self._sizes(program, given))
        self._copy_inputs(program, given, self._layout)
        for place, launch in enumerate(launches):
            self._launch([launch])
            self._driver.synchronize()
            yield place

    def read(self, name: str, like: Tensor) -> Tensor:
        """A `$cache`, or a `%value` of the program that runs launch by launch, with the dtype and shape of a tensor."""
        result = torch.empty(like.shape, dtype=like.dtype)
        self._driver.copy_out(result.data_ptr(), self._address(name), result.nbytes)
        return result

    def write(self, name: str, value: Tensor) -> None:
        """Overwrites what `read` reads."""
        held = value.contiguous()
        self._driver.copy_in(self._address(name), held.data_ptr(), held.nbytes)

    def _address(self, name: str) -> int:
        known = self._addresses if name in self._addresses or self._layout is None else self._layout.addresses
        if name not in known:
            raise PlanError(
                f"there is no {name} to read; caches are "
                + ", ".join(one for one in self._addresses if one.startswith("$"))
            )
        return known[name]

    def cache_address(self, name: str) -> int:
        """Where a cache begins in the GPU's memory."""
        return self._address(f"${name}")

    def close(self) -> None:
        """Gives the memory back."""
        self._driver.synchronize()
        self._driver.free(self._pool)

    def _choice(self, program: str, inputs: Mapping[str, Tensor]) -> tuple[str, Bucket, Mapping[str, Tensor]]:
        """The GPU program for a call, its bucket, and the inputs, padded if its launches are a graph."""
        forms = {name: one for name, one in self._plan.device.items() if program in (name, one.of)}
        if not forms:
            raise PlanError(f"the plan has no GPU program for {program}; it has {', '.join(self._plan.device)}")
        for name, form in sorted(forms.items(), key=lambda item: not item[1].padded):
            sizes = self._sizes(form, inputs)
            rows = sizes[_ROWS]
            if not form.padded:
                return name, bucket_of(name, form, rows), inputs
            one_each = all(sizes.get(symbol, rows) == rows for symbol in _SEQUENCES)
            if one_each and rows <= form.buckets[-1].rows:
                bucket = bucket_of(name, form, rows)
                return name, bucket, self._padded(inputs, bucket)
        raise PlanError(
            f"the GPU programs for {program} take calls of one row a sequence, at most "
            f"{max(form.buckets[-1].rows for form in forms.values())}; split the call"
        )

    def _padded(self, inputs: Mapping[str, Tensor], bucket: Bucket) -> Mapping[str, Tensor]:
        """A call of a bucket's rows, its block table as wide as a power of two, so that few graphs serve all calls."""
        given = pad(inputs, bucket)
        if _BLOCK_TABLE in given:
            used = given[_BLOCK_TABLE].shape[1]
            highest = self._plan.manifest.shape_ranges[_PAGES][1]
            width = max(used, min(highest, 1 << (used - 1).bit_length()))
            given[_BLOCK_TABLE] = torch.nn.functional.pad(given[_BLOCK_TABLE], (0, width - used))
        return given

    def _sizes(self, program: DeviceProgram, inputs: Mapping[str, Tensor]) -> dict[str, int]:
        return self._counts | bound_sizes(program.inputs, {name: tuple(one.shape) for name, one in inputs.items()})

    def _copy_inputs(self, program: DeviceProgram, inputs: Mapping[str, Tensor], layout: Layout) -> None:
        for spec in program.inputs:
            value = inputs[spec.name].to(ELEMENT_TYPES[spec.dtype]).contiguous()
            self._driver.copy_in(layout.addresses[f"%{spec.name}"], value.data_ptr(), value.nbytes)

    def _launches(self, name: str, bucket: Bucket, sizes: Mapping[str, int]) -> tuple[Layout, list[_Prepared]]:
        key = (name, bucket.rows, *sorted(sizes.items()))
        if key in self._prepared:
            self._prepared.move_to_end(key)
        else:
            program = self._plan.device[name]
            places = self._addresses["inputs"], self._addresses["arena"]
            layout = Layout.of(program, bucket, sizes, *places, self._addresses)
            self._prepared[key] = layout, [self._prepare(launch, layout) for launch in program.launches]
            if len(self._prepared) > _PREPARED:
                self._prepared.popitem(last=False)
        return self._prepared[key]

    def _prepare(self, launch: DeviceLaunch, layout: Layout) -> _Prepared:
        gpu = self._entries[launch.kernel].gpu
        assert gpu is not None, "the loader has checked that GPU kernels have a record"
        values = [_argument(arg, layout) for arg in launch.args]
        sizes = {name: size_value(size, layout.sizes) for name, size in launch.sizes.items()}
        grid = grid_of(launch.kernel, gpu, values, sizes)
        packed = PackedArguments(launch.kernel, gpu, values)
        return _Prepared(self._functions[launch.kernel], grid, gpu.warps * _WARP, gpu.shared_bytes, packed)

    def _launch(self, launches: Sequence[_Prepared]) -> None:
        for one in launches:
            if one.grid is not None:
                self._driver.launch(one.function, one.grid, one.threads, one.shared_bytes, one.arguments.address)

    def _graph(self, key: tuple[str, int, int], launches: Sequence[_Prepared]) -> Any:
        if key not in self.graphs:
            self._driver.begin_capture()
            self._launch(launches)
            self.graphs[key] = self._driver.end_capture()
        return self.graphs[key]

    def _fetch(self, program: DeviceProgram, value: str, layout: Layout, sizes: Mapping[str, int]) -> Tensor:
        buffer = program.buffers[value[1:]]
        shape = [size_value(size, sizes) for size in buffer.shape]
        result = torch.empty(shape, dtype=ELEMENT_TYPES[buffer.dtype])
        self._driver.copy_out(result.data_ptr(), layout.addresses[value], result.nbytes)
        return result

    def _most_input_bytes(self, program: DeviceProgram) -> int:
        most = {symbol: highest for symbol, (_, highest) in self._plan.manifest.shape_ranges.items()}
        rows = program.buckets[-1].rows
        return input_bytes(program.inputs, {**most, _ROWS: rows, **dict.fromkeys(("B", "S", "R"), rows)})


def _argument(arg: int | float | str | None, layout: Layout) -> int | float | None:
    if not isinstance(arg, str):
        return arg
    return layout.addresses[arg] if arg[:1] in "%@$" else size_value(arg, layout.sizes)


def _weights_used(plan: Plan) -> list[str]:
    """The weights that launches and buffers name."""
    named = {arg for program in plan.device.values() for one in program.launches for arg in one.args}
    named |= {buffer.of for program in plan.device.values() for buffer in program.buffers.values()}
    return sorted(name[1:] for name in named if isinstance(name, str) and name.startswith("@"))


def _weight_bytes(weight: WeightEntry) -> int:
    return math.prod(weight.shape) * ELEMENT_TYPES[weight.dtype].itemsize


def _copy_weight(plan: Plan, name: str, to: int, driver: Driver) -> None:
    """Copies a weight to the GPU, the parts of a bundle one behind the other."""
    for path, offset, size in _weight_parts(plan, name):
        mapped = np.memmap(path, np.uint8, "r", offset, (size,))
        driver.copy_in(to, mapped.ctypes.data, size)
        to += size


def _weight_parts(plan: Plan, name: str) -> list[tuple[Path, int, int]]:
    weight = plan.manifest.weights[name]
    if weight.source != "derived":
        return [(plan.checkpoint / part.file, part.offset, part.bytes) for part in weight.parts]
    path = plan.path / str(weight.file)
    header, start, _ = read_safetensors_header(path)
    if weight.tensor not in header:
        raise PlanError(f"weight {name}: {path} has no tensor {weight.tensor}; compile the plan again")
    begin, end = header[weight.tensor]["data_offsets"]
    return [(path, start + begin, end - begin)]
