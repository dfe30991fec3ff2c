"""Serves requests from a plan: prompts in chunks and decode steps together, in ragged batches."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from dsv41c.errors import PlanError, RequestError
from dsv41c.models.config import ModelConfig
from dsv41c.runtime.batch import Piece, step_inputs
from dsv41c.runtime.bill import MemoryBill
from dsv41c.runtime.bounded import ENCODE, TAIL, BoundedPrefill
from dsv41c.runtime.caches import CachePool
from dsv41c.runtime.call_check import CallCheck
from dsv41c.runtime.executor import Backend, cpu_backend
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.preconditions import Preconditions
from dsv41c.runtime.prefix import Image, PrefixOptions
from dsv41c.runtime.prefix_cache import PrefixCache
from dsv41c.runtime.replay import ENCODE_REPLAY, Replay
from dsv41c.runtime.requests import CANCELLED, Completion, Request, TokenEvent
from dsv41c.runtime.sampling import SamplingParams
from dsv41c.runtime.scheduler import STEP, Call, Limits, Scheduler
from dsv41c.runtime.sizes import Sizes
from dsv41c.runtime.stopping import StopText
from dsv41c.runtime.tokenizer import Tokenizer

__all__ = ["PREFILLS", "STEP", "Completion", "Engine", "Prompt", "TokenEvent"]

PREFILLS = ("exact", "bounded")
VISION = "vision"  # the program that turns images into rows

_LOG = logging.getLogger(__name__)

Prompt = str | Sequence[int]
Params = SamplingParams | Sequence[SamplingParams] | None


class Engine:
    """A loaded plan and its caches. It belongs to one thread.

    Args:
        plan: the plan.
        backend: what runs it.
        max_sequences: requests that run at the same time; the plan's range, at most 8, if absent.
        cache_tokens: tokens that the caches hold for all of them; as many as they can use, within 1 GiB, if absent.
        memory_bytes: what caches and the values of a call may take together; the weights are mapped and not counted.
        chunk_tokens: tokens of one call at most; the plan's range if absent.
        threads: worker threads of compiled kernels.
        row_multiple: pad every step to a multiple of so many rows.
        poison: fill caches with NaN, 0x7F and -1 before use; for tests.
        prefill: "exact" runs all layers on every token of a prompt; "bounded" runs the decoder's layers on the last
            tokens only, as many as a window has, and takes about half the time. It is an approximation that the
            model's authors intend (SPEC 5.4); prompts no longer than a window are exact.
        exact_window: a bounded prefill takes so many more rows through the decoder that its windows are those of an
            exact one (the halo of SPEC 5.4): what it gives is then exact, and still cheaper for long prompts.
        prefix: what is kept of prompts and answers, so that prompts with the same beginning need not run it; nothing if
            absent. An exact engine goes on from kept window states only; a bounded one replays where there is none.
        check: after every call, see that it wrote nothing of other requests and gave numbers; for finding faults.
    Raises:
        RequestError: sizes or a prefill that this plan cannot serve.

    Attributes:
        failure: the error that a call ended with; an engine with one serves nothing more.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        backend: Backend = cpu_backend,
        max_sequences: int | None = None,
        cache_tokens: int | None = None,
        memory_bytes: int | None = None,
        chunk_tokens: int | None = None,
        threads: int = 1,
        row_multiple: int = 1,
        poison: bool = False,
        prefill: str = "exact",
        exact_window: bool = False,
        prefix: PrefixOptions | None = None,
        check: bool = False,
    ) -> None:
        self.config = ModelConfig.from_dict(plan.manifest.model)
        self.plan = plan
        self.sizes = Sizes(plan.manifest, self.config, max_sequences, chunk_tokens)
        self.row_multiple = row_multiple
        self.bounded = self._bounded_prefill(prefill, exact_window)
        self.bill = MemoryBill(plan.manifest)
        n_pages = self.sizes.pages(cache_tokens, memory_bytes, self.bill)
        rings = self.sizes.rings
        self.executor, memory = backend(plan, n_pages, rings, threads)
        self.caches = CachePool(plan.manifest.state, self.sizes.page_tokens, n_pages, rings, poison, memory)
        self.preconditions = Preconditions(
            plan.manifest.state, plan.interfaces, self.sizes.page_tokens, max(0, self.config.engram_max_ngram_size - 1)
        )
        self._check = CallCheck(self.caches) if check else None
        self.scheduler = Scheduler(self._limits())
        self.replay = self._replay() if prefix is not None else None
        self.prefix: PrefixCache | None = None
        if prefix is not None:
            window, may_replay = self.config.sliding_window, self.replay is not None
            self.prefix = PrefixCache(self.caches, self.preconditions, plan, prefix, window, self._tail, may_replay)
        self.failure: Exception | None = None
        self._waiting: deque[Request] = deque()
        self._active: list[Request] = []
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
        return self.sizes.max_tokens

    @property
    def active(self) -> int:
        """Requests that hold caches."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """Requests that wait for room."""
        return len(self._waiting)

    def generate(
        self, prompts: Sequence[Prompt], params: Params = None, on_token: Callable[[TokenEvent], None] | None = None
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
        requests = self._accept(prompts, params)
        for event in self._follow(requests):
            if on_token is not None:
                on_token(event)
        return [request.completion() for request in requests]

    def stream(self, prompts: Sequence[Prompt], params: Params = None) -> Iterator[TokenEvent]:
        """As `generate`, but an iterator over the new tokens as they come; leaving it early frees what it holds."""
        return self._follow(self._accept(prompts, params))

    # --- requests one by one --------------------------------------------------------------------------------------

    def submit(self, prompt: Prompt, params: SamplingParams | None = None, images: Sequence[Image] = ()) -> Request:
        """Queues a request; `step` runs it, and its `events` are what has come out.

        Raises:
            RequestError: a prompt that this plan cannot serve.
        """
        request = self._request(0, prompt, params or SamplingParams())
        if images and VISION not in self.plan.interfaces:
            raise RequestError(
                f"the prompt has images ({len(images)}), which a program {VISION} makes rows of; this plan has "
                f"{', '.join(self.plan.interfaces)}: leave the images out"
            )
        request.images = tuple(images)
        self._waiting.append(request)
        return request

    def submit_choices(
        self, prompt: Prompt, params: Sequence[SamplingParams], images: Sequence[Image] = ()
    ) -> list[Request]:
        """Queues several answers to one prompt, which runs once for all that have room when its first one starts.

        The first token of each is drawn from the same logits, and then the caches are forked: pages of the prompt are
        shared. Each answer is the one that a request of its own gives.

        Raises:
            RequestError: as of `submit`; nothing is queued then.
        """
        first = self.submit(prompt, params[0], images)
        try:
            rest = [self._request(at, first.prompt, one) for at, one in enumerate(params[1:], 1)]
        except RequestError:
            self.cancel(first)
            raise
        for request in rest:
            request.images = first.images
        if not any(one.collect_logits for one in params):
            _lead(first, rest)
        self._waiting.extend(rest)
        return [first, *rest]

    def adopt(self, request: Request) -> None:
        """Runs a request that holds its caches already (`runtime.handover`)."""
        assert request.allotment is not None, "it comes with its caches"
        self._active.append(request)

    def step(self) -> list[Request]:
        """Runs one call.

        Returns:
            the requests that have a new event or have ended; empty if there was nothing to run.
        """
        if self.failure is not None:
            raise self.failure
        self._admit()
        if not self._active:
            return []
        try:
            touched = self._call(self.scheduler.next_call([one for one in self._active if one.leader is None]))
        except Exception as error:
            self.failure = error
            for request in [*self._active, *self._waiting]:
                self.cancel(request)
            raise
        for request in [one for one in self._active if one.is_done]:
            self._active.remove(request)
            self._release(request)
        return touched

    def cancel(self, request: Request) -> None:
        """Ends a request and frees what it holds; one that has ended stays as it is."""
        if request.finished is None:
            request.finished = CANCELLED
        if request in self._waiting:
            self._waiting.remove(request)
        if request in self._active:
            self._active.remove(request)
        self._release(request)
        self._part(request)

    def _part(self, request: Request) -> None:
        """Parts an ended request from those that share its prompt: the next one runs it for the rest."""
        if request.leader is not None:
            request.leader.followers.remove(request)
            request.leader = None
        heirs, request.followers = request.followers, []
        if not heirs:
            return
        for one in reversed([one for one in heirs if one in self._active]):
            self._active.remove(one)
            self._release(one)
            self._waiting.appendleft(one)
        _lead(heirs[0], heirs[1:])

    def _follow(self, requests: Sequence[Request]) -> Iterator[TokenEvent]:
        self._waiting.extend(requests)
        try:
            while True:
                for request in requests:
                    while request.events:
                        yield request.events.popleft()
                if all(request.is_done for request in requests):
                    return
                self.step()
        finally:
            for request in requests:
                self.cancel(request)

    def _accept(self, prompts: Sequence[Prompt], params: Params) -> list[Request]:
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise RequestError(
                f"{len(prompts)} prompts with {len(params)} sampling parameters; give one for all, or one each"
            )
        return [self._request(i, *pair) for i, pair in enumerate(zip(prompts, params, strict=True))]

    def _request(self, number: int, prompt: Prompt, params: SamplingParams) -> Request:
        if self.bounded is not None and params.collect_logits:
            raise RequestError(
                f"prompt {number} asks for the logits of all its tokens (collect_logits, --save-logits), and a "
                "bounded prefill computes only the last token's; load the plan with prefill exact, or collect no logits"
            )
        ids = tuple(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        if not ids:
            raise RequestError(f"prompt {number} is empty; give at least one token")
        self._check_ids(number, "prompt", ids)
        self._check_ids(number, "forced_tokens", params.forced_tokens)
        text = StopText(self.tokenizer.stream(), params.stop) if params.stop or params.with_text else None
        generator = torch.Generator().manual_seed(params.seed)
        request = Request(number, ids, params, generator, list(ids), self.preconditions.nothing_held(), text=text)
        self._check_fits(request)
        return request

    def _check_ids(self, number: int, what: str, ids: Sequence[int]) -> None:
        vocab = self.config.vocab_size
        for at, token in enumerate(ids):
            if not 0 <= token < vocab:
                raise RequestError(
                    f"prompt {number}: {what} has id {token} at {at}; the vocabulary has ids 0..{vocab - 1}"
                )

    def _check_fits(self, request: Request) -> None:
        """Refuses at once what could never start."""
        total, caches = request.total_tokens, self.caches
        if total > self.max_tokens:
            raise RequestError(
                f"prompt {request.number} has {len(request.prompt)} tokens and asks for "
                f"{request.params.max_new_tokens} more, {total} together; this plan serves {self.sizes.explained}; "
                "ask for less, or compile with a longer range"
            )
        needed = caches.pages_for(total)
        if needed > caches.pages.count:
            raise RequestError(
                f"out of pages: prompt {request.number} needs {needed} pages of {caches.page_tokens} tokens "
                f"({caches.bytes_for(total)} bytes with its rings), the caches have {caches.pages.count} "
                f"({caches.total_bytes} bytes for {caches.rings.count} sequences); ask for less, or load the plan with "
                "more cache_tokens or memory_bytes"
            )

    # --- calls ----------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """In order of arrival: a request starts when its whole length has room, so that none ever has to stop."""
        while self._waiting and self.caches.has_room(self._tokens_of(self._waiting[0])):
            request = self._waiting.popleft()
            if request.leader is not None:
                request.allotment = self.caches.allot(self._tokens_of(request))
                self._active.append(request)
                continue
            request.encodes = self.bounded is not None and self.bounded.applies_to(request.prompt)
            if self.prefix is not None:
                self.prefix.start(request)
            else:
                request.allotment = self.caches.allot(request.total_tokens)
            self._active.append(request)

    def _tokens_of(self, request: Request) -> int:
        """Tokens that a request needs pages of its own for."""
        if request.leader is None:
            return request.total_tokens
        return self.caches.own_tokens(request.total_tokens, len(request.prompt))

    def _release(self, request: Request) -> None:
        if request.allotment is not None:
            self.caches.release(request.allotment)
            request.allotment = None
        request.carry = {}

    def _call(self, call: Call) -> list[Request]:
        if call.program == TAIL:
            return self._finish_prompts([request for request, _ in call.parts])
        pieces = [request.piece(count) for request, count in call.parts]
        outputs = self._run(call.program, [request for request, _ in call.parts], pieces)
        if call.program in (ENCODE, ENCODE_REPLAY):
            self._keep(call, outputs)
            return []
        logits = outputs["logits"]
        touched, start = [], 0
        for (request, count), piece in zip(call.parts, pieces, strict=True):
            own = logits[start : start + len(piece.wanted)]
            start += len(piece.wanted)
            request.collect(own)
            request.advance(count)
            if self.prefix is not None:
                self.prefix.after_call(request, is_whole=True)
            if not request.pending:
                touched += self._take_all(request, own[-1])
        return touched

    def _run(
        self,
        program: str,
        requests: Sequence[Request],
        pieces: Sequence[Piece],
        extra: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        for request, piece in zip(requests, pieces, strict=True):
            self.preconditions.check(program, piece, request.held)
            end = piece.context + len(piece.tokens)
            self.caches.make_writable(piece.allotment, max(piece.context, piece.written_from), end)
        rows = sum(len(piece.tokens) for piece in pieces)
        inputs = step_inputs(pieces, self.sizes.padded(rows, self.row_multiple), self.sizes.lowest("P"))
        if program == ENCODE_REPLAY:
            assert self.replay is not None, "only an engine that may replay has requests that replay"
            inputs |= self.replay.inputs(pieces, inputs)
        if self._check is not None:
            self._check.before()
        outputs = self.executor.run(program, {**inputs, **(extra or {})})
        if self._check is not None:
            self._check.after(program, pieces, outputs)
        for request, piece in zip(requests, pieces, strict=True):
            self.preconditions.advance(program, piece, request.held)
        return outputs

    def _keep(self, call: Call, outputs: dict[str, Tensor]) -> None:
        """After a call of `encode`."""
        assert self.bounded is not None, "only a bounded prefill encodes"
        start = 0
        for request, count in call.parts:
            request.carry = self.bounded.kept(request.carry, outputs, start, count)
            request.advance(count)
            if self.prefix is not None:
                self.prefix.after_call(request, is_whole=False)
            start += count

    def _finish_prompts(self, requests: Sequence[Request]) -> list[Request]:
        """Runs the tails of encoded prompts."""
        assert self.bounded is not None, "only a bounded prefill has tails"
        pieces = [request.tail_piece(self.bounded.rows) for request in requests]
        rows = self.sizes.padded(sum(len(piece.tokens) for piece in pieces), self.row_multiple)
        carried = self.bounded.inputs([request.carry for request in requests], rows)
        logits = self._run(TAIL, requests, pieces, carried)["logits"]
        touched = []
        for request, own in zip(requests, logits, strict=True):
            request.carry = {}
            touched += self._take_all(request, own)
        return touched

    def _take_all(self, request: Request, logits: Tensor) -> list[Request]:
        """The next token of a request; of its first one's logits those who share its prompt draw theirs too."""
        sharing = [request]
        assert request.allotment is not None, "running requests hold their caches"
        for one in request.followers:
            one.leader = None
            # One that has not started by now runs the prompt itself.
            if one.allotment is not None:
                self.caches.fork(request.allotment, one.allotment, request.context)
                one.follow(request)
                sharing.append(one)
        request.followers = []
        for one in sharing:
            self._take(one, logits)
        return sharing

    def _take(self, request: Request, logits: Tensor) -> None:
        """The logits [vocab] behind all that is known of a request: its next token."""
        event = request.take(logits, self.config.eos_token_id)
        if event is not None:
            request.events.append(event)

    def _replay(self) -> Replay | None:
        if self.bounded is None or self.bounded.is_exact:
            return None
        try:
            return Replay(self.plan, self.config.sliding_window)
        except PlanError as error:
            _LOG.warning("prefixes are found only where a window state is kept: %s", error)
            return None

    @property
    def _tail(self) -> int:
        """Rows that the decoder takes of a bounded prompt."""
        return self.config.sliding_window if self.bounded is None else self.bounded.rows

    def _limits(self) -> Limits:
        tail = self._tail
        tails = min(self.sizes.highest("T", 512) // tail, self.sizes.highest("R", self.sizes.rings))
        rows = self.sizes.chunk_tokens
        return Limits(rows, self.sizes.highest("R", rows), tail, tails)

    def _bounded_prefill(self, prefill: str, exact_window: bool) -> BoundedPrefill | None:
        if prefill not in PREFILLS:
            raise RequestError(f"prefill '{prefill}' is unknown; supported are {', '.join(PREFILLS)}")
        if prefill == "bounded":
            return BoundedPrefill(self.plan, self.config.sliding_window, self.sizes.highest("T", 512), exact_window)
        if exact_window:
            raise RequestError(
                "exact_window is for a bounded prefill, and prefill is exact, whose windows are exact anyway; leave it "
                "out, or load the plan with prefill bounded"
            )
        return None


def _lead(leader: Request, followers: Sequence[Request]) -> None:
    leader.leader, leader.followers = None, list(followers)
    for request in followers:
        request.leader = leader
