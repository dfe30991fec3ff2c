"""Recipes of what works on rows of their own: quantization, angles, the sites of mHC, Engram."""

from __future__ import annotations

from collections.abc import Mapping

from dsv41c.compiler.codegen.triton.device_builder import DeviceBuilder, LoweredOp, Recipe, product
from dsv41c.compiler.codegen.triton.kernels import activations, engram, mhc

__all__ = ["RECIPES"]

_MHC_BLOCK = 32  # channels that a split of mHC takes at least


def _fake_quantize(op: LoweredOp, build: DeviceBuilder) -> None:
    *rows, channels = op.dims(0)
    assert isinstance(channels, int)
    given = {"x_ptr": op.args[0], "n_rows": product(*rows)}
    if op.attrs["row_format"] == "fp8_e8m0":
        kernel = activations.norm_rows(f"quantize_fp8_{channels}", channels, norm=False)
        build.launch(kernel, **given, weight_ptr=None, normalized_ptr=None, quantized_ptr=op.results[0], eps=0.0)
        return
    assert op.attrs["row_format"] == "fp4_e8m0", op.attrs
    build.launch(activations.quantize_rows(f"quantize_fp4_{channels}", channels), **given, y_ptr=op.results[0])


def _rotary(op: LoweredOp, build: DeviceBuilder) -> None:
    pairs = op.size(1, 0)
    kernel = activations.angles(f"angles_{pairs}", pairs)
    named = dict(zip(("positions_ptr", "frequencies_ptr"), op.args, strict=True))
    build.launch(kernel, **named, cos_ptr=op.results[0], sin_ptr=op.results[1], n_rows=op.dims(0)[0])


def _mhc_site(op: LoweredOp, build: DeviceBuilder) -> None:
    y, h, post, comb, pre, *rest = op.args
    streams, *results = op.results
    _site(op, build, 1, {"y_ptr": y, "h_ptr": h, "post_ptr": post, "comb_ptr": comb, "pre_ptr": pre}, streams)
    _finish(op, build, 1, rest[1:], results)


def _mhc_enter(op: LoweredOp, build: DeviceBuilder) -> None:
    h, pre, *rest = op.args
    _site(op, build, 0, {"y_ptr": None, "h_ptr": h, "post_ptr": None, "comb_ptr": None, "pre_ptr": pre}, None)
    _finish(op, build, 0, rest[1:], list(op.results))


def _site(op: LoweredOp, build: DeviceBuilder, h: int, given: Mapping[str, str | None], streams: str | None) -> None:
    rows, dim, split = op.dims(h)[0], op.size(h, 2), _mhc_split(op, build, h)
    parts = build.scratch(op, "parts", "f32", split, rows, mhc.PART_WIDTH)
    x = build.scratch(op, "collapsed", "bf16", rows, dim)
    kernel = mhc.site(f"mhc_{'site' if streams else 'enter'}_{dim}_{split}", dim, streams is not None, split)
    fn = op.args[5 if streams else 2]
    build.launch(kernel, **given, fn_ptr=fn, streams_ptr=streams, x_ptr=x, parts_ptr=parts, n_rows=rows)


def _finish(op: LoweredOp, build: DeviceBuilder, h: int, weights: list[str | None], results: list[str]) -> None:
    rows, dim, split = op.dims(h)[0], op.size(h, 2), _mhc_split(op, build, h)
    iterations = op.attrs["iterations"]
    kernel = mhc.finish(f"mhc_finish_{dim}_{split}_{iterations}", dim, iterations, split)
    owner = op.results[0]
    given = dict(zip(("base_ptr", "scale_ptr", "weight_ptr"), weights, strict=True))
    given |= dict(zip(("normalized_ptr", "pre_ptr", "post_ptr", "comb_ptr"), results, strict=True))
    given |= {"parts_ptr": f"{owner}.parts", "x_ptr": f"{owner}.collapsed"}
    build.launch(kernel, **given, n_rows=rows, **{name: op.attrs[name] for name in ("eps", "mix_eps", "norm_eps")})


def _mhc_split(op: LoweredOp, build: DeviceBuilder, h: int) -> int:
    return min(mhc.SPLITS["few"], -(-op.size(h, 2) // _MHC_BLOCK)) if build.few else mhc.SPLITS["many"]


def _mhc_leave(op: LoweredOp, build: DeviceBuilder) -> None:
    names = ("y_ptr", "h_ptr", "post_ptr", "comb_ptr", "pre_ptr", "weight_ptr", "rows_ptr")
    dim, has_rows = op.size(0, 1), op.args[6] is not None
    kernel = mhc.leave(f"mhc_leave_{dim}{'_rows' * has_rows}", dim, has_rows)
    given = dict(zip(names, op.args, strict=True))
    rows = op.result_types[0].dims[0]
    build.launch(kernel, **given, out_ptr=op.results[0], n_rows=rows, norm_eps=op.attrs["norm_eps"])


def _ngram_hash(op: LoweredOp, build: DeviceBuilder) -> None:
    size = op.size(0, 1)
    heads = op.size(2, 0) // (size - 1)
    names = ("ids_ptr", "multipliers_ptr", "primes_ptr", "offsets_ptr")
    kernel = engram.ngram_hash(f"ngram_hash_{size}_{heads}", size, heads)
    build.launch(kernel, **dict(zip(names, op.args, strict=True)), rows_ptr=op.results[0], n_rows=op.dims(0)[0])


def _lookup(op: LoweredOp, build: DeviceBuilder) -> None:
    width = op.size(0, 1)
    kernel = engram.gather(f"engram_gather_{width}", width, quantize=False)
    named = dict(zip(("table_ptr", "scale_ptr", "rows_ptr"), op.args, strict=True))
    build.launch(kernel, **named, out_ptr=op.results[0], n_lookups=product(*op.dims(2)))


RECIPES: Mapping[str, Recipe] = {
    "fake_quantize": _fake_quantize,
    "lookup": _lookup,
    "mhc_enter": _mhc_enter,
    "mhc_leave": _mhc_leave,
    "mhc_site": _mhc_site,
    "ngram_hash": _ngram_hash,
    "rotary": _rotary,
}
