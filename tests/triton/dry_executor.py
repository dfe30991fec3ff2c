"""Replays a device program with Triton's interpreter: the launches of a plan, on one pool of bytes as a GPU has it.

Buffers lie where their bucket says, so a launch that writes beyond its buffer, or a buffer whose memory is taken too
early, shows as a wrong value of another one.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from interpreter import run
from interpreting_driver import POINTERS
from torch import Tensor

from dsv41c.compiler.codegen.triton.families import Kernel
from dsv41c.ir.interpreter import WeightSource
from dsv41c.runtime.expressions import size_value
from dsv41c.runtime.plan_format import ELEMENT_TYPES, Bucket, DeviceBuffer, DeviceProgram

POISON = 0x7F


class DryExecutor:
    """A device program over given memory.

    Args:
        program, kernels: the program and its kernels by name.
        weights: gives a weight by its symbol, or the tensors that a bundle stacks.
        caches: by name; written in place.
    """

    def __init__(
        self,
        program: DeviceProgram,
        kernels: Mapping[str, Kernel],
        weights: WeightSource,
        caches: Mapping[str, Tensor],
    ) -> None:
        self.program, self.kernels, self._caches = program, kernels, caches
        self._weights, self._known = weights, dict[str, Tensor]()
        self._buffers: dict[str, Tensor] = {}

    def run(
        self, inputs: Mapping[str, Tensor], behind: Callable[[int], None] = lambda launch: None
    ) -> dict[str, Tensor]:
        """One call.

        Args:
            inputs: by name. behind: called behind each launch with its place.
        Returns:
            the outputs by name.
        """
        self._sizes = self._bound(inputs)
        bucket = next(one for one in self.program.buckets if one.rows >= self._sizes["T"])
        self._buffers = self._placed(bucket) | {f"%{name}": tensor for name, tensor in inputs.items()}
        self._buffers |= {f"%{name}": self._part(one) for name, one in self.program.buffers.items() if one.of}
        for place, launch in enumerate(self.program.launches):
            kernel = self.kernels[launch.kernel]
            given = {
                name: self._argument(arg, kind)
                for (name, kind), arg in zip(kernel.arguments.items(), launch.args, strict=True)
            }
            given |= {name: size_value(size, self._sizes) for name, size in launch.sizes.items()}
            run(kernel, **given)
            behind(place)
        return {output.name: self.value(output.value) for output in self.program.outputs}

    def value(self, name: str) -> Tensor:
        """A buffer as it is now; shared memory."""
        return self._buffers[name]

    def _bound(self, inputs: Mapping[str, Tensor]) -> dict[str, int]:
        """The value of each size, by the shapes of inputs and caches."""
        sizes: dict[str, int] = {}
        for spec in self.program.inputs:
            for size, found in zip(spec.shape, inputs[spec.name].shape, strict=True):
                if isinstance(size, str) and size.isidentifier():
                    assert sizes.setdefault(size, found) == found, (spec.name, size, found, sizes)
        return sizes

    def _placed(self, bucket: Bucket) -> dict[str, Tensor]:
        pool = torch.full((bucket.arena + 16,), POISON, dtype=torch.uint8)
        # Kernels may rely on pointers that 16 bytes divide.
        pool = pool[-pool.data_ptr() % 16 :][: bucket.arena]
        found = {}
        for name, offset in bucket.offsets.items():
            found[name] = self._view(self.program.buffers[name.removeprefix("%")], pool, offset)
        return found

    def _part(self, buffer: DeviceBuffer) -> Tensor:
        """A buffer that lies in another one, in an input or in a cache."""
        whole = self._memory(str(buffer.of)).flatten().view(torch.uint8)
        return self._view(buffer, whole, size_value(buffer.offset, self._sizes))

    def _view(self, buffer: DeviceBuffer, memory: Tensor, offset: int) -> Tensor:
        shape = [size_value(size, self._sizes) for size in buffer.shape]
        dtype = ELEMENT_TYPES[buffer.dtype]
        length = torch.Size(shape).numel() * dtype.itemsize
        assert offset + length <= memory.numel(), (buffer, offset, memory.numel())
        return memory[offset : offset + length].view(dtype).view(shape)

    def _argument(self, arg: Any, kind: str) -> Any:
        if not kind.startswith("*"):
            return size_value(arg, self._sizes) if isinstance(arg, str) else arg
        if arg is None:
            return torch.empty(0, dtype=POINTERS[kind])
        tensor = self._memory(arg)
        return tensor.view(torch.uint8) if kind == "*u8" else tensor

    def _memory(self, arg: str) -> Tensor:
        if arg.startswith("$"):
            return self._caches[arg[1:]]
        if not arg.startswith("@"):
            return self._buffers[arg]
        if arg not in self._known:
            found = self._weights(arg[1:])
            self._known[arg] = (found if isinstance(found, Tensor) else torch.stack(list(found))).contiguous()
        return self._known[arg]
