"""What recipes write with: the launches of a GPU program, its buffers, and the kernels that it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dsv41c.compiler.codegen.triton.families import Kernel
from dsv41c.errors import CompileError
from dsv41c.ir.dims import Dim, normalise
from dsv41c.ir.types import CacheType, TensorType
from dsv41c.runtime.plan_format import DeviceBuffer, DeviceLaunch

__all__ = ["Argument", "DeviceBuilder", "LoweredOp", "Recipe", "product"]

Argument = int | float | str | None


@dataclass(frozen=True)
class LoweredOp:
    """A launch of the lowered program, as recipes read it.

    Attributes:
        kernel: a custom op or an outlined function.
        args: `%value`, `@weight` or `$cache`; None for an absent optional one. types: theirs.
        results: `%value` of the tensors that it makes, and their types.
        attrs: the op's other arguments by name.
    """

    kernel: str
    args: tuple[str | None, ...]
    types: tuple[TensorType | CacheType | None, ...]
    results: tuple[str, ...]
    result_types: tuple[TensorType, ...]
    attrs: Mapping[str, Any]

    def dims(self, at: int) -> tuple[Dim, ...]:
        """The sizes of a tensor argument."""
        type_ = self.types[at]
        assert isinstance(type_, TensorType), f"argument {at} of {self.kernel} is {type_}"
        return type_.dims

    def size(self, at: int, axis: int) -> int:
        """A size of a tensor argument that is a number."""
        size = self.dims(at)[axis]
        assert isinstance(size, int), f"argument {at} of {self.kernel} has {size} along axis {axis}"
        return size

    def cache(self, at: int) -> CacheType:
        """The type of a cache argument."""
        type_ = self.types[at]
        assert isinstance(type_, CacheType), f"argument {at} of {self.kernel} is {type_}"
        return type_


class DeviceBuilder:
    """A GPU program in the making.

    Args:
        symbols: (smallest, largest) of each size of the program.
        few: whether it is for few rows, so that work must be cut along other axes to fill a GPU.

    Attributes:
        symbols, few: as given.
        buffers, launches, kernels: what was made, kernels by name.
    """

    def __init__(self, symbols: Mapping[str, tuple[int, int]], few: bool) -> None:
        self.symbols, self.few = symbols, few
        self.buffers: dict[str, DeviceBuffer] = {}
        self.launches: list[DeviceLaunch] = []
        self.kernels: dict[str, Kernel] = {}

    def result(self, name: str, type_: TensorType) -> None:
        """Memory for a value of the lowered program; none for one without elements."""
        if 0 not in type_.dims:
            self.buffers[name.removeprefix("%")] = DeviceBuffer(type_.element, type_.dims)

    def scratch(self, op: LoweredOp, role: str, element: str, *shape: Dim) -> str:
        """Memory that only the launches of one op use; named after its first result, or else its first argument."""
        owner = (op.results or [arg for arg in op.args if arg is not None])[0].lstrip("%$@")
        name = f"{owner}.{role}"
        assert name not in self.buffers, f"{op.kernel} asks twice for {name}"
        self.buffers[name] = DeviceBuffer(element, shape)
        return f"%{name}"

    def rows(self, name: str, type_: TensorType, start: Dim, count: Dim) -> str:
        """Some rows of a value: `count` from `start` on, in its memory; all of them are the value itself."""
        if (start, count) == (0, type_.dims[0]):
            return name
        row = math.prod(size for size in type_.dims[1:] if isinstance(size, int)) * type_.dtype.itemsize
        part = f"{name.removeprefix('%')}.from_{len([one for one in self.buffers.values() if one.of == name])}"
        wanted = DeviceBuffer(type_.element, (count, *type_.dims[1:]), name, product(start, row))
        found = next((key for key, buffer in self.buffers.items() if buffer == wanted), part)
        self.buffers[found] = wanted
        return f"%{found}"

    def launch(self, kernel: Kernel, **given: Argument) -> None:
        """A launch of a kernel: all its arguments and sizes by name."""
        known = self.kernels.setdefault(kernel.name, kernel)
        if known != kernel:
            raise CompileError(f"two kernels have the name {kernel.name}; give them names that tell them apart")
        wanted = {*kernel.arguments, *kernel.sizes}
        assert set(given) == wanted, f"{kernel.name}: {sorted(set(given) ^ wanted)}"
        args = tuple(given[name] for name in kernel.arguments)
        sizes: dict[str, int | str] = {}
        for name in kernel.sizes:
            size = given[name]
            assert isinstance(size, int | str), f"{kernel.name}: {name} is {size}"
            sizes[name] = size
        self.launches.append(DeviceLaunch(kernel.name, args, sizes))


Recipe = Callable[[LoweredOp, DeviceBuilder], None]


def product(*sizes: Dim) -> Dim:
    """The product of sizes in its normal form."""
    return normalise("*".join(f"({size})" for size in sizes))
