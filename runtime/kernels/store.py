"""`store`: writes packed rows into cache slots, in place."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dsv41c.runtime.kernels.binding import LaunchContext, Results, Run
from dsv41c.runtime.kernels.planes import planes


def bind(context: LaunchContext) -> Run:
    """The cache's planes are laid out once, as NumPy arrays: an indexed write there costs a fifth of a torch one.

    Arguments of the call: cache, rows [T, row_width], slots int64 [T] (-1 writes nothing); see `models.ops.store`.
    """
    cache: Tensor = context.constants[0]
    row_format, page = context.attrs["row_format"], context.attrs["page"]
    laid_out: dict[int, tuple[Any, Any]] = {}

    def run(args: list[Any]) -> Results:
        rows, slots = args[1].numpy(), args[2].numpy()
        width = rows.shape[-1]
        if width not in laid_out:
            data, scale = planes(cache, row_format, page, width)
            laid_out[width] = data.numpy(), None if scale is None else scale.numpy()
        data_plane, scale_plane = laid_out[width]
        if slots.size == 0:
            return ()
        if slots.min() < 0:
            kept = slots >= 0
            rows, slots = rows[kept], slots[kept]
        index = (slots // page, slots % page)
        if scale_plane is None:
            data_plane[index] = rows
            return ()
        split = data_plane.shape[-1]
        data_plane[index] = rows[:, :split]
        scale_plane[index] = rows[:, split:]
        return ()

    return run
