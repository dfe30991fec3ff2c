"""Prefix hits: exact from window states, replayed where there are none, and never from what a prompt does not share."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from driving import PAGE, WINDOW, forced, prompt_of, seen_logits
from golden_model import golden
from torch import Tensor

import dsv41c
from dsv41c.errors import RequestError, StateError
from dsv41c.models.rows import Chunk, Rows, step_inputs
from dsv41c.runtime.engine import PREFILLS, Engine
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.prefix import Image, PrefixOptions
from dsv41c.runtime.replay import ENCODE_REPLAY
from dsv41c.runtime.requests import Completion
from dsv41c.runtime.sampling import SamplingParams

FORCED = (5, 9, 2)


def load(plan: Path, prefill: str, **options: object) -> Engine:
    return dsv41c.load(plan, prefill=prefill, poison=True, prefix=PrefixOptions(), **options)


def run(engine: Engine, prompt: Sequence[int], new: Sequence[int] = FORCED) -> tuple[Completion, Tensor]:
    """A completion along given tokens, and the logits that each of them was chosen from."""
    with seen_logits(engine) as seen:
        (done,) = engine.generate([prompt], forced(new))
    (logits,) = seen.values()
    return done, torch.stack(logits)


def forget_states(engine: Engine) -> None:
    assert engine.prefix is not None
    for name in list(engine.prefix.states._states):
        engine.prefix.states.drop(name)


@pytest.fixture(scope="module")
def cold(mini6_plan: Path) -> dict[str, Engine]:
    """Engines without a prefix cache."""
    return {prefill: dsv41c.load(mini6_plan, prefill=prefill) for prefill in PREFILLS}


@pytest.mark.parametrize("prefill", PREFILLS)
def test_the_same_prompt_twice_hits_and_gives_the_same(mini6_plan: Path, cold: dict[str, Engine], prefill: str) -> None:
    engine = load(mini6_plan, prefill)
    for length in (16, 17, 32, 70):
        prompt = [length, *prompt_of(length - 1)]
        want = run(cold[prefill], prompt)[1]
        first, second = (run(engine, prompt) for _ in range(2))
        assert second[0].cached_tokens == cached_of(prefill, length)
        for done, logits in (first, second):
            assert torch.equal(logits, want), f"{length} tokens, {done.cached_tokens} cached"
    assert engine.caches.used_bytes == 0


def cached_of(prefill: str, length: int) -> int:
    """Of a prompt that ran before: its full pages. Where they are all of it, its last token runs again for the logits,
    or, bounded, its tail, which is kept with the state."""
    has_tail = prefill == "bounded" and length > WINDOW
    return length - 1 if length % PAGE == 0 and not has_tail else length // PAGE * PAGE


def test_a_state_that_cannot_go_back_is_left_for_a_shorter_one(
    mini6_plan: Path, cold: dict[str, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a plan whose rings keep too little for it; then the state at the page before is taken."""
    engine, prompt = load(mini6_plan, "exact"), prompt_of(48)
    run(engine, prompt)

    def refuses(*_: object) -> None:
        raise StateError("newer rows overwrote some")

    monkeypatch.setattr(engine.preconditions, "truncated", refuses)
    done, logits = run(engine, prompt)
    assert done.cached_tokens == 32
    assert torch.equal(logits, run(cold["exact"], prompt)[1])


def test_going_back_leaves_the_page_that_others_read(mini6_plan: Path, cold: dict[str, Engine]) -> None:
    """The last page of a prompt that runs its last token again is a copy, and no page is taken beyond the allotment."""
    engine = load(mini6_plan, "exact", cache_tokens=96, max_sequences=2)
    prompt = prompt_of(32)
    running = engine.submit(prompt, SamplingParams(max_new_tokens=16, stop_at_eos=False))
    while not running.events:
        engine.step()
    assert running.allotment is not None
    before = {name: row.clone() for name, row in engine.caches.read_page(running.allotment.pages[1]).items()}
    again = engine.submit(prompt, forced(FORCED))
    engine.step()
    assert again.cached_tokens == 31
    assert again.allotment is not None
    assert again.allotment.pages[0] == running.allotment.pages[0]
    assert again.allotment.pages[1] != running.allotment.pages[1]
    assert engine.caches.pages.held == 3 + 2
    for name, row in engine.caches.read_page(running.allotment.pages[1]).items():
        assert torch.equal(row, before[name]), name
    for request in (running, again):
        engine.cancel(request)
    assert torch.equal(run(engine, prompt)[1], run(cold["exact"], prompt)[1])


@pytest.mark.parametrize("prefill", PREFILLS)
def test_a_conversation_goes_on_from_its_last_page(mini6_plan: Path, cold: dict[str, Engine], prefill: str) -> None:
    """The answer's own pages count too. What follows is longer than a window the second time."""
    engine, whole = load(mini6_plan, prefill), prompt_of(100)
    run(engine, whole[:20], whole[20:40])
    done, _ = run(engine, whole[:45])
    assert done.cached_tokens == 32
    if prefill == "exact":
        assert torch.equal(run(engine, whole[:45])[1], run(cold[prefill], whole[:45])[1])
    long, logits = run(engine, whole[:70])
    assert long.cached_tokens == 32
    assert torch.isfinite(logits).all()
    if prefill == "exact":
        assert torch.equal(logits, run(cold[prefill], whole[:70])[1])


def test_only_a_shared_beginning_hits(mini6_plan: Path, cold: dict[str, Engine]) -> None:
    engine, whole = load(mini6_plan, "exact"), prompt_of(70)
    run(engine, whole)
    other = [*whole[:20], 7, *whole[21:]]
    done, logits = run(engine, other)
    assert done.cached_tokens == 0, "an exact engine has a window state at 64 tokens only"
    assert torch.equal(logits, run(cold["exact"], other)[1])
    moved = whole[1:]
    assert run(engine, moved)[0].cached_tokens == 0


def replayed_rings(tokens: Sequence[int], start: int) -> dict[str, Tensor]:
    """What a replay of tokens[start:] leaves in the rings, by the eager model with the masks of SPEC 5.5 and 5.6."""
    model = golden("mini6")
    session = model.session(rings=2)
    session.forward({0: list(tokens)})
    entries = {name: cache.clone() for name, cache in session.caches.items() if name.startswith(("main", "index"))}
    history = session.caches["history"]
    for position in range(max(0, start - 8), start):
        history[1, position % 8] = tokens[position]
    window_index, entry_store = Rows.window_index, Rows.entry_store

    def from_start(rows: Rows, size: int) -> Tensor:
        key = rows.positions.unsqueeze(-1) - torch.arange(size - 1, -1, -1)
        return torch.where(key >= start, window_index(rows, size), -1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rows, "window_index", from_start)
        patch.setattr(Rows, "entry_store", lambda rows, *sizes: torch.full_like(entry_store(rows, *sizes), -1))
        chunk = Chunk(tokens[start:], start, 1, session.chunk(0, []).pages)
        with torch.no_grad():
            session.model(**step_inputs([chunk], [0]), caches=session.caches)
    assert all(torch.equal(session.caches[name], was) for name, was in entries.items()), "no entry was written"
    return {name: cache[1] for name, cache in session.caches.items() if name not in entries}


def test_a_replay_is_the_models_own_with_its_masks(mini6_plan: Path) -> None:
    """Windows of the encoder, compressor tail and look-back ids after the last window of a prefix ran again."""
    engine, whole = load(mini6_plan, "bounded"), prompt_of(70)
    run(engine, whole)
    forget_states(engine)
    done, _ = run(engine, whole)
    assert done.cached_tokens == 64
    assert engine.prefix is not None
    assert engine.prefix.counts.replayed_tokens == WINDOW
    (state,) = [kept for _, kept in engine.prefix.states._states.values()]
    want = replayed_rings(whole[:64], 64 - WINDOW)
    for name in ("window.0", "window.1", "window.2", "history"):
        assert torch.equal(state.rings[name], want[name]), name
    assert torch.allclose(state.rings["tail.1"], want["tail.1"], rtol=1e-5, atol=1e-6)


def test_a_replay_gives_what_it_gives_from_disk_in_another_engine(mini6_plan: Path, tmp_path: Path) -> None:
    """The same replay start over the same pages: once in the engine that made them, once in one that never ran them."""
    options, whole = PrefixOptions(store=tmp_path / "store"), prompt_of(90)
    engine = dsv41c.load(mini6_plan, prefill="bounded", poison=True, prefix=options)
    run(engine, whole[:70])
    assert engine.prefix is not None
    assert engine.prefix.store is not None
    engine.prefix.store.close()
    later = dsv41c.load(mini6_plan, prefill="bounded", poison=True, prefix=options)
    assert later.prefix is not None
    # The last page is another one, so that four pages are shared, as before.
    other = [*whole[:79], 5, *whole[80:]]
    there, again = run(later, other)
    assert (there.cached_tokens, later.prefix.counts.loaded_pages) == (64, 4)
    fresh = dsv41c.load(mini6_plan, prefill="bounded", prefix=PrefixOptions())
    run(fresh, whole[:70])
    forget_states(fresh)
    assert torch.equal(run(fresh, other)[1], again)
    assert torch.equal(run(later, whole)[1], run(fresh, whole)[1])
    assert later.prefix.store is not None
    later.prefix.store.close()


def test_other_images_are_another_prefix(mini6_plan: Path) -> None:
    """The same ids, of which some stand for an image: the pages before it hit, those from it on only for its digest."""
    engine = load(mini6_plan, "exact")
    cached = []
    for digest in (b"a", b"b", b"a"):
        request = engine.submit(prompt_of(40), forced([5]))
        request.images = (Image(20, 4, digest),)
        while request.finished is None:
            engine.step()
        cached.append(request.cached_tokens)
    assert cached == [0, 0, 32], "an exact engine has a window state at 32 tokens only"
    with pytest.raises(RequestError, match="program vision makes rows of; this plan has step, encode, "):
        engine.submit(prompt_of(40), forced([5]), [Image(20, 4, b"a")])


def test_full_caches_give_idle_pages_away_and_results_stay_right(mini6_plan: Path, cold: dict[str, Engine]) -> None:
    engine = load(mini6_plan, "exact", cache_tokens=80, max_sequences=2)
    assert engine.prefix is not None
    for turn in range(2):
        for first in (5, 6):
            prompt = [first, *prompt_of(60)]
            logits = run(engine, prompt)[1]
            assert torch.equal(logits, run(cold["exact"], prompt)[1]), (turn, first)
    assert engine.prefix.counts.hits == 0, "five pages do not hold three of each"
    assert run(engine, prompt)[0].cached_tokens == 48
    assert engine.caches.pages.idle <= 5
    assert engine.caches.used_bytes == 0


def test_pages_of_requests_that_run_are_shared(mini6_plan: Path) -> None:
    engine = load(mini6_plan, "exact")
    params = SamplingParams(max_new_tokens=20, stop_at_eos=False)
    first = engine.submit(prompt_of(70), params)
    while not first.events:
        engine.step()
    alone = engine.caches.pages.held
    second = engine.submit(prompt_of(70), params)
    engine.step()
    assert second.cached_tokens == 64
    assert engine.caches.pages.held == alone + alone - 4
    while second.finished is None:
        engine.step()
    assert first.tokens == second.tokens
    engine.cancel(first)
    engine.cancel(second)


def test_collected_logits_need_every_token_to_run(mini6_plan: Path) -> None:
    engine = load(mini6_plan, "exact")
    run(engine, prompt_of(33))
    (done,) = engine.generate([prompt_of(33)], SamplingParams(max_new_tokens=1, collect_logits=True))
    assert done.cached_tokens == 0
    assert done.prefill_logits is not None
    assert len(done.prefill_logits) == 33


def test_a_plan_that_cannot_replay_says_so(mini6_plan: Path) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("dsv41c.runtime.engine")
    logger.addHandler(handler)
    plan = Plan.load(mini6_plan)
    programs = {name: program for name, program in plan.programs.items() if name != ENCODE_REPLAY}
    engine = Engine(replace(plan, programs=programs), prefill="bounded", poison=True, prefix=PrefixOptions())
    logger.removeHandler(handler)
    assert lines == [
        "prefixes are found only where a window state is kept: the plan has no program encode_replay, only step, "
        "encode, tail, step_one_row, so no prefix can be replayed; compile the plan again"
    ]
    run(engine, prompt_of(70))
    forget_states(engine)
    assert run(engine, prompt_of(70))[0].cached_tokens == 0
