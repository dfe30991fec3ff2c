"""`linears`: products of many rows with packed weights, by torch's library, which uses the CPU's matrix instructions.

What stands around the products is compiled, if the plan has it: `unpack_0`, `unpack_1`, ... dequantize one weight each,
`prologue` quantizes x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dsv41c.models import ops, quant
from dsv41c.runtime.kernels.binding import LaunchContext, Results, Run


def bind(context: LaunchContext) -> Run:
    """Takes the compiled parts if the plan has them, else torch.

    Arguments of the call: x bf16 [T, groups * K], then weight and scale of each product. Results: bf16 [T, N] each;
    one dequantized weight lives at a time. See `models.product_ops.linears_definition`.
    """
    groups = context.attrs["groups"]
    unpacks = [_unpack(context, at) for at in range(1, len(context.constants), 2)]
    prologue = _prologue(context)

    def run(args: list[Any]) -> Results:
        x = prologue(args[0])
        return [ops.linear_definition(x, unpack(args), groups).contiguous() for unpack in unpacks]

    return run


def _unpack(context: LaunchContext, at: int) -> Callable[[list[Any]], Tensor]:
    """Gives the weight at an argument of the call in bf16."""
    part, device = context.parts.get(f"unpack_{at // 2}"), context.device
    if part is None:
        return lambda args: quant.dequantize_weight(args[at], args[at + 1])
    assert device is not None, "a launch with parts has a device"
    packed = [device.weight(at), device.weight(at + 1)]
    return lambda args: part(packed)[0]


def _prologue(context: LaunchContext) -> Callable[[Tensor], Tensor]:
    part = context.parts.get("prologue")
    if not context.attrs["quantize"]:
        return lambda x: x
    if part is None:
        return lambda x: quant.fake_quantize(x, "fp8_e8m0")
    return lambda x: part([x])[0]
