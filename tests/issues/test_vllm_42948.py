"""Symptom: a hit rate of 0, and nobody is told (vllm#42948, 1CatAI/1Cat-vLLM#205).

Cause: what is written and what is looked up are aligned differently, or another feature turns the cache off.

Why this input: the same prompt twice, for lengths around pages and windows; and every way in which caching ends
up off says so: by a count, or by a line in the log (`test_a_plan_that_cannot_replay_says_so`).
"""

from pathlib import Path

import pytest
from driving import PAGE, forced, prompt_of

import dsv41c
from dsv41c.runtime.prefix import PrefixOptions


@pytest.mark.parametrize("prefill", ["exact", "bounded"])
def test_the_second_time_hits(mini6_plan: Path, prefill: str) -> None:
    engine = dsv41c.load(mini6_plan, prefill=prefill, prefix=PrefixOptions())
    assert engine.prefix is not None
    for length in (PAGE, PAGE + 1, 2 * PAGE, 40):
        prompt = [length, *prompt_of(length - 1)]
        for turn in range(2):
            counts = engine.prefix.counts
            before = counts.hit_tokens
            (done,) = engine.generate([prompt], forced([5]))
            # Where the pages are all of the prompt, its last token runs again; longer than a window, its tail does.
            runs_again = length % PAGE == 0 and (prefill == "exact" or length == PAGE)
            assert done.cached_tokens == (length // PAGE * PAGE - runs_again) * turn
            assert counts.hit_tokens - before == done.cached_tokens
    assert counts.queries == 8
    assert counts.hits == 4
