"""From logits to a token: penalties, greedy, temperature, top-k, top-p, each request with its own seeded generator.

The random numbers of a request depend on its seed and on how many tokens it has drawn, never on the batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv41c.errors import RequestError

MAX_LOGPROBS = 20
MAX_STOPS = 16


@dataclass(frozen=True)
class SamplingParams:
    """How a request is continued.

    Attributes:
        max_new_tokens: at most so many.
        temperature: 0 takes the best token, the lowest id among equals.
        top_k: sample among the k best; 0 for all.
        top_p: sample among the fewest best tokens whose probabilities reach p; 1 for all.
        seed: of the request's own generator; a request draws the same random numbers in any batch.
        stop_at_eos: end after the model's end token.
        forced_tokens: fed instead of the sampled ones, as far as they go; they do not end a request.
        collect_logits: keep the logits of all prompt positions and of every new token.
        stop: strings that end the request; its text ends before them. They need a plan with a tokenizer.
        with_text: events carry text even where nothing stops.
        logprobs: events carry the token's log-probability and so many of the best ones; None for neither.
        presence_penalty: taken from the logits of new tokens that came before.
        frequency_penalty: taken from them once for each time that they came.
        repetition_penalty: logits of tokens of the prompt and of new ones are divided by it, or multiplied where they
            are negative; 1 for none.
    """

    max_new_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop_at_eos: bool = True
    forced_tokens: tuple[int, ...] = ()
    collect_logits: bool = False
    stop: tuple[str, ...] = ()
    with_text: bool = False
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise RequestError(f"max_new_tokens is {self.max_new_tokens}; give 0 or more")
        if not 0 <= self.temperature < math.inf:
            raise RequestError(f"temperature is {self.temperature}; give 0 for greedy, or a positive number")
        if self.top_k < 0:
            raise RequestError(f"top_k is {self.top_k}; give a positive number, or 0 for all tokens")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p is {self.top_p}; give a number above 0 and up to 1 (1: all tokens)")
        if not 0 <= self.seed < 1 << 63:
            raise RequestError(f"seed is {self.seed}; give a number from 0 to 2**63 - 1")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise RequestError(f"logprobs is {self.logprobs}; give 0..{MAX_LOGPROBS}")
        if len(self.stop) > MAX_STOPS or "" in self.stop:
            raise RequestError(f"stop has {len(self.stop)} strings; give at most {MAX_STOPS}, none of them empty")
        self._check_penalties()

    def _check_penalties(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise RequestError(f"{name} is {getattr(self, name)}; give a number from -2 to 2 (0: none)")
        if not 0 < self.repetition_penalty < math.inf:
            raise RequestError(f"repetition_penalty is {self.repetition_penalty}; give a positive number (1: none)")

    @property
    def has_penalties(self) -> bool:
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1


@dataclass(frozen=True)
class Choice:
    """A chosen token.

    Attributes:
        token: its id.
        logprob: its log-probability in the model's own distribution, before penalties, temperature and cuts.
        top: the best tokens of that distribution with their log-probabilities, the lower id first among equals.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class TokenCounts:
    """The tokens of a request so far, as penalties count them."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._seen = set(prompt)
        self._new: Counter[int] = Counter()

    def add(self, token: int) -> None:
        self._seen.add(token)
        self._new[token] += 1

    def penalised(self, logits: Tensor, params: SamplingParams) -> Tensor:
        """Logits fp32 [vocab] with the penalties taken off; a copy."""
        logits = logits.clone()
        seen = torch.tensor(sorted(self._seen))
        factor = params.repetition_penalty
        logits[seen] = torch.where(logits[seen] > 0, logits[seen] / factor, logits[seen] * factor)
        if self._new:
            ids = torch.tensor(list(self._new))
            counts = torch.tensor(list(self._new.values()), dtype=torch.float32)
            logits[ids] -= params.presence_penalty + params.frequency_penalty * counts
        return logits


def choose(
    logits: Tensor, params: SamplingParams, generator: torch.Generator, counts: TokenCounts | None = None
) -> Choice:
    """The next token.

    Args:
        logits: fp32 [vocab].
        params: how to choose.
        generator: drawn from once, unless the choice is greedy.
        counts: of the request's tokens, where it has penalties.
    """
    judged = logits if counts is None else counts.penalised(logits, params)
    if params.temperature == 0:
        token = int(judged.argmax())
    else:
        probabilities, ids = distribution(judged, params)
        token = int(ids[torch.multinomial(probabilities, 1, generator=generator)])
    if params.logprobs is None:
        return Choice(token)
    logprobs = torch.log_softmax(logits, 0)
    ordered, ids = logprobs.sort(descending=True, stable=True)
    top = zip(ids[: params.logprobs].tolist(), ordered[: params.logprobs].tolist(), strict=True)
    return Choice(token, float(logprobs[token]), tuple(top))


def distribution(logits: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """The tokens that may be drawn, best first (the lower id first among equals), with their probabilities.

    top_k cuts before top_p, and top_p counts in the probabilities that remain.

    Args:
        logits: fp32 [vocab].
        params: temperature above 0.
    Returns:
        probabilities fp32 [n], which sum to 1, and ids int64 [n].
    """
    ordered, ids = logits.sort(descending=True, stable=True)
    if params.top_k:
        ordered, ids = ordered[: params.top_k], ids[: params.top_k]
    # The best logit is subtracted first: dividing by a tiny temperature must not overflow to inf - inf.
    probabilities = torch.softmax((ordered - ordered[0]) / params.temperature, 0)
    if params.top_p < 1:
        before = probabilities.cumsum(0) - probabilities
        # The first token has nothing before it and always stays.
        kept = before < params.top_p
        kept[0] = True
        probabilities, ids = probabilities[kept], ids[kept]
        probabilities = probabilities / probabilities.sum()
    return probabilities, ids
