"""The CPU device: IREE modules, and tensors that torch and IREE share without a copy.

Who keeps what alive: a buffer view holds the torch tensor (or the file mapping) under it, a tensor from `to_tensor`
holds the buffer of its view, and the device is never destroyed before the process ends (see `_hold_forever`). So
views and tensors may be dropped in any order.
"""

import mmap
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import iree.runtime as rt
import torch
from iree.runtime import HalBufferView as View
from iree.runtime import flags as rt_flags
from iree.runtime.version import VERSION as IREE_VERSION
from torch.utils import dlpack

from dsv41c.errors import PlanError
from dsv41c.runtime.aligned import ALIGNMENT, aligned_empty

__all__ = ["ALIGNMENT", "IreeDevice", "IreeModule", "MappedFile", "aligned_empty"]

Function = Callable[[Sequence[View]], list[View]]

_ELEMENT_TYPES: dict[torch.dtype, int] = {
    torch.float32: int(rt.HalElementType.FLOAT_32),
    torch.float64: int(rt.HalElementType.FLOAT_64),
    torch.float16: int(rt.HalElementType.FLOAT_16),
    torch.bfloat16: int(rt.HalElementType.BFLOAT_16),
    torch.float8_e4m3fn: int(rt.HalElementType.FLOAT_8_E4M3_FN),
    # Signless on purpose: linalg has no signed integers, and IREE compares element types when a function is entered.
    torch.int64: int(rt.HalElementType.INT_64),
    torch.int32: int(rt.HalElementType.INT_32),
    torch.int8: int(rt.HalElementType.INT_8),
    torch.uint8: int(rt.HalElementType.INT_8),
    torch.bool: int(rt.HalElementType.BOOL_8),
}
_BYTE = int(rt.HalElementType.UINT_8)
_topology_lock = threading.Lock()


class IreeDevice:
    """One IREE CPU device with the functions that the plan's `kernels/views.vmfb` holds.

    "local-sync" runs kernels on the calling thread (about 4 us a call); "local-task" spreads a kernel over `threads`
    workers and costs about 90 us a call for waking them (measured with docs/cpu-target.md's commands).

    Args:
        views: path of the plan's views.vmfb.
        driver: "local-sync" or "local-task".
        threads: workers of "local-task"; None takes one for each physical core. "local-sync" has no workers.

    Raises:
        PlanError: the driver is unknown or its file does not load.
    """

    def __init__(
        self, views: Path | str, driver: Literal["local-sync", "local-task"] = "local-sync", threads: int | None = None
    ) -> None:
        if driver not in ("local-sync", "local-task"):
            raise PlanError(f"device driver {driver!r}: supported are 'local-sync' and 'local-task'")
        if threads is not None and threads < 1:
            raise PlanError(f"threads={threads}: a device needs at least one; leave it out for one a core")
        self.driver = driver
        self._device = _create_device(driver, threads)
        self._instance = rt.VmInstance()
        self._hal = rt.create_hal_module(self._instance, self._device)
        helpers = self.load_module(views)
        self._span = helpers.vm_function("span")
        self._helpers = helpers.context
        _hold_forever(helpers)

    def load_module(self, path: Path | str) -> "IreeModule":
        """Maps a compiled module from its file.

        Raises:
            PlanError: the file is missing, damaged, or of another IREE version.
        """
        if not Path(path).is_file():
            raise PlanError(f"module {path}: no such file; compile the plan again")
        try:
            module = rt.VmModule.mmap(self._instance, str(path))
            context = rt.VmContext(self._instance, [self._hal, module])
        except Exception as error:
            raise PlanError(f"module {path} does not load in IREE {IREE_VERSION}: {_first_line(error)}") from error
        return IreeModule(Path(path), module, context)

    def to_view(self, tensor: torch.Tensor) -> View:
        """The tensor's memory as a buffer view; nothing is copied, and the view keeps the memory alive.

        Raises:
            PlanError: the tensor is not contiguous, not on the CPU, does not start at a multiple of 64 bytes, or has a
                dtype that no kernel takes.
        """
        element_type = _ELEMENT_TYPES.get(tensor.dtype)
        if element_type is None or not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise PlanError(
                f"a {tensor.dtype} tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} on "
                f"{tensor.device} cannot be shared with IREE: it takes contiguous CPU tensors of {_dtype_names()}"
            )
        if tensor.data_ptr() % ALIGNMENT:
            raise PlanError(
                f"a tensor at an address of {ALIGNMENT}n + {tensor.data_ptr() % ALIGNMENT} bytes cannot be shared with "
                f"IREE: make it with aligned_empty, or view it through MappedFile"
            )
        source = tensor.detach() if tensor.requires_grad else tensor
        if tensor.dtype == torch.float32:
            return self._device.from_dlpack_capsule(dlpack.to_dlpack(source))
        raw = self._device.from_dlpack_capsule(dlpack.to_dlpack(source.view(-1).view(torch.uint8)))
        return View(raw.get_buffer(), tensor.shape, element_type)

    def to_tensor(self, view: View, dtype: torch.dtype) -> torch.Tensor:
        """The view's memory as a tensor; nothing is copied, and the tensor keeps the memory alive.

        Args:
            view: what a kernel returned, or a view from here.
            dtype: the tensor's dtype; a view knows its bytes, but not whether its integers are signed.

        Raises:
            PlanError: dtype has another size than the view's elements.
        """
        if _ELEMENT_TYPES.get(dtype) != view.element_type:
            raise PlanError(f"a view of element type {view.element_type:#x} is not a {dtype} tensor")
        if dtype == torch.float32:
            return dlpack.from_dlpack(self._device.create_dlpack_capsule(view, 1, 0))
        raw = View(view.get_buffer(), [view.byte_length], _BYTE)
        flat = dlpack.from_dlpack(self._device.create_dlpack_capsule(raw, 1, 0))
        return flat.view(dtype).view(view.shape)

    def map_file(self, path: Path | str) -> "MappedFile":
        """Maps a file for reading and imports it once; its tensors are then views at any byte offset.

        Raises:
            PlanError: the file is missing or empty.
        """
        return MappedFile(self, Path(path))

    def span(self, source: View, offset: int, n_bytes: int) -> rt.HalBuffer:
        """The bytes [offset, offset + n_bytes) of a view's buffer, as a buffer that shares and holds its memory."""
        arguments = rt.VmVariantList(3)
        arguments.push_ref(source)
        arguments.push_int(offset)
        arguments.push_int(n_bytes)
        results = rt.VmVariantList(1)
        self._helpers.invoke(self._span, arguments, results)
        return results.get_as_object(0, View).get_buffer()


class IreeModule:
    """A loaded module; `function` gives its functions as plain callables."""

    def __init__(self, path: Path, module: rt.VmModule, context: rt.VmContext) -> None:
        self.path = path
        self.module = module
        self.context = context

    def vm_function(self, name: str) -> rt.VmFunction:
        """The function `name`; PlanError names the module's functions if there is none."""
        function = self.module.lookup_function(name)
        if function is None:
            names = ", ".join(n for n in self.module.function_names if not n.startswith("__"))
            raise PlanError(f"module {self.path} has no function {name!r}; it has: {names}")
        return function

    def function(self, name: str) -> Function:
        """The function `name` as a callable from its argument views to its result views.

        The callable is synchronous: results are ready when it returns. It may be called from several threads.

        Raises:
            PlanError: the module has no such function.
        """
        function = self.vm_function(name)
        invoke, list_type, view_type = self.context.invoke, rt.VmVariantList, View

        def call(arguments: Sequence[View]) -> list[View]:
            packed = list_type(len(arguments))
            for argument in arguments:
                packed.push_ref(argument)
            results = list_type(1)  # a capacity to start with; it grows
            invoke(function, packed, results)
            return [results.get_as_object(i, view_type) for i in range(results.size)]

        return call


class MappedFile:
    """A file in memory, read-only, imported into a device once.

    Pages are read when a kernel first touches them. A kernel that would write through a view of it dies with SIGSEGV;
    kernels get weights as inputs only.

    Args:
        device: the device that its views are for.
        path: the file.

    Raises:
        PlanError: the file is missing or empty.
    """

    def __init__(self, device: IreeDevice, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self._mapping = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise PlanError(f"weights file {path} cannot be mapped: {error}") from error
        self.path = path
        self._device = device
        with warnings.catch_warnings():
            # Torch warns that writing to it would crash. Nobody writes: a writable private mapping would count the
            # whole checkpoint against the machine's memory limit.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            self._bytes = torch.frombuffer(self._mapping, dtype=torch.uint8)
        self._whole = device.to_view(self._bytes)

    @property
    def n_bytes(self) -> int:
        """The file's size in bytes."""
        return self._bytes.numel()

    def will_need(self, offset: int, n_bytes: int) -> None:
        """Asks the kernel to read a part of the file ahead of its first use."""
        start = offset - offset % mmap.PAGESIZE
        self._mapping.madvise(mmap.MADV_WILLNEED, start, offset + n_bytes - start)

    def view(self, offset: int, n_bytes: int, dtype: torch.dtype, shape: Sequence[int]) -> View:
        """A part of the file as a buffer view; it holds the mapping.

        Args:
            offset: its first byte, of any alignment (kernels are compiled for that).
            n_bytes: its size.
            dtype: its element type.
            shape: its sizes; their product times the element's size is n_bytes.

        Raises:
            PlanError: the part lies outside the file, or is not of that shape.
        """
        self._check(offset, n_bytes, dtype, shape)
        return View(self._device.span(self._whole, offset, n_bytes), list(shape), _ELEMENT_TYPES[dtype])

    def tensor(self, offset: int, n_bytes: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """The same part as a torch tensor, for reference kernels; it shares and holds the mapping and is read-only.

        A part that torch cannot address (its offset is no multiple of the element's size) is copied.

        Raises:
            PlanError: as `view`.
        """
        self._check(offset, n_bytes, dtype, shape)
        part = self._bytes[offset : offset + n_bytes]
        if offset % dtype.itemsize:
            part = part.clone()
        return part.view(dtype).view(tuple(shape))

    def _check(self, offset: int, n_bytes: int, dtype: torch.dtype, shape: Sequence[int]) -> None:
        if dtype not in _ELEMENT_TYPES:
            raise PlanError(f"{self.path}: dtype {dtype} is not one of {_dtype_names()}")
        if offset < 0 or n_bytes < 0 or offset + n_bytes > self.n_bytes:
            raise PlanError(f"{self.path}: bytes {offset}..{offset + n_bytes} are outside its {self.n_bytes} bytes")
        count = 1
        for size in shape:
            count *= size
        if count * dtype.itemsize != n_bytes:
            raise PlanError(f"{self.path}: {n_bytes} bytes at {offset} are not {dtype} of shape {tuple(shape)}")


def _create_device(driver: str, threads: int | None) -> rt.HalDevice:
    # The count of workers is one of IREE's process-wide flags, read while a device is created; so devices with
    # different counts can live side by side if nobody changes it in between.
    with _topology_lock:
        if driver == "local-task":
            rt_flags.parse_flags(f"--task_topology_max_group_count={threads or 64}")
        chosen = rt.get_driver(driver)
        # Without its cache IREE asks the operating system for every large result anew and pays for zeroed pages: a
        # kernel that writes 32 MB took 15 ms, with the cache 3 ms (docs/cpu-target.md).
        return chosen.create_device(chosen.query_available_devices()[0], allocators=["caching"])


def _hold_forever(helpers: IreeModule) -> None:
    # A "local-task" device owns the memory of the results it made and frees it with itself, whoever still holds a view
    # or a tensor of them: reading one afterwards, or dropping one as the interpreter ends, is a segmentation fault.
    # A list that holds the device and itself is never freed, and Python's own objects stay free to go.
    results = rt.VmVariantList(2)
    helpers.context.invoke(helpers.vm_function("device"), rt.VmVariantList(0), results)
    results.push_list(results)


def _dtype_names() -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in _ELEMENT_TYPES)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
