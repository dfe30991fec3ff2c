"""The custom ops of the trace: what PyTorch has no word for (DESIGN 3), each with its reference and its fake.

An op whose reference is plain tensor arithmetic is also its own definition: the CPU target traces that function and
compiles it. Ops that touch a cache, sort, or run a data-dependent number of rows stay whole in every program.

Slots address cache rows: slot = page_id * rows_per_page + offset, and -1 means "no row". Pages are planar: all data
rows of a page, then all its scale rows (SPEC 11.3).

Lists of many entries, blocks or slots a row are int32, since they are what a long prefill chunk holds most of; bytes
are addressed in int64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.library import custom_op

from dsv41c.models import quant

KEY_TILE = 64  # keys that share one running maximum in the official kernel, SPEC 4.11
MASKED = -1e30  # finite seed of the running maximum, SPEC 4.11
PLAIN_FORMATS = {"f32": torch.float32, "i32": torch.int32}
LIST = torch.int32  # entries, blocks and slots in lists of many a row


# --- quantization ---------------------------------------------------------------------------------------------------


@custom_op("dsv41::quantize", mutates_args=())
def quantize(x: Tensor, row_format: str) -> Tensor:
    """`quant.quantize`: [..., D] to packed rows uint8 [..., row_bytes]."""
    return quant.quantize(x, row_format)


@quantize.register_fake
def _(x: Tensor, row_format: str) -> Tensor:
    return x.new_empty((*x.shape[:-1], quant.FORMATS[row_format].row_bytes(x.shape[-1])), dtype=torch.uint8)


@custom_op("dsv41::dequantize", mutates_args=())
def dequantize(rows: Tensor, row_format: str) -> Tensor:
    """`quant.dequantize`: packed rows uint8 [..., row_bytes] to bf16 [..., D]."""
    return quant.dequantize(rows, row_format)


@dequantize.register_fake
def _(rows: Tensor, row_format: str) -> Tensor:
    channels = quant.FORMATS[row_format].channels(rows.shape[-1])
    return rows.new_empty((*rows.shape[:-1], channels), dtype=torch.bfloat16)


@custom_op("dsv41::fake_quantize", mutates_args=())
def fake_quantize(x: Tensor, row_format: str) -> Tensor:
    """`quant.fake_quantize`: [..., D] to bf16 [..., D], the values that packed rows would hold."""
    return quant.fake_quantize(x, row_format)


@fake_quantize.register_fake
def _(x: Tensor, row_format: str) -> Tensor:
    return torch.empty_like(x, dtype=torch.bfloat16)


@custom_op("dsv41::dequantize_weight", mutates_args=())
def dequantize_weight(weight: Tensor, scale: Tensor) -> Tensor:
    """`quant.dequantize_weight`: float8_e4m3fn [N, K] and its block scales to bf16 [N, K]."""
    return quant.dequantize_weight(weight, scale)


@dequantize_weight.register_fake
def _(weight: Tensor, scale: Tensor) -> Tensor:
    return torch.empty_like(weight, dtype=torch.bfloat16)


# --- products -------------------------------------------------------------------------------------------------------


def linear_definition(x: Tensor, weight: Tensor, groups: int) -> Tensor:
    """A linear in `groups` parts side by side: each part of the inputs has its own outputs (SPEC 2.5, 4.12).

    Args:
        x: bf16 [T, groups * K]. weight: bf16 [N, K], the groups' outputs one behind the other.
    Returns:
        bf16 [T, N]; sums are fp32 with one rounding.
    """
    if groups == 1:
        return torch.nn.functional.linear(x, weight)
    outputs, inputs = weight.shape
    parts = x.unflatten(-1, (groups, inputs)).transpose(0, 1)
    weights = weight.unflatten(0, (groups, outputs // groups)).transpose(1, 2)
    return torch.matmul(parts, weights).transpose(0, 1).flatten(1)


@custom_op("dsv41::linear_fp8", mutates_args=())
def linear_fp8(x: Tensor, weight: Tensor, scale: Tensor, groups: int) -> Tensor:
    """`linear_definition` with a weight as `dequantize_weight` takes it: float8_e4m3fn [N, K] and its block scales."""
    return linear_definition(x, quant.dequantize_weight(weight, scale), groups).contiguous()


@linear_fp8.register_fake
def _(x: Tensor, weight: Tensor, scale: Tensor, groups: int) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]))


# --- mHC ------------------------------------------------------------------------------------------------------------


def sinkhorn_definition(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Row softmax, then alternating column and row normalization that ends on columns (SPEC 3.2).

    Sums are spelled in order, as torch computes sums of four: the mixes enter every channel of the streams, so their
    last bits decide bf16 roundings.

    Args:
        logits: fp32 [T, n, n], source stream by destination stream.
    Returns:
        fp32 [T, n, n]; every column sums to one up to eps.
    """
    mix = torch.softmax(logits, -1) + eps
    mix = mix / (sum_in_order(mix, 1) + eps)
    for _ in range(iterations - 1):
        mix = mix / (sum_in_order(mix, 2) + eps)
        mix = mix / (sum_in_order(mix, 1) + eps)
    return mix


def sum_in_order(x: Tensor, dim: int) -> Tensor:
    """The sum over a short dimension, kept, first to last."""
    total = x.select(dim, 0)
    for i in range(1, x.shape[dim]):
        total = total + x.select(dim, i)
    return total.unsqueeze(dim)


LANES, CHAINS, GROUP = 8, 4, 16  # how torch adds up a row: eight lanes in four chains, sixteen steps a group


def sum_in_chains(x: Tensor, keepdim: bool) -> Tensor:
    """The sum over the last dimension, with the additions in the order of torch's `sum` and `mean`.

    Such a sum enters every channel of a row; added in another order it shows as flipped bf16 roundings.

    Args:
        x: fp32 [..., d], d a multiple of 32; from 8192 on the order is torch's only within 8192 columns.
    Returns:
        fp32 [...], or [..., 1].
    """
    steps = x.shape[-1] // (LANES * CHAINS)
    if steps > GROUP and steps % GROUP == 0:
        chains = x.unflatten(-1, (steps // GROUP, GROUP, CHAINS, LANES)).sum(-3).sum(-3)
    else:
        chains = x.unflatten(-1, (steps, CHAINS, LANES)).sum(-3)
    lanes = sum_in_order(chains, chains.dim() - 2).squeeze(-2)
    total = sum_in_order(lanes, lanes.dim() - 1)
    return total if keepdim else total.squeeze(-1)


def mean_in_chains(x: Tensor, keepdim: bool) -> Tensor:
    """`sum_in_chains` over the number of columns: torch's `mean`."""
    return sum_in_chains(x, keepdim) / x.shape[-1]


@custom_op("dsv41::sinkhorn", mutates_args=())
def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """`sinkhorn_definition` as one op, by torch's own softmax and sums."""
    mix = torch.softmax(logits, -1) + eps
    mix = mix / (mix.sum(1, keepdim=True) + eps)
    for _ in range(iterations - 1):
        mix = mix / (mix.sum(2, keepdim=True) + eps)
        mix = mix / (mix.sum(1, keepdim=True) + eps)
    return mix


@sinkhorn.register_fake
def _(logits: Tensor, iterations: int, eps: float) -> Tensor:
    return torch.empty_like(logits)


# --- routing and experts --------------------------------------------------------------------------------------------


def select_experts_definition(scores: Tensor, k: int) -> Tensor:
    """The k largest scores of each row, best first; equal scores go to the lower expert.

    Repeated argmax: k is at most 6, and its tie rule is the same on every target.

    Args:
        scores: fp32 [T, E], finite.
    Returns:
        int64 [T, k].
    """
    chosen = []
    experts = torch.arange(scores.shape[-1], device=scores.device)
    for _ in range(k):
        best = scores.argmax(-1, keepdim=True)
        chosen.append(best)
        scores = torch.where(experts == best, torch.full_like(scores, float("-inf")), scores)
    return torch.cat(chosen, dim=-1)


@custom_op("dsv41::select_experts", mutates_args=())
def select_experts(scores: Tensor, k: int) -> Tensor:
    """`select_experts_definition` as one op."""
    return select_experts_definition(scores, k)


@select_experts.register_fake
def _(scores: Tensor, k: int) -> Tensor:
    return scores.new_empty((scores.shape[0], k), dtype=torch.int64)


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit) in fp32 (SPEC 6.2).

    silu is spelled as the quotient that torch computes; a product with a sigmoid would round once more.
    """
    gate = gate.to(torch.float32).clamp(max=limit)
    return gate / (1.0 + torch.exp(-gate)) * up.to(torch.float32).clamp(-limit, limit)


def expert_definition(
    x: Tensor, weights: Tensor, w1: Tensor, s1: Tensor, w3: Tensor, s3: Tensor, w2: Tensor, s2: Tensor, limit: float
) -> Tensor:
    """One routed expert on the rows that chose it; the routing weight enters before the down projection (SPEC 6.2).

    Args:
        x: bf16 [M, d], already quantized to fp8 values.
        weights: fp32 [M], routing weights.
        w1, w3: uint8 [I, d/2] with scales s1, s3 uint8 [I, d/32]; w2: uint8 [d, I/2] with s2 uint8 [d, I/32].
    Returns:
        bf16 [M, d].
    """
    linear = torch.nn.functional.linear
    gate, up, down = unpack_expert(w1, s1, w3, s3, w2, s2)
    return linear(expert_activation(linear(x, gate), linear(x, up), weights, limit), down)


def unpack_expert(
    w1: Tensor, s1: Tensor, w3: Tensor, s3: Tensor, w2: Tensor, s2: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """An expert's three weights as bf16, exact: w1, w3 [I, d] and w2 [d, I]."""
    unpack = quant.dequantize_fp4_weight
    return unpack(w1, s1), unpack(w3, s3), unpack(w2, s2)


def expert_activation(gate: Tensor, up: Tensor, weights: Tensor, limit: float) -> Tensor:
    """What the down projection reads: bf16 [M, I] of fp8 values, from gate, up bf16 [M, I] and weights fp32 [M]."""
    hidden = (swiglu(gate, up, limit) * weights.unsqueeze(-1)).to(torch.bfloat16)
    return quant.fake_quantize(hidden, "fp8_e8m0")


@custom_op("dsv41::experts", mutates_args=())
def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w1: Tensor,
    s1: Tensor,
    w3: Tensor,
    s3: Tensor,
    w2: Tensor,
    s2: Tensor,
    limit: float,
) -> Tensor:
    """The weighted sum of the routed experts, added in expert order in fp32 (SPEC 6.2).

    Args:
        x: bf16 [T, d], already quantized to fp8 values.
        ids: int64 [T, k]; -1 rows belong to no expert. weights: fp32 [T, k].
        w1, s1, w3, s3, w2, s2: the experts' packed weights, [E, ...] as in `expert_definition`.
    Returns:
        fp32 [T, d].
    """
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in torch.unique(ids[ids >= 0]).tolist():
        row, choice = torch.where(ids == expert)
        own = (w1[expert], s1[expert], w3[expert], s3[expert], w2[expert], s2[expert])
        total[row] += expert_definition(x[row], weights[row, choice], *own, limit).to(torch.float32)
    return total


@experts.register_fake
def _(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w1: Tensor,
    s1: Tensor,
    w3: Tensor,
    s3: Tensor,
    w2: Tensor,
    s2: Tensor,
    limit: float,
) -> Tensor:
    return torch.empty_like(x, dtype=torch.float32)


# --- Engram ---------------------------------------------------------------------------------------------------------


def ngram_hash_definition(ids: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    """Table rows of every n-gram that ends at a position (SPEC 7.5).

    Args:
        ids: int64 [T, n], compressed ids; column s is the token s positions back, dead and missing ones already pad.
        multipliers: int64 [n]. primes, offsets: int64 [(n-1) * heads], n-gram size major.
    Returns:
        int64 [T, (n-1) * heads].
    """
    size = ids.shape[1]
    heads = primes.shape[0] // (size - 1)
    products = ids * multipliers
    hashed = products[:, 0]
    columns = []
    for back in range(1, size):
        hashed = torch.bitwise_xor(hashed, products[:, back])
        columns.append(hashed.unsqueeze(-1).expand(-1, heads))
    return torch.cat(columns, dim=-1) % primes + offsets


@custom_op("dsv41::ngram_hash", mutates_args=())
def ngram_hash(ids: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    """`ngram_hash_definition` as one op."""
    return ngram_hash_definition(ids, multipliers, primes, offsets)


@ngram_hash.register_fake
def _(ids: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    return ids.new_empty((ids.shape[0], primes.shape[0]))


def lookup_definition(table: Tensor, scale: Tensor, rows: Tensor) -> Tensor:
    """Rows of an FP8 embedding table with one scale byte for each 32 channels (SPEC 7.6).

    Args:
        table: float8_e4m3fn [rows, hd]. scale: uint8 [rows, hd/32]. rows: int64 [T, c].
    Returns:
        bf16 [T, c * hd].
    """
    values = table[rows].to(torch.float32)
    grouped = values.unflatten(-1, (scale.shape[1], values.shape[-1] // scale.shape[1]))
    return (grouped * quant.decode_ue8m0(scale[rows]).unsqueeze(-1)).flatten(1).to(torch.bfloat16)


@custom_op("dsv41::lookup", mutates_args=())
def lookup(table: Tensor, scale: Tensor, rows: Tensor) -> Tensor:
    """`lookup_definition` as one op."""
    return lookup_definition(table, scale, rows)


@lookup.register_fake
def _(table: Tensor, scale: Tensor, rows: Tensor) -> Tensor:
    return table.new_empty((rows.shape[0], rows.shape[1] * table.shape[1]), dtype=torch.bfloat16)


# --- rotary positions -----------------------------------------------------------------------------------------------


@custom_op("dsv41::rotary", mutates_args=())
def rotary(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of position * frequency in fp32 (SPEC 2.6).

    Args:
        positions: int64 [T]. inv_freq: fp32 [h].
    Returns:
        cos, sin: fp32 [T, h].
    """
    angle = positions.to(torch.float32).unsqueeze(-1) * inv_freq
    return angle.cos(), angle.sin()


@rotary.register_fake
def _(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    shape = (positions.shape[0], inv_freq.shape[0])
    return inv_freq.new_empty(shape), inv_freq.new_empty(shape)


# --- caches ---------------------------------------------------------------------------------------------------------


def _planes(cache: Tensor, row_format: str, page: int, row_width: int) -> tuple[Tensor, Tensor | None]:
    """Views of a cache's data rows [pages, page, data] and scale rows [pages, page, scale], or None for plain rows."""
    pages = cache.shape[0]
    if row_format in PLAIN_FORMATS:
        return cache.view(pages, page, row_width), None
    form = quant.FORMATS[row_format]
    channels = form.channels(row_width)
    data, scale = form.data_bytes(channels), form.scale_bytes(channels)
    data_plane = cache[:, : page * data].unflatten(1, (page, data))
    scale_plane = cache[:, page * data : page * (data + scale)].unflatten(1, (page, scale))
    return data_plane, scale_plane


@custom_op("dsv41::store", mutates_args=("cache",))
def store(cache: Tensor, rows: Tensor, slots: Tensor, row_format: str, page: int) -> None:
    """Writes packed rows into their slots; slot -1 writes nothing.

    Args:
        cache: uint8 [pages, stride], or fp32/int32 [pages, page * C] for the plain formats. Written in place.
        rows: [T, row_width], of the cache's dtype. slots: int64 [T], distinct where not -1.
        row_format: a key of `quant.FORMATS`, or "f32" / "i32". page: rows a page.
    """
    kept = slots >= 0
    slots, rows = slots[kept], rows[kept]
    data, scale = _planes(cache, row_format, page, rows.shape[-1])
    index = (slots // page, slots % page)
    data[index] = rows[:, : data.shape[-1]]
    if scale is not None:
        scale[index] = rows[:, data.shape[-1] :]


@store.register_fake
def _(cache: Tensor, rows: Tensor, slots: Tensor, row_format: str, page: int) -> None:
    return None


def load_rows(cache: Tensor, slots: Tensor, row_format: str, page: int, row_width: int) -> Tensor:
    """Reads packed rows from their slots; slot -1 reads row 0 of page 0, for the caller to mask.

    Args:
        cache: as in `store`. slots: int64 [...].
        row_width: bytes (or plain columns) of a row.
    Returns:
        [..., row_width], of the cache's dtype.
    """
    data, scale = _planes(cache, row_format, page, row_width)
    slots = slots.clamp(min=0)
    index = (slots // page, slots % page)
    if scale is None:
        return data[index]
    return torch.cat((data[index], scale[index]), dim=-1)


def load_definition(cache: Tensor, slots: Tensor, row_format: str, page: int, row_width: int) -> Tensor:
    """`load_rows` by the address of every byte, so that a compiler gathers from the cache without slicing it first."""
    slots = slots.clamp(min=0)
    start, offset = (slots // page * cache.shape[1]).unsqueeze(-1), (slots % page).unsqueeze(-1)
    elements = cache.flatten()
    if row_format in PLAIN_FORMATS:
        return elements[start + offset * row_width + torch.arange(row_width, device=cache.device)]
    form = quant.FORMATS[row_format]
    channels = form.channels(row_width)
    data, scale = form.data_bytes(channels), form.scale_bytes(channels)
    data_address = start + offset * data + torch.arange(data, device=cache.device)
    scale_address = start + page * data + offset * scale + torch.arange(scale, device=cache.device)
    return torch.cat((elements[data_address], elements[scale_address]), dim=-1)


@custom_op("dsv41::load", mutates_args=())
def load(cache: Tensor, slots: Tensor, row_format: str, page: int, row_width: int) -> Tensor:
    """`load_rows` as one op."""
    return load_rows(cache, slots, row_format, page, row_width)


@load.register_fake
def _(cache: Tensor, slots: Tensor, row_format: str, page: int, row_width: int) -> Tensor:
    return cache.new_empty((*slots.shape, row_width))


RowReader = Callable[[Tensor, Tensor, str, int, int], Tensor]

# --- attention ------------------------------------------------------------------------------------------------------


def sparse_attention_definition(
    query: Tensor,
    window: Tensor,
    fresh: Tensor,
    window_index: Tensor,
    main: Tensor | None,
    main_slots: Tensor | None,
    sink: Tensor,
    scale: float,
    window_page: int,
    main_page: int,
    read: RowReader = load_definition,
) -> Tensor:
    """Attention of every head over window rows and selected main rows with a sink in the denominator (SPEC 4.11).

    Args:
        query: bf16 [T, H, D].
        window: the layer's window cache, fp8_e8m0 rows. fresh: uint8 [T, row_bytes], this forward's window rows.
        window_index: int32 [T, W]; -1 no key, i >= 0 window slot i, i <= -2 fresh row -2 - i.
        main: the main KV cache, fp4_e4m3 rows, or None. main_slots: int32 [T, K], -1 no key, or None.
        sink: fp32 [H]. scale: the logits' factor. window_page, main_page: rows a page.
        read: `load_definition` to be compiled, `load_rows` to be run.
    Returns:
        bf16 [T, H, D]; a row without any key is 0.
    """
    dim = query.shape[-1]
    window_index = window_index.to(torch.int64)
    is_fresh = window_index <= -2
    stored_rows = read(window, window_index, "fp8_e8m0", window_page, fresh.shape[-1])
    fresh_rows = fresh[(-2 - window_index).clamp(min=0)]
    rows = torch.where(is_fresh.unsqueeze(-1), fresh_rows, stored_rows)
    keys = quant.dequantize(rows, "fp8_e8m0")
    valid = window_index != -1
    if main is not None and main_slots is not None:
        main_slots = main_slots.to(torch.int64)
        width = quant.FORMATS["fp4_e4m3"].row_bytes(dim)
        selected = quant.dequantize(read(main, main_slots, "fp4_e4m3", main_page, width), "fp4_e4m3")
        keys = torch.cat((keys, selected), dim=1)
        valid = torch.cat((valid, main_slots >= 0), dim=1)
    return tiled_attention(query, keys, valid, sink, scale)


def tiled_attention(query: Tensor, keys: Tensor, valid: Tensor, sink: Tensor, scale: float) -> Tensor:
    """Softmax over keys in tiles of 64: probabilities are rounded to bf16 against the running maximum of their tile.

    Args:
        query: bf16 [T, H, D]. keys: bf16 [T, K, D], keys and values at once. valid: bool [T, K]. sink: fp32 [H].
    Returns:
        bf16 [T, H, D].
    """
    keys = torch.where(valid.unsqueeze(-1), keys, torch.zeros_like(keys)).to(torch.float32)
    return attention_over(query, keys, valid, sink, scale)


def attention_over(query: Tensor, keys: Tensor, valid: Tensor, sink: Tensor, scale: float) -> Tensor:
    """`tiled_attention` over keys fp32 [T, K, D] that are zero where they are not valid."""
    logits = torch.matmul(query.to(torch.float32), keys.transpose(1, 2)) * scale
    logits = torch.where(valid.unsqueeze(1), logits, torch.full_like(logits, MASKED))
    maximum = torch.full_like(logits[:, :, :1], MASKED)
    total = torch.zeros_like(maximum)
    output = torch.zeros_like(query, dtype=torch.float32)
    for start in range(0, keys.shape[1], KEY_TILE):
        tile = logits[:, :, start : start + KEY_TILE]
        higher = torch.maximum(maximum, tile.amax(-1, keepdim=True))
        # A masked logit must weigh nothing even while the maximum is still the seed, where exp(0) would be 1.
        weights = torch.exp(tile - higher) * valid[:, start : start + KEY_TILE].unsqueeze(1).to(torch.float32)
        rescale = torch.exp(maximum - higher)
        total = total * rescale + weights.sum(-1, keepdim=True)
        rounded = weights.to(torch.bfloat16).to(torch.float32)
        output = output * rescale + torch.matmul(rounded, keys[:, start : start + KEY_TILE])
        maximum = higher
    denominator = total + torch.exp(sink.view(1, -1, 1) - maximum)
    return torch.where(total > 0, output / denominator, torch.zeros_like(output)).to(torch.bfloat16)


@custom_op("dsv41::sparse_attention", mutates_args=())
def sparse_attention(
    query: Tensor,
    window: Tensor,
    fresh: Tensor,
    window_index: Tensor,
    main: Tensor | None,
    main_slots: Tensor | None,
    sink: Tensor,
    scale: float,
    window_page: int,
    main_page: int,
) -> Tensor:
    """`sparse_attention_definition` as one op."""
    return sparse_attention_definition(
        query, window, fresh, window_index, main, main_slots, sink, scale, window_page, main_page, load_rows
    )


@sparse_attention.register_fake
def _(
    query: Tensor,
    window: Tensor,
    fresh: Tensor,
    window_index: Tensor,
    main: Tensor | None,
    main_slots: Tensor | None,
    sink: Tensor,
    scale: float,
    window_page: int,
    main_page: int,
) -> Tensor:
    return torch.empty_like(query)


# --- indexer --------------------------------------------------------------------------------------------------------


def index_scores(query: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """Index scores with the reference's roundings (golden README, "Index score").

    Args:
        query: bf16 [T, Hi, Di]. weights: bf16 [T, Hi]. keys: bf16 [N, Di].
    Returns:
        fp32 [T, N], values rounded to bf16.
    """
    dots = torch.matmul(query.to(torch.float32), keys.to(torch.float32).t()).to(torch.bfloat16)
    weighted = (torch.relu(dots).to(torch.float32) * weights.to(torch.float32).unsqueeze(-1)).to(torch.bfloat16)
    return weighted.to(torch.float32).sum(1).to(torch.bfloat16).to(torch.float32)


def _best(scores: Tensor, k: int) -> Tensor:
    """Indices of the k largest of the last dimension, int32, ascending, -1 last; -inf is never chosen.

    Equal scores go to the lower index: a stable descending sort keeps it first (SPEC 4.10).
    """
    values, order = torch.sort(scores, dim=-1, descending=True, stable=True)
    values, order = values[..., :k], order[..., :k]
    beyond = scores.shape[-1]
    chosen = torch.where(values == float("-inf"), beyond, order).sort(dim=-1).values
    chosen = torch.where(chosen == beyond, -1, chosen).to(LIST)
    return torch.nn.functional.pad(chosen, (0, k - chosen.shape[-1]), value=-1)


def candidate_blocks(scores: Tensor, visible: Tensor, block: int, n_blocks: int) -> Tensor:
    """The blocks with the largest visible score; the block of the newest visible entry is always among them (SPEC 4.9).

    Args:
        scores: fp32 [T, N], -inf where not visible. visible: int64 [T], number of visible entries.
    Returns:
        int32 [T, n_blocks] block ids, ascending, -1 last.
    """
    count = -(-scores.shape[1] // block)
    padded = torch.nn.functional.pad(scores, (0, count * block - scores.shape[1]), value=float("-inf"))
    block_scores = padded.unflatten(1, (count, block)).amax(-1)
    newest = (visible - 1).div(block, rounding_mode="floor").unsqueeze(-1)
    pinned = torch.arange(count, device=scores.device) == newest
    return _best(torch.where(pinned, float("inf"), block_scores), n_blocks)


@custom_op("dsv41::index_topk", mutates_args=())
def index_topk(
    query: Tensor,
    weights: Tensor,
    index: Tensor,
    pages: Tensor,
    sequence: Tensor,
    positions: Tensor,
    candidates: Tensor | None,
    ratio: int,
    k: int,
    page: int,
    block: int,
    n_blocks: int,
) -> tuple[Tensor, Tensor]:
    """Scores the visible entries of every row's own sequence and keeps the best k (SPEC 4.7-4.10).

    Args:
        query: bf16 [T, Hi, Di]. weights: bf16 [T, Hi]. index: the index K cache, fp4_e8m0 rows.
        pages: int64 [B, P] block table. sequence, positions: int64 [T]; position -1 is a padded row.
        candidates: int32 [T, C] block ids the entries must lie in (-1 none), or None for all.
        ratio: tokens an entry. page: entries a page. block: entries a candidate block.
        n_blocks: candidate blocks to publish, 0 for none.
    Returns:
        topk: int32 [T, k] entries, ascending, -1 last. blocks: int32 [T, n_blocks], likewise.
    """
    rows = positions.shape[0]
    topk = positions.new_full((rows, k), -1, dtype=LIST)
    blocks = positions.new_full((rows, n_blocks), -1, dtype=LIST)
    width = quant.FORMATS["fp4_e8m0"].row_bytes(query.shape[-1])
    visible = (positions + 1) // ratio
    for b in torch.unique(sequence).tolist():
        own = torch.where((sequence == b) & (visible > 0))[0]
        if own.numel() == 0:
            continue
        entry = torch.arange(int(visible[own].max()), device=positions.device)
        slots = pages[b, entry // page] * page + entry % page
        keys = quant.dequantize(load_rows(index, slots, "fp4_e8m0", page, width), "fp4_e8m0")
        scores = index_scores(query[own], weights[own], keys)
        scores = torch.where(entry < visible[own].unsqueeze(-1), scores, float("-inf"))
        if candidates is not None:
            pool = (candidates[own].unsqueeze(-1) == entry // block).any(1)
            scores = torch.where(pool, scores, float("-inf"))
        topk[own] = _best(scores, k)
        if n_blocks:
            blocks[own] = candidate_blocks(scores, visible[own], block, n_blocks)
    return topk, blocks


@index_topk.register_fake
def _(
    query: Tensor,
    weights: Tensor,
    index: Tensor,
    pages: Tensor,
    sequence: Tensor,
    positions: Tensor,
    candidates: Tensor | None,
    ratio: int,
    k: int,
    page: int,
    block: int,
    n_blocks: int,
) -> tuple[Tensor, Tensor]:
    rows = positions.shape[0]
    return positions.new_empty((rows, k), dtype=LIST), positions.new_empty((rows, n_blocks), dtype=LIST)


@custom_op("dsv41::index_pool_topk", mutates_args=())
def index_pool_topk(
    query: Tensor,
    weights: Tensor,
    index: Tensor,
    pages: Tensor,
    sequence: Tensor,
    positions: Tensor,
    candidates: Tensor,
    ratio: int,
    k: int,
    page: int,
    block: int,
) -> Tensor:
    """`index_topk` with candidates, by scoring the entries of each row's candidate blocks and no others (SPEC 4.9).

    Args:
        candidates: int32 [T, C] block ids, distinct, -1 none; those that lie beyond a row's visible entries count
            for nothing. The others: as in `index_topk`.
    Returns:
        int32 [T, k] entries, ascending, -1 last.
    """
    topk = positions.new_full((positions.shape[0], k), -1, dtype=LIST)
    width = quant.FORMATS["fp4_e8m0"].row_bytes(query.shape[-1])
    visible = (positions + 1) // ratio
    inside = torch.arange(block, device=positions.device)
    for row in range(positions.shape[0]):
        entry = (candidates[row].to(torch.int64).sort().values.unsqueeze(-1) * block + inside).flatten()
        entry = entry[(entry >= 0) & (entry < visible[row])]
        if entry.numel() == 0:
            continue
        slots = pages[sequence[row], entry // page] * page + entry % page
        keys = quant.dequantize(load_rows(index, slots, "fp4_e8m0", page, width), "fp4_e8m0")
        best = _best(index_scores(query[row : row + 1], weights[row : row + 1], keys), k)[0]
        topk[row] = torch.where(best < 0, -1, entry[best.clamp(min=0)])
    return topk


@index_pool_topk.register_fake
def _(
    query: Tensor,
    weights: Tensor,
    index: Tensor,
    pages: Tensor,
    sequence: Tensor,
    positions: Tensor,
    candidates: Tensor,
    ratio: int,
    k: int,
    page: int,
    block: int,
) -> Tensor:
    return positions.new_empty((positions.shape[0], k), dtype=LIST)
