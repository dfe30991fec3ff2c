"""Engram: rows of the table, and the gate that lets them into the streams (SPEC 7.6, 7.7; models/engram.py).

ngram_hash      models/ops.py `ngram_hash`: the table rows of the n-grams that end at a position
engram_gather   models/ops.py `lookup`; with QUANTIZE the values as the next product reads them
engram_gate     each stream's gate from its own dot with its key, and the gated value added to it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dsv41c.compiler.codegen.triton.families import Hole, Kernel, Tile
from dsv41c.compiler.codegen.triton.kernels.formats import decode_e4m3, decode_ue8m0, fake_quantize_e4m3
from dsv41c.compiler.codegen.triton.kernels.rows import inverse_root, sum_in_chains

if TYPE_CHECKING:
    from dsv41c.models.config import ModelConfig

_GROUP = tl.constexpr(32)
_FLOOR = tl.constexpr(1e-6)  # inside the square root of the gate


@triton.jit
def ngram_hash_kernel(
    ids_ptr,
    multipliers_ptr,
    primes_ptr,
    offsets_ptr,
    rows_ptr,
    n_rows,
    SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    """ids int64 [n_rows, SIZE] and multipliers int64 [SIZE] to rows int64 [n_rows, (SIZE - 1) * HEADS].

    primes, offsets int64 [(SIZE - 1) * HEADS], n-gram size major. PADDED: the power of two from HEADS on.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < n_rows
    address = row.to(tl.int64)
    head = tl.arange(0, PADDED)
    hashed = tl.load(ids_ptr + address * SIZE, mask=inside, other=0) * tl.load(multipliers_ptr)
    for back in tl.static_range(1, SIZE):
        own = tl.load(ids_ptr + address * SIZE + back, mask=inside, other=0)
        hashed = hashed ^ (own * tl.load(multipliers_ptr + back))
        column = (back - 1) * HEADS + head
        prime = tl.load(primes_ptr + column, mask=head < HEADS, other=1)[None, :]
        # The remainder has the divisor's sign, as Python's and torch's have.
        rest = hashed[:, None] % prime
        rest = tl.where(rest < 0, rest + prime, rest)
        place = address[:, None] * ((SIZE - 1) * HEADS) + column[None, :]
        offset = tl.load(offsets_ptr + column, mask=head < HEADS, other=0)[None, :]
        tl.store(rows_ptr + place, rest + offset, mask=inside[:, None] & (head < HEADS)[None, :])


@triton.jit
def engram_gather_kernel(
    table_ptr,
    scale_ptr,
    rows_ptr,
    out_ptr,
    n_lookups,
    WIDTH: tl.constexpr,
    QUANTIZE: tl.constexpr,
    LOOKUPS: tl.constexpr,
    FP8_CASTS: tl.constexpr,
):
    """table e4m3 [entries, WIDTH], scale [entries, WIDTH / 32] at rows int64 [n_lookups]: bf16 [n_lookups, WIDTH].

    A row of -1 gives zeros. The table has gigabytes: every address is int64.
    """
    lookup = tl.program_id(0) * LOOKUPS + tl.arange(0, LOOKUPS)
    inside = lookup < n_lookups
    row = tl.load(rows_ptr + lookup, mask=inside, other=-1)
    found = (row >= 0)[:, None]
    row = tl.where(row >= 0, row, 0)[:, None]
    byte = tl.load(table_ptr + row * WIDTH + tl.arange(0, WIDTH)[None, :], mask=found, other=0)
    group = tl.arange(0, WIDTH // _GROUP)[None, :]
    scale = decode_ue8m0(tl.load(scale_ptr + row * (WIDTH // _GROUP) + group, mask=found, other=0))
    values = tl.reshape(decode_e4m3(byte, FP8_CASTS), (LOOKUPS, WIDTH // _GROUP, _GROUP)) * scale[:, :, None]
    out = tl.reshape(values, (LOOKUPS, WIDTH)).to(tl.bfloat16)
    if QUANTIZE:
        out = fake_quantize_e4m3(out, LOOKUPS, WIDTH, FP8_CASTS)
    at = lookup.to(tl.int64)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(out_ptr + at, out, mask=inside[:, None])


@triton.jit
def engram_gate_kernel(
    h_ptr,
    kv_ptr,
    q_weight_ptr,
    k_weight_ptr,
    out_ptr,
    eps,
    root,
    D: tl.constexpr,
    STREAMS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """h bf16 [rows, STREAMS, D] and kv bf16 [rows, (STREAMS + 1) * D], keys then value, to the new streams.

    q_weight, k_weight bf16 [STREAMS, D]; root: D ** -0.5. PADDED: the power of two from D on. One program a stream of a
    row.
    """
    row = tl.program_id(0).to(tl.int64)
    stream = tl.program_id(1)
    channel = tl.arange(0, PADDED)[None, :]
    wanted = channel < D
    at = (row * STREAMS + stream) * D + channel
    h = tl.load(h_ptr + at, mask=wanted, other=0.0).to(tl.float32)
    keys = kv_ptr + row * ((STREAMS + 1) * D)
    key = tl.load(keys + stream * D + channel, mask=wanted, other=0.0).to(tl.float32)
    q_weight = tl.load(q_weight_ptr + stream * D + channel, mask=wanted, other=0.0).to(tl.float32)
    k_weight = tl.load(k_weight_ptr + stream * D + channel, mask=wanted, other=0.0).to(tl.float32)

    # --- the gate
    dot = sum_in_chains(h * (q_weight * k_weight) * key, 1, PADDED)
    dot = dot * inverse_root(sum_in_chains(h * h, 1, PADDED), D, eps)
    dot = dot * inverse_root(sum_in_chains(key * key, 1, PADDED), D, eps) * root
    size = tl.sqrt_rn(tl.maximum(tl.abs(dot), _FLOOR))
    power = tl.exp(-tl.where(dot >= 0, size, -size))
    gate = tl.div_rn(tl.full(power.shape, 1.0, tl.float32), 1.0 + power)

    # --- the streams
    value = tl.load(keys + STREAMS * D + channel, mask=wanted, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, (h + gate[:, None] * value).to(tl.bfloat16), mask=wanted)


def ngram_hash(name: str, size: int, heads: int) -> Kernel:
    """Hashes of the n-grams of 2 to `size` tokens, `heads` of each."""
    names = ("ids_ptr", "multipliers_ptr", "primes_ptr", "offsets_ptr", "rows_ptr")
    arguments = {**dict.fromkeys(names, "*i64"), "n_rows": "i32"}
    holes: dict[str, Hole] = {"SIZE": size, "HEADS": heads, "PADDED": triton.next_power_of_2(heads)}
    tiles = (Tile({"ROWS": 16}), Tile({"ROWS": 4}))
    return Kernel(name, "engram", "ngram_hash_kernel", arguments, holes, tiles, (("n_rows", "ROWS"),))


def gather(name: str, width: int, quantize: bool) -> Kernel:
    """Rows of the table, as they are or as activations of the next product."""
    arguments = {"table_ptr": "*u8", "scale_ptr": "*u8", "rows_ptr": "*i64", "out_ptr": "*bf16", "n_lookups": "i32"}
    holes: dict[str, Hole] = {"WIDTH": width, "QUANTIZE": quantize, "FP8_CASTS": True}
    tiles = (Tile({"LOOKUPS": 8}), Tile({"LOOKUPS": 2}))
    return Kernel(name, "engram", "engram_gather_kernel", arguments, holes, tiles, (("n_lookups", "LOOKUPS"),))


def gate(name: str, dim: int, streams: int) -> Kernel:
    """The gated value into the streams."""
    arguments = {**dict.fromkeys(("h_ptr", "kv_ptr", "q_weight_ptr", "k_weight_ptr", "out_ptr"), "*bf16")}
    arguments |= {"eps": "fp32", "root": "fp32"}
    holes = {"D": dim, "STREAMS": streams, "PADDED": triton.next_power_of_2(dim)}
    grid = (("n_rows", 1), (streams, 1))
    return Kernel(name, "engram", "engram_gate_kernel", arguments, holes, (Tile({}, warps=8),), grid, sizes=("n_rows",))


def kernels(config: ModelConfig) -> tuple[Kernel, ...]:
    """The Engram kernels of a model; none where no layer has Engram."""
    if not config.engram_layer_ids:
        return ()
    return (
        gather("engram_gather", config.engram_head_dim, quantize=True),
        gate("engram_gate", config.hidden_size, config.hc_mult),
    )
