"""`moe`: the routed experts' weighted sum and the shared expert of many rows, rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dsv41c.models import moe_ops
from dsv41c.runtime.kernels import experts
from dsv41c.runtime.kernels.binding import LaunchContext, Results, Run

_SHARED = range(9, 15)  # places of the shared expert's weights among the arguments

# The shared expert on some rows: (x bf16 [M, d], routed sums fp32 [M, d]) -> bf16 [M, d].
SharedBody = Callable[[Tensor, Tensor], Tensor]


def bind(context: LaunchContext) -> Run:
    """Takes the compiled parts of both kinds of expert if the plan has them, else torch.

    Arguments of the call: those of `experts`, then the shared expert's six weights; see `moe_ops.moe_definition`.
    Result: bf16 [T, d].
    """
    expert_body, shared_body = experts.expert_bodies(context), _shared_bodies(context)

    def run(args: list[Any]) -> Results:
        x, ids, weights = args[0], args[1], args[2]
        routed = experts.routed_sum(expert_body, x, ids, weights)
        return (_add_shared(shared_body(), x, routed),)

    return run


def _shared_bodies(context: LaunchContext) -> Callable[[], SharedBody]:
    """The shared expert with torch's products between parts; its unpacked weights live as long as its body."""
    linear = torch.nn.functional.linear
    parts, limit, packed = context.parts, context.attrs["limit"], [context.constants[at] for at in _SHARED]
    unpack, activate, add = parts.get("unpack_shared"), parts.get("activate_shared"), parts.get("epilogue")
    views: list[Any] = []

    def shared_body() -> SharedBody:
        if unpack and not views:
            assert context.device is not None, "a launch with parts has a device"
            views.extend(context.device.weight(at) for at in _SHARED)
        w1, w3, w2 = unpack(views) if unpack else moe_ops.unpack_shared(*packed)

        def body(x: Tensor, routed: Tensor) -> Tensor:
            gate, up = linear(x, w1), linear(x, w3)
            hidden = activate([gate, up])[0] if activate else moe_ops.shared_activation(gate, up, limit)
            shared = linear(hidden, w2)
            return add([routed, shared])[0] if add else moe_ops.moe_sum(routed, shared)

        return body

    return shared_body


def _add_shared(body: SharedBody, x: Tensor, routed: Tensor) -> Tensor:
    """Tiles of rows, so that what lies between two products never has all of them."""
    if x.shape[0] <= experts.TILE_ROWS:
        return body(x, routed)
    result = torch.empty_like(x)
    for own, sums, place in zip(*(tensor.split(experts.TILE_ROWS) for tensor in (x, routed, result)), strict=True):
        place.copy_(body(own, sums))
    return result
