"""Symptom: wrong Engram rows after a cache is loaded, handed over or rolled back (vLLM's common/engram.py).

Cause: the last tokens, which n-grams look back to, are state that is no KV; whoever restores caches forgets them.

Why this input: a sequence resumed behind 9 tokens with its history and without it, and one that ran 1 to 5 tokens ahead
and went back: the history keeps 8 tokens by position, more than a draft block and the look-back together.
"""

import pytest
import torch
from golden_model import golden, recorded
from torch import Tensor

from dsv41c.models.session import EagerSession

HELD = 9


def hashes(session: EagerSession, ids: list[int]) -> Tensor:
    model = golden("mini6")
    with recorded(model.backbone) as record:
        session.forward({0: ids})
    return torch.stack([record.values[f"hash.layers.{layer}"] for layer in model.config.engram_layer_ids], 1)


def resumed(ids: list[int], ahead: int = 0) -> EagerSession:
    session = golden("mini6").session()
    session.forward({0: ids[:HELD]})
    if ahead:
        session.forward({0: [7] * ahead})
        session.lengths[0] = HELD
    return session


@pytest.mark.parametrize("ahead", range(6))
def test_hashes_after_a_resume_or_a_rollback(ahead: int) -> None:
    ids, want = golden("mini6").ids("p17"), golden("mini6").outputs["p17.engram_hash"]
    assert torch.equal(hashes(resumed(ids, ahead), ids[HELD:]), want[HELD:])


def test_without_the_history_they_are_others() -> None:
    """So that the test above sees it: only rows that look back past the resume differ."""
    ids, want = golden("mini6").ids("p17"), golden("mini6").outputs["p17.engram_hash"]
    session = resumed(ids)
    session.caches["history"].zero_()
    found = hashes(session, ids[HELD:])
    reach = golden("mini6").config.engram_max_ngram_size - 1
    assert not torch.equal(found[0], want[HELD])
    assert torch.equal(found[reach:], want[HELD + reach :])
