"""`load`: reads packed rows from cache slots."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dsv41c.runtime.kernels.binding import LaunchContext, Results, Run
from dsv41c.runtime.kernels.planes import planes


def bind(context: LaunchContext) -> Run:
    """The cache's planes are laid out once.

    Arguments of the call: cache, slots int64 [...] (-1 reads row 0, for the caller to mask); see `models.ops.load`.
    """
    cache: Tensor = context.constants[0]
    page, width = context.attrs["page"], context.attrs["row_width"]
    data, scale = planes(cache, context.attrs["row_format"], page, width)

    def run_plain(args: list[Any]) -> Results:
        slots: Tensor = args[1].clamp(min=0)
        return (cache.view(-1, width).index_select(0, slots.reshape(-1)).view(*slots.shape, width),)

    def run_packed(args: list[Any]) -> Results:
        slots: Tensor = args[1].clamp(min=0)
        index = (slots // page, slots % page)
        return (torch.cat((data[index], scale[index]), dim=-1),)  # type: ignore[index]  # packed formats have scales

    return run_plain if scale is None else run_packed
