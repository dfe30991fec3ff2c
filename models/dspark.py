"""DSpark, the draft network: after each target position it proposes a block of tokens in one pass (SPEC 10).

A draft layer is a backbone layer with a window only. Its ring holds rows of target positions, computed from the
backbone's `main_hidden`; the rows of the block itself are attended to and never stored. Example, block of 5, window 16,
newest target position p = 20:

    ring rows    positions 5 .. 20     written by `seed`, one for each committed target position
    block rows   positions 21 .. 25    anchor (the token at 21) and 4 noise tokens; each sees the ring and all 5
    drafts       positions 22 .. 26    read from the block rows, left to right, each biased by its predecessor
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from dsv41c.models import ops
from dsv41c.models.attention import Attention, Rotary
from dsv41c.models.backbone import Backbone, Embedding, hyper_connection
from dsv41c.models.config import ModelConfig
from dsv41c.models.hyper_connections import collapse, expand, first_mix
from dsv41c.models.layers import Fp8Linear, Fp32Linear, RMSNorm, act_quant, rotate
from dsv41c.models.moe import MoE
from dsv41c.models.rows import Rows


@dataclass(frozen=True)
class Proposal:
    """One block of drafts for each sequence of a batch, block of n tokens.

    Attributes:
        ids: int64 [B, n], the drafts; draft i stands at the anchor's position + 1 + i.
        logits: fp32 [B, n, vocab], with the Markov bias.
        confidence: fp32 [B, n], logits of the acceptance probability.
    """

    ids: Tensor
    logits: Tensor
    confidence: Tensor


@dataclass(frozen=True)
class Block:
    """The geometry of a draft pass over the flat rows of all blocks, M = B * n rows.

    Attributes:
        window_index: int32 [M, W + n], ring rows oldest first, then the rows of the own block (`ops.sparse_attention`).
        rotary: the rotation of each row's position.
    """

    window_index: Tensor
    rotary: Rotary


class MarkovHead(nn.Module):
    """A low-rank bias on the logits that depends on the preceding token (SPEC 10.4)."""

    def __init__(self, vocab: int, rank: int) -> None:
        super().__init__()
        self.embed = Embedding(vocab, rank)
        self.head = Fp32Linear(rank, vocab)


class ConfidenceHead(nn.Module):
    """How likely a draft is to be accepted, from its hidden state and its predecessor (SPEC 10.4)."""

    def __init__(self, dim: int, rank: int) -> None:
        super().__init__()
        self.proj = Fp32Linear(dim + rank, 1)

    def forward(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """bf16 [B, d] and bf16 [B, rank] to fp32 [B], logits."""
        return self.proj(torch.cat((hidden, previous), dim=-1)).squeeze(-1)


class DraftLayer(nn.Module):
    """One draft layer; the first also owns the input projection, the last the heads (SPEC 10.1-10.4)."""

    def __init__(self, config: ModelConfig, draft: int) -> None:
        super().__init__()
        dim, eps = config.hidden_size, config.rms_norm_eps
        self.cache = f"window.mtp.{draft}"
        if draft == 0:
            self.main_proj = Fp8Linear(len(config.dspark_target_layer_ids) * dim, dim)
            self.main_norm = RMSNorm(dim, eps)
        self.hc_attn = hyper_connection(config)
        self.attn_norm = RMSNorm(dim, eps)
        self.attn = Attention(config, config.num_hidden_layers + draft)
        self.hc_ffn = hyper_connection(config)
        self.ffn_norm = RMSNorm(dim, eps)
        self.ffn = MoE(
            dim,
            config.moe_intermediate_size,
            config.dspark_n_routed_experts,
            config.dspark_num_experts_per_tok,
            config.routed_scaling_factor,
            config.swiglu_limit,
        )
        if draft == config.num_nextn_predict_layers - 1:
            self.norm = RMSNorm(dim, eps)
            self.markov_head = MarkovHead(config.vocab_size, config.dspark_markov_rank)
            self.confidence_head = ConfidenceHead(dim, config.dspark_markov_rank)

    def forward(self, h: Tensor, pre: Tensor, block: Block, caches: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """One layer over the block rows; reads this layer's ring and writes nothing.

        Args:
            h: bf16 [M, n, d], the streams. pre: fp32 [M, n], the mix that the site before computed.
        Returns:
            h and pre for the next layer.
        """
        next_pre, post, comb = self.hc_attn(h)
        y = self._attend(self.attn_norm(collapse(h, pre)), block, caches[self.cache])
        h = expand(y, h, post, comb)
        pre = next_pre
        next_pre, post, comb = self.hc_ffn(h)
        y = self.ffn(self.ffn_norm(collapse(h, pre)))
        return expand(y, h, post, comb), next_pre

    def _attend(self, x: Tensor, block: Block, ring: Tensor) -> Tensor:
        attn = self.attn
        quantized = act_quant(x)
        query, _ = attn.queries(quantized, block.rotary)
        fresh = attn.window_rows(quantized, block.rotary)
        scale = attn.head_dim**-0.5
        window = (ring, fresh, block.window_index)
        output = ops.sparse_attention(query, *window, None, None, attn.attn_sink, scale, attn.window, 1)
        cos, sin = block.rotary
        return attn.project_output(rotate(output, cos, -sin))


class DSpark(nn.Module):
    """The draft layers and their heads; embedding, output head and rotary tables are the backbone's own (SPEC 10).

    Parameter names follow the checkpoint, as the backbone's do; the shared ones keep their backbone names.
    """

    def __init__(self, config: ModelConfig, backbone: Backbone) -> None:
        super().__init__()
        self.config = config
        self.embed = backbone.embed
        self.head = backbone.head
        self.rotary = backbone.rotary
        self.mtp = nn.ModuleList(DraftLayer(config, draft) for draft in range(config.num_nextn_predict_layers))

    def seed(self, main_hidden: Tensor, rows: Rows, caches: dict[str, Tensor]) -> None:
        """Writes the ring rows of committed target positions, for every draft layer from the same input.

        Args:
            main_hidden: bf16 [T, targets * d], from the backbone's forward.
            rows: the geometry of that forward; rows with position -1 write nothing, so a rejected row is marked so, and
                `lengths` counts the committed tokens only.
            caches: the draft rings by name, as `draft_state_specs` lays them out; written in place.
        """
        layers = self._layers()
        first = layers[0]
        quantized = act_quant(first.main_norm(first.main_proj(act_quant(main_hidden))))
        rotary = ops.rotary(rows.positions.clamp(min=0), self.rotary.window)
        window = self.config.sliding_window
        slots = rows.ring_store(window)
        for layer in layers:
            ops.store(caches[layer.cache], layer.attn.window_rows(quantized, rotary), slots, "fp8_e8m0", window)

    def draft(self, anchors: Tensor, positions: Tensor, ring: Tensor, caches: dict[str, Tensor]) -> Proposal:
        """Proposes the tokens that follow each anchor, greedily.

        Args:
            anchors: int64 [B], the newest token of each sequence, which the backbone has not run yet.
            positions: int64 [B], the anchors' positions, at least 1; every earlier position is seeded.
            ring: int64 [B], ring slots. caches: the draft rings by name.
        """
        h, pre = self._hidden(anchors, self._block(positions, ring), caches)
        hidden = collapse(h, pre).unflatten(0, (-1, self.config.dspark_block_size))
        return self._propose(anchors, hidden)

    def _layers(self) -> list[DraftLayer]:
        return cast(list[DraftLayer], list(self.mtp))

    def _block(self, positions: Tensor, ring: Tensor) -> Block:
        window, size = self.config.sliding_window, self.config.dspark_block_size
        device = positions.device
        earlier = positions.unsqueeze(-1) + torch.arange(-window, 0, device=device)
        slots = torch.where(earlier >= 0, ring.unsqueeze(-1) * window + earlier.clamp(min=0) % window, -1)
        fresh = -2 - torch.arange(positions.shape[0] * size, device=device).view(-1, size)
        window_index = torch.cat((slots, fresh), dim=-1).to(ops.LIST).repeat_interleave(size, 0)
        own = (positions.unsqueeze(-1) + torch.arange(size, device=device)).flatten()
        return Block(window_index, ops.rotary(own, self.rotary.window))

    def _hidden(self, anchors: Tensor, block: Block, caches: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The streams after the last layer, bf16 [M, n, d], and the mix that collapses them."""
        noise = torch.full_like(anchors, self.config.dspark_noise_token_id)
        tokens = torch.stack([anchors] + [noise] * (self.config.dspark_block_size - 1), dim=1).flatten()
        h = torch.stack([self.embed(tokens)] * self.config.hc_mult, dim=1)
        pre = first_mix(h)
        for layer in self.mtp:
            h, pre = layer(h, pre, block, caches)
        return h, pre

    def _propose(self, anchors: Tensor, hidden: Tensor) -> Proposal:
        """Left to right, since each draft's bias and confidence look at the draft before it; hidden: bf16 [B, n, d]."""
        last = self._layers()[-1]
        base = self.head(last.norm(hidden))
        previous, ids, logits, confidence = anchors, [], [], []
        for i in range(self.config.dspark_block_size):
            embedded = last.markov_head.embed(previous)
            logits.append(base[:, i] + last.markov_head.head(embedded))
            confidence.append(last.confidence_head(hidden[:, i], embedded))
            previous = logits[-1].argmax(-1)
            ids.append(previous)
        return Proposal(torch.stack(ids, 1), torch.stack(logits, 1), torch.stack(confidence, 1))
