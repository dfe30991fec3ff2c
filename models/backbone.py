"""The 40-layer backbone as one forward over a flat ragged batch: prefill chunks, decode steps and mixes of both."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from dsv41c.models import ops
from dsv41c.models.attention import Attention, Context, Rotary, Selection
from dsv41c.models.config import ModelConfig
from dsv41c.models.engram import Engram, LookBack
from dsv41c.models.engram_tables import EngramTables
from dsv41c.models.hyper_connections import HyperConnection, collapse, expand, first_mix
from dsv41c.models.layers import Fp32Linear, RMSNorm, inverse_frequencies, weight
from dsv41c.models.moe import MoE
from dsv41c.models.rows import Rows
from dsv41c.models.state import DEFAULT_PAGE_TOKENS, TAIL_ROWS


class Embedding(nn.Module):
    """Token embeddings, bf16 [vocab, d]."""

    def __init__(self, entries: int, dim: int) -> None:
        super().__init__()
        self.weight = weight(entries, dim, dtype=torch.bfloat16)

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self.weight)


def hyper_connection(config: ModelConfig) -> HyperConnection:
    """The predictor of one site, sized by the config."""
    return HyperConnection(
        config.hc_mult, config.hidden_size, config.hc_sinkhorn_iters, config.hc_eps, config.rms_norm_eps
    )


class Layer(nn.Module):
    """One layer: Engram where it has one, then attention and MoE, each behind a delayed mix (SPEC 3.4)."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        if config.is_engram(layer):
            self.engram = Engram(config, layer)
        self.is_target = config.is_target(layer)
        self.hc_attn = hyper_connection(config)
        self.attn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attn = Attention(config, layer)
        self.hc_ffn = hyper_connection(config)
        self.ffn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn = MoE(
            config.hidden_size,
            config.moe_intermediate_size,
            config.n_routed_experts,
            config.num_experts_per_tok,
            config.routed_scaling_factor,
            config.swiglu_limit,
        )

    def forward(
        self, h: Tensor, pre: Tensor, context: Context, selection: Selection | None, ids: Tensor | None
    ) -> tuple[Tensor, Tensor, Selection | None, Tensor | None]:
        """One layer.

        Args:
            h: bf16 [T, n, d], the streams. pre: fp32 [T, n], the mix that the site before computed.
            ids: int64 [T, n-gram size], compressed look-back, where an Engram module needs it.
        Returns:
            h, pre for the next layer, the selection it may reuse, and bf16 [T, d] for the drafts from target layers.
        """
        if hasattr(self, "engram"):
            assert ids is not None, "Engram layers come with a look-back"
            h = self.engram(h, ids)
        # Captured here, after Engram and before the attention site: what enters the layer, not its output (SPEC 3.4).
        target = h.to(torch.float32).mean(1).to(torch.bfloat16) if self.is_target else None
        next_pre, post, comb = self.hc_attn(h)
        y, selection = self.attn(self.attn_norm(collapse(h, pre)), context, selection)
        h = expand(y, h, post, comb)
        pre = next_pre
        next_pre, post, comb = self.hc_ffn(h)
        y = self.ffn(self.ffn_norm(collapse(h, pre)))
        return expand(y, h, post, comb), next_pre, selection, target


class RotaryTables(nn.Module):
    """The two frequency tables: plain for window layers, YaRN-stretched for compressed ones (SPEC 2.6)."""

    window: Tensor
    compressed: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        dim = config.qk_rope_head_dim
        window = inverse_frequencies(dim, config.rope_theta, None)
        compressed = inverse_frequencies(dim, config.compress_rope_theta, config.rope_scaling)
        self.register_buffer("window", window, persistent=False)
        self.register_buffer("compressed", compressed, persistent=False)


class Backbone(nn.Module):
    """Embedding, layers, final norm and head (SPEC 0, 3.5).

    Parameter names follow the checkpoint (`checkpoint_name` maps the few that differ); buffers hold what is derived
    from the config: rotary frequencies and Engram constants.
    """

    def __init__(self, config: ModelConfig, page_tokens: int = DEFAULT_PAGE_TOKENS) -> None:
        super().__init__()
        self.config = config
        self.page_tokens = page_tokens
        self.rotary = RotaryTables(config)
        self.embed = Embedding(config.vocab_size, config.hidden_size)
        if config.engram_layer_ids:
            self.look_back = LookBack(config)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = Fp32Linear(config.hidden_size, config.vocab_size)

    def set_engram_tables(self, tables: EngramTables) -> None:
        """Fills the Engram constants (SPEC 7.1-7.4)."""
        self.look_back.token_map = tables.token_map
        self.look_back.pad = torch.tensor([tables.pad], dtype=torch.int64)
        for i, layer in enumerate(self.config.engram_layer_ids):
            module = cast(Layer, self.layers[layer]).engram.hash
            module.multipliers, module.primes = tables.multipliers[i], tables.primes[i]
            module.offsets = tables.offsets[i]

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        sequence: Tensor,
        first_row: Tensor,
        context: Tensor,
        lengths: Tensor,
        ring: Tensor,
        pages: Tensor,
        logit_rows: Tensor,
        caches: dict[str, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Runs new tokens of any number of sequences and advances their caches.

        Args:
            tokens, positions, sequence: int64 [T], see `Rows`.
            first_row, context, lengths, ring: int64 [B]. pages: int64 [B, P].
            logit_rows: int64 [R], flat rows whose logits are wanted.
            caches: the state by name, as `state_specs` lays it out; written in place.
        Returns:
            logits fp32 [R, vocab]; main_hidden bf16 [T, targets * d], the drafts' input (SPEC 10.1).
        """
        rows = Rows.of_batch(positions, sequence, first_row, context, lengths, ring, pages)
        shared = self._context(rows, caches)
        ids = self.look_back(tokens, rows, caches["history"]) if self.config.engram_layer_ids else None
        embedded = self.embed(tokens)
        h = torch.stack([embedded] * self.config.hc_mult, dim=1)
        pre = first_mix(h)
        selection: Selection | None = None
        targets = []
        for layer in self.layers:
            h, pre, selection, target = layer(h, pre, shared, selection, ids)
            if target is not None:
                targets.append(target)
        hidden = self.norm(collapse(h[logit_rows], pre[logit_rows]))
        return self.head(hidden), torch.cat(targets, dim=-1) if targets else embedded[:, :0]

    def _context(self, rows: Rows, caches: dict[str, Tensor]) -> Context:
        config = self.config
        positions = rows.positions.clamp(min=0)
        ratios = sorted({config.ratio(layer) for layer in config.kv_source_layer_ids})
        compressed = ops.rotary(positions, self.rotary.compressed)
        entry_rotary: dict[int, Rotary] = {}
        for ratio in ratios:
            # An entry stands at its group's first token (SPEC 4.4).
            start = (positions - (ratio - 1)).clamp(min=0)
            entry_rotary[ratio] = ops.rotary(start, self.rotary.compressed) if ratio > 1 else compressed
        return Context(
            rows=rows,
            caches=caches,
            page_tokens=self.page_tokens,
            window_index=rows.window_index(config.sliding_window),
            window_store=rows.ring_store(config.sliding_window),
            window_rotary=ops.rotary(positions, self.rotary.window),
            compressed_rotary=compressed,
            entry_rotary=entry_rotary,
            entry_store={ratio: rows.entry_store(ratio, self.page_tokens // ratio) for ratio in ratios},
            tail_store=rows.ring_store(TAIL_ROWS),
        )
