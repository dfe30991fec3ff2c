"""Cache rows as single ops: norm, RoPE, quantization and packing in one, with or without the store (SPEC 4.2-4.5).

    pack_rows     the packed rows, for a cache that attention still reads before they are stored: the windows
    write_rows    the same, stored: main KV and index keys

Each is defined by the functions of the network, so its bytes are theirs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

from dsv41c.models import ops, quant
from dsv41c.models.layers import rms_norm, rotate


def pack_rows_definition(
    x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor | None, norm_eps: float, row_format: str
) -> Tensor:
    """Packed cache rows of values before norm and RoPE.

    Args:
        x: bf16 [T, D]. cos, sin: fp32 [T, h], the rotation of the last 2 * h channels.
        weight: bf16 [D], the norm's; None for rows that are normalized already.
        norm_eps: added to the mean square. row_format: a key of `quant.FORMATS`.
    Returns:
        uint8 [T, row bytes].
    """
    normalized = x if weight is None else rms_norm(x, weight, norm_eps)
    return ops.quantize(rotate(normalized, cos, sin), row_format)


@custom_op("dsv41::pack_rows", mutates_args=())
def pack_rows(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor | None, norm_eps: float, row_format: str) -> Tensor:
    """`pack_rows_definition`."""
    return pack_rows_definition(x, cos, sin, weight, norm_eps, row_format)


@pack_rows.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor | None, norm_eps: float, row_format: str) -> Tensor:
    return x.new_empty((x.shape[0], quant.FORMATS[row_format].row_bytes(x.shape[-1])), dtype=torch.uint8)


@custom_op("dsv41::write_rows", mutates_args=("cache",))
def write_rows(
    cache: Tensor,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    weight: Tensor | None,
    slots: Tensor,
    norm_eps: float,
    row_format: str,
    page: int,
) -> None:
    """`pack_rows` and `store`; cache, slots and page as `ops.store`, written in place."""
    rows = pack_rows_definition(x, cos, sin, weight, norm_eps, row_format)
    ops.store(cache, rows, slots, row_format, page)


@write_rows.register_fake
def _(
    cache: Tensor,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    weight: Tensor | None,
    slots: Tensor,
    norm_eps: float,
    row_format: str,
    page: int,
) -> None:
    return None
