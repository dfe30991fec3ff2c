"""Symptom: a decode step differs from the prefill of the same tokens (omlx#2271, and a comment at mlx-lm#1189).

Cause: state of the compressor that one step leaves for the next is lost.

Why this input: lengths of a prompt up to three windows with its last 1, 2 and 3 tokens as decode steps, so that
they open groups, close them, and wrap rings; unwritten cache rows hold NaN. With DSV41C_FULL_TESTS=1 all of them.
"""

import os
from pathlib import Path

import pytest
import torch
from driving import WINDOW, first_logits, forced, prompt_of, seen_logits
from tolerances import STEP_LOGITS, STEP_MEDIAN

import dsv41c
from dsv41c.runtime.engine import Engine

FULL = bool(os.environ.get("DSV41C_FULL_TESTS"))


@pytest.fixture(scope="module")
def engine(mini6_plan: Path) -> Engine:
    return dsv41c.load(mini6_plan, max_sequences=32, poison=True)


def test_decode_steps_are_the_prefill(engine: Engine) -> None:
    lengths = range(2, 3 * WINDOW + 1) if FULL else [*range(4, WINDOW + 4), *range(WINDOW + 4, 3 * WINDOW + 1, 5)]
    whole = dict(
        zip(lengths, first_logits(engine, list(map(prompt_of, lengths)), [(n,) for n in lengths]), strict=True)
    )
    turns = range(3) if FULL else (0,)
    cases = [(length, steps) for length in lengths for at in turns if (steps := (length + at) % 3 + 1) < length]
    with seen_logits(engine) as seen:
        params = [forced([*prompt_of(length)[length - steps :], 5]) for length, steps in cases]
        engine.generate([prompt_of(length)[: length - steps] for length, steps in cases], params)
    logits = {request.number: found[-1] for request, found in seen.items()}
    difference = torch.stack([(logits[at] - whole[length]).abs().max() for at, (length, _) in enumerate(cases)])
    assert difference.max() <= STEP_LOGITS
    assert difference.median() <= STEP_MEDIAN
