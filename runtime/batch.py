"""The step program's inputs, from the pieces of sequences that one call is to run.

The rows of all pieces lie one behind the other; `models.rows` describes the same batch from the program's side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dsv41c.models import rows
from dsv41c.models.rows import Chunk
from dsv41c.runtime.caches import Allotment


@dataclass(frozen=True)
class Piece:
    """New tokens of one sequence.

    Attributes:
        allotment: what the sequence holds of the caches.
        context: tokens it has in the caches already.
        tokens: the new ones.
        wanted: offsets into `tokens` whose logits are wanted, ascending.
        start: no row attends to a window row of a token before this one (SPEC 5.6).
        written_from: entries of tokens before this one are read, and not written.
    """

    allotment: Allotment
    context: int
    tokens: Sequence[int]
    wanted: Sequence[int]
    start: int = 0
    written_from: int = 0


def step_inputs(pieces: Sequence[Piece], n_rows: int = 0, n_pages: int = 1) -> dict[str, Tensor]:
    """The inputs of one step.

    Args:
        pieces: at least one, of distinct sequences.
        n_rows: rows at least; rows beyond the pieces' own are padding, with position -1.
        n_pages: columns of the block table at least.
    Returns:
        int64 tensors: tokens, positions, sequence [T]; first_row, context, lengths, ring [B]; pages [B, P];
        logit_rows [R], the wanted rows in order, or row 0 where none is wanted.
    """
    chunks = [Chunk(piece.tokens, piece.context, piece.allotment.ring, piece.allotment.pages) for piece in pieces]
    logit_rows: list[int] = []
    total = 0
    for piece in pieces:
        logit_rows += [total + offset for offset in piece.wanted]
        total += len(piece.tokens)
    return rows.step_inputs(chunks, logit_rows or [0], max(0, n_rows - total), n_pages)
