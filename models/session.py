"""Runs the eager backbone over sequences: the smallest caller of a step program, and the tests' oracle."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dsv41c.models.backbone import Backbone
from dsv41c.models.rows import Chunk, step_inputs
from dsv41c.models.state import state_specs


@dataclass
class EagerSession:
    """Sequences with their caches, advanced by the eager backbone.

    Attributes:
        model: with weights loaded.
        rings: number of sequences that fit. tokens: tokens that fit in each.
        caches: the state by name.
    """

    model: Backbone
    rings: int = 1
    tokens: int = 256
    caches: dict[str, Tensor] = field(init=False)
    lengths: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._pages_each = -(-self.tokens // self.model.page_tokens)
        sizes = {"pages": self._pages_each * self.rings, "rings": self.rings}
        specs = state_specs(self.model.config, self.model.page_tokens)
        self.caches = {spec.name: spec.empty(sizes[spec.pool]) for spec in specs}
        self.lengths = [0] * self.rings

    def forward(self, new_tokens: dict[int, list[int]], padded_rows: int = 0) -> tuple[dict[int, Tensor], Tensor]:
        """Advances some sequences by some tokens each.

        Args:
            new_tokens: by ring slot.
            padded_rows: rows to append that belong to no sequence.
        Returns:
            by ring slot the logits fp32 [its tokens, vocab]; main_hidden bf16 [all rows, targets * d].
        """
        chunks = [self.chunk(ring, tokens) for ring, tokens in new_tokens.items()]
        total = sum(len(chunk.tokens) for chunk in chunks)
        inputs = step_inputs(chunks, list(range(total)), padded_rows)
        with torch.no_grad():
            logits, main_hidden = self.model(**inputs, caches=self.caches)
        for ring, tokens in new_tokens.items():
            self.lengths[ring] += len(tokens)
        split = logits.split([len(chunk.tokens) for chunk in chunks])
        return dict(zip(new_tokens, split, strict=True)), main_hidden

    def chunk(self, ring: int, tokens: list[int]) -> Chunk:
        """The next tokens of the sequence in a ring slot."""
        first = ring * self._pages_each
        return Chunk(tokens, self.lengths[ring], ring, list(range(first, first + self._pages_each)))
