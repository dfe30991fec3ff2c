"""Sampling kernels against runtime/sampling.py: penalties and cuts exact, draws as the distribution says."""

import pytest
import torch
import triton
import triton.language as tl
from interpreter import run
from tolerances import TRITON
from torch import Tensor

from dsv41c.compiler.codegen.triton.families import Tile
from dsv41c.compiler.codegen.triton.kernels import sampling
from dsv41c.runtime.sampling import SamplingParams, TokenCounts, choose, distribution

TILE = Tile({"BLOCK": 256})
V = 600  # three blocks, the last not full


def logits_of(rows: int, seed: int = 1) -> Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 3


def column(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def cut(logits: Tensor, params: list[SamplingParams]) -> dict[str, Tensor]:
    """What the cut leaves for the draw."""
    rows, width = logits.shape
    found = {"highest_ptr": torch.empty(rows), "threshold_ptr": torch.empty(rows, dtype=torch.int32)}
    found["ties_ptr"] = torch.empty(rows, dtype=torch.int32)
    given = {"temperature_ptr": column([p.temperature for p in params])}
    given["top_k_ptr"] = column([p.top_k for p in params], torch.int32)
    given["top_p_ptr"] = column([p.top_p for p in params])
    kernel = sampling.cut("cut", width).with_tiles(TILE)
    run(kernel, logits_ptr=logits, **given, **found, n_rows=rows)
    return {"temperature_ptr": given["temperature_ptr"], **found}


def kept(logits: Tensor, threshold: int, ties: int) -> list[int]:
    """The ids that a threshold keeps, best first, the lower id first among equals."""
    bits = (logits + 0.0).view(torch.int32).long() & 0xFFFFFFFF
    order = torch.where(bits >> 31 != 0, ~bits & 0xFFFFFFFF, bits | 0x80000000)
    ordered, ids = order.sort(descending=True, stable=True)
    above = int((ordered > threshold % 2**32).sum())
    return ids[: above + min(ties, int((order == threshold % 2**32).sum()))].tolist()


CUTS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=1),
    SamplingParams(temperature=0.7, top_k=40),
    SamplingParams(temperature=1.3, top_k=V),
    SamplingParams(temperature=1.3, top_k=V + 1),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(temperature=0.5, top_p=0.01),
    SamplingParams(temperature=2.0, top_k=50, top_p=0.6),
    SamplingParams(temperature=1e-6, top_p=0.5),
]


def test_cuts_are_those_of_the_reference() -> None:
    logits = logits_of(len(CUTS))
    found = cut(logits, CUTS)
    assert torch.equal(found["highest_ptr"], logits.amax(1))
    for row, params in enumerate(CUTS):
        ids = distribution(logits[row], params)[1].tolist()
        assert kept(logits[row], int(found["threshold_ptr"][row]), int(found["ties_ptr"][row])) == ids, params


@pytest.mark.parametrize(("top_p", "tokens"), [(0.4, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.76, 3), (0.88, 4)])
def test_top_p_keeps_the_fewest_that_reach_p(top_p: float, tokens: int) -> None:
    """Probabilities of 1/2, 1/4, 1/8, 1/8, the last two equal; everything else is impossible."""
    logits = torch.full((1, V), float("-inf"))
    logits[0, torch.tensor([300, 7, 500, 2])] = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    found = cut(logits, [SamplingParams(temperature=1, top_p=top_p)])
    ids = kept(logits[0], int(found["threshold_ptr"][0]), int(found["ties_ptr"][0]))
    assert ids == [300, 7, 2, 500][:tokens]


def test_ties_at_the_cut_keep_the_lower_ids() -> None:
    """Plateaus, zeros of both signs, and a row of one value; cut by number and by probability."""
    logits = torch.zeros(4, V)
    logits[0, ::2] = -0.0
    logits[1, 100:200], logits[1, 550] = 2.0, 3.0
    logits[2, 400:] = 5.0
    params = [SamplingParams(temperature=1, top_k=30), SamplingParams(temperature=1, top_k=50)]
    params += [SamplingParams(temperature=1, top_p=0.25), SamplingParams(temperature=1, top_k=100, top_p=0.505)]
    found = cut(logits, params)
    ids = [kept(logits[row], int(found["threshold_ptr"][row]), int(found["ties_ptr"][row])) for row in range(4)]
    assert ids[0] == list(range(30))
    assert ids[1] == [550, *range(100, 149)]
    assert ids[2] == distribution(logits[2], params[2])[1].tolist()
    assert ids[3] == list(range(51))


def draw(logits: Tensor, params: list[SamplingParams], drawn: int = 0) -> list[int]:
    rows, width = logits.shape
    token = torch.full((rows,), -7, dtype=torch.int32)
    given = {"seed_ptr": column([p.seed for p in params], torch.int64)}
    given["drawn_ptr"] = torch.full((rows,), drawn, dtype=torch.int32)
    kernel = sampling.draw("draw", width).with_tiles(TILE)
    run(kernel, logits_ptr=logits, **cut(logits, params), **given, token_ptr=token, n_rows=rows)
    return token.tolist()


def test_the_best_token_and_the_lowest_of_equals() -> None:
    logits = logits_of(3)
    logits[1], logits[2, 299], logits[2, 17] = 1.0, 50.0, 50.0
    token = torch.empty(3, dtype=torch.int32)
    unused = {f"{name}_ptr": torch.zeros(1) for name in ("temperature", "highest")}
    unused |= {f"{name}_ptr": torch.zeros(1, dtype=torch.int32) for name in ("threshold", "ties", "drawn")}
    unused["seed_ptr"] = torch.zeros(1, dtype=torch.int64)
    kernel = sampling.draw("greedy", V, greedy=True).with_tiles(TILE)
    run(kernel, logits_ptr=logits, **unused, token_ptr=token, n_rows=3)
    expected = [choose(row, SamplingParams(), torch.Generator()).token for row in logits]
    assert token.tolist() == expected == [int(logits[0].argmax()), 0, 17]
    assert draw(logits, [SamplingParams()] * 3) == expected, "temperature 0 among rows that draw"


@triton.jit
def uniform_kernel(seed, drawn, out_ptr, N: tl.constexpr):
    place = tl.arange(0, N)
    random, _, _, _ = tl.philox(seed, place.to(tl.uint32), drawn + place.to(tl.uint32) * 0, 0, 0)
    tl.store(out_ptr + place, tl.uint_to_uniform_float(random))


def test_a_draw_is_a_race_of_exponentials_by_id() -> None:
    """The winner among what the cut keeps, with the random numbers of the seed and of the draws before."""
    logits = logits_of(1, seed=3)
    params = SamplingParams(temperature=1.5, top_k=100, seed=2**40 + 5)
    probabilities, ids = distribution(logits[0], params)
    winners = []
    for drawn in range(3):
        uniform = torch.empty(1024)
        uniform_kernel[(1,)](2**40 + 5, drawn, uniform, 1024)
        assert 0.45 < uniform.mean() < 0.55
        winners.append(int(ids[(probabilities / -uniform[ids].log()).argmax()]))
        assert draw(logits, [params], drawn) == winners[-1:]
    assert len(set(winners)) > 1


def test_draws_depend_on_the_seed_and_not_on_the_batch() -> None:
    logits = logits_of(1).expand(4, V).contiguous()
    params = [SamplingParams(temperature=2, seed=seed) for seed in (3, 4, 3, 5)]
    tokens = draw(logits, params)
    assert tokens[0] == tokens[2]
    assert len(set(tokens)) == 3
    assert draw(logits[:1].contiguous(), params[3:]) == tokens[3:]


def test_races_follow_the_probabilities() -> None:
    """Of two neighbours, 3 to 1, over draws and seeds; within five standard deviations."""
    rounds = [(seed, drawn) for seed in (0, 1, 2**40 + 5) for drawn in (0, 1, 16_777_216)]
    uniform = torch.empty(len(rounds), 512, 2)
    for row, (seed, drawn) in zip(uniform, rounds, strict=True):
        uniform_kernel[(1,)](seed, drawn, row, 1024)
    scores = torch.tensor([0.75, 0.25]) / -uniform.log()
    won = (scores[..., 0] > scores[..., 1]).float()
    assert won.mean().item() == pytest.approx(0.75, abs=5 * (0.75 * 0.25 / won.numel()) ** 0.5)
    assert len(uniform.view(len(rounds), -1).unique(dim=0)) == len(rounds)


def test_penalties() -> None:
    """A token of the prompt, new ones that came once and more often, both signs; a row without penalties."""
    logits, ids = logits_of(2), torch.tensor([[5, 17, 300, 599, 0, -1], [5, -1, -1, -1, -1, -1]], dtype=torch.int32)
    times = torch.tensor([[0, 1, 2, 7, 0, 0], [3, 0, 0, 0, 0, 0]], dtype=torch.int32)
    params = [SamplingParams(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.3), SamplingParams()]
    judged = logits.clone()
    given = {"repetition_ptr": column([p.repetition_penalty for p in params])}
    given["presence_ptr"] = column([p.presence_penalty for p in params])
    given["frequency_ptr"] = column([p.frequency_penalty for p in params])
    kernel = sampling.penalize("penalize", V).with_tiles(Tile({"BLOCK": 4}))
    run(kernel, ids_ptr=ids, counts_ptr=times, **given, judged_ptr=judged, n_ids=6, n_rows=2)
    for row in range(2):
        counts = TokenCounts([0, 5])
        for token, count in zip(ids[row].tolist(), times[row].tolist(), strict=True):
            for _ in range(count):
                counts.add(token)
        assert torch.equal(judged[row], counts.penalised(logits[row], params[row]))


def test_logprobs() -> None:
    """Ties among the best, across blocks; a token that is not one of them."""
    logits = logits_of(2)
    logits[0, torch.tensor([599, 3, 256])] = 30.0
    logits[1, 1] = -1000.0
    token, logprob = torch.tensor([3, 1], dtype=torch.int32), torch.empty(2)
    ids, top = torch.empty(2, 5, dtype=torch.int32), torch.empty(2, 5)
    kernel = sampling.logprobs("logprobs", V).with_tiles(TILE)
    given = {"logits_ptr": logits, "token_ptr": token, "logprob_ptr": logprob}
    run(kernel, **given, top_ids_ptr=ids, top_ptr=top, n_top=5, n_rows=2)
    params, relative = SamplingParams(logprobs=5), TRITON["sampling logprobs"].relative
    for row in range(2):
        expected = choose(logits[row], params, torch.Generator()).top
        assert ids[row].tolist() == [one for one, _ in expected]
        values = column([value for _, value in expected])
        torch.testing.assert_close(top[row], values, rtol=relative, atol=relative)
    exact = torch.log_softmax(logits.double(), 1)[[0, 1], [3, 1]].float()
    torch.testing.assert_close(logprob, exact, rtol=relative, atol=relative)
