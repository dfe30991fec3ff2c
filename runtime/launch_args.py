"""A launch's arguments as the driver takes them, checked against the signature that the plan records."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

from dsv41c.errors import PlanError
from dsv41c.runtime.plan_format import GpuKernel

__all__ = ["PackedArguments", "grid_of"]

# Every binary of Triton ends its arguments with two pointers to scratch memory, which our kernels do not use.
_SCRATCH_POINTERS = 2
_POINTER_BYTES = 16  # what pointers are divisible by unless the kernel says otherwise
_SIZE_MULTIPLE = 16
_WIDEST_GRID = (2**31 - 1, 2**16 - 1, 2**16 - 1)  # programs along each axis that CUDA launches at most
_INTEGERS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}

Value = int | float | None


class PackedArguments:
    """The arguments of one launch in memory, and the list of pointers to them that the driver reads.

    Args:
        kernel: for errors. gpu: its record.
        values: in the order of the record's arguments: an address or None for a pointer, else a number.
    Raises:
        PlanError: another count, a type or range that does not fit, or an address or size that is not divisible as the
            kernel was compiled to expect.

    Attributes:
        address: of the list of pointers; it holds as long as this object lives.
    """

    def __init__(self, kernel: str, gpu: GpuKernel, values: Sequence[Value]) -> None:
        if len(values) != len(gpu.arguments):
            raise PlanError(
                f"kernel {kernel} is launched with {len(values)} arguments, its signature has {len(gpu.arguments)}: "
                f"{', '.join(gpu.arguments)}; compile the plan again"
            )
        named = zip(gpu.arguments.items(), values, strict=True)
        self._cells = [_cell(f"kernel {kernel}, argument {name}", name, kind, v, gpu) for (name, kind), v in named]
        self._cells += [ctypes.c_uint64(0) for _ in range(_SCRATCH_POINTERS)]
        self._list = (ctypes.c_void_p * len(self._cells))(*(ctypes.addressof(cell) for cell in self._cells))
        self.address = ctypes.addressof(self._list)

    def cells(self) -> list[bytes]:
        """The bytes behind each pointer, scratch pointers included."""
        return [bytes(cell) for cell in self._cells]


def grid_of(
    kernel: str, gpu: GpuKernel, values: Sequence[Value], sizes: Mapping[str, int]
) -> tuple[int, int, int] | None:
    """The programs of a launch along x, y, z; None where there is nothing to do.

    Args:
        kernel, gpu, values: as of `PackedArguments`.
        sizes: a value for each of the record's sizes.
    Raises:
        PlanError: the grid names what is not known, or is wider than a GPU launches.
    """
    known: dict[str, Value] = {**dict(zip(gpu.arguments, values, strict=True)), **sizes}

    def value(size: int | str) -> int:
        found = size if isinstance(size, int) else known.get(size)
        if not isinstance(found, int):
            raise PlanError(f"kernel {kernel}: its grid needs {size!r}, which is {found}; compile the plan again")
        return found

    counts = [-(-value(size) // value(per)) for size, per in gpu.grid]
    for axis, (count, widest) in enumerate(zip(counts, _WIDEST_GRID, strict=False)):
        if count > widest:
            raise PlanError(
                f"kernel {kernel} would run {count} programs along axis {axis}, a GPU runs {widest}; make the "
                "call smaller"
            )
    if min(counts, default=1) <= 0:
        return None
    x, y, z = (*counts, *[1] * (3 - len(counts)))
    return x, y, z


def _cell(where: str, name: str, kind: str, value: Value, gpu: GpuKernel) -> ctypes._SimpleCData:
    if kind.startswith("*"):
        return _pointer(where, kind, value, aligned=name not in gpu.unaligned)
    if kind in _INTEGERS:
        return _integer(where, kind, value, multiple=name in gpu.multiples)
    if kind != "fp32" or not isinstance(value, int | float) or isinstance(value, bool):
        raise PlanError(f"{where} is {kind}, given {value!r}; compile the plan again")
    return ctypes.c_float(value)


def _pointer(where: str, kind: str, value: Value, aligned: bool) -> ctypes._SimpleCData:
    if value is None:
        return ctypes.c_uint64(0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise PlanError(f"{where} is {kind}, given {value!r}, which is no address; compile the plan again")
    if aligned and value % _POINTER_BYTES:
        raise PlanError(
            f"{where} is the address {value:#x}, and the kernel was compiled for addresses that {_POINTER_BYTES} bytes "
            "divide; compile the plan again"
        )
    return ctypes.c_uint64(value)


def _integer(where: str, kind: str, value: Value, multiple: bool) -> ctypes._SimpleCData:
    cell = _INTEGERS[kind]
    if not isinstance(value, int) or isinstance(value, bool) or cell(value).value != value:
        raise PlanError(f"{where} is {kind}, given {value!r}; compile the plan again")
    if multiple and value % _SIZE_MULTIPLE:
        raise PlanError(f"{where} is {value}, and the kernel was compiled for multiples of {_SIZE_MULTIPLE}")
    return cell(value)
