"""Samplers: greedy ties, cuts, draws that repeat, and distributions."""

import pytest
import torch

from dsv41c.errors import RequestError
from dsv41c.runtime.sampling import SamplingParams, TokenCounts, choose, distribution


def draw(logits: list[float], n: int = 1, **params: float) -> list[int]:
    generator = torch.Generator().manual_seed(3)
    params_of = SamplingParams(**params)  # type: ignore[arg-type]
    return [choose(torch.tensor(logits), params_of, generator).token for _ in range(n)]


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    assert draw([0.0, 2.0, 2.0, 1.0]) == [1]
    assert draw([1.0] * 300) == [0]


def test_top_k_keeps_lower_ids_at_the_cut() -> None:
    _, ids = distribution(torch.tensor([1.0, 3.0, 1.0, 1.0]), SamplingParams(temperature=1, top_k=2))
    assert ids.tolist() == [1, 0]


@pytest.mark.parametrize(("top_p", "kept"), [(0.4, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.76, 3), (1.0, 4)])
def test_top_p_keeps_the_fewest_that_reach_p(top_p: float, kept: int) -> None:
    logits = torch.tensor([0.125, 0.5, 0.25, 0.125]).log()
    probabilities, ids = distribution(logits, SamplingParams(temperature=1, top_p=top_p))
    assert ids.tolist() == [1, 2, 0, 3][:kept]
    assert probabilities.sum().item() == pytest.approx(1)


def test_small_temperatures_are_greedy_and_finite() -> None:
    assert set(draw([3.0e38, 1.0, -3.0e38], 50, temperature=1e-30)) == {0}
    assert set(draw([1.0, 1.001], 50, temperature=1e-6)) == {1}


def test_draws_follow_the_probabilities_and_repeat() -> None:
    drawn = draw([0.0, 1.0986123], 4000, temperature=1.0)
    assert sum(drawn) / 4000 == pytest.approx(0.75, abs=0.03)
    assert drawn == draw([0.0, 1.0986123], 4000, temperature=1.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0),
        ("top_p", 1.5),
        ("max_new_tokens", -1),
        ("seed", -1),
        ("seed", 1 << 63),
        ("logprobs", 21),
        ("stop", ("",)),
        ("stop", ("x",) * 17),
        ("presence_penalty", 2.1),
        ("frequency_penalty", float("nan")),
        ("repetition_penalty", 0),
    ],
)
def test_bad_parameters_are_named(field: str, value: float) -> None:
    with pytest.raises(RequestError, match=field):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_penalties_count_what_came() -> None:
    """Token 0 is in the prompt, 1 came twice, 2 once, 3 never."""
    counts = TokenCounts([0, 0])
    for token in (1, 2, 1):
        counts.add(token)
    logits = torch.tensor([1.0, 1.0, -1.0, 1.0])
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=2)
    assert counts.penalised(logits, params).tolist() == [0.5, 0.5 - 0.5 - 0.5, -2 - 0.5 - 0.25, 1]
    assert logits.tolist() == [1, 1, -1, 1]


def test_penalties_turn_the_choice_and_not_the_logprobs() -> None:
    counts = TokenCounts([])
    counts.add(1)
    params = SamplingParams(frequency_penalty=2, logprobs=2)
    choice = choose(torch.tensor([0.5, 1.0, 0.5]), params, torch.Generator(), counts)
    whole = torch.log_softmax(torch.tensor([0.5, 1.0, 0.5]), 0).tolist()
    assert choice.token == 0
    assert choice.logprob == pytest.approx(whole[0])
    assert [token for token, _ in choice.top] == [1, 0], "of equals the lower id"
    assert [value for _, value in choice.top] == pytest.approx([whole[1], whole[0]])


def test_logprobs_are_of_the_model_whatever_the_temperature() -> None:
    params = SamplingParams(temperature=0.1, top_k=1, logprobs=0)
    choice = choose(torch.tensor([0.0, 0.0]), params, torch.Generator())
    assert choice.logprob == pytest.approx(-0.6931472)
    assert choice.top == ()
