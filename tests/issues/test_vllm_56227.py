"""Symptom: a replay writes to the null block (vllm#56227).

Cause: the replay starts inside a block that the allocation skipped, since all its tokens count as cached.

Why this input: hits of two, three and five pages, each of whose replays begins in a page that counts as cached, with
unwritten rows of NaN: the rows of the replay lie in real ring slots, and no byte of a page or ring changes
that the request does not hold alone.
"""

from pathlib import Path

import pytest
import torch
from driving import PAGE, WINDOW, forced, prompt_of

import dsv41c
from dsv41c.runtime.prefix import PrefixOptions


@pytest.mark.parametrize("pages", [2, 3, 5])
def test_a_replay_writes_its_own_rings_and_pages_only(mini6_plan: Path, pages: int) -> None:
    prompt = prompt_of(pages * PAGE + 3)
    options = PrefixOptions(state_bytes=0)  # no window state is ever kept
    engine = dsv41c.load(mini6_plan, prefill="bounded", prefix=options, poison=True, max_sequences=2)
    engine.generate([prompt], forced([5]))
    before = {name: cache.clone() for name, cache in engine.caches.tensors.items()}
    request = engine.submit(prompt, forced([5, 9]))
    engine.step()
    assert request.cached_tokens == pages * PAGE
    assert request.start == request.cached_tokens - WINDOW
    assert request.allotment is not None
    own = {"pages": request.allotment.pages[pages:], "rings": [request.allotment.ring]}
    while request.finished is None:
        engine.step()
    for spec in engine.caches.specs:
        changed = (engine.caches.tensors[spec.name].view(torch.uint8) != before[spec.name].view(torch.uint8)).any(-1)
        assert set(changed.nonzero().flatten().tolist()) <= set(own[spec.pool]), spec.name
    for name in ("window.0", "window.2"):
        rows = engine.caches.tensors[name][own["rings"][0]]
        assert (rows != 0x7F).any()
