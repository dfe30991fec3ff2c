"""Recipes: the launches of family kernels that compute one op of the lowered program.

A recipe takes an op and a `DeviceBuilder`. Kernels are filled from the op's types, so any config of the architecture
has them; their names hold what they are filled with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dsv41c.compiler.codegen.triton.device_builder import Argument, DeviceBuilder, LoweredOp, product
from dsv41c.compiler.codegen.triton.families import Kernel
from dsv41c.compiler.codegen.triton.kernels import (
    activations,
    cache_rows,
    engram,
    experts,
    gemm,
    indexer,
    mhc,
    sparse_attention,
)
from dsv41c.errors import CompileError
from dsv41c.ir.dims import Dim, evaluate, normalise
from dsv41c.ir.types import CacheType

__all__ = ["RECIPES", "Recipe", "recipe_for"]

Recipe = Callable[[LoweredOp, DeviceBuilder], None]

_PLAIN = {"f32": "fp32", "si32": "i32"}  # elements of unpacked cache rows, as Triton spells them
_PART_INPUTS = 512  # inputs of a product that one of its parts takes at least
_MOST_PARTS = 8
_MHC_BLOCK = 32  # channels that a split of mHC takes at least
_KEY_TILE = 64
_SMALLEST_SPAN = 16
_ALIGNED = 16  # what the sizes that a kernel may count on are divisible by


def recipe_for(op: LoweredOp, target: str) -> Recipe:
    """The recipe of an op.

    Raises:
        CompileError: there is none.
    """
    recipe = RECIPES.get(op.kernel)
    if recipe is None:
        raise CompileError(
            f"no kernels for 'dsv41.{op.kernel}' on {target}; there are recipes for {', '.join(sorted(RECIPES))}: "
            "leave out the pass that makes the op, or compile for 'cpu'"
        )
    return recipe


# --- rows ---------------------------------------------------------------------------------------------------------


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


# --- caches -------------------------------------------------------------------------------------------------------


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


# --- products -----------------------------------------------------------------------------------------------------


def _linears(op: LoweredOp, build: DeviceBuilder) -> None:
    x, groups = op.args[0], op.attrs["groups"]
    if op.attrs["quantize"]:
        width = op.size(0, 1)
        rounded = build.scratch(op, "quantized", "bf16", *op.dims(0))
        kernel = activations.norm_rows(f"quantize_fp8_{width}", width, norm=False)
        given = {"x_ptr": x, "weight_ptr": None, "normalized_ptr": None, "quantized_ptr": rounded}
        build.launch(kernel, **given, n_rows=op.dims(0)[0], eps=0.0)
        x = rounded
    for number, result in enumerate(op.results):
        at = 1 + 2 * number
        weight = _Weight("fp8", op.args[at], op.args[at + 1], op.size(at, 0), op.size(at, 1), groups)
        product_of(build, op, f"parts_{number}", x, op.dims(0)[0], weight, result)


def _linear_bf16(op: LoweredOp, build: DeviceBuilder) -> None:
    weight = _Weight("bf16", op.args[1], None, op.size(1, 0), op.size(1, 1))
    result = "fp32" if op.attrs["wide"] else "bf16"
    product_of(build, op, "parts", op.args[0], op.dims(0)[0], weight, op.results[0], result)


@dataclass(frozen=True)
class _Weight:
    """A weight as `gemm` takes it: outputs, and inputs of a group."""

    form: str
    weight: str | None
    scale: str | None
    outputs: int
    inputs: int
    groups: int = 1

    @property
    def group_outputs(self) -> int:
        return self.outputs // self.groups if self.groups > 1 else 0


def product_of(
    build: DeviceBuilder,
    op: LoweredOp,
    role: str,
    x: str | None,
    rows: Dim,
    weight: _Weight,
    result: str,
    element: str = "bf16",
) -> None:
    """One product; with few rows in parts of its inputs, which are then added.

    Args:
        role: of the scratch. x: rows of groups * inputs. result: its memory. element: of it, "bf16" or "fp32".
    """
    form, groups = weight.form, weight.groups
    name = f"gemm_{form}{f'_groups_{weight.group_outputs}' if groups > 1 else ''}"
    wide = "_fp32" if element == "fp32" else ""
    given: dict[str, Argument] = {"x_ptr": x, "w_ptr": weight.weight, "scale_ptr": weight.scale}
    given |= {"n_rows": rows, "n_inputs": weight.inputs, "n_outputs": weight.outputs}
    if not build.few:
        kernel = gemm.gemm(f"{name}{wide}_tiled", form, groups, weight.group_outputs, result=element)
        build.launch(_any_outputs(kernel, weight), **given, y_ptr=result, n_parts=1)
        return
    n_parts = max(1, min(_MOST_PARTS, weight.inputs // _PART_INPUTS))
    parts = build.scratch(op, role, "f32", n_parts, rows, weight.outputs)
    kernel = gemm.gemm(f"{name}_skinny", form, groups, weight.group_outputs, skinny=True)
    build.launch(_any_outputs(kernel, weight), **given, y_ptr=parts, n_parts=n_parts)
    adding = _any_outputs(gemm.sum_parts(f"sum_parts{wide}", element), weight)
    build.launch(adding, parts_ptr=parts, y_ptr=result, n_values=product(rows, weight.outputs), n_parts=n_parts)


def _any_outputs(kernel: Kernel, weight: _Weight) -> Kernel:
    """A kernel that is not promised numbers of outputs which 16 divides, where a weight has others."""
    if weight.outputs % _ALIGNED == 0:
        return kernel
    multiples = tuple(name for name in kernel.multiples if name == "n_inputs")
    return replace(kernel, name=f"{kernel.name}_any", multiples=multiples)


# --- mHC ----------------------------------------------------------------------------------------------------------


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


# --- experts ------------------------------------------------------------------------------------------------------


def _select_experts(op: LoweredOp, build: DeviceBuilder) -> None:
    rows, count, choices = op.dims(0)[0], op.size(0, 1), op.attrs["k"]
    kernel = experts.select_experts(f"select_experts_{count}_{choices}", count, choices)
    build.launch(kernel, scores_ptr=op.args[0], ids_ptr=op.results[0], n_rows=rows, n_experts=count)


def _moe(op: LoweredOp, build: DeviceBuilder) -> None:
    x, ids, weights, w1, s1, w3, s3, w2, s2, *shared = op.args
    rows, dim = op.dims(0)[0], op.size(0, 1)
    choices, count, inner = op.size(1, 1), op.size(3, 0), op.size(3, 1)
    pairs = product(rows, choices)

    # --- routed experts
    lists = {f"{name}_ptr": build.scratch(op, name, "si32", count) for name in ("starts", "counts")}
    lists["order_ptr"] = build.scratch(op, "order", "si32", pairs)
    hidden = build.scratch(op, "hidden", "bf16", pairs, inner)
    routed = build.scratch(op, "routed", "bf16", pairs, dim)
    build.launch(experts.route(), ids_ptr=ids, **lists, n_pairs=pairs, n_experts=count)
    size = "few" if build.few else "many"
    up = experts.up(f"experts_up_{dim}_{inner}_{size}", dim, inner, build.few)
    given = {"w1_ptr": w1, "s1_ptr": s1, "w3_ptr": w3, "s3_ptr": s3, "hidden_ptr": hidden}
    sizes = {"n_choices": choices, "limit": op.attrs["limit"], "n_experts": count}
    build.launch(up, x_ptr=x, weights_ptr=weights, **lists, **given, **sizes)
    down = experts.down(f"experts_down_{dim}_{inner}_{size}", dim, inner, build.few)
    build.launch(down, hidden_ptr=hidden, **lists, w2_ptr=w2, s2_ptr=s2, y_ptr=routed, n_experts=count)

    # --- the shared expert, and the sum
    own = _shared_expert(op, build, x, shared)
    combine = experts.combine(f"combine_{dim}_{choices}_shared", dim, choices, shared=True)
    build.launch(combine, y_ptr=routed, ids_ptr=ids, shared_ptr=own, total_ptr=op.results[0], n_rows=rows)


def _shared_expert(op: LoweredOp, build: DeviceBuilder, x: str | None, packed: list[str | None]) -> str:
    rows, dim, inner = op.dims(0)[0], op.size(0, 1), op.size(9, 0)
    w1, s1, w3, s3, w2, s2 = packed
    gate, up, hidden = (build.scratch(op, f"shared_{name}", "bf16", rows, inner) for name in ("gate", "up", "hidden"))
    product_of(build, op, "shared_gate_parts", x, rows, _Weight("fp8", w1, s1, inner, dim), gate)
    product_of(build, op, "shared_up_parts", x, rows, _Weight("fp8", w3, s3, inner, dim), up)
    swiglu = activations.swiglu_rows(f"swiglu_{inner}", inner)
    build.launch(swiglu, gate_ptr=gate, up_ptr=up, y_ptr=hidden, limit=op.attrs["limit"], n_rows=rows)
    own = build.scratch(op, "shared", "bf16", rows, dim)
    product_of(build, op, "shared_parts", hidden, rows, _Weight("fp8", w2, s2, dim, inner), own)
    return own


# --- Engram -------------------------------------------------------------------------------------------------------


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


# --- attention ----------------------------------------------------------------------------------------------------


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


# --- the indexer --------------------------------------------------------------------------------------------------


def _index_topk(op: LoweredOp, build: DeviceBuilder) -> None:
    if op.args[6] is not None:
        raise CompileError("no kernels for 'dsv41.index_topk' with candidates; run the pass restrict-candidates")
    rows, pages, attrs = op.dims(0)[0], op.dims(3)[1], op.attrs
    block, n_blocks, ratio, k = attrs["block"], attrs["n_blocks"], attrs["ratio"], attrs["k"]
    entries = product(pages, attrs["page"])
    blocks = normalise(f"({entries} + {block - 1}) floordiv {block}")
    scores = build.scratch(op, "scores", "bf16", rows, entries)
    best = build.scratch(op, "block_scores", "bf16", rows, blocks) if n_blocks else None
    name = f"index_scores{'_blocks' * bool(n_blocks)}{'' if build.few else '_many'}"
    together = 1 if build.few else indexer.ROWS_TOGETHER
    kernel = _scores(op, name, rows=together, publish=bool(n_blocks))
    given = {"candidates_ptr": None, "scores_ptr": scores, "blocks_ptr": best}
    build.launch(kernel, **_query(op), **given, n_rows=rows, n_entries=entries, n_blocks=blocks, n_pages=pages)
    select_from(build, op, "entries", scores, (rows, entries, k), op.results[0], (ratio, 1))
    if best is not None:
        select_from(build, op, "blocks", best, (rows, blocks, n_blocks), op.results[1], (ratio, block))


def _index_pool_topk(op: LoweredOp, build: DeviceBuilder) -> None:
    rows, (_, n_blocks), attrs = op.dims(0)[0], op.dims(6), op.attrs
    entries = product(n_blocks, attrs["block"])
    assert isinstance(entries, int)
    scores = build.scratch(op, "scores", "bf16", rows, entries)
    kernel = _scores(op, "index_pool_scores", pool=True)
    given = {"candidates_ptr": op.args[6], "scores_ptr": scores, "blocks_ptr": None}
    sizes = {"n_entries": entries, "n_blocks": n_blocks, "n_pages": op.dims(3)[1]}
    build.launch(kernel, **_query(op), **given, n_rows=rows, **sizes)
    first = (attrs["block"], op.args[6])
    select_from(build, op, "entries", scores, (rows, entries, attrs["k"]), op.results[0], (0, 0), first)


def _query(op: LoweredOp) -> dict[str, str | None]:
    names = ("query_ptr", "weights_ptr", "index_ptr", "pages_ptr", "sequence_ptr", "positions_ptr")
    return dict(zip(names, op.args, strict=False))


def _scores(op: LoweredOp, name: str, rows: int = 1, pool: bool = False, publish: bool = False) -> Kernel:
    (_, heads, channels), index, attrs = op.dims(0), op.cache(2), op.attrs
    assert isinstance(heads, int)
    assert isinstance(channels, int)
    pages = (attrs["page"], index.page_stride_bytes)
    full = f"{name}_{heads}_{channels}_{attrs['ratio']}_{attrs['page']}_{attrs['block']}"
    return indexer.scores(full, heads, channels, attrs["ratio"], pages, attrs["block"], rows, pool, publish)


def select_from(
    build: DeviceBuilder,
    op: LoweredOp,
    role: str,
    scores: str,
    sizes: tuple[Dim, Dim, int],
    result: str,
    visible: tuple[int, int],
    first: tuple[int, str | None] = (0, None),
) -> None:
    """The k best of each row's scores, ascending, in as many levels as the most scores need.

    Args:
        role: of the scratch. sizes: rows, scores of a row, k.
        visible: tokens an entry and entries a score. first: group and entries of the scores, see `select_kernel`.
    """
    rows, count, k = sizes
    most = evaluate(count, {name: high for name, (_, high) in build.symbols.items()})
    span = max(_SMALLEST_SPAN, _power_from(k), min(indexer.SPAN, _power_from(most)))
    group, entries = first
    levels = len(indexer.levels(most, k, span))
    for level in range(levels):
        is_last = level == levels - 1
        spans = 1 if is_last else normalise(f"({count} + {span - 1}) floordiv {span}")
        chosen = result if is_last else build.scratch(op, f"{role}_list_{level}", "si32", rows, spans, k)
        best = build.scratch(op, f"{role}_best_{level}", "bf16", rows, spans, k)
        given = {"scores_ptr": scores, "entries_ptr": entries, "best_ptr": best, "list_ptr": chosen}
        given |= {"positions_ptr": op.args[5] if group == 0 else None}
        numbers = {"n_scores": count, "n_spans": spans, "k": k, "ratio": visible[0], "per": visible[1]}
        build.launch(indexer.select(f"select_{group}_{span}", group, span), **given, n_rows=rows, **numbers)
        scores, entries, group, count = best, chosen, 1, product(spans, k)


def _power_from(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


RECIPES: Mapping[str, Recipe] = {
    "attend": _attend,
    "fake_quantize": _fake_quantize,
    "index_pool_topk": _index_pool_topk,
    "index_topk": _index_topk,
    "linear_bf16": _linear_bf16,
    "linears": _linears,
    "load": _load,
    "lookup": _lookup,
    "mhc_enter": _mhc_enter,
    "mhc_leave": _mhc_leave,
    "mhc_site": _mhc_site,
    "moe": _moe,
    "ngram_hash": _ngram_hash,
    "pack_rows": _pack_rows,
    "rotary": _rotary,
    "select_experts": _select_experts,
    "sparse_attention": _sparse_attention,
    "store": _store,
    "write_rows": _write_rows,
}
