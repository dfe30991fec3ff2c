"""The CUDA driver as the executor needs it, over `cuda-bindings`, which is imported when a driver is opened."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Protocol

from dsv41c.errors import PlanError

__all__ = ["CudaDriver", "Driver", "DriverError"]

_LARGE_SHARED = 48 * 1024  # bytes of shared memory beyond which a kernel must be allowed to have them
_NAME_BYTES = 256


class DriverError(PlanError):
    """A call of the driver that failed.

    Attributes:
        code: the driver's name of the error, for example "CUDA_ERROR_INVALID_IMAGE".
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Driver(Protocol):
    """What the executor asks of a driver. Addresses and handles are opaque; sizes are bytes."""

    target: str
    description: Mapping[str, Any]

    def allocate(self, size: int) -> int:
        """The address of new memory, a multiple of 256."""

    def free(self, address: int) -> None:
        """Gives memory back."""

    def copy_in(self, to: int, host: int, size: int) -> None:
        """From the host's memory, in the stream's order; the host's memory may change when it returns."""

    def copy_out(self, host: int, source: int, size: int) -> None:
        """To the host's memory, in the stream's order; it is there when it returns."""

    def fill(self, to: int, byte: int, size: int) -> None:
        """Sets memory, in the stream's order."""

    def load(self, image: bytes, function: str, shared_bytes: int) -> Any:
        """A function of a binary or of a PTX text, with that much shared memory."""

    def launch(
        self, function: Any, grid: tuple[int, int, int], threads: int, shared_bytes: int, arguments: int
    ) -> None:
        """One launch in the stream's order; `arguments` is the address of a list of pointers to them."""

    def begin_capture(self) -> None:
        """From here on launches are recorded and not run."""

    def end_capture(self) -> Any:
        """A graph of what was recorded."""

    def replay(self, graph: Any) -> None:
        """Runs a graph in the stream's order."""

    def event(self) -> Any:
        """A mark at this point of the stream."""

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Milliseconds between two marks, once both have been reached."""

    def synchronize(self) -> None:
        """Waits for all that the stream was given."""


class CudaDriver:
    """One NVIDIA GPU, with one stream.

    Args:
        device: its number.
    Raises:
        PlanError: there is no `cuda-bindings`, no driver, or no such GPU.

    Attributes:
        target: the GPU's name among targets, for example "cuda:sm_90".
        description: name, driver version, total memory.
    """

    def __init__(self, device: int = 0) -> None:
        self._api = _bindings()
        self._open(device)
        self._device = self._do("cuDeviceGet", device)
        self._context = self._do("cuDevicePrimaryCtxRetain", self._device)
        self._do("cuCtxSetCurrent", self._context)
        self._stream = self._do("cuStreamCreate", self._api.CUstream_flags.CU_STREAM_NON_BLOCKING)
        attributes = self._api.CUdevice_attribute
        major, minor = (
            self._do("cuDeviceGetAttribute", which, self._device)
            for which in (
                attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self.target = f"cuda:sm_{major}{minor}"
        name = self._do("cuDeviceGetName", _NAME_BYTES, self._device)
        self.description: Mapping[str, Any] = {
            "device": name.split(b"\0")[0].decode(),
            "driver": self._do("cuDriverGetVersion"),
            "memory_bytes": self._do("cuDeviceTotalMem", self._device),
        }

    def allocate(self, size: int) -> int:
        return int(self._do("cuMemAlloc", size))

    def free(self, address: int) -> None:
        self._do("cuMemFree", address)

    def copy_in(self, to: int, host: int, size: int) -> None:
        self._do("cuMemcpyHtoDAsync", to, host, size, self._stream)
        self.synchronize()

    def copy_out(self, host: int, source: int, size: int) -> None:
        self._do("cuMemcpyDtoHAsync", host, source, size, self._stream)
        self.synchronize()

    def fill(self, to: int, byte: int, size: int) -> None:
        self._do("cuMemsetD8Async", to, byte, size, self._stream)

    def load(self, image: bytes, function: str, shared_bytes: int) -> Any:
        # The driver reads a PTX text up to its zero byte.
        held = ctypes.create_string_buffer(image)
        module = self._do("cuModuleLoadData", ctypes.addressof(held))
        found = self._do("cuModuleGetFunction", module, function.encode())
        if shared_bytes > _LARGE_SHARED:
            allow = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._do("cuFuncSetAttribute", found, allow, shared_bytes)
        return found

    def launch(
        self, function: Any, grid: tuple[int, int, int], threads: int, shared_bytes: int, arguments: int
    ) -> None:
        self._do("cuLaunchKernel", function, *grid, threads, 1, 1, shared_bytes, self._stream, arguments, 0)

    def begin_capture(self) -> None:
        mode = self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._do("cuStreamBeginCapture", self._stream, mode)

    def end_capture(self) -> Any:
        return self._do("cuGraphInstantiate", self._do("cuStreamEndCapture", self._stream), 0)

    def replay(self, graph: Any) -> None:
        self._do("cuGraphLaunch", graph, self._stream)

    def event(self) -> Any:
        event = self._do("cuEventCreate", 0)
        self._do("cuEventRecord", event, self._stream)
        return event

    def elapsed_ms(self, start: Any, end: Any) -> float:
        self._do("cuEventSynchronize", end)
        return float(self._do("cuEventElapsedTime", start, end))

    def synchronize(self) -> None:
        self._do("cuStreamSynchronize", self._stream)

    def _open(self, device: int) -> None:
        try:
            self._do("cuInit", 0)
            count = self._do("cuDeviceGetCount")
        # Which exception says that the driver's library is not there differs between releases of cuda-bindings.
        except (RuntimeError, OSError, DriverError) as error:
            raise _no_driver(f"the CUDA driver does not start ({' '.join(str(error).split())})") from None
        if device >= count:
            raise PlanError(f"there is no GPU {device}, the CUDA driver lists {count}; choose a smaller number")

    def _do(self, name: str, *args: Any) -> Any:
        """A call of the driver: its one result, or None."""
        status, *results = getattr(self._api, name)(*args)
        if int(status) != 0:
            code = getattr(status, "name", str(status))
            raise DriverError(f"the CUDA driver refuses {name}: {code}", code)
        return results[0] if results else None


def _bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError:
        raise _no_driver("cuda-bindings is not installed") from None
    return driver


def _no_driver(reason: str) -> PlanError:
    return PlanError(
        f"no NVIDIA GPU can be used here: {reason}; install dsv41c[gpu] on a machine with an NVIDIA driver, or "
        "compile the plan with --target cpu"
    )
