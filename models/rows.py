"""Where the rows of a flat ragged batch lie: positions, cache slots and look-backs, computed once for all layers.

A batch concatenates the new tokens of several sequences. Row i belongs to sequence `sequence[i]` and stands at absolute
position `positions[i]`; -1 marks a padded row, which writes nothing and attends to nothing. An earlier position of the
same sequence is either fresh (a row of this batch) or stored (in the sequence's caches).

Example, two sequences, the first with 3 tokens already cached:

    tokens    a3 a4 | b0 b1 b2        positions  3 4 0 1 2      sequence  0 0 1 1 1
    first_row 0 2                     context    3 0            lengths   5 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv41c.models.ops import LIST

INPUT_NAMES = (
    "tokens",
    "positions",
    "sequence",
    "first_row",
    "context",
    "lengths",
    "ring",
    "pages",
    "logit_rows",
)


@dataclass(frozen=True)
class Rows:
    """The geometry of one forward; every per-row tensor is int64 [T], every list of many entries a row int32.

    Attributes:
        positions: absolute position, -1 for a padded row.
        sequence: index of the row's sequence in the batch.
        first_row, context, lengths, ring: the sequence's first row, cached tokens, cached + new tokens, ring slot.
        pages: int64 [B, P], the block table.
    """

    positions: Tensor
    sequence: Tensor
    first_row: Tensor
    context: Tensor
    lengths: Tensor
    ring: Tensor
    pages: Tensor

    @classmethod
    def of_batch(
        cls,
        positions: Tensor,
        sequence: Tensor,
        first_row: Tensor,
        context: Tensor,
        lengths: Tensor,
        ring: Tensor,
        pages: Tensor,
    ) -> Rows:
        """Spreads the per-sequence values int64 [B] over the rows."""
        first_row, context = first_row[sequence], context[sequence]
        return cls(positions, sequence, first_row, context, lengths[sequence], ring[sequence], pages)

    def fresh_row(self, position: Tensor) -> Tensor:
        """The flat row of a position of the row's own sequence, where that position is in this batch."""
        return _like(self.first_row, position) + position - _like(self.context, position)

    def is_fresh(self, position: Tensor) -> Tensor:
        """Whether a position of the row's own sequence is a row of this batch."""
        return position >= _like(self.context, position)

    def ring_slot(self, position: Tensor, size: int) -> Tensor:
        """The slot of a position in the ring of `size` rows that belongs to the row's sequence."""
        return _like(self.ring, position) * size + position.clamp(min=0) % size

    def ring_store(self, size: int) -> Tensor:
        """Slots for the new rows in a ring of `size` rows; rows that newer ones would overwrite get -1."""
        kept = (self.positions >= 0) & (self.positions >= self.lengths - size)
        return torch.where(kept, self.ring_slot(self.positions, size), -1)

    def window_index(self, size: int) -> Tensor:
        """Keys of the causal window, oldest first: int32 [T, size].

        -1 is no key, i >= 0 the window slot i, i <= -2 the fresh row -2 - i.
        """
        back = torch.arange(size - 1, -1, -1, device=self.positions.device)
        position = self.positions.unsqueeze(-1) - back
        index = torch.where(self.is_fresh(position), -2 - self.fresh_row(position), self.ring_slot(position, size))
        return torch.where(position >= 0, index, -1).to(LIST)

    def entry_store(self, ratio: int, page: int) -> Tensor:
        """Slots of the entries that the rows complete; a row that completes none gets -1 (SPEC 4.3)."""
        complete = (self.positions >= 0) & ((self.positions + 1) % ratio == 0)
        entry = (self.positions + 1).clamp(min=ratio) // ratio - 1
        return torch.where(complete, self._slots(entry.unsqueeze(-1), page).squeeze(-1), -1)

    def entry_slots(self, entries: Tensor, page: int) -> Tensor:
        """Global slots int32 of entries int32 [T, k] of each row's own sequence; -1 stays -1.

        A padded row has no entries: its sequence and block table are never read for an address that is used.
        """
        # Compilers gather by int64 alone, so only what is kept is narrow.
        return self._slots(entries.to(torch.int64), page).to(LIST)

    def _slots(self, entries: Tensor, page: int) -> Tensor:
        safe = entries.clamp(min=0)
        # One flat index: a compiler gathers by one list of addresses, not by two that broadcast.
        owner = self.pages.flatten()[self.sequence.unsqueeze(-1) * self.pages.shape[1] + safe // page]
        return torch.where((entries >= 0) & (owner >= 0), owner * page + safe % page, -1)


def _like(per_row: Tensor, position: Tensor) -> Tensor:
    return per_row if position.dim() == 1 else per_row.unsqueeze(-1)


@dataclass(frozen=True)
class Chunk:
    """New tokens of one sequence.

    Attributes:
        tokens: the new ids. context: tokens of this sequence that are already cached.
        ring: its ring slot. pages: its block table.
    """

    tokens: Sequence[int]
    context: int
    ring: int
    pages: Sequence[int]


def step_inputs(
    chunks: Sequence[Chunk], logit_rows: Sequence[int], padded_rows: int = 0, n_pages: int = 1
) -> dict[str, Tensor]:
    """The inputs of a step program for a batch of chunks, in the order of `INPUT_NAMES`.

    Args:
        chunks: one for each sequence of the batch.
        logit_rows: flat rows whose logits are wanted.
        padded_rows: rows to append that belong to no sequence.
        n_pages: columns of the block table at least.
    Returns:
        int64 tensors by name; block tables are padded with -1, a padded row has position -1.
    """
    counts = [len(chunk.tokens) for chunk in chunks]
    starts = [sum(counts[:i]) for i in range(len(counts))]
    width = max(n_pages, *(len(chunk.pages) for chunk in chunks))
    padding = [-1] * padded_rows
    values = (
        [token for chunk in chunks for token in chunk.tokens] + [0] * padded_rows,
        [chunk.context + i for chunk in chunks for i in range(len(chunk.tokens))] + padding,
        [b for b, count in enumerate(counts) for _ in range(count)] + [0] * padded_rows,
        starts,
        [chunk.context for chunk in chunks],
        [chunk.context + count for chunk, count in zip(chunks, counts, strict=True)],
        [chunk.ring for chunk in chunks],
        [[*chunk.pages, *[-1] * (width - len(chunk.pages))] for chunk in chunks],
        logit_rows,
    )
    tensors = (torch.tensor(value, dtype=torch.int64) for value in values)
    return dict(zip(INPUT_NAMES, tensors, strict=True))
