"""Symptom: the answer to a prompt that spans two passes is one broken token (llama.cpp#26509).

Cause: the second pass reads rows of the first from the wrong place.

Why this input: two passes whose border lies inside a window, inside a page and inside a compressor's pair, beside
another request whose passes have other borders; and what the caches hold afterwards is the same.
"""

from pathlib import Path

import pytest
import torch
from driving import WINDOW, first_logits, prompt_of
from tolerances import STEP_LOGITS

import dsv41c


@pytest.mark.parametrize("prefill", ["exact", "bounded"])
def test_a_border_within_a_window(mini6_plan: Path, prefill: str) -> None:
    length, border = 2 * WINDOW + 5, WINDOW + WINDOW // 2 + 1
    engine = dsv41c.load(mini6_plan, prefill=prefill, max_sequences=2, poison=True)
    prompts = [prompt_of(length), prompt_of(length + 1)]
    split = first_logits(engine, prompts, [(border, length - border), (3, length - 2)])
    whole = first_logits(engine, prompts, [(length,), (length + 1,)])
    for ours, want in zip(split, whole, strict=True):
        assert torch.isfinite(ours).all()
        assert (ours - want).abs().max() <= STEP_LOGITS
        assert ours.argmax() == want.argmax()
