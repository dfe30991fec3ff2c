"""A GPU driver over this machine's memory: it holds what a GPU would, and runs launches in Triton's interpreter."""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from dsv41c.compiler.codegen.triton.families import Kernel, Tile
from dsv41c.runtime.cuda_driver import DriverError

ALIGNMENT = 256
# Triton's names of pointers, and what the memory behind them holds.
POINTERS = {
    "*bf16": torch.bfloat16,
    "*fp32": torch.float32,
    "*fp64": torch.float64,
    "*u8": torch.uint8,
    "*i1": torch.bool,
    "*i32": torch.int32,
    "*i64": torch.int64,
}
_CELLS: dict[str, Any] = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float, "fp64": ctypes.c_double}


class InterpretingDriver:
    """Implements `Driver`.

    Args:
        target: what it takes binaries of.
        kernels: the kernel of each function, and the tile in which it was compiled.
        refuses: the error with which an image of such first bytes is refused.

    Attributes:
        launched: function, grid and threads of each launch that ran.
        allocations: bytes by address.
    """

    def __init__(
        self, target: str, kernels: Mapping[str, tuple[Kernel, Tile]], refuses: dict[bytes, str] | None = None
    ) -> None:
        self.target, self._kernels = target, kernels
        self.refuses = refuses or {}
        self.description = {"device": "this machine"}
        self.launched: list[tuple[str, tuple[int, int, int], int]] = []
        self.allocations: dict[int, Tensor] = {}
        self.freed: list[int] = []
        self.waits = 0
        self._recording: list[Callable[[], None]] | None = None

    def allocate(self, size: int) -> int:
        memory = torch.full((size + ALIGNMENT,), 0x7F, dtype=torch.uint8)
        address = -(-memory.data_ptr() // ALIGNMENT) * ALIGNMENT
        self.allocations[address] = memory
        return address

    def free(self, address: int) -> None:
        self.freed.append(address)

    def copy_in(self, to: int, host: int, size: int) -> None:
        assert self._recording is None
        ctypes.memmove(to, host, size)

    def copy_out(self, host: int, source: int, size: int) -> None:
        assert self._recording is None
        ctypes.memmove(host, source, size)

    def fill(self, to: int, byte: int, size: int) -> None:
        ctypes.memset(to, byte, size)

    def load(self, image: bytes, function: str, shared_bytes: int) -> str:
        for start, code in self.refuses.items():
            if image.startswith(start):
                raise DriverError(f"refused: {code}", code)
        return function

    def launch(
        self, function: str, grid: tuple[int, int, int], threads: int, shared_bytes: int, arguments: int
    ) -> None:
        def run() -> None:
            self.launched.append((function, grid, threads))
            kernel, tile = self._kernels[function]
            pointers = (ctypes.c_void_p * (len(kernel.arguments) + 2)).from_address(arguments)
            given = {
                name: self._value(kind, cell)
                for (name, kind), cell in zip(kernel.arguments.items(), pointers, strict=False)
            }
            kernel.load()[grid](**given, **kernel.filled(tile, fp8_casts=False))

        if self._recording is None:
            run()
        else:
            self._recording.append(run)

    def begin_capture(self) -> None:
        assert self._recording is None
        self._recording = []

    def end_capture(self) -> list[Callable[[], None]]:
        assert self._recording is not None
        recorded, self._recording = self._recording, None
        return recorded

    def replay(self, graph: list[Callable[[], None]]) -> None:
        for run in graph:
            run()

    def event(self) -> int:
        return len(self.launched)

    def elapsed_ms(self, start: int, end: int) -> float:
        return float(end - start)

    def synchronize(self) -> None:
        self.waits += 1

    def _value(self, kind: str, cell: int) -> Any:
        if kind not in POINTERS:
            return _CELLS[kind].from_address(cell).value
        address = ctypes.c_uint64.from_address(cell).value
        if address == 0:
            return torch.empty(0, dtype=POINTERS[kind])
        start, memory = next((a, m) for a, m in self.allocations.items() if a <= address < a + m.numel())
        tensor = memory[address - memory.data_ptr() :]
        assert address >= start
        return tensor[: tensor.numel() // 8 * 8].view(POINTERS[kind])
