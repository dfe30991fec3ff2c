"""`experts`: the routed experts' weighted sum, over the experts that received rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dsv41c.models.ops import expert_definition
from dsv41c.runtime.kernels.binding import ExpertBody, LaunchContext, Results, Run


def bind(context: LaunchContext) -> Run:
    """Takes the compiled kernel of one expert if the plan has one, else torch.

    Arguments of the call: x bf16 [T, d], ids int64 [T, k] (-1 none), weights fp32 [T, k], then the six weights, one
    tensor for each expert. Result: fp32 [T, d], added in expert order (SPEC 6.2).
    """
    body = context.expert_body or _torch_body(context)

    def run(args: list[Any]) -> Results:
        x, ids, weights = args[0], args[1], args[2]
        if x.shape[0] == 1:
            return (_one_row(body, x, ids, weights),)
        return (_many_rows(body, x, ids, weights),)

    return run


def _torch_body(context: LaunchContext) -> ExpertBody:
    weights = context.constants[3:9]
    limit = context.attrs["limit"]

    def body(expert: int, x: Tensor, scale: Tensor) -> Tensor:
        w1, s1, w3, s3, w2, s2 = (weight[expert] for weight in weights)
        return expert_definition(x, scale, w1, s1, w3, s3, w2, s2, limit)

    return body


def _one_row(body: ExpertBody, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """Decode: no gather and no scatter, only the chosen experts' bodies."""
    total = torch.zeros(x.shape, dtype=torch.float32)
    chosen = sorted((expert, choice) for choice, expert in enumerate(ids[0].tolist()) if expert >= 0)
    for expert, choice in chosen:
        total += body(expert, x, weights[0, choice : choice + 1])
    return total


def _many_rows(body: ExpertBody, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """Sorts the choices by expert once; each expert then takes one contiguous run of rows."""
    total = torch.zeros(x.shape, dtype=torch.float32)
    k = ids.shape[1]
    sorted_ids, order = ids.reshape(-1).sort(stable=True)
    rows, scale = order // k, weights.reshape(-1)[order]
    experts, counts = torch.unique_consecutive(sorted_ids, return_counts=True)
    start = 0
    for expert, count in zip(experts.tolist(), counts.tolist(), strict=True):
        end = start + count
        if expert >= 0:
            own = rows[start:end]
            # A row chooses an expert at most once, so no two additions meet in one place.
            total.index_add_(0, own, body(expert, x.index_select(0, own), scale[start:end]).to(torch.float32))
        start = end
    return total
