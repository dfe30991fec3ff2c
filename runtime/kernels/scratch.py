"""What reference kernels allocate while they run, apart from their results: bytes as a function of their sizes.

Every rule is an upper bound for any values of the operands: all entries visible, the worst routing, no row shared. The
compiler adds it to what lives between launches. A kernel without a rule allocates about as much as its results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsv41c.runtime.kernels import experts, index_topk, sparse_attention

# An operand's sizes; a cache's are those of its buffer, [pages, stride]. None for an absent operand.
Shapes = Sequence[tuple[int, ...] | None]
Rule = Callable[[Shapes, Mapping[str, Any]], int]

# Bytes a channel that decoding a packed row takes at its peak: codes as int32, both halves, values, products, bf16.
_DECODE = 16


def scratch_bytes(kernel: str, shapes: Shapes, attrs: Mapping[str, Any]) -> int:
    """Bytes that one launch of a reference kernel allocates and gives back.

    Args:
        kernel: its name.
        shapes: of its operands in order.
        attrs: its attributes.
    Returns:
        0 for a kernel without a rule.
    """
    rule = RULES.get(kernel)
    return rule(shapes, attrs) if rule is not None else 0


def _sizes(shapes: Shapes, at: int) -> tuple[int, ...]:
    found = shapes[at]
    assert found is not None, f"operand {at} is never absent"
    return found


def _index_topk(shapes: Shapes, attrs: Mapping[str, Any]) -> int:
    pages = _sizes(shapes, 3)[1]
    return _selecting(shapes, attrs, _scored(shapes, attrs, pages)) + _members(shapes, attrs, pages)


def _index_pool_topk(shapes: Shapes, attrs: Mapping[str, Any]) -> int:
    _, heads, channels = _sizes(shapes, 0)
    (_, pages), (rows, pool) = _sizes(shapes, 3), _sizes(shapes, 6)
    held = -(-pool * attrs["block"] // attrs["page"])  # pages up to which a pool holds all entries, so all are scored
    dense = _scored(shapes, attrs, min(pages, held)) + _members(shapes, attrs, min(pages, held))
    if pages <= held:
        return _selecting(shapes, attrs, dense)
    tile = min(rows, index_topk.pool_tile(pool * attrs["block"], heads, channels))
    blocks = tile * min(pool, index_topk.pool_span(heads, channels, attrs["block"]))
    pooled = blocks * attrs["block"] * (index_topk.row_bytes(heads) + index_topk.key_bytes(channels))
    return _selecting(shapes, attrs, max(dense, pooled))


def _scored(shapes: Shapes, attrs: Mapping[str, Any], pages: int) -> int:
    """A span of the entries of that many pages; tiles of fewer rows have longer spans, up to the same bytes."""
    rows, heads, channels = _sizes(shapes, 0)
    tile = min(rows, index_topk.TILE_ROWS)
    entry = tile * index_topk.row_bytes(heads) + index_topk.key_bytes(channels)
    step = math.lcm(attrs["page"], attrs["block"])
    return min(max(index_topk.SCRATCH_BYTES, step * entry), pages * attrs["page"] * entry)


def _members(shapes: Shapes, attrs: Mapping[str, Any], pages: int) -> int:
    """Which blocks are in the pool of a tile's rows."""
    if shapes[6] is None:
        return 0
    rows, pool = shapes[6]
    return min(rows, index_topk.TILE_ROWS) * (pages * attrs["page"] // attrs["block"] + 2 + 24 * pool)


def _selecting(shapes: Shapes, attrs: Mapping[str, Any], scored: int) -> int:
    """What a tile keeps beside what it scores: its rows, the best of the spans before; and where all rows lie."""
    rows, heads, channels = _sizes(shapes, 0)
    tile, pool = min(rows, index_topk.TILE_ROWS), 0 if shapes[6] is None else shapes[6][1]
    entries = _sizes(shapes, 3)[1] * attrs["page"]
    listed = ((attrs["k"], entries), (attrs.get("n_blocks", 0), -(-entries // attrs["block"])))
    # Parts, their join, the values and places of a cut.
    best = sum(8 * (2 * min((index_topk.MERGED + 1) * k, n) + 2 * k) for k, n in listed)
    return scored + tile * (best + 6 * heads * (channels + 1) + 4 * pool + 64) + 64 * rows


def _attend(shapes: Shapes, attrs: Mapping[str, Any]) -> int:
    (rows, width), rotated = _sizes(shapes, 0), 2 * _sizes(shapes, 1)[1]
    heads = _sizes(shapes, 8)[0]
    channels = width // heads
    tile = min(rows, sparse_attention.tile_rows(_keys(shapes[3:]), channels))
    # Queries, outputs, and one of them rotated, joined and about to be copied; rotated channels in fp32, five times.
    own = tile * heads * (8 * channels + 20 * rotated)
    return own + _attention(rows, heads, channels, shapes[3:], attrs)


def _sparse_attention(shapes: Shapes, attrs: Mapping[str, Any]) -> int:
    rows, heads, channels = _sizes(shapes, 0)
    return _attention(rows, heads, channels, shapes[1:], attrs)


def _attention(rows: int, heads: int, channels: int, caches: Shapes, attrs: Mapping[str, Any]) -> int:
    """Of one tile of rows; `caches` are the operands from the window cache on."""
    keys = _keys(caches)
    tile = min(rows, sparse_attention.tile_rows(keys, channels))
    batch = min(tile, sparse_attention.batch_rows(keys, channels))
    (fresh, window_bytes), window_keys = _sizes(caches, 1), _sizes(caches, 2)[1]
    # Rows of the tables: each key of the tile another one, as far as there are others.
    named = [min(tile * window_keys, fresh + _sizes(caches, 0)[0] * attrs["window_page"] + 1)]
    if caches[3] is not None:
        named.append(min(tile * _sizes(caches, 4)[1], _sizes(caches, 3)[0] * attrs["main_page"] + 1))
    tables = 4 * channels * sum(named)
    # A table while it is unpacked: its slots counted through or sorted, its rows packed and decoded.
    slots = tile * (keys * (sparse_attention.DENSE * 5 + 32))
    decoded = max(named) * (2 * window_bytes + 40 + (_DECODE * channels if "unpack_0" not in attrs else 0))
    # A batch: its keys, its logits three times and their rounded copies, its output three times.
    multiplied = batch * (keys * (4 * channels + 14 * heads) + heads * channels * 14)
    return tables + slots + max(decoded, tables + multiplied)


def _keys(caches: Shapes) -> int:
    """Keys of a row."""
    return _sizes(caches, 2)[1] + (_sizes(caches, 4)[1] if caches[4] is not None else 0)


def _experts(shapes: Shapes, attrs: Mapping[str, Any]) -> int:
    (rows, width), chosen = _sizes(shapes, 0), _sizes(shapes, 1)[1]
    inner = _sizes(shapes, 3)[1]
    own = _one_expert(rows, width, inner, "unpack" in attrs or "body" in attrs)
    return own + _order(rows, chosen) if rows > 1 else own + (chosen - 1) * _expert_row(width, inner)


def _moe(shapes: Shapes, attrs: Mapping[str, Any]) -> int:
    """The routed experts' fp32 sum, and the larger of a routed and the shared expert."""
    (rows, width), chosen = _sizes(shapes, 0), _sizes(shapes, 1)[1]
    routed = _one_expert(rows, width, _sizes(shapes, 3)[1], "unpack" in attrs) + _order(rows, chosen)
    shared = _one_expert(rows, width, _sizes(shapes, 9)[0], "unpack_shared" in attrs)
    return 4 * rows * width + max(routed, shared)


def _one_expert(rows: int, width: int, inner: int, has_parts: bool) -> int:
    """Its three weights in bf16, and a tile of the rows that chose it: all rows may."""
    decoding = 0 if has_parts else _DECODE * inner * width
    return 3 * 2 * inner * width + decoding + min(rows, experts.TILE_ROWS) * _expert_row(width, inner)


def _expert_row(width: int, inner: int) -> int:
    """An expert's input, gate, up, what they become in fp32, and its output in bf16 and fp32."""
    return 8 * width + 24 * inner


def _order(rows: int, chosen: int) -> int:
    """The choices sorted by expert."""
    return rows * chosen * 56


def _linears(shapes: Shapes, attrs: Mapping[str, Any]) -> int:
    """The quantized input, one dequantized weight at a time, and what a product in groups reorders."""
    (rows, width), weights = _sizes(shapes, 0), [_sizes(shapes, at) for at in range(1, len(shapes), 2)]
    # Without compiled parts a value passes through fp32 on its way: as it is, scaled, and in bf16.
    decoded, quantized = 2 if "unpack_0" in attrs else 10, 2 if "prologue" in attrs else 12
    largest = max(outputs * inputs for outputs, inputs in weights)
    # Inputs, weights and results of a batch of products, each copied to the order that the library wants.
    grouped = 2 * rows * (width + max(outputs for outputs, _ in weights)) + 2 * largest if attrs["groups"] > 1 else 0
    multiplying = decoded * largest + grouped
    return max(quantized * rows * width, 2 * rows * width + multiplying) if attrs["quantize"] else multiplying


RULES: Mapping[str, Rule] = {
    "index_topk": _index_topk,
    "index_pool_topk": _index_pool_topk,
    "attend": _attend,
    "sparse_attention": _sparse_attention,
    "experts": _experts,
    "linears": _linears,
    "moe": _moe,
}
