"""Views into a cache's planar pages: all data rows of a page, then all its scale rows (SPEC 11.3)."""

from __future__ import annotations

from torch import Tensor

from dsv41c.models import quant

PLAIN_FORMATS = ("f32", "i32")


def planes(cache: Tensor, row_format: str, page: int, row_width: int) -> tuple[Tensor, Tensor | None]:
    """A cache's data and scale rows as views.

    Args:
        cache: uint8 [pages, stride], or fp32/int32 [pages, page * row_width] for the plain formats.
        row_format: a key of `quant.FORMATS`, "f32" or "i32".
        page: rows a page.
        row_width: bytes, or plain columns, of a row.
    Returns:
        data [pages, page, data bytes] and scale [pages, page, scale bytes]; no scale for the plain formats.
    """
    pages, stride = cache.shape
    if row_format in PLAIN_FORMATS:
        return cache.as_strided((pages, page, row_width), (stride, row_width, 1)), None
    form = quant.FORMATS[row_format]
    channels = form.channels(row_width)
    data, scale = form.data_bytes(channels), form.scale_bytes(channels)
    return (
        cache.as_strided((pages, page, data), (stride, data, 1)),
        cache.as_strided((pages, page, scale), (stride, scale, 1), page * data),
    )
