"""Bodies of requests, as OpenAI's API has them; a field that is not served is refused by its name, never ignored."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from dsv41c.errors import RequestError
from dsv41c.runtime.sampling import MAX_LOGPROBS, SamplingParams

MAX_CHOICES = 16
DEFAULT_COMPLETION_TOKENS = 16
DEFAULT_CHAT_TOKENS = 1024

T = TypeVar("T")
Ids = list[StrictInt]
Number = Annotated[float, Field(allow_inf_nan=False)]


class StreamOptions(BaseModel):
    """Of a streamed answer."""

    model_config = ConfigDict(extra="forbid")
    include_usage: StrictBool = False


class Body(BaseModel):
    """What completions and chat completions share.

    `top_k`, `repetition_penalty` and `ignore_eos` are no fields of OpenAI's; clients send them as extra fields.
    `user`, `metadata`, `store` and `service_tier` change nothing in an answer and are taken as they are.
    """

    model_config = ConfigDict(extra="forbid")
    model: StrictStr
    temperature: Number | None = None
    top_p: Number | None = None
    n: Annotated[StrictInt, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    stop: StrictStr | list[StrictStr] | None = None
    seed: StrictInt | None = None
    max_tokens: StrictInt | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    top_k: StrictInt | None = None
    repetition_penalty: Number | None = None
    ignore_eos: StrictBool | None = None
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def choices(self) -> int:
        return 1 if self.n is None else self.n

    def params(self, max_new_tokens: int, logprobs: int | None) -> list[SamplingParams]:
        """The sampling parameters of each choice: the seeds count up from the one given, or from a random one.

        Raises:
            RequestError: a value outside of its range.
        """
        seed = secrets.randbits(62) if self.seed is None else self.seed
        stop = [self.stop] if isinstance(self.stop, str) else (self.stop or [])
        if max_new_tokens < 1:
            raise RequestError(f"max_tokens is {max_new_tokens}; give 1 or more")
        return [
            SamplingParams(
                max_new_tokens=max_new_tokens,
                temperature=_given(self.temperature, 1.0),
                top_k=_given(self.top_k, 0),
                top_p=_given(self.top_p, 1.0),
                seed=seed + choice,
                stop_at_eos=not self.ignore_eos,
                stop=tuple(stop),
                with_text=True,
                logprobs=logprobs,
                presence_penalty=_given(self.presence_penalty, 0.0),
                frequency_penalty=_given(self.frequency_penalty, 0.0),
                repetition_penalty=_given(self.repetition_penalty, 1.0),
            )
            for choice in range(self.choices)
        ]


class CompletionBody(Body):
    """`POST /v1/completions`."""

    prompt: StrictStr | Ids | list[StrictStr] | list[Ids]
    logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself."""
        several: list[Any] = self.prompt if isinstance(self.prompt, list) else [self.prompt]
        return [several] if several and isinstance(several[0], int) else several


class TextPart(BaseModel):
    """A part of a message's content."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: StrictStr


class Message(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "developer", "user", "assistant"]
    content: StrictStr | list[TextPart]
    name: StrictStr | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatBody(Body):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: StrictInt | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    reasoning_effort: Literal["none", "low", "medium", "high"] | None = None


def _given(value: T | None, default: T) -> T:
    return default if value is None else value
