"""`sparse_attention` for many rows: each key is unpacked once, however many rows attend to it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dsv41c.models import ops, quant
from dsv41c.runtime.kernels.binding import LaunchContext, Results, Run

SCRATCH_BYTES = 1 << 20  # keys of a tile of rows, in fp32: they stay in a core's cache until they are multiplied
_NONE = -1


def bind(context: LaunchContext) -> Run:
    """Arguments of the call: query, window cache, fresh rows, window index, main cache and slots or None, sink.

    See `models.ops.sparse_attention_definition`, whose numbers these are.
    """
    attrs = context.attrs
    window, main = context.constants[1], context.constants[4]
    scale, window_page, main_page = attrs["scale"], attrs["window_page"], attrs["main_page"]

    def run(args: list[Any]) -> Results:
        query, _, fresh, window_index, _, main_slots, sink = args
        dim = query.shape[-1]
        # Row 0 of the table of keys is zero; it stands for keys that are not there.
        tables = [torch.zeros((1, dim)), quant.dequantize(fresh, "fp8_e8m0").to(torch.float32)]
        is_fresh = window_index <= -2
        index = torch.where(is_fresh, -1 - window_index, 0)  # fresh row i is row i + 1 of the table
        width = fresh.shape[-1]
        stored = torch.where(is_fresh, _NONE, window_index)
        indices = [index + _unpacked(window, stored, "fp8_e8m0", window_page, width, tables)]
        if main is not None and main_slots is not None:
            width = quant.FORMATS["fp4_e4m3"].row_bytes(dim)
            indices.append(_unpacked(main, main_slots, "fp4_e4m3", main_page, width, tables))
        places = torch.cat(indices, dim=1)
        return (_attend(query, torch.cat(tables), places, sink, scale),)

    return run


def _unpacked(cache: Tensor, slots: Tensor, row_format: str, page: int, width: int, tables: list[Tensor]) -> Tensor:
    """Appends the cache rows that slots name, each once, to the tables; gives their rows there, 0 for no key."""
    start = sum(table.shape[0] for table in tables)
    named, places = torch.unique(slots, return_inverse=True)
    rows = ops.load_rows(cache, named, row_format, page, width)
    tables.append(quant.dequantize(rows, row_format).to(torch.float32))
    return torch.where(slots < 0, 0, places + start)


def _attend(query: Tensor, table: Tensor, places: Tensor, sink: Tensor, scale: float) -> Tensor:
    """Attention of tiles of rows over their rows of the table.

    Args:
        query: bf16 [T, H, D]. table: fp32 [n, D]. places: int64 [T, K], 0 none. sink: fp32 [H].
    Returns:
        bf16 [T, H, D].
    """
    dim = table.shape[1]
    tile = max(1, SCRATCH_BYTES // (4 * places.shape[1] * dim))
    scratch = torch.empty((tile * places.shape[1], dim))
    tiles = []
    for own, query_rows in zip(places.split(tile), query.split(tile), strict=True):
        keys = scratch[: own.numel()]
        torch.index_select(table, 0, own.reshape(-1), out=keys)
        tiles.append(ops.attention_over(query_rows, keys.view(*own.shape, dim), own > 0, sink, scale))
    return torch.cat(tiles)
