"""Runs requests of an engine in calls that a test chooses, and sees the logits that every token was chosen from."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from dsv41c.runtime.engine import Engine
from dsv41c.runtime.requests import Request
from dsv41c.runtime.sampling import SamplingParams
from dsv41c.runtime.scheduler import Call, program_of

GOLDEN = Path(__file__).parents[1] / "golden"
WINDOW = 16  # of mini6
PAGE = 16  # tokens of its plan's pages


@cache
def tokens_of_p100() -> tuple[int, ...]:
    return tuple(load_file(GOLDEN / "mini6" / "outputs.safetensors")["p100.ids"].tolist())


def prompt_of(length: int) -> list[int]:
    return list(tokens_of_p100()[:length])


def forced(tokens: Sequence[int]) -> SamplingParams:
    return SamplingParams(max_new_tokens=len(tokens), forced_tokens=tuple(tokens), stop_at_eos=False)


@contextmanager
def seen_logits(engine: Engine) -> Iterator[dict[Request, list[Tensor]]]:
    """Collects the logits [vocab] that every token of every request is chosen from."""
    seen: dict[Request, list[Tensor]] = {}
    original = engine._take

    def take(request: Request, logits: Tensor) -> None:
        seen.setdefault(request, []).append(logits.clone())
        original(request, logits)

    engine._take = take  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        del engine._take  # type: ignore[method-assign]


def first_logits(engine: Engine, prompts: Sequence[Sequence[int]], splits: Sequence[Sequence[int]]) -> list[Tensor]:
    """The logits behind prompts that run in given chunks, as many prompts together as the engine has room for."""
    found: list[Tensor] = []
    size = engine.sizes.max_sequences
    for at in range(0, len(prompts), size):
        found += _first_logits(engine, prompts[at : at + size], splits[at : at + size])
    return found


def _first_logits(engine: Engine, prompts: Sequence[Sequence[int]], splits: Sequence[Sequence[int]]) -> list[Tensor]:
    with seen_logits(engine) as seen:
        requests = [engine.submit(list(prompt), SamplingParams(max_new_tokens=1)) for prompt in prompts]
        engine._admit()
        assert engine.waiting == 0
        for turn in range(max(map(len, splits))):
            counts = {
                request: split[turn] for request, split in zip(requests, splits, strict=True) if turn < len(split)
            }
            for program in sorted({program_of(request) for request in counts}):
                parts = tuple((one, count) for one, count in counts.items() if program_of(one) == program)
                engine._call(Call(program, parts))
        while any(request.finished is None for request in requests):
            engine.step()
        for request in requests:
            engine.cancel(request)
        return [seen[request][0] for request in requests]
