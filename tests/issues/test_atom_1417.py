"""Symptom: empty or broken output when a prompt hits the prefix cache (ROCm/ATOM#1417).

Cause: window rings belong to a request and are not found by content; the new request reads whatever its ring slot held.

Why this input: request A; request B with the same three pages in another ring slot, while A still runs, with unwritten
rows of NaN; against a cold B, which is the same in every bit where the windows are restored.
"""

from pathlib import Path

import pytest
import torch
from driving import PAGE, forced, prompt_of, seen_logits

import dsv41c
from dsv41c.runtime.prefix import PrefixOptions
from dsv41c.runtime.sampling import SamplingParams


@pytest.mark.parametrize("prefill", ["exact", "bounded"])
def test_a_hit_in_another_slot(mini6_plan: Path, prefill: str) -> None:
    shared = prompt_of(3 * PAGE)
    a, b = [*shared, 5], [*shared, 9, 2, 7]
    engine = dsv41c.load(mini6_plan, prefill=prefill, prefix=PrefixOptions(), poison=True)
    first = engine.submit(a, SamplingParams(max_new_tokens=60, stop_at_eos=False))
    while not first.events:
        engine.step()
    cold = dsv41c.load(mini6_plan, prefill=prefill)
    found = []
    for one in (engine, cold):
        with seen_logits(one) as seen:
            done = one.generate([b], forced([4, 8]))[0]
        found.append(torch.stack(next(logits for request, logits in seen.items() if request is not first)))
        assert done.cached_tokens == (3 * PAGE if one is engine else 0)
    assert torch.isfinite(found[0]).all()
    assert torch.equal(*found)
    engine.cancel(first)
