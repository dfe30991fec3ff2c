"""Continuous batching: what runs together, and that nothing of it shows in a request's results."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from driving import prompt_of, seen_logits

import dsv41c
from dsv41c.errors import RequestError
from dsv41c.runtime.engine import PREFILLS, Engine
from dsv41c.runtime.requests import Request
from dsv41c.runtime.sampling import SamplingParams
from dsv41c.runtime.scheduler import Call

LENGTHS = (1, 16, 33)


@pytest.fixture(scope="module")
def load(mini6_plan: Path) -> Callable[..., Engine]:
    def build(**options: object) -> Engine:
        return dsv41c.load(mini6_plan, **options)

    return build


def calls_of(engine: Engine) -> list[Call]:
    """Records the calls that an engine runs from now on."""
    calls: list[Call] = []
    original = engine.scheduler.next_call

    def next_call(active: list[Request]) -> Call:
        calls.append(original(active))
        return calls[-1]

    engine.scheduler.next_call = next_call  # type: ignore[assignment, method-assign]
    return calls


def sampled(seed: int, n: int = 3) -> SamplingParams:
    return SamplingParams(max_new_tokens=n, temperature=0.9, top_p=0.95, seed=seed, stop_at_eos=False)


@pytest.mark.parametrize("prefill", PREFILLS)
def test_a_request_gives_the_same_in_any_batch(load: Callable[..., Engine], prefill: str) -> None:
    """The rule: random numbers depend on seed and place alone. Kernels of several rows compute a row alike whatever
    the others are, so where no call has a single row (row_multiple of 2 or more), logits agree in every bit; the form
    for one row may round otherwise."""
    engine = load(prefill=prefill, row_multiple=2)
    requests = list(enumerate(LENGTHS))
    with seen_logits(engine) as seen:
        alone = {seed: engine.generate([prompt_of(length)], sampled(seed))[0].tokens for seed, length in requests}
    logits = dict(zip(alone, (torch.stack(found) for found in seen.values()), strict=True))
    for options in ({"chunk_tokens": 9, "max_sequences": 3, "row_multiple": 2}, {"row_multiple": 8}):
        random.Random(len(options)).shuffle(requests)
        engine = load(prefill=prefill, poison=True, cache_tokens=160, **options)
        with seen_logits(engine) as seen:
            done = engine.generate([prompt_of(n) for _, n in requests], [sampled(seed) for seed, _ in requests])
        assert {seed: one.tokens for (seed, _), one in zip(requests, done, strict=True)} == alone
        for request, found in seen.items():
            assert torch.equal(torch.stack(found), logits[requests[request.number][0]])
    assert len(set(alone.values())) == len(alone)


@pytest.mark.parametrize("prefill", PREFILLS)
def test_prompts_come_in_beside_those_who_decode(load: Callable[..., Engine], prefill: str) -> None:
    engine = load(prefill=prefill, chunk_tokens=8)
    calls = calls_of(engine)
    first = engine.submit(prompt_of(3), sampled(1, 30))
    while not first.events:
        engine.step()
    calls.clear()
    second = engine.submit(prompt_of(50), sampled(2, 2))
    while second.finished is None:
        engine.step()
    assert all(sum(count for _, count in call.parts) <= 8 for call in calls if call.program != "tail")
    without = [call for call in calls if first not in [request for request, _ in call.parts]]
    if prefill == "exact":
        assert not without, "every call has the decoding request's row"
        assert [count for request, count in calls[0].parts if request is second] == [7]
    else:
        assert {call.program for call in without} == {"encode", "tail"}
        encodes = [at for at, call in enumerate(calls) if call.program == "encode"]
        assert all(after - before >= 2 for before, after in itertools.pairwise(encodes)), "by turns"
    engine.cancel(first)


def test_a_cancelled_request_frees_what_it_holds_and_others_go_on(load: Callable[..., Engine]) -> None:
    engine = load(max_sequences=2)
    alone = engine.generate([prompt_of(7)], sampled(3))[0].tokens
    running = [engine.submit(prompt_of(n), sampled(seed, 20)) for seed, n in ((1, 33), (2, 5))]
    waiting, kept = engine.submit(prompt_of(9), sampled(4)), engine.submit(prompt_of(7), sampled(3))
    engine.step()
    assert (engine.active, engine.waiting) == (2, 2)
    for request in (running[0], waiting):
        engine.cancel(request)
    while kept.finished is None:
        engine.step()
    assert [request.finished for request in (running[0], waiting)] == ["cancelled", "cancelled"]
    assert kept.completion().tokens == alone
    engine.cancel(running[1])
    engine.cancel(kept)
    assert kept.finished == "length", "one that has ended stays as it is"
    assert (engine.active, engine.waiting, engine.caches.used_bytes) == (0, 0, 0)


def test_stop_strings_end_a_request_and_are_not_shown(load: Callable[..., Engine]) -> None:
    engine = load()
    params = SamplingParams(max_new_tokens=12, stop_at_eos=False, with_text=True)
    free = engine.generate([prompt_of(17)], params)[0]
    assert free.text == engine.tokenizer.decode(free.tokens)
    stop = free.text[4:7]
    events = list(engine.stream([prompt_of(17)], SamplingParams(max_new_tokens=12, stop_at_eos=False, stop=(stop,))))
    assert "".join(event.text for event in events) == free.text[: free.text.index(stop)]
    assert events[-1].finished == "stop"
    assert len(events) < len(free.tokens)
    assert tuple(event.token for event in events) == free.tokens[: len(events)]


def test_logprobs_come_with_every_token(load: Callable[..., Engine]) -> None:
    engine = load()
    with seen_logits(engine) as seen:
        params = SamplingParams(max_new_tokens=3, temperature=1, seed=5, logprobs=2, stop_at_eos=False)
        events = list(engine.stream([prompt_of(7)], params))
    (logits,) = seen.values()
    for event, row in zip(events, logits, strict=True):
        logprobs = torch.log_softmax(row, 0)
        assert event.logprob == float(logprobs[event.token])
        assert [token for token, _ in event.top] == logprobs.topk(2).indices.tolist()


def test_a_penalty_keeps_tokens_from_coming_again(load: Callable[..., Engine]) -> None:
    engine = load()
    params = SamplingParams(max_new_tokens=8, repetition_penalty=1e6, stop_at_eos=False)
    tokens = engine.generate([prompt_of(7)], params)[0].tokens
    assert len({*tokens, *prompt_of(7)}) == len(tokens) + len(set(prompt_of(7)))


def test_a_budget_of_bytes_bounds_caches_and_calls(load: Callable[..., Engine]) -> None:
    small = load(chunk_tokens=16, max_sequences=1)
    needed = small.bill.transient(16, small.max_tokens) + small.caches.ring_bytes + 4 * small.caches.page_bytes
    engine = load(chunk_tokens=16, max_sequences=1, memory_bytes=needed)
    assert engine.caches.pages.count == 4
    assert len(engine.generate([prompt_of(50)], sampled(1, 14))[0].tokens) == 14
    with pytest.raises(RequestError, match=r"needs 5 pages of 16 tokens \(\d+ bytes with its rings\), .* have 4"):
        engine.submit(prompt_of(50), sampled(1, 15))
    assert (engine.waiting, engine.caches.used_bytes) == (0, 0)


def test_a_failed_call_ends_all_requests_and_the_engine_says_so(load: Callable[..., Engine]) -> None:
    engine = load()
    request = engine.submit(prompt_of(7), sampled(1))
    engine.step()
    request.held.spans = [(0, 0)] * len(request.held.spans)
    with pytest.raises(dsv41c.errors.StateError, match="a forward of step at token 7 needs"):
        engine.step()
    assert request.finished == "cancelled"
    assert engine.caches.used_bytes == 0
    with pytest.raises(dsv41c.errors.StateError):
        engine.step()


def rows_of(calls: list[Call]) -> list[tuple[str, int]]:
    return [(call.program, sum(count for _, count in call.parts)) for call in calls]


@pytest.mark.parametrize("prefill", PREFILLS)
def test_choices_share_one_prefill_and_give_what_each_gives_alone(load: Callable[..., Engine], prefill: str) -> None:
    """Three answers to a prompt that ends inside a page: it runs once, its full pages are shared, and the logits of
    every choice are in every bit those of a request of its own with the same seed."""
    prompt, seeds = prompt_of(37), (7, 8, 9)
    engine = load(prefill=prefill, row_multiple=2, poison=True, check=True)
    with seen_logits(engine) as seen:
        alone = [engine.generate([prompt], sampled(seed, 20))[0] for seed in seeds]
    want = [torch.stack(found) for found in seen.values()]
    calls = calls_of(engine)
    with seen_logits(engine) as seen:
        choices = engine.submit_choices(prompt, [sampled(seed, 20) for seed in seeds])
        while not choices[0].events:
            engine.step()
        held = engine.caches.pages.held
        while any(one.finished is None for one in choices):
            engine.step()
    assert [one.completion().tokens for one in choices] == [one.tokens for one in alone]
    assert len({one.tokens for one in alone}) == 3
    for choice, logits in zip(choices, want, strict=True):
        assert torch.equal(torch.stack(seen[choice]), logits)
    assert held == 2 + 3 * 2, "two full pages shared, two of each one's own"
    prompts = [("step", 37)] if prefill == "exact" else [("encode", 37), ("tail", 16)]
    assert rows_of(calls) == [*prompts, *[("step", 3)] * 19]
    assert [one.cached_tokens for one in choices] == [0, 37, 37]
    assert engine.caches.used_bytes == 0


def test_choices_without_room_run_the_prompt_themselves(load: Callable[..., Engine]) -> None:
    """Two of four run at a time: two share a prefill, of the others each runs its own, and nothing else changes."""
    alone = [load(row_multiple=2).generate([prompt_of(20)], sampled(seed))[0].tokens for seed in range(4)]
    engine = load(row_multiple=2, max_sequences=2)
    calls = calls_of(engine)
    choices = engine.submit_choices(prompt_of(20), [sampled(seed) for seed in range(4)])
    while any(one.finished is None for one in choices):
        engine.step()
    assert [one.completion().tokens for one in choices] == alone
    prompts = [count for call in calls for one, count in call.parts if count > 1]
    assert prompts == [20, 20, 20]
    assert engine.caches.used_bytes == 0


def test_a_choice_that_leaves_takes_no_other_with_it(load: Callable[..., Engine]) -> None:
    """The one that runs the prompt, one that waits for it, and one that has no room yet."""
    alone = {seed: load(row_multiple=2).generate([prompt_of(40)], sampled(seed))[0].tokens for seed in (2, 4)}
    engine = load(row_multiple=2, max_sequences=4, chunk_tokens=16)
    choices = engine.submit_choices(prompt_of(40), [sampled(seed) for seed in range(6)])
    engine.step()
    assert (engine.active, engine.waiting) == (4, 2)
    for at in (0, 5, 1, 3):
        engine.cancel(choices[at])
        engine.step()
    while any(one.finished is None for one in choices):
        engine.step()
    assert {seed: choices[seed].completion().tokens for seed in (2, 4)} == alone
    assert (engine.active, engine.waiting, engine.caches.used_bytes) == (0, 0, 0)


def test_choices_that_cannot_be_served_leave_nothing_queued(load: Callable[..., Engine]) -> None:
    engine = load()
    with pytest.raises(RequestError, match="193 together"):
        engine.submit_choices(prompt_of(33), [sampled(1), sampled(2, 160)])
    assert engine.waiting == 0
    first, second = engine.submit_choices(prompt_of(5), [SamplingParams(2, collect_logits=True)] * 2)
    while second.finished is None or not second.is_done:
        engine.step()
    assert torch.equal(first.completion().prefill_logits, second.completion().prefill_logits)  # type: ignore[arg-type]
