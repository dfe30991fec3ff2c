"""Attention over a window and over selected compressed entries: compressor, indexer, sparse attention (SPEC 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dsv41c.models import ops
from dsv41c.models.config import ModelConfig
from dsv41c.models.layers import Fp8Linear, Fp32Linear, Linear, RMSNorm, act_quant, rotate, weight
from dsv41c.models.rows import Rows
from dsv41c.models.state import TAIL_ROWS

Rotary = tuple[Tensor, Tensor]  # cos, sin: fp32 [T, qk_rope_head_dim / 2]


@dataclass(frozen=True)
class Selection:
    """What an index source publishes for the layers that reuse it.

    Attributes:
        main_slots: int32 [T, index_topk], global slots of the selected main entries, -1 none.
        candidates: int32 [T, candidate_topk_blocks] block ids of the candidate pool, or None before its source.
    """

    main_slots: Tensor
    candidates: Tensor | None


@dataclass(frozen=True)
class Context:
    """What every attention sublayer of one forward shares.

    Attributes:
        rows: the batch's geometry.
        caches: the state by name.
        page_tokens: tokens a page of the global caches.
        window_index: int32 [T, W]. window_store: int64 [T].
        window_rotary, compressed_rotary: rotations of layers without and with compressed entries.
        entry_rotary: by ratio, the rotation of a completed entry (at its group's first token).
        entry_store: by ratio, the slots of completed entries, int64 [T].
        tail_store: int64 [T], slots of raw compressor rows.
    """

    rows: Rows
    caches: dict[str, Tensor]
    page_tokens: int
    window_index: Tensor
    window_store: Tensor
    window_rotary: Rotary
    compressed_rotary: Rotary
    entry_rotary: dict[int, Rotary]
    entry_store: dict[int, Tensor]
    tail_store: Tensor


class Compressor(nn.Module):
    """Pools `ratio` tokens into one latent (SPEC 4.3)."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.ratio = config.ratio(layer)
        self.layer = layer
        if self.ratio == 1:
            self.wkv: nn.Module = Linear(config.hidden_size, config.head_dim)
        else:
            self.wkv = Fp32Linear(config.hidden_size, config.head_dim)
            self.wgate = Fp32Linear(config.hidden_size, config.head_dim)
        self.norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """The latent of the group that ends at each row; rows that end no group hold values that nobody stores.

        Args:
            x: bf16 [T, d], the normalized attention input.
        Returns:
            bf16 [T, head_dim], before RoPE.
        """
        if self.ratio == 1:
            return self.norm(self.wkv(x))
        return self.norm(self._pool(torch.cat((self.wkv(x), self.wgate(x)), dim=-1), context))

    def _pool(self, raw: Tensor, context: Context) -> Tensor:
        """Raw (kv, gate) rows fp32 [T, 2 * head_dim] to pooled bf16 [T, head_dim]; stores the tail."""
        rows = context.rows
        tail = context.caches[f"tail.{self.layer}"]
        group = [self._earlier(raw, tail, rows, back) for back in range(self.ratio - 1, 0, -1)]
        kv, gate = torch.stack([*group, raw], dim=0).chunk(2, dim=-1)
        pooled = (kv * torch.softmax(gate, 0)).sum(0).to(torch.bfloat16)
        ops.store(tail, raw, context.tail_store, "f32", TAIL_ROWS)
        return pooled

    def _earlier(self, raw: Tensor, tail: Tensor, rows: Rows, back: int) -> Tensor:
        """The raw row `back` positions earlier, from this batch or from the tail."""
        position = rows.positions - back
        stored = ops.load(tail, rows.ring_slot(position, TAIL_ROWS), "f32", TAIL_ROWS, raw.shape[-1])
        fresh = raw[rows.fresh_row(position).clamp(min=0)]
        return torch.where(rows.is_fresh(position).unsqueeze(-1), fresh, stored)


class Indexer(nn.Module):
    """Scores compressed entries and selects the best (SPEC 4.5-4.10)."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        source = config.kv_source(layer)
        assert source is not None, "an index source has a KV source"
        self.source = source
        self.ratio = config.ratio(layer)
        self.heads, self.head_dim = config.index_n_heads, config.index_head_dim
        self.topk, self.block = config.index_topk, config.candidate_block_size
        self.restricted = config.uses_candidates(layer)
        self.n_blocks = config.candidate_topk_blocks if config.is_candidate_source(layer) else 0
        self.wq_b = Fp8Linear(config.q_lora_rank, self.heads * self.head_dim)
        self.weights_proj = Linear(config.hidden_size, self.heads)
        if source == layer:
            self.wk = Linear(config.head_dim, self.head_dim)
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)

    def write_keys(self, latent: Tensor, context: Context) -> None:
        """Stores the index keys of completed groups, from the latent before RoPE (SPEC 4.4, 4.5)."""
        keys = rotate(self.k_norm(self.wk(latent)), *context.entry_rotary[self.ratio])
        packed = ops.quantize(keys, "fp4_e8m0")
        page = context.page_tokens // self.ratio
        ops.store(context.caches[f"index.{self.source}"], packed, context.entry_store[self.ratio], "fp4_e8m0", page)

    def forward(
        self, x: Tensor, compressed_query: Tensor, context: Context, candidates: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Selected entries and, from the candidate source, the candidate blocks.

        Args:
            x: bf16 [T, d]. compressed_query: bf16 [T, q_lora_rank], already quantized to fp8 values.
        Returns:
            topk: int32 [T, index_topk] entries, ascending, -1 last. blocks: int32 [T, n_blocks].
        """
        query = self.wq_b(compressed_query).unflatten(-1, (self.heads, self.head_dim))
        query = ops.fake_quantize(rotate(query, *context.compressed_rotary), "fp4_e8m0")
        weights = self.weights_proj(x) * (self.head_dim**-0.5 * self.heads**-0.5)
        return ops.index_topk(
            query,
            weights,
            context.caches[f"index.{self.source}"],
            context.rows.pages,
            context.rows.sequence,
            context.rows.positions,
            candidates if self.restricted else None,
            self.ratio,
            self.topk,
            context.page_tokens // self.ratio,
            self.block,
            self.n_blocks,
        )


class Attention(nn.Module):
    """One attention sublayer in any of the four modes: SWA, Full, Reindex, Reuse (SPEC 0, 4)."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.ratio = config.ratio(layer)
        self.source = config.kv_source(layer)
        self.heads, self.head_dim = config.num_attention_heads, config.head_dim
        self.groups, self.o_rank = config.o_groups, config.o_lora_rank
        self.window = config.sliding_window
        width = self.heads * self.head_dim
        self.wq_a = Fp8Linear(config.hidden_size, config.q_lora_rank)
        self.q_norm = RMSNorm(config.q_lora_rank, config.rms_norm_eps)
        self.wq_b = Fp8Linear(config.q_lora_rank, width)
        self.wkv = Fp8Linear(config.hidden_size, self.head_dim)
        self.kv_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.wo_a = Fp8Linear(width // self.groups, self.groups * self.o_rank)
        self.wo_b = Fp8Linear(self.groups * self.o_rank, config.hidden_size)
        self.attn_sink = weight(self.heads, dtype=torch.float32)
        if self.source == layer:
            self.compressor = Compressor(config, layer)
        if config.index_source(layer) == layer:
            self.indexer = Indexer(config, layer)

    def forward(self, x: Tensor, context: Context, selection: Selection | None) -> tuple[Tensor, Selection | None]:
        """Attends, and publishes a new selection where this layer is an index source.

        Args:
            x: bf16 [T, d], normalized.
        Returns:
            bf16 [T, d], and the selection that the next layer reads.
        """
        quantized = act_quant(x)
        rotary = context.compressed_rotary if self.ratio else context.window_rotary
        query, compressed_query = self.queries(quantized, rotary)
        fresh = self.window_rows(quantized, rotary)
        selection = self._select(x, compressed_query, context, selection)
        output = self._attend(query, fresh, context, selection)
        ops.store(context.caches[f"window.{self.layer}"], fresh, context.window_store, "fp8_e8m0", self.window)
        cos, sin = rotary
        return self.project_output(rotate(output, cos, -sin)), selection

    def queries(self, quantized: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Rotated queries bf16 [T, H, D], and their low-rank form bf16 [T, q_lora_rank] as fp8 values (SPEC 4.1)."""
        compressed = act_quant(self.q_norm(self.wq_a(quantized)))
        query = self.wq_b(compressed).unflatten(-1, (self.heads, self.head_dim))
        return rotate(query, *rotary), compressed

    def window_rows(self, quantized: Tensor, rotary: Rotary) -> Tensor:
        """Packed window rows, K and V at once: uint8 [T, row_bytes] (SPEC 4.2)."""
        return ops.quantize(rotate(self.kv_norm(self.wkv(quantized)), *rotary), "fp8_e8m0")

    def _select(
        self, x: Tensor, compressed_query: Tensor, context: Context, selection: Selection | None
    ) -> Selection | None:
        if self.source == self.layer:
            self._write_entries(x, context)
        if not hasattr(self, "indexer"):
            return selection
        candidates = selection.candidates if selection else None
        topk, blocks = self.indexer(x, compressed_query, context, candidates)
        slots = context.rows.entry_slots(topk, context.page_tokens // self.ratio)
        return Selection(slots, blocks if self.indexer.n_blocks else candidates)

    def _write_entries(self, x: Tensor, context: Context) -> None:
        """Stores this source's main KV and index keys (SPEC 4.3-4.5)."""
        latent = self.compressor(x, context)
        self.indexer.write_keys(latent, context)
        entries = ops.quantize(rotate(latent, *context.entry_rotary[self.ratio]), "fp4_e4m3")
        page = context.page_tokens // self.ratio
        ops.store(context.caches[f"main.{self.layer}"], entries, context.entry_store[self.ratio], "fp4_e4m3", page)

    def _attend(self, query: Tensor, fresh: Tensor, context: Context, selection: Selection | None) -> Tensor:
        compressed = self.ratio > 0
        assert not compressed or selection is not None, "an index source precedes every compressed layer"
        return ops.sparse_attention(
            query,
            context.caches[f"window.{self.layer}"],
            fresh,
            context.window_index,
            context.caches[f"main.{self.source}"] if compressed else None,
            selection.main_slots if compressed and selection else None,
            self.attn_sink,
            self.head_dim**-0.5,
            self.window,
            context.page_tokens // self.ratio if compressed else 1,
        )

    def project_output(self, output: Tensor) -> Tensor:
        """Head outputs bf16 [T, H, D] to bf16 [T, d]: a linear for each group of heads, then one for all (SPEC 4.12).

        The first is a plain bf16 product: the reference does not quantize its input (SPEC 12.2).
        """
        grouped = output.flatten(1).unflatten(-1, (self.groups, self.heads * self.head_dim // self.groups))
        weights = self.wo_a.dequantized().unflatten(0, (self.groups, self.o_rank))
        low_rank = torch.matmul(grouped.transpose(0, 1), weights.transpose(1, 2)).transpose(0, 1).flatten(1)
        return self.wo_b(act_quant(low_rank))
