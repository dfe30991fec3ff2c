"""Recipes of attention over window rows and selected main rows."""

from __future__ import annotations

from collections.abc import Mapping

from dsv41c.compiler.codegen.triton.device_builder import DeviceBuilder, LoweredOp, Recipe, product
from dsv41c.compiler.codegen.triton.kernels import activations, sparse_attention
from dsv41c.ir.dims import Dim
from dsv41c.ir.types import CacheType

__all__ = ["RECIPES"]

_KEY_TILE = 64  # keys of a tile; a split takes one at least


def _attend(op: LoweredOp, build: DeviceBuilder) -> None:
    """Query rotated, attention, output rotated back; the result's memory holds the rotated query meanwhile."""
    query, cos, sin, *cached, sink = op.args
    (rows, width), heads, pairs = op.dims(0), op.size(8, 0), op.size(1, 1)
    assert isinstance(width, int)
    channels = width // heads
    angles = {"cos_ptr": cos, "sin_ptr": sin, "n_rows": product(rows, heads), "n_heads": heads}
    output = build.scratch(op, "output", "bf16", rows, width)
    turn = activations.rotate_rows(f"rotate_{channels}_{2 * pairs}", channels, 2 * pairs)
    build.launch(turn, x_ptr=query, y_ptr=op.results[0], **angles)
    attention_of(build, op, (op.results[0], *cached, sink), output, (rows, heads, channels), 3)
    back = activations.rotate_rows(f"rotate_back_{channels}_{2 * pairs}", channels, 2 * pairs, inverse=True)
    build.launch(back, x_ptr=output, y_ptr=op.results[0], **angles)


def _sparse_attention(op: LoweredOp, build: DeviceBuilder) -> None:
    rows, heads, channels = op.dims(0)
    assert isinstance(heads, int)
    assert isinstance(channels, int)
    attention_of(build, op, op.args, op.results[0], (rows, heads, channels), 1)


def attention_of(
    build: DeviceBuilder,
    op: LoweredOp,
    args: tuple[str | None, ...],
    result: str,
    sizes: tuple[Dim, int, int],
    window: int,
) -> None:
    """Attention from rotated queries; with few rows and a main cache, the keys of a row are shared out.

    Args:
        args: query, window, fresh, window index, main, main slots, sink.
        sizes: rows, heads, channels of a head. window: where the window cache stands among the op's arguments.
    """
    rows, heads, channels = sizes
    names = ("query_ptr", "window_ptr", "fresh_ptr", "window_index_ptr", "main_ptr", "main_slots_ptr", "sink_ptr")
    given = dict(zip(names, args, strict=True))
    ring, main = op.cache(window), op.types[window + 3]
    keys = (op.size(window + 2, 1), ring.data.page, ring.page_stride_bytes)
    selected = (0, 1, 0)
    if isinstance(main, CacheType):
        selected = (op.size(window + 4, 1), main.data.page, main.page_stride_bytes)
    name = f"attend_{heads}_{channels}_{keys[0]}_{keys[1]}_{selected[0]}_{selected[1]}"
    if not build.few or not selected[0]:
        kernel = sparse_attention.attend(name, heads, channels, keys, selected)
        nothing = {"maximum_ptr": None, "total_ptr": None}
        build.launch(kernel, **given, out_ptr=result, **nothing, n_rows=rows, n_splits=1)
        return
    splits = -(-(keys[0] + selected[0]) // _KEY_TILE)
    part = build.scratch(op, "splits", "f32", rows, splits, heads, channels)
    sums = {f"{name}_ptr": build.scratch(op, name, "f32", rows, splits, heads) for name in ("maximum", "total")}
    kernel = sparse_attention.attend(f"{name}_split", heads, channels, keys, selected, split=True)
    build.launch(kernel, **given, out_ptr=part, **sums, n_rows=rows, n_splits=splits)
    combine = sparse_attention.combine(f"attend_combine_{heads}_{channels}", heads, channels)
    last = {"sink_ptr": given["sink_ptr"], "out_ptr": result, "n_rows": rows, "n_splits": splits}
    build.launch(combine, part_ptr=part, **sums, **last)


RECIPES: Mapping[str, Recipe] = {
    "attend": _attend,
    "sparse_attention": _sparse_attention,
}
