"""`experts`: the routed experts' weighted sum, over the experts that received rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dsv41c.models import ops
from dsv41c.runtime.kernels.binding import LaunchContext, Results, Run

# An expert on some rows that chose it: (x bf16 [M, d], weights fp32 [M]) -> bf16 [M, d].
ExpertBody = Callable[[Tensor, Tensor], Tensor]
TILE_ROWS = 1024  # rows of an expert at a time: far more than its products need to be fast
_PLACE = 64  # bytes between two routing weights, so that each is shared without a copy


def bind(context: LaunchContext) -> Run:
    """Takes the compiled kernels of one expert if the plan has them, else torch.

    Arguments of the call: x bf16 [T, d], ids int64 [T, k] (-1 none), weights fp32 [T, k], then the six weights, one
    tensor for each expert. Result: fp32 [T, d], added in expert order (SPEC 6.2).
    """
    expert_body, one_row = expert_bodies(context), _compiled_row(context)

    def run(args: list[Any]) -> Results:
        x, ids, weights = args[0], args[1], args[2]
        if x.shape[0] > 1:
            return (routed_sum(expert_body, x, ids, weights),)
        chosen = sorted((expert, choice) for choice, expert in enumerate(ids[0].tolist()) if expert >= 0)
        return (one_row(x, weights, chosen) if one_row else _one_row(expert_body, x, weights, chosen),)

    return run


def expert_bodies(context: LaunchContext) -> Callable[[int], ExpertBody]:
    """Each expert with torch's products between unpacking and activation; its weights live as long as its body."""
    linear = torch.nn.functional.linear
    limit, packed = context.attrs["limit"], context.constants[3:9]
    unpack, activate = context.parts.get("unpack"), context.parts.get("activate")
    own = _weights_of(context)

    def expert_body(expert: int) -> ExpertBody:
        w1, w3, w2 = unpack(own(expert)) if unpack else ops.unpack_expert(*(weight[expert] for weight in packed))

        def body(x: Tensor, scale: Tensor) -> Tensor:
            gate, up = linear(x, w1), linear(x, w3)
            hidden = activate([gate, up, scale])[0] if activate else ops.expert_activation(gate, up, scale, limit)
            return linear(hidden, w2)

        return body

    return expert_body


def _weights_of(context: LaunchContext) -> Callable[[int], list[Any]]:
    """An expert's six weights as parts take them, made on its first use."""
    device, known = context.device, dict[int, list[Any]]()

    def own(expert: int) -> list[Any]:
        assert device is not None, "a launch with parts has a device"
        if expert not in known:
            known[expert] = [device.weight(at, expert) for at in range(3, 9)]
        return known[expert]

    return own


def _compiled_row(context: LaunchContext) -> Callable[[Tensor, Tensor, Sequence[tuple[int, int]]], Tensor] | None:
    """The chosen experts of one row by the compiled body: the row is shared once, and each weight has its own place."""
    body, device, own = context.parts.get("body"), context.device, _weights_of(context)
    if body is None or device is None:
        return None
    places: list[Tensor] = []
    shared: list[Any] = []

    def run(x: Tensor, weights: Tensor, chosen: Sequence[tuple[int, int]]) -> Tensor:
        if not places:
            places.append(device.aligned((weights.shape[1], _PLACE // weights.element_size()), weights.dtype))
            shared.extend(device.share(place[:1]) for place in places[0])
        places[0][:, 0] = weights[0]
        row = device.share(x)
        total = torch.zeros(x.shape, dtype=torch.float32)
        for expert, choice in chosen:
            total += body([row, shared[choice], *own(expert)])[0]
        return total

    return run


def _one_row(
    expert_body: Callable[[int], ExpertBody], x: Tensor, weights: Tensor, chosen: Sequence[tuple[int, int]]
) -> Tensor:
    """Decode: no gather and no scatter, only the chosen experts' bodies."""
    total = torch.zeros(x.shape, dtype=torch.float32)
    for expert, choice in chosen:
        total += expert_body(expert)(x, weights[0, choice : choice + 1])
    return total


def routed_sum(expert_body: Callable[[int], ExpertBody], x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """Sorts the choices by expert once; each expert then takes one contiguous run of rows, a tile at a time.

    Args:
        expert_body: gives an expert's body, as `expert_bodies`. x: bf16 [T, d].
        ids: int64 [T, k], -1 none. weights: fp32 [T, k].
    Returns:
        fp32 [T, d], added in expert order (SPEC 6.2).
    """
    total = torch.zeros(x.shape, dtype=torch.float32)
    k = ids.shape[1]
    sorted_ids, order = ids.reshape(-1).sort(stable=True)
    rows, scale = order // k, weights.reshape(-1)[order]
    experts, counts = torch.unique_consecutive(sorted_ids, return_counts=True)
    start = 0
    for expert, count in zip(experts.tolist(), counts.tolist(), strict=True):
        end = start + count
        if expert >= 0:
            _add_expert(total, expert_body(expert), x, rows[start:end], scale[start:end])
        start = end
    return total


def _add_expert(total: Tensor, body: ExpertBody, x: Tensor, rows: Tensor, scale: Tensor) -> None:
    for own, weights in zip(rows.split(TILE_ROWS), scale.split(TILE_ROWS), strict=True):
        # A row chooses an expert at most once, so no two additions meet in one place.
        total.index_add_(0, own, body(x.index_select(0, own), weights).to(torch.float32))
