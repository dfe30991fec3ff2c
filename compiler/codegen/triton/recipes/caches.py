"""Recipes of what writes and reads cache rows."""

from __future__ import annotations

from collections.abc import Mapping

from dsv41c.compiler.codegen.triton.device_builder import DeviceBuilder, LoweredOp, Recipe, product
from dsv41c.compiler.codegen.triton.kernels import cache_rows
from dsv41c.errors import CompileError

__all__ = ["RECIPES"]

_PLAIN = {"f32": "fp32", "si32": "i32"}  # elements of unpacked rows, as Triton spells them


def _store(op: LoweredOp, build: DeviceBuilder) -> None:
    cache, rows = op.cache(0), op.dims(1)
    given = {"cache_ptr": op.args[0], "rows_ptr": op.args[1], "slots_ptr": op.args[2], "n_rows": rows[0]}
    if not cache.packed:
        width, kind = cache.row_width, _PLAIN[cache.row_element]
        build.launch(cache_rows.store_plain(f"store_{kind}_{width}", kind, width), **given)
        return
    scale = cache.data.columns // cache.data.group
    data = cache.row_bytes - scale
    name = f"store_{cache.format}_{cache.data.columns}_{cache.data.page}"
    build.launch(cache_rows.store_packed(name, data, scale, cache.data.page, cache.page_stride_bytes), **given)


def _load(op: LoweredOp, build: DeviceBuilder) -> None:
    cache = op.cache(0)
    if cache.packed:
        raise CompileError(f"no kernels for 'dsv41.load' of {cache.layout_text()}; rows that are not packed have them")
    width, kind = cache.row_width, _PLAIN[cache.row_element]
    kernel = cache_rows.load_plain(f"load_{kind}_{width}", kind, width)
    rows = product(*op.dims(1))
    build.launch(kernel, cache_ptr=op.args[0], slots_ptr=op.args[1], rows_ptr=op.results[0], n_rows=rows)


def _write_rows(op: LoweredOp, build: DeviceBuilder) -> None:
    cache, x, cos, sin, weight, slots = op.args
    layout = op.cache(0)
    channels, rotated = op.size(1, 1), 2 * op.size(2, 1)
    name = f"write_{layout.format}_{channels}_{layout.data.page}{'_norm' * (weight is not None)}"
    sizes = (layout.format, channels, rotated, weight is not None, layout.data.page, layout.page_stride_bytes)
    given = {"x_ptr": x, "cos_ptr": cos, "sin_ptr": sin, "weight_ptr": weight, "slots_ptr": slots, "cache_ptr": cache}
    build.launch(cache_rows.writer(name, *sizes), **given, n_rows=op.dims(1)[0], eps=op.attrs["norm_eps"])


def _pack_rows(op: LoweredOp, build: DeviceBuilder) -> None:
    x, cos, sin, weight = op.args
    channels, rotated, row_format = op.size(0, 1), 2 * op.size(1, 1), op.attrs["row_format"]
    row_bytes = op.result_types[0].dims[1]
    assert isinstance(row_bytes, int)
    name = f"pack_{row_format}_{channels}{'_norm' * (weight is not None)}"
    kernel = cache_rows.writer(name, row_format, channels, rotated, weight is not None, 1, row_bytes, slots=False)
    given = {"x_ptr": x, "cos_ptr": cos, "sin_ptr": sin, "weight_ptr": weight, "slots_ptr": None}
    build.launch(kernel, **given, cache_ptr=op.results[0], n_rows=op.dims(0)[0], eps=op.attrs["norm_eps"])


RECIPES: Mapping[str, Recipe] = {
    "load": _load,
    "pack_rows": _pack_rows,
    "store": _store,
    "write_rows": _write_rows,
}
