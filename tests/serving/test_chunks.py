"""Prompts in chunks: the logits behind every split are those of the prompt at once, exact and bounded."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from driving import WINDOW, first_logits, prompt_of
from tolerances import STEP_LOGITS, STEP_MEDIAN

import dsv41c
from dsv41c.runtime.engine import PREFILLS, Engine

# All of them take a minute.
EVERY = 1 if os.environ.get("DSV41C_FULL_TESTS") else 24

# Around a compressor's pair, a window, a page, and two and three windows; odd ones split a pair.
NASTY = (1, 2, 15, 16, 17, 31, 33)
LENGTHS = range(1, 3 * WINDOW + 3)


def splits_of(length: int) -> list[tuple[int, ...]]:
    """Splits into 2 chunks and into 3 whose first ones have sizes of the list; one of `EVERY` by turns."""
    pairs = [(first, length - first) for first in NASTY if first < length]
    triples = [
        (first, second, length - first - second)
        for first, second in itertools.product(NASTY, repeat=2)
        if first + second < length
    ]
    return [split for at, split in enumerate(pairs + triples) if (at + length) % EVERY == 0]


@pytest.fixture(scope="module", params=PREFILLS)
def engine(request: pytest.FixtureRequest, mini6_plan: Path) -> Engine:
    return dsv41c.load(mini6_plan, prefill=request.param, max_sequences=32, poison=True)


def differences(engine: Engine, lengths: Sequence[int], splits: Sequence[tuple[int, ...]]) -> torch.Tensor:
    """The largest logit difference of each split to its prompt at once."""
    distinct = sorted(set(lengths))
    at_once = first_logits(engine, [prompt_of(length) for length in distinct], [(length,) for length in distinct])
    whole = dict(zip(distinct, at_once, strict=True))
    ours = first_logits(engine, [prompt_of(length) for length in lengths], splits)
    return torch.stack([(one - whole[length]).abs().max() for one, length in zip(ours, lengths, strict=True)])


def test_every_split_of_every_length_gives_the_logits_of_the_whole(engine: Engine) -> None:
    cases = [(length, split) for length in LENGTHS for split in splits_of(length)]
    difference = differences(engine, [length for length, _ in cases], [split for _, split in cases])
    worst = int(difference.argmax())
    assert difference.max() <= STEP_LOGITS, f"{cases[worst]}: {difference.max()}"
    assert difference.median() <= STEP_MEDIAN
    assert engine.caches.used_bytes == 0


def test_chunks_of_one_size(engine: Engine) -> None:
    lengths, sizes = [17, 33] * 2, [1] * 2 + [3] * 2
    pairs = zip(lengths, sizes, strict=True)
    splits = [tuple(min(size, length - at) for at in range(0, length, size)) for length, size in pairs]
    assert differences(engine, lengths, splits).max() <= STEP_LOGITS
