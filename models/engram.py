"""Engram: n-gram addressed memory that is added to the streams before attention (SPEC 7)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dsv41c.models import ops
from dsv41c.models.config import ModelConfig
from dsv41c.models.layers import Fp8Linear, act_quant, weight
from dsv41c.models.quant import WEIGHT_BLOCK
from dsv41c.models.rows import Rows
from dsv41c.models.state import HISTORY_ROWS

GATE_FLOOR = 1e-6  # SPEC 7.7; inside the square root


class LookBack(nn.Module):
    """The compressed ids of each row's token and of the tokens before it (SPEC 7.1, 7.5)."""

    token_map: Tensor
    pad: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.size = config.engram_max_ngram_size
        self.register_buffer("token_map", torch.zeros(config.vocab_size, dtype=torch.int64), persistent=False)
        self.register_buffer("pad", torch.zeros(1, dtype=torch.int64), persistent=False)

    def forward(self, tokens: Tensor, rows: Rows, history: Tensor) -> Tensor:
        """tokens int64 [T] to int64 [T, n]; column s is s positions back, pad before the start of the sequence.

        Stores the new tokens in the history.
        """
        back = torch.arange(self.size, device=tokens.device)
        position = rows.positions.unsqueeze(-1) - back
        stored = ops.load(history, rows.ring_slot(position, HISTORY_ROWS), "i32", HISTORY_ROWS, 1).squeeze(-1)
        fresh = tokens[rows.fresh_row(position).clamp(min=0)]
        raw = torch.where(rows.is_fresh(position), fresh, stored.to(torch.int64))
        exists = position >= 0
        compressed = torch.where(exists, self.token_map[torch.where(exists, raw, 0)], self.pad)
        kept = tokens.to(torch.int32).unsqueeze(-1)
        ops.store(history, kept, rows.ring_store(HISTORY_ROWS), "i32", HISTORY_ROWS)
        return compressed


class EngramTable(nn.Module):
    """The FP8 table with one scale byte for each 32 channels of a row (SPEC 7.6, 9)."""

    def __init__(self, entries: int, dim: int) -> None:
        super().__init__()
        self.weight = weight(entries, dim, dtype=torch.float8_e4m3fn)
        self.scale = weight(entries, dim // WEIGHT_BLOCK, dtype=torch.uint8)

    def forward(self, rows: Tensor) -> Tensor:
        """int64 [T, c] to bf16 [T, c * dim]."""
        return ops.lookup(self.weight, self.scale, rows)


class NgramHash(nn.Module):
    """Table rows of the n-grams that end at each position, for one Engram layer (SPEC 7.5)."""

    multipliers: Tensor
    primes: Tensor
    offsets: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        columns = config.engram_columns
        sizes = {"multipliers": config.engram_max_ngram_size, "primes": columns, "offsets": columns}
        for name, size in sizes.items():
            self.register_buffer(name, torch.ones(size, dtype=torch.int64), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 [T, n] to int64 [T, columns]."""
        return ops.ngram_hash(ids, self.multipliers, self.primes, self.offsets)


class Engram(nn.Module):
    """One Engram module (SPEC 7.5-7.7)."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        entries = config.engram_num_embeddings[config.engram_layer_ids.index(layer)]
        self.streams, self.dim, self.eps = config.hc_mult, config.hidden_size, config.rms_norm_eps
        self.hash = NgramHash(config)
        self.embed = EngramTable(entries, config.engram_head_dim)
        inputs = config.engram_columns * config.engram_head_dim
        self.wkv = Fp8Linear(inputs, (self.streams + 1) * self.dim)
        self.q_weight = weight(self.streams, self.dim, dtype=torch.bfloat16)
        self.k_weight = weight(self.streams, self.dim, dtype=torch.bfloat16)

    def forward(self, h: Tensor, ids: Tensor) -> Tensor:
        """Adds the gated value of each position's n-grams to its streams.

        Args:
            h: bf16 [T, n, d]. ids: int64 [T, n-gram size], compressed look-back.
        Returns:
            bf16 [T, n, d].
        """
        kv = self.wkv(act_quant(self.embed(self.hash(ids))))
        keys, value = kv.split([self.streams * self.dim, self.dim], dim=-1)
        gate = self._gate(h.to(torch.float32), keys.to(torch.float32).unflatten(-1, (self.streams, self.dim)))
        return (h.to(torch.float32) + gate.unsqueeze(-1) * value.to(torch.float32).unsqueeze(1)).to(torch.bfloat16)

    def _gate(self, h: Tensor, keys: Tensor) -> Tensor:
        """fp32 [T, n, d] twice to fp32 [T, n]: each stream on its own (SPEC 7.7)."""
        weights = self.q_weight.to(torch.float32) * self.k_weight.to(torch.float32)
        dot = (h * weights * keys).sum(-1)
        dot = dot * torch.rsqrt(h.square().mean(-1) + self.eps) * torch.rsqrt(keys.square().mean(-1) + self.eps)
        dot = dot * self.dim**-0.5
        magnitude = torch.sqrt(dot.abs().clamp(min=GATE_FLOOR))
        return torch.sigmoid(torch.where(dot >= 0, magnitude, -magnitude))
