"""Chunks, batches, padded rows and poisoned caches: what a step program may be given must not show in its results."""

import pytest
import torch
from comparisons import assert_absolute, assert_bits, assert_rows, assert_whole_logits, assert_whole_state
from golden_model import Drafter, cached_values, golden, prefill
from tolerances import FP32_RELATIVE, UNFLIPPED_LOGITS
from torch import Tensor

MIXED = {2: "p17", 0: "p1", 3: "p33", 1: "p7"}  # ring slots out of order


@pytest.mark.parametrize("cut", range(1, 17))
def test_two_chunks_write_the_same_caches(cut: int) -> None:
    """p17 has no rounding flip, so every packed byte that is read later must come out the same."""
    model, whole = golden("mini6"), prefill("mini6", "p17")
    session, ids = model.session(), model.ids("p17")
    logits = torch.cat([session.forward({0: chunk})[0][0] for chunk in (ids[:cut], ids[cut:])])
    assert_absolute(logits, whole.logits, 2 * UNFLIPPED_LOGITS)  # each may be that far from the reference
    expected = cached_values(model.config, whole.session.caches, len(ids))
    for key, values in cached_values(model.config, session.caches, len(ids)).items():
        if key.startswith(("kv_state", "score_state")):
            assert_rows(values, expected[key], FP32_RELATIVE, key)
        else:
            assert_bits(values, expected[key], key)


@pytest.mark.parametrize("cut", range(1, 33))
def test_two_chunks_equal_one(cut: int) -> None:
    model, whole = golden("mini6"), prefill("mini6", "p33")
    session, ids = model.session(), model.ids("p33")
    parts = [session.forward({0: chunk}) for chunk in (ids[:cut], ids[cut:])]
    assert_whole_logits(torch.cat([logits[0] for logits, _ in parts]), whole.logits)
    assert_whole_state(torch.cat([hidden for _, hidden in parts]), whole.main_hidden)


@pytest.mark.parametrize("cut", [1, 16, 17, 32])
def test_two_chunks_equal_one_in_the_released_schedule(cut: int) -> None:
    model, whole = golden("sched40"), prefill("sched40", "p33")
    session, ids = model.session(), model.ids("p33")
    logits = [session.forward({0: chunk})[0][0] for chunk in (ids[:cut], ids[cut:])]
    assert_whole_logits(torch.cat(logits), whole.logits)


def test_token_by_token_equals_one_chunk() -> None:
    model, whole = golden("mini6"), prefill("mini6", "p33")
    session = model.session()
    logits = [session.forward({0: [token]})[0][0] for token in model.ids("p33")]
    assert_whole_logits(torch.cat(logits), whole.logits)


def test_mixed_batch_equals_single_sequences() -> None:
    """Prompts of four lengths at once, then a step that mixes decode, a chunk and an idle sequence."""
    model, session = golden("mini6"), golden("mini6").session(rings=4)
    together, _ = session.forward({ring: model.ids(prompt) for ring, prompt in MIXED.items()})
    more = {3: [5], 0: [9, 8, 7], 2: [11]}
    then, _ = session.forward(more)
    for ring, prompt in MIXED.items():
        assert_whole_logits(together[ring], prefill("mini6", prompt).logits, prompt)
        if ring in more:
            alone = model.session()
            alone.forward({0: model.ids(prompt)})
            assert_whole_logits(then[ring], alone.forward({0: more[ring]})[0][0], prompt)


@pytest.mark.parametrize("kind", ["mini6", "sched40"])
def test_padded_rows_change_nothing(kind: str) -> None:
    """Row counts may choose another product kernel, so values compare as whole runs do; caches stay untouched."""
    model, whole = golden(kind), prefill(kind, "p17")
    session = model.session(rings=2)
    untouched = {name: other_ring(cache, name) for name, cache in session.caches.items()}
    logits, hidden = session.forward({0: model.ids("p17")}, padded_rows=3)
    assert_whole_logits(logits[0], whole.logits)
    assert hidden.shape[0] == 17 + 3
    assert_whole_state(hidden[:17], whole.main_hidden)
    for name, cache in session.caches.items():
        assert_bits(other_ring(cache, name), untouched[name], name)


def other_ring(cache: Tensor, name: str) -> Tensor:
    """The half of a two-sequence cache that belongs to ring 1."""
    return cache[cache.shape[0] // 2 :].clone()


@pytest.mark.parametrize("kind", ["mini6", "sched40"])
@pytest.mark.parametrize("prompt", ["p1", "p17", "p33"])
def test_poisoned_caches_change_nothing(kind: str, prompt: str) -> None:
    """0x7F in every byte is NaN as e4m3 and huge as a scale; a value that is masked out must not even be multiplied."""
    model, clean = golden(kind), prefill(kind, prompt)
    session, drafter = model.session(), Drafter(model.dspark)
    for cache in (*session.caches.values(), *drafter.caches.values()):
        poison(cache)
    logits, hidden = session.forward({0: model.ids(prompt)})
    assert_bits(logits[0], clean.logits)
    assert_bits(hidden, clean.main_hidden)
    drafter.seed(hidden, {0: 0})
    expected = Drafter(model.dspark)
    expected.seed(hidden, {0: 0})
    anchor = {0: (5, len(model.ids(prompt)))}
    assert_bits(drafter.draft(anchor).logits, expected.draft(anchor).logits)


def test_a_sequence_inherits_nothing_from_the_last_one() -> None:
    """A ring and its pages go to a new sequence without being cleared."""
    model, clean = golden("mini6"), prefill("mini6", "p17")
    session = model.session()
    session.forward({0: model.ids("p100")})
    session.lengths[0] = 0
    logits, _ = session.forward({0: model.ids("p17")})
    assert_bits(logits[0], clean.logits)


def poison(cache: Tensor) -> None:
    if cache.dtype == torch.float32:
        cache.fill_(float("nan"))
    else:
        cache.fill_(0x7F)
