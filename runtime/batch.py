"""The step program's inputs, from the pieces of sequences that one call is to run.

The rows of all pieces lie one behind the other; `models.rows` describes the same batch from the program's side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from dsv41c.runtime.caches import Allotment
from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """New tokens of one sequence.

    Attributes:
        allotment: what the sequence holds of the caches.
        context: tokens it has in the caches already.
        tokens: the new ones.
        wanted: offsets into `tokens` whose logits are wanted, ascending.
    """

    allotment: Allotment
    context: int
    tokens: Sequence[int]
    wanted: Sequence[int]


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
    tokens: list[int] = []
    positions: list[int] = []
    sequence: list[int] = []
    first_row: list[int] = []
    logit_rows: list[int] = []
    for index, piece in enumerate(pieces):
        start, count = len(tokens), len(piece.tokens)
        first_row.append(start)
        logit_rows += [start + offset for offset in piece.wanted]
        tokens += piece.tokens
        positions += range(piece.context, piece.context + count)
        sequence += [index] * count
    padding = max(0, n_rows - len(tokens))
    width = max(n_pages, *(len(piece.allotment.pages) for piece in pieces))
    columns = {
        "tokens": tokens + [0] * padding,
        "positions": positions + [-1] * padding,
        "sequence": sequence + [0] * padding,
        "first_row": first_row,
        "context": [piece.context for piece in pieces],
        "lengths": [piece.context + len(piece.tokens) for piece in pieces],
        "ring": [piece.allotment.ring for piece in pieces],
        "pages": [piece.allotment.pages + [-1] * (width - len(piece.allotment.pages)) for piece in pieces],
        "logit_rows": logit_rows or [0],
    }
    return {name: torch.tensor(values, dtype=torch.int64) for name, values in columns.items()}
