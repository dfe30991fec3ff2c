"""Attention from projection to projection as one op: RoPE, attention over the caches, RoPE back (SPEC 4.1, 4.11, 4.12).

It is defined by the functions of the network, so its values are theirs bit for bit.
"""

from __future__ import annotations

from torch import Tensor
from torch.library import custom_op

from dsv41c.models import ops
from dsv41c.models.layers import rotate


def turned_heads(query: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    """What stands before the attention: queries by head, rotated.

    Args:
        query: bf16 [T, H * D]. cos, sin: fp32 [T, h], the rotation of the last 2 * h channels of a head. heads: H.
    Returns:
        bf16 [T, H, D].
    """
    return rotate(query.unflatten(-1, (heads, query.shape[-1] // heads)), cos, sin)


def turned_back(output: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What stands behind the attention: its output by head bf16 [T, H, D], rotated back, as bf16 [T, H * D]."""
    return rotate(output, cos, -sin).flatten(1)


def attend_definition(
    query: Tensor,
    cos: Tensor,
    sin: Tensor,
    window: Tensor,
    fresh: Tensor,
    window_index: Tensor,
    main: Tensor | None,
    main_slots: Tensor | None,
    sink: Tensor,
    scale: float,
    window_page: int,
    main_page: int,
    read: ops.RowReader = ops.load_definition,
) -> Tensor:
    """Attention of queries as they are projected; its result is what the output projection takes.

    Args:
        query: bf16 [T, H * D]. cos, sin: fp32 [T, h], of the rows' positions.
        window, fresh, window_index, main, main_slots, sink, scale, window_page, main_page, read: as
            `ops.sparse_attention_definition`.
    Returns:
        bf16 [T, H * D]; a row without any key is 0.
    """
    heads = turned_heads(query, cos, sin, sink.shape[0])
    caches = (window, fresh, window_index, main, main_slots)
    output = ops.sparse_attention_definition(heads, *caches, sink, scale, window_page, main_page, read)
    return turned_back(output, cos, sin)


@custom_op("dsv41::attend", mutates_args=())
def attend(
    query: Tensor,
    cos: Tensor,
    sin: Tensor,
    window: Tensor,
    fresh: Tensor,
    window_index: Tensor,
    main: Tensor | None,
    main_slots: Tensor | None,
    sink: Tensor,
    scale: float,
    window_page: int,
    main_page: int,
) -> Tensor:
    """`attend_definition` as one op."""
    caches = (window, fresh, window_index, main, main_slots)
    return attend_definition(query, cos, sin, *caches, sink, scale, window_page, main_page, ops.load_rows)


@attend.register_fake
def _(
    query: Tensor,
    cos: Tensor,
    sin: Tensor,
    window: Tensor,
    fresh: Tensor,
    window_index: Tensor,
    main: Tensor | None,
    main_slots: Tensor | None,
    sink: Tensor,
    scale: float,
    window_page: int,
    main_page: int,
) -> Tensor:
    return query.new_empty(query.shape)
