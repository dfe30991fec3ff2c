"""Symptom: a server hangs or answers wrongly after many requests, and the frame that is blamed is the victim's
(vllm#40969, vllm#54385, and the soak of vllm#41834).

Cause: an earlier kernel wrote where it should not, or gave NaN, and nobody looked.

Why this input: two requests run; the fifth call also writes one byte of a page or of a ring that neither holds,
or gives NaN. With `check` that very call is reported and the engine turns bad; without faults nothing is.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from driving import prompt_of
from torch import Tensor

import dsv41c
from dsv41c.errors import StateError
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.prefix import PrefixOptions
from dsv41c.runtime.requests import Request
from dsv41c.runtime.sampling import SamplingParams

PARAMS = SamplingParams(max_new_tokens=8, stop_at_eos=False)


def finish(engine: Engine, requests: Sequence[Request]) -> None:
    while any(request.finished is None for request in requests):
        engine.step()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("main.1", r"call 5, a forward of step, wrote page \d+ of main\.1, which none of its requests holds to write"),
        ("window.4", r"call 5, a forward of step, wrote ring \d+ of window\.4"),
        ("logits", "call 5, a forward of step, gave logits that are no numbers in row 0"),
    ],
)
def test_the_call_that_does_wrong_is_named(mini6_plan: Path, fault: str, message: str) -> None:
    engine = dsv41c.load(mini6_plan, max_sequences=3, poison=True, check=True)
    original, calls = engine.executor.run, 0

    def run(program: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        nonlocal calls
        calls += 1
        outputs = original(program, inputs)
        if calls == 5:
            target = outputs["logits"] if fault == "logits" else engine.caches.tensors[fault]
            target[-1 if fault != "logits" else 0, 3] = float("nan") if fault == "logits" else 5
        return outputs

    engine.executor.run = run  # type: ignore[assignment, method-assign]
    requests = [engine.submit(prompt_of(length), PARAMS) for length in (20, 5)]
    with pytest.raises(StateError, match=message):
        finish(engine, requests)
    assert calls == 5
    assert engine.failure is not None
    assert engine.caches.used_bytes == 0


@pytest.mark.parametrize("prefill", ["exact", "bounded"])
def test_calls_that_do_right_pass(mini6_plan: Path, prefill: str) -> None:
    """Prefixes, replays, tails and shared pages among them."""
    options = PrefixOptions(state_bytes=0 if prefill == "bounded" else 1 << 20)
    engine = dsv41c.load(mini6_plan, prefill=prefill, prefix=options, poison=True, check=True, chunk_tokens=24)
    prompts = [prompt_of(length) for length in (50, 40, 5)]
    for _ in range(2):
        done = engine.generate(prompts, PARAMS)
    assert done[0].cached_tokens == 48
