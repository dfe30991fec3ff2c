"""Runs an engine in a thread of its own for callers in an event loop."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsv41c.runtime.engine import Engine, Prompt
from dsv41c.runtime.requests import Request, TokenEvent
from dsv41c.runtime.sampling import SamplingParams

_LOG = logging.getLogger(__name__)


class OverloadedError(Exception):
    """As many requests wait as may wait."""


class EngineFailedError(Exception):
    """The engine ended with an error and serves nothing more."""


@dataclass(frozen=True)
class Asked:
    """What a caller wants.

    Attributes:
        prompt: text or token ids.
        params: how to continue it, for each choice.
        clips: fewer new tokens than asked for will do where the plan does not serve as many.
    """

    prompt: Prompt
    params: Sequence[SamplingParams]
    clips: bool = False


@dataclass(eq=False)
class Job:
    """A request of a caller in an event loop.

    Attributes:
        events: token events, and None at the end.
        request: of the engine; its fields are read when the job has ended, except for the prompt.
    """

    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[TokenEvent | None] = field(default_factory=asyncio.Queue)
    request: Request | None = None
    failure: Exception | None = None
    ended: bool = False


@dataclass
class ServiceCounts:
    """What the engine's thread did.

    Attributes:
        calls: of programs. prompt_tokens, new_tokens, cached_tokens: of requests that ended.
        ended: requests by why they ended.
    """

    calls: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    cached_tokens: int = 0
    ended: dict[str, int] = field(default_factory=dict)


class EngineService:
    """Owns an engine; its methods may be called from any event loop.

    Args:
        engine: that nobody else uses from now on.
        max_waiting: requests that wait for room, at most; more are refused.
        stall_seconds: a call that takes longer makes the service unhealthy.
    """

    def __init__(self, engine: Engine, max_waiting: int = 256, stall_seconds: float = 120.0) -> None:
        self.engine = engine
        self.counts = ServiceCounts()
        self._max_waiting, self._stall_seconds = max_waiting, stall_seconds
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._jobs: dict[Request, Job] = {}
        self._open, self._open_lock = 0, threading.Lock()
        self._called_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Starts the engine's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Cancels what runs and ends the thread."""
        self._commands.put(None)
        self._thread.join()

    @property
    def trouble(self) -> str | None:
        """What is wrong with the engine, or None."""
        if self.engine.failure is not None:
            return f"the engine failed: {self.engine.failure}"
        if not self._thread.is_alive():
            return "the engine's thread has ended"
        since = self._called_at
        if since is not None and time.monotonic() - since > self._stall_seconds:
            return f"a call of the engine takes longer than {self._stall_seconds:g} s"
        return None

    async def submit(self, asked: Asked) -> list[Job]:
        """Queues a request for each choice.

        Raises:
            RequestError: the plan cannot serve it (dsv41c.errors).
            OverloadedError, EngineFailedError: as they say.
        """
        if not self._thread.is_alive():
            raise EngineFailedError("the engine's thread has ended")
        self._open_some(len(asked.params))
        loop = asyncio.get_running_loop()
        jobs, accepted = [Job(loop) for _ in asked.params], loop.create_future()

        def accept() -> None:
            outcome: Exception | None = None
            try:
                self._accept(jobs, asked)
            except Exception as error:  # whatever it is, the caller waits to hear of it
                outcome = error
                self._close_some(len(jobs))
            _call_soon(loop, _settle, accepted, outcome)

        self._commands.put(accept)
        try:
            await accepted
        except asyncio.CancelledError:
            for job in jobs:
                self.cancel(job)
            raise
        return jobs

    def cancel(self, job: Job) -> None:
        """Ends a job; one that has ended stays as it is."""

        def end() -> None:
            if job.request is not None and not job.ended:
                self.engine.cancel(job.request)
                self._end(job)

        self._commands.put(end)

    def _open_some(self, count: int) -> None:
        """Refuses at once, without asking the engine's thread, which may be in the middle of a call."""
        with self._open_lock:
            running = self.engine.sizes.max_sequences
            if self._open + count > running + self._max_waiting:
                raise OverloadedError(
                    f"{running} requests may run and {self._max_waiting} wait, {self._open} do and {count} more are "
                    "asked for; try again later"
                )
            self._open += count

    def _close_some(self, count: int) -> None:
        with self._open_lock:
            self._open -= count

    # --- in the engine's thread -----------------------------------------------------------------------------------

    def _accept(self, jobs: Sequence[Job], asked: Asked) -> None:
        engine = self.engine
        if engine.failure is not None:
            raise EngineFailedError(self.trouble)
        prompt, params = asked.prompt, list(asked.params)
        ids = engine.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        if asked.clips:
            params = [
                dataclasses.replace(one, max_new_tokens=_clipped(one.max_new_tokens, len(ids), engine))
                for one in params
            ]
        for job, request in zip(jobs, engine.submit_choices(ids, params), strict=True):
            job.request = request
            self._jobs[request] = job

    def _run(self) -> None:
        try:
            while self._take_commands():
                if self._jobs:
                    self._step()
        finally:
            for job in list(self._jobs.values()):
                if job.request is not None:
                    self.engine.cancel(job.request)
                job.failure = job.failure or EngineFailedError("the server stops")
                self._end(job)

    def _take_commands(self) -> bool:
        """Runs what callers want; waits for them if nothing else is to be done. False when the service stops."""
        while not self._jobs or not self._commands.empty():
            command = self._commands.get()
            if command is None:
                return False
            command()
        return True

    def _step(self) -> None:
        self._called_at = time.monotonic()
        try:
            touched = self.engine.step()
        except Exception as error:  # whatever it is, callers must hear of it
            _LOG.exception("the engine failed")
            for job in list(self._jobs.values()):
                job.failure = EngineFailedError(f"the engine failed: {error}")
                self._end(job)
            return
        finally:
            self._called_at = None
            self.counts.calls += 1
        for request in touched:
            if request in self._jobs:
                self._hand_over(self._jobs[request], request)

    def _hand_over(self, job: Job, request: Request) -> None:
        while request.events:
            _call_soon(job.loop, job.events.put_nowait, request.events.popleft())
        if request.is_done:
            self._end(job)

    def _end(self, job: Job) -> None:
        request = job.request
        assert request is not None, "only jobs with a request end"
        job.ended = True
        self._jobs.pop(request, None)
        self._close_some(1)
        counts, reason = self.counts, request.finished or "failed"
        counts.ended[reason] = counts.ended.get(reason, 0) + 1
        counts.prompt_tokens += len(request.prompt)
        counts.new_tokens += len(request.tokens)
        counts.cached_tokens += request.cached_tokens
        _call_soon(job.loop, job.events.put_nowait, None)


def _clipped(asked: int, prompt: int, engine: Engine) -> int:
    """New tokens that plan and caches serve behind a prompt; one at least, so that too long prompts are refused."""
    room = min(engine.max_tokens, engine.caches.pages.count * engine.caches.page_tokens)
    return max(1, min(asked, room - prompt))


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *args: Any) -> None:
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        _LOG.debug("a caller's event loop is closed; it hears no more")
