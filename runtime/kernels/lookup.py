"""`lookup`: rows of an FP8 embedding table with block scales."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.models import quant
from dsv41c.runtime.kernels.binding import plain


def lookup(table: Tensor, scale: Tensor, rows: Tensor) -> Tensor:
    """Table rows as bf16 (SPEC 7.6).

    Args:
        table: float8_e4m3fn [rows, hd]. scale: uint8 [rows, hd/32], ue8m0 bytes. rows: int64 [T, c].
    Returns:
        bf16 [T, c * hd].
    """
    flat = rows.reshape(-1)
    values = table.view(torch.uint8).index_select(0, flat).view(torch.float8_e4m3fn).to(torch.float32)
    scales = quant.decode_ue8m0(scale.index_select(0, flat)).unsqueeze(-1)
    grouped = values.view(flat.shape[0], scale.shape[1], -1)
    return (grouped * scales).view(rows.shape[0], -1).to(torch.bfloat16)


bind = plain(lookup)
