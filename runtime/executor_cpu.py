"""Runs a program's launch list on the CPU: IREE kernels over shared memory, reference kernels in torch.

All that a call does not change is prepared when the plan is loaded: kernel handles, weight and cache views, and for
each launch an argument list in which only the values are left open. Values live in numbered slots; a value is a buffer
view or a torch tensor, whichever its producer made, and is converted, without a copy, where a consumer needs the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from iree.runtime import HalBufferView, HalElementType
from torch import Tensor

from dsv41c.errors import PlanError
from dsv41c.runtime.iree_device import ALIGNMENT, IreeDevice, IreeModule, aligned_empty
from dsv41c.runtime.kernels import registry
from dsv41c.runtime.kernels.binding import LaunchContext, Part
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.plan_format import VIEWS, Launch, Program, part_names
from dsv41c.runtime.weights import Bundle, Weight, WeightFiles

# IREE's integers carry no sign. Of the dtypes that share a size, programs use the one named here: packed rows are
# unsigned bytes, ids and indices are signed.
_DTYPES = {
    int(HalElementType.FLOAT_32): torch.float32,
    int(HalElementType.FLOAT_64): torch.float64,
    int(HalElementType.FLOAT_16): torch.float16,
    int(HalElementType.BFLOAT_16): torch.bfloat16,
    int(HalElementType.FLOAT_8_E4M3_FN): torch.float8_e4m3fn,
    int(HalElementType.INT_64): torch.int64,
    int(HalElementType.INT_32): torch.int32,
    int(HalElementType.INT_8): torch.uint8,
    int(HalElementType.BOOL_8): torch.bool,
}

Values = list[Any]
Step = Callable[[Values], None]


class CpuExecutor:
    """A plan's programs, ready to run over one set of caches.

    Args:
        plan: the plan.
        caches: a tensor for each cache of the state table, by name; they must keep their memory.
        threads: worker threads of compiled kernels; one runs them on the calling thread.
    Raises:
        PlanError: a kernel, weight or cache that launches name cannot be had here.
    """

    def __init__(self, plan: Plan, caches: Mapping[str, Tensor], threads: int = 1) -> None:
        self._plan = plan
        self._caches = dict(caches)
        self._device = IreeDevice(plan.path / VIEWS, "local-sync" if threads == 1 else "local-task", threads)
        self._weight_files = WeightFiles(plan, self._device)
        self._weights: dict[str, Weight] = {}
        self._modules: dict[str, IreeModule] = {}
        self._kernels = {kernel.name: kernel for kernel in plan.manifest.kernels if kernel.kind != "triton"}
        self._cache_views = {name: self._device.to_view(cache) for name, cache in self._caches.items()}
        self._programs = {name: self._prepare(program) for name, program in plan.programs.items()}
        forms = {name: program for name, program in plan.programs.items() if program.of is not None}
        self._sizes = {name: _fixed_places(program) for name, program in forms.items()}
        self._forms: dict[str, list[str]] = {}
        for name, program in forms.items():
            self._forms.setdefault(str(program.of), []).append(name)

    def run(self, program: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One call of a program.

        Args:
            program: its name.
            inputs: a tensor for each of its inputs; caches are not inputs, they are written in place.
        Returns:
            its outputs by name.
        Raises:
            PlanError: there is no such program, or an input is missing.
        """
        return self._form(program, inputs)(inputs)

    def timed_run(
        self, program: str, inputs: Mapping[str, Tensor], clock: Callable[[], float]
    ) -> list[tuple[str, float]]:
        """The kernel and the seconds of each launch of a call, in launch order, a tile's together; for benchmarks."""
        form = self._form(program, inputs)
        return list(zip(form.labels, form.timed(inputs, clock), strict=True))

    def form_for(self, program: str, inputs: Mapping[str, Tensor]) -> str:
        """The program that a call runs: `program`, or the form of it whose sizes are those of the inputs."""
        for name in self._forms.get(program, ()):
            places = self._sizes[name]
            if all(inputs[input_name].shape[axis] == size for input_name, axis, size in places if input_name in inputs):
                return name
        return program

    def _form(self, program: str, inputs: Mapping[str, Tensor]) -> PreparedProgram:
        prepared = self._programs.get(self.form_for(program, inputs))
        if prepared is None:
            raise PlanError(f"the plan has no program {program}; it has {', '.join(self._programs)}")
        return prepared

    def _prepare(self, program: Program) -> PreparedProgram:
        slots: dict[str, int] = {f"%{spec.name}": slot for slot, spec in enumerate(program.inputs)}
        for launch in program.launches:
            for name in launch.results:
                slots.setdefault(name, len(slots))
        steps: list[Step] = []
        labels: list[str] = []
        for number, group in itertools.groupby(program.launches, key=lambda launch: launch.tile):
            launches = list(group)
            if number is None:
                steps += [self._step(launch, slots) for launch in launches]
                labels += [launch.kernel for launch in launches]
            else:
                steps.append(self._tile(program, launches, program.tiles[number], slots))
                labels.append("tile of " + ", ".join(launch.kernel for launch in launches))
        outputs = [(output.name, slots[output.value]) for output in program.outputs]
        inputs = [spec.name for spec in program.inputs]
        return PreparedProgram(inputs, steps, labels, outputs, len(slots), self.to_tensor)

    def _tile(self, program: Program, launches: list[Launch], rows: int, slots: dict[str, int]) -> Step:
        """Launches that run over one tile of rows after the other."""
        made = {name for launch in launches for name in launch.results}
        cut: dict[int, int] = {}  # slot of a value from outside -> slot of its rows
        steps = []
        for launch in launches:
            args = list(launch.args)
            for at in launch.cut:
                name = args[at]
                if name is not None and name not in made:
                    own = f"{name}[{launch.tile}]"
                    cut[slots[name]] = slots.setdefault(own, len(slots))
                    args[at] = own
            inner = tuple(name for name in launch.frees if name in made)
            steps.append(self._step(replace(launch, args=tuple(args), frees=inner), slots))
        frees = [slots[name] for launch in launches for name in launch.frees if name not in made]
        kept = _read_behind(program, launches) & made
        over = {
            slots[name]: slots[str(launch.args[at])]
            for launch in launches
            for name, at in zip(launch.results, launch.over, strict=False)
            if at >= 0
        }
        return TileStep(rows, steps, cut, sorted(slots[name] for name in kept), over, frees, self._tensor)

    def _tensor(self, value: Any) -> Tensor:
        return value if isinstance(value, Tensor) else self.to_tensor(value)

    def _step(self, launch: Launch, slots: Mapping[str, int]) -> Step:
        fills = [(at, slots[arg]) for at, arg in enumerate(launch.args) if arg is not None and arg.startswith("%")]
        results = [slots[name] for name in launch.results]
        frees = [slots[name] for name in launch.frees]
        if self._kernels[launch.kernel].kind == "iree":
            return self._iree_step(launch, fills, results, frees)
        return self._reference_step(launch, fills, results, frees)

    def _iree_step(self, launch: Launch, fills: list[tuple[int, int]], results: list[int], frees: list[int]) -> Step:
        function = self._function(launch.kernel)
        template = [self._constant_view(arg) for arg in launch.args]
        to_view, tensor_type = self.to_view, Tensor

        def step(values: Values) -> None:
            args = template.copy()
            for at, slot in fills:
                value = values[slot]
                args[at] = to_view(value) if isinstance(value, tensor_type) else value
            for slot, value in zip(results, function(args), strict=True):
                values[slot] = value
            for slot in frees:
                values[slot] = None

        return step

    def _reference_step(
        self, launch: Launch, fills: list[tuple[int, int]], results: list[int], frees: list[int]
    ) -> Step:
        constants = tuple(self._constant_tensor(arg) for arg in launch.args)
        parts = {name: self._part(launch.attrs[name]) for name in part_names(launch.attrs)}
        attrs = {key: value for key, value in launch.attrs.items() if key not in parts}
        context = LaunchContext(attrs, constants, parts, _LaunchDevice(self, launch) if parts else None)
        run = registry.find(launch.kernel).bind(context)
        to_tensor, tensor_type = self.to_tensor, Tensor

        def step(values: Values) -> None:
            args = list(constants)
            for at, slot in fills:
                value = values[slot]
                args[at] = value if isinstance(value, tensor_type) else to_tensor(value)
            for slot, value in zip(results, run(args), strict=True):
                values[slot] = value
            for slot in frees:
                values[slot] = None

        return step

    def _part(self, name: str) -> Part:
        """A compiled function that a kernel calls, over torch tensors."""
        function, to_view, to_tensor, tensor_type = self._function(name), self.to_view, self.to_tensor, Tensor

        def part(args: Sequence[Any]) -> tuple[Tensor, ...]:
            views = [to_view(arg) if isinstance(arg, tensor_type) else arg for arg in args]
            return tuple(map(to_tensor, function(views)))

        return part

    def _function(self, name: str) -> Callable[[Sequence[HalBufferView]], list[HalBufferView]]:
        kernel = self._kernels[name]
        file, function = str(kernel.file), str(kernel.function)
        if file not in self._modules:
            self._modules[file] = self._device.load_module(self._plan.path / file)
        return self._modules[file].function(function)

    def weight(self, symbol: str) -> Weight:
        """The weight behind a symbol of the manifest."""
        if symbol not in self._weights:
            self._weights[symbol] = self._weight_files.weight(symbol)
        return self._weights[symbol]

    def _cache(self, name: str) -> Tensor:
        if name not in self._caches:
            raise PlanError(f"launches use cache {name}, which is not in the state table; compile the plan again")
        return self._caches[name]

    def _constant_view(self, arg: str | None) -> HalBufferView | None:
        if arg is None or arg.startswith("%"):
            return None
        if arg.startswith("$"):
            self._cache(arg[1:])
            return self._cache_views[arg[1:]]
        return self.weight(arg[1:]).view()

    def _constant_tensor(self, arg: str | None) -> Tensor | Bundle | None:
        if arg is None or arg.startswith("%"):
            return None
        if arg.startswith("$"):
            return self._cache(arg[1:])
        weight = self.weight(arg[1:])
        return weight if isinstance(weight, Bundle) else weight.tensor()

    def to_view(self, tensor: Tensor) -> HalBufferView:
        """A tensor as a buffer view: shared where its memory can be, else copied (strided, or not 64-byte aligned)."""
        if tensor.data_ptr() % ALIGNMENT or not tensor.is_contiguous() or tensor.numel() == 0:
            tensor = _aligned_copy(tensor)
        return self._device.to_view(tensor)

    def to_tensor(self, view: HalBufferView) -> Tensor:
        """A buffer view as a tensor that shares its memory."""
        dtype = _DTYPES.get(view.element_type)
        if dtype is None:
            raise PlanError(f"a kernel returned element type {view.element_type:#x}, which no program uses")
        if 0 in view.shape:
            return torch.empty(tuple(view.shape), dtype=dtype)
        return self._device.to_tensor(view, dtype)


class TileStep:
    """Runs the launches of a tile over one tile of rows after the other, and puts their results together.

    Args:
        rows: of a tile.
        steps: one function a launch.
        cut: slot of each value from outside that is cut into rows, and slot of its rows.
        kept: slots of the results that later launches read.
        over: slots of those that are put together in the memory of a value from outside, and the slot of that.
        frees: slots of the values from outside that no later launch reads.
        to_tensor: gives a value as a tensor.
    """

    def __init__(
        self,
        rows: int,
        steps: list[Step],
        cut: Mapping[int, int],
        kept: list[int],
        over: Mapping[int, int],
        frees: list[int],
        to_tensor: Callable[[Any], Tensor],
    ) -> None:
        self._rows, self._steps, self._cut, self._kept, self._frees = rows, steps, cut, kept, frees
        self._over, self._to_tensor = over, to_tensor

    def __call__(self, values: Values) -> None:
        sources = {slot: self._to_tensor(values[slot]) for slot in self._cut}
        count = next(iter(sources.values())).shape[0]
        if count <= self._rows:
            self._run(values, sources, 0, count, values)
        else:
            whole: Values = [None] * len(values)
            for slot, source in self._over.items():
                whole[slot] = sources[source]
            for start in range(0, count, self._rows):
                end = min(start + self._rows, count)
                own = values.copy()
                self._run(values, sources, start, end, own)
                self._put(own, whole, start, end, count)
            for slot in self._kept:
                values[slot] = whole[slot]
        for slot in (*self._frees, *self._cut.values()):
            values[slot] = None

    def _run(self, values: Values, sources: Mapping[int, Tensor], start: int, end: int, own: Values) -> None:
        for slot, source in sources.items():
            own[self._cut[slot]] = source[start:end]
        for step in self._steps:
            step(own)

    def _put(self, own: Values, whole: Values, start: int, end: int, count: int) -> None:
        for slot in self._kept:
            part = self._to_tensor(own[slot])
            if whole[slot] is None:
                whole[slot] = aligned_empty((count, *part.shape[1:]), part.dtype)
            whole[slot][start:end] = part


def _read_behind(program: Program, launches: list[Launch]) -> set[str]:
    """The values that a program still needs behind some of its launches."""
    last = max(place for place, launch in enumerate(program.launches) if launch is launches[-1])
    later = {arg for launch in program.launches[last + 1 :] for arg in launch.args if arg is not None}
    return later | {output.value for output in program.outputs}


class _LaunchDevice:
    """What a launch's parts run on; see `kernels.binding.Device`."""

    def __init__(self, executor: CpuExecutor, launch: Launch) -> None:
        self._executor, self._args = executor, launch.args
        self.share, self.aligned = executor.to_view, aligned_empty

    def weight(self, at: int, expert: int | None = None) -> HalBufferView:
        weight = self._executor.weight(str(self._args[at])[1:])
        return weight.view() if expert is None else weight.view(expert)


class PreparedProgram:
    """A program whose launches are bound.

    Args:
        inputs: names, in slot order.
        steps: one function a launch, or a tile of launches.
        labels: the kernels of each step.
        outputs: name and slot.
        n_slots: values of the program.
        to_tensor: makes a tensor of a buffer view.
    """

    def __init__(
        self,
        inputs: list[str],
        steps: list[Step],
        labels: list[str],
        outputs: list[tuple[str, int]],
        n_slots: int,
        to_tensor: Callable[[HalBufferView], Tensor],
    ) -> None:
        self._inputs, self._steps, self._outputs, self.labels = inputs, steps, outputs, labels
        self._open: list[None] = [None] * (n_slots - len(inputs))
        self._to_tensor = to_tensor

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        values = self._values(inputs)
        for step in self._steps:
            step(values)
        return {name: self._tensor(values[slot]) for name, slot in self._outputs}

    def timed(self, inputs: Mapping[str, Tensor], clock: Callable[[], float]) -> list[float]:
        """As a call, but with the time of each launch for a result."""
        values = self._values(inputs)
        ticks = [clock()]
        for step in self._steps:
            step(values)
            ticks.append(clock())
        return [after - before for before, after in itertools.pairwise(ticks)]

    def _values(self, inputs: Mapping[str, Tensor]) -> Values:
        missing = [name for name in self._inputs if name not in inputs]
        if missing:
            raise PlanError(f"the program takes {', '.join(self._inputs)}; missing: {_listed(missing)}")
        return [inputs[name] for name in self._inputs] + self._open

    def _tensor(self, value: Any) -> Tensor:
        return value if isinstance(value, Tensor) else self._to_tensor(value)


def _fixed_places(program: Program) -> list[tuple[str, int, int]]:
    """(input, axis, size) for each input size that a form of a program fixes."""
    return [
        (spec.name, axis, program.sizes[dim])
        for spec in program.inputs
        for axis, dim in enumerate(spec.shape)
        if isinstance(dim, str) and dim in program.sizes
    ]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _aligned_copy(tensor: Tensor) -> Tensor:
    # IREE cannot import memory of no bytes; one unused element gives such a tensor an address.
    if tensor.numel() == 0:
        return aligned_empty((1,), tensor.dtype)[:0].view(tensor.shape)
    return aligned_empty(tensor.shape, tensor.dtype).copy_(tensor)
