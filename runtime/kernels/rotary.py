"""`rotary`: cos and sin of position times frequency."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.runtime.kernels.binding import plain


def rotary(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin in fp32 (SPEC 2.6).

    Args:
        positions: int64 [T]. inv_freq: fp32 [h].
    Returns:
        cos, sin: fp32 [T, h].
    """
    angle = torch.outer(positions.to(torch.float32), inv_freq)
    return angle.cos(), angle.sin_()


bind = plain(rotary)
