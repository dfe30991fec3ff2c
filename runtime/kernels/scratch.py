"""What reference kernels allocate while they run, apart from their results: bytes as a function of their sizes.

Every rule is an upper bound for any values of the operands: all entries visible, the worst routing, no row shared. The
compiler adds it to what lives between launches. A kernel without a rule allocates about as much as its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsv41c.runtime.kernels import index_topk, sparse_attention

# An operand's sizes; a cache's are those of its buffer, [pages, stride]. None for an absent operand.
Shapes = Sequence[tuple[int, ...] | None]
Rule = Callable[[Shapes, Mapping[str, Any]], int]

# Bytes a channel that decoding a packed row takes at its peak: codes as int32, both halves, values, products, bf16.
_DECODE = 16
# Bytes an entry of a row that the choice of the best takes at its peak: see `index_topk.best`.
_BEST = 48


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
    rows, heads, channels = _sizes(shapes, 0)
    longest = _sizes(shapes, 3)[1] * attrs["page"]
    dense = _dense(rows, heads, channels, longest, attrs["page"])
    return dense + _lists(rows, attrs["k"] + attrs.get("n_blocks", 0)) + _gathered(rows, heads, channels)


def _index_pool_topk(shapes: Shapes, attrs: Mapping[str, Any]) -> int:
    rows, heads, channels = _sizes(shapes, 0)
    longest, pool = _sizes(shapes, 3)[1] * attrs["page"], _sizes(shapes, 6)[1]
    entries = pool * attrs["block"]
    if longest <= entries:
        return _index_topk(shapes, attrs)
    tile = min(rows, index_topk.pool_tile(entries, heads, channels))
    known = min(tile * pool, -(-longest // attrs["block"]) + 1) * attrs["block"]
    decoded = known * (_DECODE * channels + 64)
    scored = tile * entries * (4 * channels + max(10 * heads + 12, _BEST) + 16)
    # The pool is as long a list as the result, and is copied where its rows are not neighbours.
    return decoded + scored + _lists(rows, attrs["k"] + pool) + _gathered(rows, heads, channels)


def _dense(rows: int, heads: int, channels: int, longest: int, page: int) -> int:
    """Scores of every entry for a tile of rows, a span of entries at a time; then the choice among them."""
    tile = min(rows, index_topk.dense_tile(longest))
    span = min(index_topk.dense_span(tile, heads, channels, page), -(-longest // page) * page)
    keys = span * _DECODE * channels
    # fp32 dots, their bf16 copy and its fp32 one, the sums.
    products = span * tile * (10 * heads + 12)
    scoring = 4 * tile * longest + 4 * tile * heads * channels + keys + products
    return max(scoring, tile * longest * _BEST + 16 * longest)


def _lists(rows: int, width: int) -> int:
    """The tiles' int64 lists, joined while the parts still live, and once more where rows are scattered."""
    return 3 * 8 * rows * width


def _gathered(rows: int, heads: int, channels: int) -> int:
    """One sequence's rows of query and weights, and which they are."""
    return rows * (2 * heads * (channels + 1) + 64)


def _sparse_attention(shapes: Shapes, attrs: Mapping[str, Any]) -> int:
    (rows, heads, channels), window = _sizes(shapes, 0), _sizes(shapes, 1)
    row_bytes, keys = _sizes(shapes, 2)[1], _sizes(shapes, 3)[1]
    tables = [rows + 1, min(rows * keys, window[0] * attrs["window_page"]) + 1]
    places = [rows * keys]
    if shapes[4] is not None:
        selected = _sizes(shapes, 5)[1]
        tables.append(min(rows * selected, _sizes(shapes, 4)[0] * attrs["main_page"]) + 1)
        places.append(rows * selected)
    # While a table is unpacked: its slots sorted and joined, its rows packed, decoded, in bf16 and in fp32.
    unpacking = max(48 * max(places), max(tables) * (_DECODE * channels + 2 * row_bytes + 16))
    # While rows attend: all tables joined, the results of the tiles, one tile's keys, logits and sums.
    total = sum(places) // rows if rows else 0
    tile = max(1, sparse_attention.SCRATCH_BYTES // (4 * max(1, total) * channels))
    attending = 4 * channels * sum(tables) + 2 * rows * heads * channels
    attending += tile * (total * (8 * channels + 20 * heads + 16) + 20 * heads * channels)
    return 4 * channels * sum(tables) + 24 * sum(places) + max(unpacking, attending)


def _experts(shapes: Shapes, attrs: Mapping[str, Any]) -> int:
    (rows, width), chosen = _sizes(shapes, 0), _sizes(shapes, 1)[1]
    inner = _sizes(shapes, 3)[1]
    weights = 3 * 2 * inner * width
    if "unpack" not in attrs and "body" not in attrs:
        weights += _DECODE * inner * width
    # All rows may choose one expert: its input, gate, up, what they become in fp32, and its output in bf16 and fp32.
    expert_rows = rows * (8 * width + 24 * inner)
    order = rows * chosen * 56
    return weights + expert_rows + order if rows > 1 else chosen * (8 * width + 24 * inner) + weights


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
    "sparse_attention": _sparse_attention,
    "experts": _experts,
    "linears": _linears,
}
