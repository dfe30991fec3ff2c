"""Bodies of answers, as OpenAI's API has them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from dsv41c.runtime.requests import EOS, LENGTH, STOP, Request, TokenEvent
from dsv41c.runtime.tokenizer import Tokenizer

_REASONS = {EOS: "stop", STOP: "stop", LENGTH: "length"}

Json = dict[str, Any]


def usage_of(requests: Sequence[Request], prompts: int) -> Json:
    """The tokens of a call; the choices of one prompt count its tokens once."""
    per_prompt = max(1, len(requests) // max(1, prompts))
    prompt = sum(len(request.prompt) for request in requests[::per_prompt])
    new = sum(len(request.tokens) for request in requests)
    cached = sum(request.cached_tokens for request in requests[::per_prompt])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class Answers:
    """The bodies of one call's answer.

    Args:
        model: its name.
        tokenizer: for the texts of single tokens.
        logprobs: the call asked for log-probabilities.
    """

    kind = "text_completion"
    chunk_kind = "text_completion"
    prefix = "cmpl"

    def __init__(self, model: str, tokenizer: Tokenizer, logprobs: bool) -> None:
        self._model, self._tokenizer, self._logprobs = model, tokenizer, logprobs
        self._id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def whole(self, answers: Sequence[Sequence[TokenEvent]], usage: Json) -> Json:
        """The answer in one piece: the events of each choice."""
        choices = [self._choice(at, events) for at, events in enumerate(answers)]
        return {**self._head(self.kind), "choices": choices, "usage": usage}

    def chunk(self, choice: int, event: TokenEvent) -> Json:
        """A piece of a streamed answer."""
        body: Json = {"index": choice, "finish_reason": _reason(event)}
        if self._logprobs:
            body["logprobs"] = self._logprobs_of([event])
        return {**self._head(self.chunk_kind), "choices": [{**body, **self._fresh(event)}]}

    def usage_chunk(self, usage: Json) -> Json:
        """The last piece of a streamed answer whose caller asked for it."""
        return {**self._head(self.chunk_kind), "choices": [], "usage": usage}

    def first_chunks(self, choices: int) -> list[Json]:
        """Pieces before the first token."""
        return []

    def _head(self, kind: str) -> Json:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _choice(self, at: int, events: Sequence[TokenEvent]) -> Json:
        text = "".join(event.text for event in events)
        return {
            "index": at,
            **self._text(text),
            "finish_reason": _reason(events[-1]),
            "logprobs": self._logprobs_of(events) if self._logprobs else None,
        }

    def _text(self, text: str) -> Json:
        return {"text": text}

    def _fresh(self, event: TokenEvent) -> Json:
        return {"text": event.text}

    def _logprobs_of(self, events: Sequence[TokenEvent]) -> Json:
        return {
            "tokens": [self._token(event.token) for event in events],
            "token_logprobs": [event.logprob for event in events],
            "top_logprobs": [{self._token(token): value for token, value in event.top} for event in events],
        }

    def _token(self, token: int) -> str:
        return self._tokenizer.decode([token])


class ChatAnswers(Answers):
    """The bodies of a chat's answer."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl"

    def first_chunks(self, choices: int) -> list[Json]:
        delta = {"role": "assistant", "content": ""}
        return [
            {**self._head(self.chunk_kind), "choices": [{"index": at, "delta": delta, "finish_reason": None}]}
            for at in range(choices)
        ]

    def _text(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text}}

    def _fresh(self, event: TokenEvent) -> Json:
        return {"delta": {"content": event.text}}

    def _logprobs_of(self, events: Sequence[TokenEvent]) -> Json:
        return {
            "content": [
                {
                    **self._entry(event.token, event.logprob or 0.0),
                    "top_logprobs": [self._entry(token, value) for token, value in event.top],
                }
                for event in events
            ]
        }

    def _entry(self, token: int, logprob: float) -> Json:
        text = self._token(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _reason(event: TokenEvent) -> str | None:
    return None if event.finished is None else _REASONS[event.finished]
