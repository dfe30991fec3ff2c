"""A request on its way: what it asks for, what is in the caches, what has come out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dsv41c.runtime.batch import Piece
from dsv41c.runtime.bounded import Carry
from dsv41c.runtime.caches import Allotment
from dsv41c.runtime.preconditions import Held
from dsv41c.runtime.prefix import Image
from dsv41c.runtime.sampling import Choice, SamplingParams, TokenCounts, choose
from dsv41c.runtime.stopping import StopText

EOS, LENGTH, STOP, CANCELLED = "eos", "length", "stop", "cancelled"


@dataclass(frozen=True)
class TokenEvent:
    """A token of a running request.

    Attributes:
        request: index of its prompt.
        index: how many new tokens came before it.
        token: the id that was fed on (the forced one, where tokens are forced).
        finished: why the request ended, with its last token: "eos", "length" or "stop"; else None.
        text: the text that may be shown now, if the request asks for text; a stop string is never shown.
        logprob, top: of `Choice`, if the request asks for them.
    """

    request: int
    index: int
    token: int
    finished: str | None
    text: str = ""
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Completion:
    """A finished request.

    Attributes:
        prompt: its token ids.
        tokens: the new ids, as they were fed on.
        chosen: the ids the sampler chose; they differ from `tokens` only where tokens are forced.
        finished: "eos", "length", "stop" or "cancelled".
        text: the new text up to a stop string, if it was asked for.
        cached_tokens: tokens of the prompt whose state was found instead of computed.
        prefill_logits: fp32 [prompt, vocab], if collected.
        decode_logits: fp32 [len(tokens), vocab], if collected: row i comes after feeding tokens[i].
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    chosen: tuple[int, ...]
    finished: str
    text: str = ""
    cached_tokens: int = 0
    prefill_logits: Tensor | None = None
    decode_logits: Tensor | None = None


@dataclass(eq=False)
class Request:
    """A request on its way.

    Attributes:
        number: index of its prompt in the call that brought it.
        prompt: token ids. params: how to continue it.
        generator: the sampler's own.
        pending: tokens that are known but not yet in the caches.
        held: which positions the caches hold.
        images: of the prompt.
        text: of requests that ask for text.
        allotment: what it holds of the caches, while it runs.
        context: tokens in the caches. start, written_from: see `Piece`.
        encodes: its prompt runs as `encode` and `tail`.
        carry: what a bounded prefill keeps for its tail.
        cached_tokens: tokens of the prompt whose state was found.
        names: of its full pages, as far as they are known; the first `named` pages have theirs.
        kept: the name of the window state that its new tokens left last.
        cut: a token of the prompt at which a call ends; 0 for none.
        leader: the request whose prompt, the same one, runs for this one too; None once it has.
        followers: requests whose leader this is.
        events: that its caller has not seen yet.
    """

    number: int
    prompt: tuple[int, ...]
    params: SamplingParams
    generator: torch.Generator
    pending: list[int]
    held: Held
    images: tuple[Image, ...] = ()
    text: StopText | None = None
    allotment: Allotment | None = None
    context: int = 0
    start: int = 0
    written_from: int = 0
    encodes: bool = False
    carry: Carry = field(default_factory=dict)
    cached_tokens: int = 0
    names: list[bytes] = field(default_factory=list)
    named: int = 0
    kept: bytes | None = None
    cut: int = 0
    leader: Request | None = None
    followers: list[Request] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    prefill_logits: list[Tensor] = field(default_factory=list)
    decode_logits: list[Tensor] = field(default_factory=list)
    finished: str | None = None
    events: deque[TokenEvent] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._counts = TokenCounts(self.prompt) if self.params.has_penalties else None
        if self._counts is not None:
            for token in self.tokens:
                self._counts.add(token)

    @property
    def in_prompt(self) -> bool:
        return self.context < len(self.prompt)

    @property
    def total_tokens(self) -> int:
        return len(self.prompt) + self.params.max_new_tokens

    @property
    def known(self) -> Sequence[int]:
        """All tokens, prompt and new."""
        return [*self.prompt, *self.tokens]

    @property
    def is_done(self) -> bool:
        # With logits to collect, the last token is fed too, for the row that follows it.
        return self.finished is not None and not (self.params.collect_logits and self.pending)

    def rows_within(self, rows: int) -> int:
        """How many of its pending tokens the next call takes, of `rows` at most."""
        rows = min(rows, len(self.pending))
        return min(rows, self.cut - self.context) if self.context < self.cut else rows

    def wanted(self, count: int) -> Sequence[int]:
        """Offsets of the next `count` tokens whose logits are wanted: all if collected, else the last known one."""
        if self.params.collect_logits:
            return range(count)
        return [count - 1] if count == len(self.pending) else []

    def piece(self, count: int) -> Piece:
        """The next `count` tokens."""
        assert self.allotment is not None, "running requests hold their caches"
        tokens = self.pending[:count]
        return Piece(self.allotment, self.context, tokens, self.wanted(count), self.start, self.written_from)

    def tail_piece(self, rows: int) -> Piece:
        """The last rows of the prompt, as a segment that begins with the first of them and writes no entries."""
        assert self.allotment is not None, "running requests hold their caches"
        tokens, end = self.prompt[-rows:], len(self.prompt)
        start = end - len(tokens)
        return Piece(self.allotment, start, tokens, [len(tokens) - 1], start=start, written_from=end)

    def follow(self, leader: Request) -> None:
        """Goes on from another request, whose prompt has just ended and whose caches were forked for this one."""
        self.held, self.context = leader.held.copy(), leader.context
        self.start, self.written_from = leader.start, leader.written_from
        self.pending, self.encodes, self.cached_tokens = [], leader.encodes, len(self.prompt)
        self.names, self.named, self.cut = list(leader.names), leader.named, leader.cut

    def advance(self, count: int) -> None:
        """The next `count` tokens are in the caches."""
        self.context += count
        del self.pending[:count]

    def collect(self, logits: Tensor) -> None:
        """Keeps the logits of the next rows, if they are asked for; before `advance`."""
        if self.params.collect_logits:
            kept = self.prefill_logits if self.in_prompt else self.decode_logits
            # Cloned: a view would keep the whole step's logits.
            kept.append(logits.clone())

    def take(self, logits: Tensor, eos: int) -> TokenEvent | None:
        """Chooses the next token from its logits fp32 [vocab]; None for a request that has ended."""
        params, index = self.params, len(self.tokens)
        if self.finished is not None:
            return None
        if index == params.max_new_tokens:
            self.finished = LENGTH
            return None
        choice = choose(logits, params, self.generator, self._counts)
        is_forced = index < len(params.forced_tokens)
        token = params.forced_tokens[index] if is_forced else choice.token
        self.chosen.append(choice.token)
        self.tokens.append(token)
        self.pending.append(token)
        if self._counts is not None:
            self._counts.add(token)
        if token == eos and params.stop_at_eos and not is_forced:
            self.finished = EOS
        elif index + 1 == params.max_new_tokens:
            self.finished = LENGTH
        return self._event(index, token, choice)

    def _event(self, index: int, token: int, choice: Choice) -> TokenEvent:
        text = ""
        if self.text is not None:
            if self.finished != EOS:
                text = self.text.push(token)
            if self.text.stopped:
                self.finished = STOP
            elif self.finished is not None:
                text += self.text.finish()
                self.finished = STOP if self.text.stopped else self.finished
            self.shown.append(text)
        return TokenEvent(self.number, index, token, self.finished, text, choice.logprob, choice.top)

    def completion(self) -> Completion:
        """What came out."""
        assert self.finished is not None, "only finished requests are complete"
        prefill = decode = None
        if self.params.collect_logits:
            prefill = torch.cat(self.prefill_logits)
            decode = torch.cat(self.decode_logits) if self.decode_logits else prefill[:0]
        return Completion(
            self.prompt,
            tuple(self.tokens),
            tuple(self.chosen),
            self.finished,
            "".join(self.shown),
            self.cached_tokens,
            prefill,
            decode,
        )
