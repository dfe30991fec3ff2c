"""Serves requests from a plan: prefill in ragged batches, then decode steps for all that are unfinished."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dsv41c.errors import PlanError, RequestError
from dsv41c.models.config import ModelConfig
from dsv41c.runtime.batch import Piece, step_inputs
from dsv41c.runtime.bounded import ENCODE, TAIL, BoundedPrefill, Carry
from dsv41c.runtime.caches import Allotment, CachePool
from dsv41c.runtime.executor_cpu import CpuExecutor
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.preconditions import Held, Preconditions
from dsv41c.runtime.sampling import SamplingParams, choose
from dsv41c.runtime.tokenizer import Tokenizer

DEFAULT_SEQUENCES = 8
DEFAULT_CACHE_BYTES = 1 << 30  # of the "pages" pools, unless the caller says how many tokens

STEP = "step"
PREFILLS = ("exact", "bounded")

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class TokenEvent:
    """A token of a running request.

    Attributes:
        request: index of its prompt.
        index: how many new tokens came before it.
        token: the id that was fed on (the forced one, where tokens are forced).
        finished: "eos" or "length" with the request's last token, else None.
    """

    request: int
    index: int
    token: int
    finished: str | None


@dataclass(frozen=True)
class Completion:
    """A finished request.

    Attributes:
        prompt: its token ids.
        tokens: the new ids, as they were fed on.
        chosen: the ids the sampler chose; they differ from `tokens` only where tokens are forced.
        finished: "eos" or "length".
        prefill_logits: fp32 [prompt, vocab], if collected.
        decode_logits: fp32 [len(tokens), vocab], if collected: row i comes after feeding tokens[i].
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    chosen: tuple[int, ...]
    finished: str
    prefill_logits: Tensor | None = None
    decode_logits: Tensor | None = None


@dataclass
class _Sequence:
    """A request on its way.

    `pending` are the tokens that are known but not yet in the caches, `carry` what a bounded prefill keeps for its
    tail.
    """

    request: int
    prompt: tuple[int, ...]
    params: SamplingParams
    generator: torch.Generator
    pending: list[int]
    held: Held
    allotment: Allotment | None = None
    context: int = 0
    tokens: list[int] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    prefill_logits: list[Tensor] = field(default_factory=list)
    decode_logits: list[Tensor] = field(default_factory=list)
    finished: str | None = None
    carry: Carry = field(default_factory=dict)

    @property
    def in_prompt(self) -> bool:
        return self.context < len(self.prompt)

    @property
    def total_tokens(self) -> int:
        return len(self.prompt) + self.params.max_new_tokens

    def advance(self, count: int) -> None:
        """The next `count` tokens are in the caches."""
        self.context += count
        del self.pending[:count]

    @property
    def is_done(self) -> bool:
        # With logits to collect, the last token is fed too, for the row that follows it.
        return self.finished is not None and not (self.params.collect_logits and self.pending)


class Engine:
    """A loaded plan and its caches.

    Args:
        plan: the plan.
        max_sequences: requests that run at the same time; the plan's range, at most 8, if absent.
        cache_tokens: tokens that the caches hold for all of them; as many as they can use, within 1 GiB, if absent.
        threads: worker threads of compiled kernels.
        row_multiple: pad every step to a multiple of so many rows.
        poison: fill caches with NaN, 0x7F and -1 before use; for tests.
        prefill: "exact" runs all layers on every token of a prompt; "bounded" runs the decoder's layers on the last
            tokens only, as many as a window has, and takes about half the time. It is an approximation that the
            model's authors intend (SPEC 5.4); prompts no longer than a window are exact.
    Raises:
        RequestError: sizes or a prefill that this plan cannot serve.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        max_sequences: int | None = None,
        cache_tokens: int | None = None,
        threads: int = 1,
        row_multiple: int = 1,
        poison: bool = False,
        prefill: str = "exact",
    ) -> None:
        self.plan = plan
        self.config = ModelConfig.from_dict(plan.manifest.model)
        self.row_multiple = row_multiple
        self._max_rows = self._highest("T", 512)
        self.max_sequences = max_sequences or min(DEFAULT_SEQUENCES, self._highest("B", DEFAULT_SEQUENCES))
        self._check_sequences()
        self.bounded = self._bounded_prefill(prefill)
        self.caches = self._make_caches(cache_tokens, poison)
        look_back = max(0, self.config.engram_max_ngram_size - 1)
        self.preconditions = Preconditions(plan.manifest.state, plan.programs, self.caches_page_tokens, look_back)
        self.executor = CpuExecutor(plan, self.caches.tensors, threads)
        self._tokenizer: Tokenizer | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """The plan's tokenizer; PlanError if it has none."""
        if self._tokenizer is None:
            name = self.plan.manifest.tokenizer
            if name is None:
                raise PlanError(
                    "the plan has no tokenizer, so prompts are lists of token ids; "
                    "add tokenizer.json to the checkpoint and compile again for text"
                )
            self._tokenizer = Tokenizer(self.plan.path / name)
        return self._tokenizer

    @property
    def max_tokens(self) -> int:
        """Prompt and new tokens of one request, at most: what the model and the plan's ranges allow."""
        by_pages = self._highest("P", 0) * self.caches_page_tokens
        limit = self.config.max_position_embeddings
        return min(limit, by_pages) if by_pages else limit

    @property
    def caches_page_tokens(self) -> int:
        """Tokens of one cache page."""
        return self.plan.manifest.page_tokens

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        on_token: Callable[[TokenEvent], None] | None = None,
    ) -> list[Completion]:
        """Continues every prompt.

        Args:
            prompts: token ids, or text if the plan has a tokenizer.
            params: for all prompts, or one for each.
            on_token: called for every new token as it comes.
        Returns:
            a completion for each prompt, in order.
        Raises:
            RequestError: a prompt that this plan cannot serve; nothing has run then.
        """
        sequences = self._accept(prompts, params)
        for event in self._serve(sequences):
            if on_token is not None:
                on_token(event)
        return [_completion(sequence) for sequence in sequences]

    def stream(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> Iterator[TokenEvent]:
        """As `generate`, but an iterator over the new tokens as they come; leaving it early frees what it holds."""
        return self._serve(self._accept(prompts, params))

    # --- requests -------------------------------------------------------------------------------------------------

    def _accept(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[_Sequence]:
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise RequestError(
                f"{len(prompts)} prompts with {len(params)} sampling parameters; give one for all, or one each"
            )
        return [self._sequence(i, *pair) for i, pair in enumerate(zip(prompts, params, strict=True))]

    def _sequence(self, request: int, prompt: Prompt, params: SamplingParams) -> _Sequence:
        if self.bounded is not None and params.collect_logits:
            raise RequestError(
                f"prompt {request} asks for the logits of all its tokens (collect_logits, --save-logits), and a "
                "bounded prefill computes only the last token's; load the plan with prefill exact, or collect no logits"
            )
        ids = tuple(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        if not ids:
            raise RequestError(f"prompt {request} is empty; give at least one token")
        self._check_ids(request, "prompt", ids)
        self._check_ids(request, "forced_tokens", params.forced_tokens)
        held = self.preconditions.nothing_held()
        sequence = _Sequence(request, ids, params, torch.Generator().manual_seed(params.seed), list(ids), held)
        if sequence.total_tokens > self.max_tokens:
            raise RequestError(
                f"prompt {request} has {len(ids)} tokens and asks for {params.max_new_tokens} more, "
                f"{sequence.total_tokens} together; this plan serves {self.max_tokens} (max_position_embeddings "
                f"{self.config.max_position_embeddings}, block table {self._highest('P', 0)} pages of "
                f"{self.caches_page_tokens}); ask for less, or compile with a longer range"
            )
        needed = self.caches.pages_for(sequence.total_tokens)
        if needed > self.caches.pages.count:
            raise RequestError(
                f"out of pages: prompt {request} needs {needed} pages of {self.caches_page_tokens} tokens, "
                f"the caches have {self.caches.pages.count}; ask for less, or load the plan with more cache_tokens"
            )
        return sequence

    def _check_ids(self, request: int, what: str, ids: Sequence[int]) -> None:
        vocab = self.config.vocab_size
        for at, token in enumerate(ids):
            if not 0 <= token < vocab:
                raise RequestError(
                    f"prompt {request}: {what} has id {token} at {at}; the vocabulary has ids 0..{vocab - 1}"
                )

    # --- the loop -------------------------------------------------------------------------------------------------

    def _serve(self, sequences: Sequence[_Sequence]) -> Iterator[TokenEvent]:
        waiting = deque(sequences)
        active: list[_Sequence] = []
        try:
            while waiting or active:
                self._admit(waiting, active)
                for sequence, logits in self._step(active):
                    yield from _advance(sequence, logits, self.config.eos_token_id)
                for sequence in [one for one in active if one.is_done]:
                    self._release(sequence)
                    active.remove(sequence)
        finally:
            for sequence in active:
                self._release(sequence)

    def _admit(self, waiting: deque[_Sequence], active: list[_Sequence]) -> None:
        """In order of arrival: a request starts when its whole length has room, so that none ever has to stop."""
        # With nothing active no room will come: then `allot` says what is missing (another stream may hold it).
        while waiting and (not active or self.caches.has_room(waiting[0].total_tokens)):
            sequence = waiting.popleft()
            sequence.allotment = self.caches.allot(sequence.total_tokens)
            active.append(sequence)

    def _release(self, sequence: _Sequence) -> None:
        if sequence.allotment is not None:
            self.caches.release(sequence.allotment)
            sequence.allotment = None

    def _step(self, active: Sequence[_Sequence]) -> list[tuple[_Sequence, Tensor]]:
        """Runs one step and gives each sequence whose known tokens are all in the caches its next logits [vocab]."""
        encoded = [sequence for sequence in active if sequence.carry and not sequence.pending]
        if encoded:
            return self._finish_prompts(encoded)
        chosen = self._pick(active)
        program = self._program(chosen[0][0])
        pieces = [_piece(sequence, count) for sequence, count in chosen]
        outputs = self._run(program, [sequence for sequence, _ in chosen], pieces)
        if program == ENCODE:
            self._keep(chosen, outputs)
            return []
        logits = outputs["logits"]
        ready = []
        start = 0
        for (sequence, count), piece in zip(chosen, pieces, strict=True):
            own = logits[start : start + len(piece.wanted)]
            start += len(piece.wanted)
            _collect(sequence, own)
            sequence.advance(count)
            if not sequence.pending:
                ready.append((sequence, own[-1]))
        return ready

    def _run(
        self, program: str, sequences: Sequence[_Sequence], pieces: Sequence[Piece], carries: Sequence[Carry] = ()
    ) -> dict[str, Tensor]:
        for sequence, piece in zip(sequences, pieces, strict=True):
            self.preconditions.check(program, piece, sequence.held)
        rows = sum(len(piece.tokens) for piece in pieces)
        padded = min(-(-rows // self.row_multiple) * self.row_multiple, self._highest("T", 512))
        inputs = step_inputs(pieces, max(padded, self._lowest("T")), self._lowest("P"))
        if self.bounded is not None and carries:
            inputs |= self.bounded.inputs(carries, inputs["positions"].shape[0])
        outputs = self.executor.run(program, inputs)
        for sequence, piece in zip(sequences, pieces, strict=True):
            self.preconditions.advance(program, piece, sequence.held)
        return outputs

    def _keep(self, chosen: Sequence[tuple[_Sequence, int]], outputs: dict[str, Tensor]) -> None:
        """After a call of `encode`."""
        assert self.bounded is not None, "only a bounded prefill encodes"
        start = 0
        for sequence, count in chosen:
            sequence.carry = self.bounded.kept(sequence.carry, outputs, start, count)
            sequence.advance(count)
            start += count

    def _finish_prompts(self, encoded: Sequence[_Sequence]) -> list[tuple[_Sequence, Tensor]]:
        """Runs the tail of as many encoded prompts as fit in one call, and gives their logits."""
        assert self.bounded is not None, "only a bounded prefill has tails"
        window = self.bounded.window
        fitting = min(self._highest("T", 512) // window, self._highest("R", len(encoded)))
        chosen = encoded[:fitting]
        pieces = [_tail_piece(sequence, window) for sequence in chosen]
        logits = self._run(TAIL, chosen, pieces, [sequence.carry for sequence in chosen])["logits"]
        for sequence in chosen:
            sequence.carry = {}
        return list(zip(chosen, logits, strict=True))

    def _program(self, sequence: _Sequence) -> str:
        """The program that takes a sequence's next tokens."""
        is_bounded = self.bounded is not None and sequence.in_prompt and self.bounded.applies_to(sequence.prompt)
        return ENCODE if is_bounded else STEP

    def _pick(self, active: Sequence[_Sequence]) -> list[tuple[_Sequence, int]]:
        """The sequences of the next step and how many tokens of each: prompts first, then all that decode."""
        in_prompt = [sequence for sequence in active if sequence.in_prompt]
        in_prompt = [sequence for sequence in in_prompt if self._program(sequence) == self._program(in_prompt[0])]
        rows, logit_rows = self._max_rows, self._highest("R", self._max_rows)
        chosen = []
        for sequence in in_prompt or active:
            count = min(len(sequence.pending), rows)
            if sequence.params.collect_logits and sequence.in_prompt:
                count = min(count, logit_rows)
            if count == 0 or logit_rows == 0:
                break
            chosen.append((sequence, count))
            rows -= count
            logit_rows -= len(_wanted(sequence, count))
        return chosen

    # --- sizes ----------------------------------------------------------------------------------------------------

    def _highest(self, symbol: str, default: int) -> int:
        return self.plan.manifest.shape_ranges.get(symbol, (0, default))[1]

    def _lowest(self, symbol: str) -> int:
        return max(1, self.plan.manifest.shape_ranges.get(symbol, (1, 1))[0])

    def _check_sequences(self) -> None:
        highest = min(self._highest("B", self._max_rows), self._highest("S", self._max_rows), self._max_rows)
        highest = min(highest, self._highest("R", highest))
        if not 1 <= self.max_sequences <= highest:
            raise RequestError(
                f"max_sequences is {self.max_sequences}; the plan was compiled for 1..{highest}; "
                "ask for fewer, or compile it with a larger range of B"
            )

    def _bounded_prefill(self, prefill: str) -> BoundedPrefill | None:
        if prefill not in PREFILLS:
            raise RequestError(f"prefill '{prefill}' is unknown; supported are {', '.join(PREFILLS)}")
        if prefill == "exact":
            return None
        return BoundedPrefill(self.plan, self.config.sliding_window, self._highest("T", 512))

    def _make_caches(self, cache_tokens: int | None, poison: bool) -> CachePool:
        specs, page_tokens = self.plan.manifest.state, self.caches_page_tokens
        if cache_tokens is None:
            page_bytes = max(1, sum(spec.page_bytes for spec in specs if spec.pool == "pages"))
            affordable = DEFAULT_CACHE_BYTES // page_bytes
            usable = -(-self.max_tokens // page_tokens) * self.max_sequences
            n_pages = max(1, min(usable, affordable))
        else:
            n_pages = max(1, -(-cache_tokens // page_tokens))
        n_pages = max(self._lowest("N"), min(n_pages, self._highest("N", n_pages)))
        return CachePool(specs, page_tokens, n_pages, max(self.max_sequences, self._lowest("S")), poison)


def _wanted(sequence: _Sequence, count: int) -> Sequence[int]:
    """Offsets of the next `count` tokens whose logits are wanted: all if collected, else the last known one."""
    if sequence.params.collect_logits:
        return range(count)
    return [count - 1] if count == len(sequence.pending) else []


def _piece(sequence: _Sequence, count: int) -> Piece:
    assert sequence.allotment is not None, "active sequences hold their caches"
    return Piece(sequence.allotment, sequence.context, sequence.pending[:count], _wanted(sequence, count))


def _tail_piece(sequence: _Sequence, window: int) -> Piece:
    """The last rows of a prompt, as a segment that begins with the first of them."""
    assert sequence.allotment is not None, "active sequences hold their caches"
    tokens, end = sequence.prompt[-window:], len(sequence.prompt)
    start = end - len(tokens)
    return Piece(sequence.allotment, start, tokens, [len(tokens) - 1], start=start, written_from=end)


def _collect(sequence: _Sequence, logits: Tensor) -> None:
    if sequence.params.collect_logits:
        kept = sequence.prefill_logits if sequence.in_prompt else sequence.decode_logits
        # Cloned: a view would keep the whole step's logits.
        kept.append(logits.clone())


def _advance(sequence: _Sequence, logits: Tensor, eos: int) -> Iterator[TokenEvent]:
    """Chooses the sequence's next token, unless it has ended."""
    params, index = sequence.params, len(sequence.tokens)
    if sequence.finished is not None:
        return
    if index == params.max_new_tokens:
        sequence.finished = "length"
        return
    choice = choose(logits, params, sequence.generator)
    is_forced = index < len(params.forced_tokens)
    token = params.forced_tokens[index] if is_forced else choice
    sequence.chosen.append(choice)
    sequence.tokens.append(token)
    sequence.pending.append(token)
    if token == eos and params.stop_at_eos and not is_forced:
        sequence.finished = "eos"
    elif index + 1 == params.max_new_tokens:
        sequence.finished = "length"
    yield TokenEvent(sequence.request, index, token, sequence.finished)


def _completion(sequence: _Sequence) -> Completion:
    assert sequence.finished is not None, "the loop ends when all sequences have finished"
    prefill = decode = None
    if sequence.params.collect_logits:
        prefill = torch.cat(sequence.prefill_logits)
        decode = torch.cat(sequence.decode_logits) if sequence.decode_logits else prefill[:0]
    return Completion(
        sequence.prompt, tuple(sequence.tokens), tuple(sequence.chosen), sequence.finished, prefill, decode
    )
