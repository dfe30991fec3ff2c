"""The plan's weights as views and tensors of mapped files: nothing is read before it is used, nothing is copied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from iree.runtime import HalBufferView
from torch import Tensor

from dsv41c.errors import PlanError
from dsv41c.runtime.iree_device import IreeDevice, MappedFile
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.plan_format import ELEMENT_TYPES, WeightEntry, is_bundle, read_safetensors_header


class WeightFiles:
    """Maps the checkpoint's and the plan's weight files, each once.

    Args:
        plan: the plan.
        device: the device that views are for.
    """

    def __init__(self, plan: Plan, device: IreeDevice) -> None:
        self._plan, self._device = plan, device
        self._mapped: dict[Path, MappedFile] = {}
        self._headers: dict[Path, tuple[dict[str, dict[str, list[int]]], int]] = {}

    def weight(self, symbol: str) -> Weight:
        """The weight behind a symbol, located but not yet read.

        Raises:
            PlanError: its file is gone, or does not hold it in that size.
        """
        entry = self._plan.manifest.weights[symbol]
        dtype = ELEMENT_TYPES[entry.dtype]
        if entry.source == "derived":
            return Weight([self._derived(symbol, entry)], dtype, entry.shape)
        parts = [(self._map(self._plan.checkpoint / part.file), part.offset) for part in entry.parts]
        if is_bundle(symbol):
            return Bundle(parts, dtype, entry.shape[1:])
        return Weight(parts, dtype, entry.shape)

    def _map(self, path: Path) -> MappedFile:
        if path not in self._mapped:
            self._mapped[path] = self._device.map_file(path)
        return self._mapped[path]

    def _derived(self, symbol: str, entry: WeightEntry) -> tuple[MappedFile, int]:
        path = self._plan.path / str(entry.file)
        if path not in self._headers:
            header, start, _ = read_safetensors_header(path)
            self._headers[path] = (header, start)
        header, start = self._headers[path]
        found = header.get(str(entry.tensor))
        if found is None:
            raise PlanError(f"weight {symbol}: {path} has no tensor {entry.tensor}; compile the plan again")
        begin, end = found["data_offsets"]
        expected = math.prod(entry.shape) * ELEMENT_TYPES[entry.dtype].itemsize
        if end - begin != expected:
            raise PlanError(
                f"weight {symbol}: {entry.tensor} of {path} has {end - begin} bytes, {entry.dtype} "
                f"{list(entry.shape)} has {expected}; compile the plan again"
            )
        return self._map(path), start + begin


class Weight:
    """One tensor in a mapped file.

    Args:
        parts: the file and the byte offset, for each part.
        dtype, shape: of one part.
    """

    def __init__(self, parts: Sequence[tuple[MappedFile, int]], dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self._parts, self._dtype, self._shape = parts, dtype, shape
        self._bytes = math.prod(shape) * dtype.itemsize
        self._tensors: dict[int, Tensor] = {}

    def tensor(self, part: int = 0) -> Tensor:
        """As a torch tensor, read-only."""
        if part not in self._tensors:
            file, offset = self._parts[part]
            self._tensors[part] = file.tensor(offset, self._bytes, self._dtype, self._shape)
        return self._tensors[part]

    def view(self, part: int = 0) -> HalBufferView:
        """As a buffer view."""
        file, offset = self._parts[part]
        return file.view(offset, self._bytes, self._dtype, self._shape)


class Bundle(Weight):
    """One tensor for each expert: indexing gives an expert's tensor, made when it is first asked for."""

    def __getitem__(self, expert: int) -> Tensor:
        return self.tensor(expert)

    def __len__(self) -> int:
        return len(self._parts)
