"""Symptom: a replay writes to the null block (vllm#56227).

Cause: the replay starts inside a block that the allocation skipped, since all its tokens count as cached.

Why this input: hits of two, three and five pages, each of whose replays begins in a page that counts as cached, with
unwritten rows of NaN: the rows of the replay lie in real ring slots, and no byte of a page or ring changes
that the request does not hold alone. Windows and pages of mini6 have one size, so the report's own sizes come besides:
a window of 8 and 15 tokens in pages of 5, whose replay starts at 7, inside the second page.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from driving import PAGE, WINDOW, forced, prompt_of

import dsv41c
from dsv41c.models.rows import Rows
from dsv41c.runtime.batch import Piece, step_inputs
from dsv41c.runtime.caches import Allotment
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.prefix import PrefixOptions
from dsv41c.runtime.replay import Replay


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


def test_a_replay_that_starts_inside_a_page(mini6_plan: Path) -> None:
    """Tokens 7..14 run again: each has a real ring slot and no entry to write; the first attends to itself alone."""
    window, page = 8, 5
    plan = Plan.load(mini6_plan)
    ratio_1 = tuple(spec for spec in plan.manifest.state if spec.ratio == 1)
    assert ratio_1
    sized = replace(plan, manifest=replace(plan.manifest, page_tokens=page, state=ratio_1))
    piece = Piece(Allotment(3, [4, 6, 9, 2]), 7, range(7, 17), [9], start=7, written_from=15)
    inputs = step_inputs([piece])
    made = Replay(sized, window).inputs([piece], inputs)
    keys = made["replay.window"]
    assert [(row >= 0).sum().item() for row in keys] == [0] * 10, "no row of the ring from before the start"
    assert [(row <= -2).sum().item() for row in keys] == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8]
    assert made["replay.slots.1"].tolist() == [-1] * 8 + [2 * page, 2 * page + 1], "tokens 15 and 16, in the last page"
    alone = step_inputs([replace(piece, tokens=range(7, 15))])
    rows = Rows.of_batch(*(alone[name] for name in list(alone)[1:-1]))
    assert rows.ring_store(window).tolist() == [3 * window + position % window for position in range(7, 15)]
