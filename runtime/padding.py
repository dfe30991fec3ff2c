"""Padding a call's inputs to a bucket: the rows and sequences that a recorded program always has.

3 sequences of one row each, bucket of 4       tokens  7 9 2 | 0     positions  4 0 8 | -1     sequence  0 1 2 | 0
                                               lengths 5 1 9 | 0     ring       2 0 1 | 0      logit_rows 0 1 2 | 0
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dsv41c.errors import PlanError
from dsv41c.runtime.plan_format import Bucket, Program

_PADDED_POSITION = -1  # writes nothing, attends to nothing, chooses no expert
_GROWING = frozenset({"tokens", "positions", "sequence", "first_row", "context", "lengths", "ring", "logit_rows"})


def bucket_for(program: Program, rows: int) -> Bucket:
    """The smallest bucket of a program that takes a call.

    Args:
        rows: of the call, one for each of its sequences.
    Raises:
        PlanError: the program has no bucket that large.
    """
    for bucket in program.buckets:
        if rows <= bucket.rows:
            return bucket
    sizes = ", ".join(str(bucket.rows) for bucket in program.buckets) or "none"
    raise PlanError(
        f"a call of {rows} rows fits no bucket; the plan has {sizes}: split the call, or compile with --buckets {rows}"
    )


def pad(inputs: Mapping[str, Tensor], bucket: Bucket) -> dict[str, Tensor]:
    """The inputs of a step of one row a sequence, padded to a bucket; outputs of the added rows mean nothing.

    Args:
        inputs: as `batch.step_inputs` gives them.
    Returns:
        the same names; per-row and per-sequence inputs have the bucket's rows.
    """
    padded = {}
    for name, value in inputs.items():
        if name == "pages":
            padded[name] = torch.nn.functional.pad(value, (0, 0, 0, bucket.rows - value.shape[0]))
            continue
        assert name in _GROWING, f"input {name} has no rule for padding"
        fill = _PADDED_POSITION if name == "positions" else 0
        padded[name] = torch.nn.functional.pad(value, (0, bucket.rows - value.shape[0]), value=fill)
    return padded
