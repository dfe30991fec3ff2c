"""Symptom: retrieval falls from 10 of 10 to 3 of 10 as chunks grow in number (README of chiro2001's engine).

Cause: an error at each border of two chunks.

Why this input: one prompt in chunks of 1, 3, 7, 16 and all its tokens; the window is 16, a group 2, a page 16, so the
borders fall everywhere relative to all three. The caches hold what one chunk writes, and so do the last logits.
"""

import pytest
from golden_model import cached_values, golden, prefill
from tolerances import STEP_LOGITS


@pytest.mark.parametrize("size", [1, 3, 7, 16, 33])
def test_any_size_of_chunks_gives_the_same(size: int) -> None:
    model, whole = golden("mini6"), prefill("mini6", "p33")
    ids, session = model.ids("p33"), model.session()
    for start in range(0, len(ids), size):
        logits, _ = session.forward({0: ids[start : start + size]})
    assert (logits[0][-1] - whole.logits[-1]).abs().max() <= STEP_LOGITS
    assert logits[0][-1].argmax() == whole.logits[-1].argmax()
    expected = cached_values(model.config, whole.session.caches, len(ids))
    for key, values in cached_values(model.config, session.caches, len(ids)).items():
        rows = (values.float() - expected[key].float()).norm(dim=-1) / expected[key].float().norm(dim=-1)
        assert rows.median() <= 1e-2, key
