"""`linear`: products of many rows with bf16 weights, by torch's library, which uses the CPU's matrix instructions."""

from __future__ import annotations

from torch import Tensor

from dsv41c.models import ops
from dsv41c.runtime.kernels.binding import plain


def linear(x: Tensor, weight: Tensor, groups: int) -> Tensor:
    """See `models.ops.linear_definition`; the result is contiguous.

    Args:
        x: bf16 [T, groups * K]. weight: bf16 [N, K].
    Returns:
        bf16 [T, N].
    """
    return ops.linear_definition(x, weight, groups).contiguous()


bind = plain(linear)
