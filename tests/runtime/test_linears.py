"""The kernel `linears` with compiled parts and without."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dsv41c.models import quant
from dsv41c.models.product_ops import linears_definition
from dsv41c.runtime.kernels import linears
from dsv41c.runtime.kernels.binding import LaunchContext


def arguments(groups: int) -> list[Tensor]:
    """Seven rows, and two packed weights of different shapes."""
    rng = torch.Generator().manual_seed(groups)
    x = torch.randn(7, 64 * groups, generator=rng).to(torch.bfloat16)
    packed = []
    for outputs in (32 * groups, 96 * groups):
        packed.append(torch.randn(outputs, 64, generator=rng).to(torch.float8_e4m3fn))
        packed.append(torch.randint(120, 130, (outputs // 32, 2), generator=rng).to(torch.uint8))
    return [x, *packed]


class Mapped:
    """A device whose weights are those of the launch; notes which were asked for."""

    def __init__(self, args: Sequence[Tensor]) -> None:
        self.args, self.asked = args, list[int]()

    def weight(self, at: int, expert: int | None = None) -> Any:
        self.asked.append(at)
        return self.args[at]

    def share(self, tensor: Tensor) -> Any:
        return tensor

    def aligned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype)


def test_without_parts_it_is_the_definition() -> None:
    for groups, quantize in ((1, 0), (1, 1), (2, 0), (2, 1)):
        args = arguments(groups)
        run = linears.bind(LaunchContext({"groups": groups, "quantize": quantize}, (None, *args[1:])))
        for found, want in zip(run(args), linears_definition(args[0], args[1:], groups, quantize), strict=True):
            assert torch.equal(found, want)
            assert found.is_contiguous()


def test_parts_take_the_mapped_weights_and_the_rows() -> None:
    """Each weight with its own part, prepared once; the prologue before all products."""
    args = arguments(1)
    calls: list[str] = []

    def part(name: str, function: Any) -> Any:
        def run(given: Sequence[Any]) -> tuple[Tensor, ...]:
            calls.append(name)
            return (function(*given),)

        return run

    parts = {f"unpack_{i}": part(f"unpack_{i}", quant.dequantize_weight) for i in (0, 1)}
    parts["prologue"] = part("prologue", lambda x: quant.fake_quantize(x, "fp8_e8m0"))
    device = Mapped(args)
    run = linears.bind(LaunchContext({"groups": 1, "quantize": 1}, (None, *args[1:]), parts, device))
    for _ in range(2):
        for found, want in zip(run(args), linears_definition(args[0], args[1:], 1, 1), strict=True):
            assert torch.equal(found, want)
    assert calls == ["prologue", "unpack_0", "unpack_1"] * 2
    assert device.asked == [1, 2, 3, 4]
