"""Symptom: a failure, or entries that do not exist, where k is larger than what there is to choose (flashinfer#5187).

Cause: a dummy page gives the score row a width of 64, and k is 2048.

Why this input: three entries and a k of 8; the first three places are entries and the others -1, which attention skips.
"""

import torch
from golden_model import golden
from selection import selections


def test_fewer_entries_than_k() -> None:
    for chosen in selections([1.0, -1.0, 3.0], k=8):
        assert chosen == [0, 1, 2, -1, -1, -1, -1, -1]


def test_every_short_context_runs() -> None:
    """mini6 takes 8 of its entries, one for each two tokens in its first source."""
    model = golden("mini6")
    for length in range(1, 20):
        logits, _ = model.session().forward({0: model.ids("p33")[:length]})
        assert torch.isfinite(logits[0]).all(), length
