"""Triton's interpreter as an exact machine: what it rounds wrongly is put right, and what a kernel moves is counted.

As released (3.6 to 3.9) it truncates fp32 to bf16, multiplies bf16 operands of a dot as if they were integers, loses
carries when it rounds to e4m3 and reads e4m3's NaN as 480. Every cast between float types and every dot goes through
torch or fp32 here instead, so a kernel that rounds as it should gives what torch gives.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from interpreting_driver import POINTERS
from torch import Tensor
from triton.runtime import interpreter as machine

from dsv41c.compiler.codegen.triton.families import Kernel

_TORCH_TYPES = {
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
    tl.float16: torch.float16,
    tl.float32: torch.float32,
    tl.float64: torch.float64,
}
# numpy has no bf16 and no fp8: the interpreter holds their bits in integers of the same width.
_BITS = {1: (np.uint8, torch.uint8), 2: (np.int16, torch.int16), 4: (np.int32, torch.int32), 8: (np.int64, torch.int64)}
_NARROW = (tl.bfloat16, tl.float16, tl.float8e4nv, tl.float8e5)
_CASTS = ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc")

moved: Counter[str] = Counter()
_counting = 0  # how many `counted` are open: finding repeated addresses takes longer than the load


@cache
def correct() -> None:
    """Corrects the interpreter of this process; only once, and only where kernels are interpreted at all."""
    assert os.environ.get("TRITON_INTERPRET") == "1", (
        "tests/conftest.py sets TRITON_INTERPRET before Triton is imported"
    )
    assert type(_probe).__name__ == "InterpretedFunction", "Triton was imported before TRITON_INTERPRET was set"
    builder: Any = machine.InterpreterBuilder
    plain_cast, plain_load, plain_store = builder.cast_impl, builder.create_masked_load, builder.create_masked_store

    def cast(self: Any, source: Any, wanted: Any) -> Any:
        have, want = source.dtype.scalar, wanted.scalar
        if have in _TORCH_TYPES and want in _TORCH_TYPES:
            return _cast_float(source, want)
        if have == tl.bfloat16:
            return plain_cast(self, _cast_float(source, tl.float32), wanted)
        if want == tl.bfloat16:
            return _cast_float(plain_cast(self, source, tl.float32), want)
        return plain_cast(self, source, wanted)

    def float_to_float(self: Any, source: Any, wanted: Any, rounding: Any) -> Any:
        return _cast_float(source, wanted.scalar)

    def dot(self: Any, a: Any, b: Any, total: Any, *precision: Any) -> Any:
        a, b = (_cast_float(side, tl.float32) if side.dtype.scalar in _NARROW else side for side in (a, b))
        product = np.matmul(a.data, b.data, dtype=total.data.dtype)
        return machine.TensorHandle(product + total.data, total.dtype.scalar)

    def load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        loaded = plain_load(self, pointers, mask, *rest)
        if _counting:
            moved["loads"] += int(mask.data.sum()) * loaded.data.itemsize
            moved["served"] += np.unique(pointers.data[mask.data]).size * loaded.data.itemsize
        return loaded

    def store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        moved["stores"] += int(mask.data.sum()) * value.data.itemsize
        return plain_store(self, pointers, value, mask, *rest)

    builder.cast_impl, builder.create_fp_to_fp, builder.create_dot = cast, float_to_float, dot
    builder.create_masked_load, builder.create_masked_store = load, store
    for name in _CASTS:
        setattr(builder, f"create_{name}", cast)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Bytes that kernels move inside; masked elements count for nothing, repeated loads count again.

    "loads" and "stores" count elements; "served" counts what memory gives: an address for which several elements of one
    load ask counts once.
    """
    global _counting
    before, inside = moved.copy(), Counter[str]()
    _counting += 1
    yield inside
    _counting -= 1
    inside.update(moved - before)


def run(kernel: Kernel, tile: int = 0, fp8_casts: bool = True, **arguments: Tensor | int | float) -> None:
    """Launches a kernel over the grid that its arguments ask for.

    Args:
        tile: which of the kernel's tiles. fp8_casts: as on a target that casts e4m3, or as on one that does not.
        arguments: by name, all of `kernel.arguments` and `kernel.sizes`; fp8 tensors are passed as bytes.
    """
    assert set(arguments) == {*kernel.arguments, *kernel.sizes}, set(arguments) ^ {*kernel.arguments, *kernel.sizes}
    for name, kind in kernel.arguments.items():
        value = arguments[name]
        assert isinstance(value, Tensor) == kind.startswith("*"), f"{name} is {kind}"
        if isinstance(value, Tensor):
            assert kind == _KINDS[value.dtype], f"{name} is {kind}, given {value.dtype}"
            assert value.is_contiguous(), name
    holes = kernel.filled(kernel.tiles[tile], fp8_casts)
    grid = kernel.programs(kernel.tiles[tile], arguments)
    kernel.load()[grid](**{name: arguments[name] for name in kernel.arguments}, **holes)


_KINDS = {dtype: kind for kind, dtype in POINTERS.items()}


def _cast_float(source: Any, want: Any) -> Any:
    as_torch = _to_torch(source.data, source.dtype.scalar).to(_TORCH_TYPES[want])
    bits = as_torch.contiguous().view(_BITS[as_torch.element_size()][1]).numpy()
    data = bits.view(machine._get_np_dtype(want)).reshape(source.data.shape)
    return machine.TensorHandle(data, want)


def _to_torch(data: np.ndarray, kind: Any) -> Tensor:
    flat = np.ascontiguousarray(data).view(_BITS[data.itemsize][0])
    return torch.from_numpy(flat).view(_TORCH_TYPES[kind]).reshape(data.shape)


@triton.jit
def _probe():
    pass
