"""A GPU driver over this machine's memory for the plan made by hand."""

import pytest
import torch
from gpu_plan import STORE, SUM, TARGETS, TUNED
from interpreting_driver import InterpretingDriver
from torch import Tensor

KERNELS = {"sum_parts_kernel": (SUM, SUM.tiles[0]), "store_plain_kernel": (STORE, TUNED)}


def known_to(driver: "HostDriver", monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the host whose address somebody asks for are memory of the driver from then on."""
    plain = Tensor.data_ptr

    def data_ptr(self: Tensor) -> int:
        address = plain(self)
        driver.allocations[address] = self.detach().flatten().view(torch.uint8)
        return address

    monkeypatch.setattr(Tensor, "data_ptr", data_ptr)


class HostDriver(InterpretingDriver):
    """Args: `refuses` as of `InterpretingDriver`."""

    def __init__(self, refuses: dict[bytes, str] | None = None) -> None:
        super().__init__(TARGETS[0], KERNELS, refuses)
