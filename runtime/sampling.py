"""From logits to a token: greedy, temperature, top-k, top-p, each request with its own seeded generator."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv41c.errors import RequestError


@dataclass(frozen=True)
class SamplingParams:
    """How a request is continued.

    Attributes:
        max_new_tokens: at most so many.
        temperature: 0 takes the best token, the lowest id among equals.
        top_k: sample among the k best; 0 for all.
        top_p: sample among the fewest best tokens whose probabilities reach p; 1 for all.
        seed: of the request's own generator; a request draws the same tokens in any batch.
        stop_at_eos: end after the model's end token.
        forced_tokens: fed instead of the sampled ones, as far as they go; they do not end a request.
        collect_logits: keep the logits of all prompt positions and of every new token.
    """

    max_new_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop_at_eos: bool = True
    forced_tokens: tuple[int, ...] = ()
    collect_logits: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise RequestError(f"max_new_tokens is {self.max_new_tokens}; give 0 or more")
        if not self.temperature >= 0:
            raise RequestError(f"temperature is {self.temperature}; give 0 for greedy, or a positive number")
        if self.top_k < 0:
            raise RequestError(f"top_k is {self.top_k}; give a positive number, or 0 for all tokens")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p is {self.top_p}; give a number above 0 and up to 1 (1: all tokens)")


def choose(logits: Tensor, params: SamplingParams, generator: torch.Generator) -> int:
    """The next token.

    Args:
        logits: fp32 [vocab].
        params: how to choose.
        generator: drawn from once, unless the choice is greedy.
    Returns:
        a token id.
    """
    if params.temperature == 0:
        return int(logits.argmax())
    probabilities, ids = distribution(logits, params)
    return int(ids[torch.multinomial(probabilities, 1, generator=generator)])


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
