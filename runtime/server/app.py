"""The application: OpenAI's paths over an engine, health, and metrics."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException

from dsv41c.errors import Dsv41Error, RequestError
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.requests import TokenEvent
from dsv41c.runtime.server.answers import Answers, ChatAnswers, usage_of
from dsv41c.runtime.server.chat import DEFAULT_TEMPLATE, ChatTemplate
from dsv41c.runtime.server.guard import Guard, Limits, error_body
from dsv41c.runtime.server.metrics import CONTENT_TYPE, Counted, Metrics
from dsv41c.runtime.server.schema import DEFAULT_CHAT_TOKENS, DEFAULT_COMPLETION_TOKENS, ChatBody, CompletionBody
from dsv41c.runtime.server.service import Asked, EngineFailedError, EngineService, Job, OverloadedError

_INVALID = "invalid_request_error"
_GONE = 499  # what servers log for a client that hung up; nobody receives it


@dataclass(frozen=True)
class ServerOptions:
    """How an engine is served.

    Attributes:
        model: the name that requests give.
        api_key: that they carry; None for none.
        limits: of bodies and times.
        max_waiting: requests that wait for room.
        chat_template: a template file.
    """

    model: str
    api_key: str | None = None
    limits: Limits = field(default_factory=Limits)
    max_waiting: int = 256
    chat_template: Path = DEFAULT_TEMPLATE


class UnknownModelError(Exception):
    """A request names another model than the one that is served."""


class RequestTimeoutError(Exception):
    """An answer took too long."""


class ClientGoneError(Exception):
    """The client hung up before the answer was there."""


def make_app(engine: Engine, options: ServerOptions) -> FastAPI:
    """The application over an engine, which it owns from now on.

    Raises:
        PlanError: the plan has no tokenizer.
        RequestError: the chat template is none.
    """
    service = EngineService(engine, options.max_waiting)
    metrics = Metrics(service)
    bos = engine.tokenizer.decode([engine.config.bos_token_id])
    handlers = _Handlers(service, metrics, options, ChatTemplate(options.chat_template, bos))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.stop)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, limits=options.limits, api_key=options.api_key)
    app.add_middleware(Counted, metrics=metrics)
    for path, handler in (("/completions", handlers.completions), ("/chat/completions", handlers.chat)):
        app.post(f"/v1{path}")(handler)
    app.get("/v1/models")(handlers.models)
    app.get("/v1/models/{model:path}")(handlers.model)
    app.get("/health")(handlers.health)
    app.get("/metrics")(handlers.metrics_text)
    for kind, answer in _ERRORS.items():
        app.exception_handler(kind)(answer)
    return app


class _Handlers:
    """What each path does."""

    def __init__(
        self, service: EngineService, metrics: Metrics, options: ServerOptions, template: ChatTemplate
    ) -> None:
        self._service, self._metrics, self._options, self._template = service, metrics, options, template
        self._created = int(time.time())

    async def completions(self, body: CompletionBody, request: Request) -> Response:
        """`POST /v1/completions`."""
        self._check_model(body.model)
        tokens = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        params = body.params(tokens, body.logprobs)
        prompts = body.prompts
        if not prompts:
            raise RequestError("prompt is empty; give text, token ids, or a list of them")
        asked = [Asked(prompt, params, clips=body.max_tokens is None) for prompt in prompts]
        answers = Answers(body.model, self._service.engine.tokenizer, body.logprobs is not None)
        return await self._answer(request, asked, answers, bool(body.stream), body.wants_usage, len(prompts))

    async def chat(self, body: ChatBody, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        self._check_model(body.model)
        given = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        if body.top_logprobs is not None and not body.logprobs:
            raise RequestError("top_logprobs is given without logprobs; set logprobs to true")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        params = body.params(DEFAULT_CHAT_TOKENS if given is None else given, logprobs)
        messages = [{"role": message.role, "content": message.text} for message in body.messages]
        prompt = self._template.prompt(messages, body.reasoning_effort or "none")
        asked = [Asked(prompt, params, clips=given is None)]
        answers = ChatAnswers(body.model, self._service.engine.tokenizer, logprobs is not None)
        return await self._answer(request, asked, answers, bool(body.stream), body.wants_usage, 1)

    async def models(self) -> Response:
        """`GET /v1/models`."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, model: str) -> Response:
        """`GET /v1/models/NAME`."""
        self._check_model(model)
        return JSONResponse(self._model())

    async def health(self) -> Response:
        """`GET /health`: 200, or 503 with what is wrong."""
        trouble = self._service.trouble
        if trouble is None:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "bad", "trouble": trouble}, 503)

    async def metrics_text(self) -> Response:
        """`GET /metrics`."""
        return PlainTextResponse(self._metrics.text(), media_type=CONTENT_TYPE)

    def _model(self) -> dict[str, Any]:
        limit = self._service.engine.max_tokens
        name = self._options.model
        return {"id": name, "object": "model", "created": self._created, "owned_by": "dsv41c", "max_model_len": limit}

    def _check_model(self, name: str) -> None:
        if name != self._options.model:
            message = f"there is no model '{name}' here; this server has '{self._options.model}'"
            raise UnknownModelError(message)

    # --- answers --------------------------------------------------------------------------------------------------

    async def _answer(
        self,
        request: Request,
        asked: Sequence[Asked],
        answers: Answers,
        streams: bool,
        wants_usage: bool,
        prompts: int,
    ) -> Response:
        started = time.monotonic()
        jobs = await self._submit(asked)
        if streams:
            pieces = self._stream(jobs, answers, wants_usage, prompts, started)
            return StreamingResponse(pieces, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        try:
            found = await self._whole(request, jobs, started)
        finally:
            self._cancel(jobs)
        requests = [job.request for job in jobs if job.request is not None]
        return JSONResponse(answers.whole(found, usage_of(requests, prompts)))

    async def _submit(self, asked: Sequence[Asked]) -> list[Job]:
        jobs: list[Job] = []
        try:
            for one in asked:
                jobs += await self._service.submit(one)
        except BaseException:
            self._cancel(jobs)
            raise
        return jobs

    def _cancel(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if not job.ended:
                self._service.cancel(job)

    async def _whole(self, request: Request, jobs: Sequence[Job], started: float) -> list[list[TokenEvent]]:
        """The events of all jobs, unless the client goes or time runs out first."""
        collecting = asyncio.ensure_future(self._collect(jobs, started))
        watching = asyncio.ensure_future(_gone(request))
        left = self._options.limits.request_seconds
        done, waiting = await asyncio.wait((collecting, watching), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        if collecting in done:
            return collecting.result()
        if watching in done:
            raise ClientGoneError
        raise RequestTimeoutError(self._took_too_long())

    async def _collect(self, jobs: Sequence[Job], started: float) -> list[list[TokenEvent]]:
        found: list[list[TokenEvent]] = [[] for _ in jobs]
        async for at, event in _events(jobs):
            self._observe(event, started)
            found[at].append(event)
        self._metrics.whole_request.add(time.monotonic() - started)
        return found

    async def _stream(
        self, jobs: Sequence[Job], answers: Answers, wants_usage: bool, prompts: int, started: float
    ) -> AsyncIterator[str]:
        """Server-sent events; an error in the middle is one too, since the status has gone out."""
        try:
            for chunk in answers.first_chunks(len(jobs)):
                yield _sent(chunk)
            async with asyncio.timeout(self._options.limits.request_seconds):
                async for at, event in _events(jobs):
                    self._observe(event, started)
                    yield _sent(answers.chunk(at, event))
            if wants_usage:
                requests = [job.request for job in jobs if job.request is not None]
                yield _sent(answers.usage_chunk(usage_of(requests, prompts)))
            self._metrics.whole_request.add(time.monotonic() - started)
            yield "data: [DONE]\n\n"
        except EngineFailedError as error:
            yield _sent(error_body(str(error), "server_error", "engine_failed"))
        except TimeoutError:
            yield _sent(error_body(self._took_too_long(), "timeout_error", "timeout"))
        finally:
            self._cancel(jobs)

    def _observe(self, event: TokenEvent, started: float) -> None:
        if event.index == 0:
            self._metrics.first_token.add(time.monotonic() - started)

    def _took_too_long(self) -> str:
        return f"the answer was not whole within {self._options.limits.request_seconds:g} s"


async def _events(jobs: Sequence[Job]) -> AsyncIterator[tuple[int, TokenEvent]]:
    """The events of all jobs as they come, each with its job's place."""
    merged: asyncio.Queue[tuple[int, TokenEvent | None]] = asyncio.Queue()

    async def forward(at: int, job: Job) -> None:
        while True:
            event = await job.events.get()
            await merged.put((at, event))
            if event is None:
                return

    tasks = [asyncio.ensure_future(forward(at, job)) for at, job in enumerate(jobs)]
    try:
        running = len(jobs)
        while running:
            at, event = await merged.get()
            if event is not None:
                yield at, event
                continue
            running -= 1
            failure = jobs[at].failure
            if failure is not None:
                raise failure
    finally:
        for task in tasks:
            task.cancel()


async def _gone(request: Request) -> None:
    """Ends when the client hangs up."""
    while not await request.is_disconnected():
        await asyncio.sleep(0.1)


def _sent(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


# --- errors -------------------------------------------------------------------------------------------------------


async def _unusable(_: Request, error: Exception) -> Response:
    return JSONResponse(error_body(str(error), _INVALID), 400)


async def _malformed(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    message = f"{where}: {first['msg']}" if where else str(first["msg"])
    return JSONResponse(error_body(message, _INVALID, first["type"], where or None), 400)


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(error_body(error.detail, _INVALID), error.status_code, headers=dict(error.headers or {}))


async def _unknown_model(_: Request, error: Exception) -> Response:
    return JSONResponse(error_body(str(error), _INVALID, "model_not_found", "model"), 404)


async def _overloaded(_: Request, error: Exception) -> Response:
    return JSONResponse(error_body(str(error), "rate_limit_error", "overloaded"), 429, headers={"retry-after": "1"})


async def _failed(_: Request, error: Exception) -> Response:
    return JSONResponse(error_body(str(error), "server_error", "engine_failed"), 503)


async def _timed_out(_: Request, error: Exception) -> Response:
    return JSONResponse(error_body(str(error), "timeout_error", "timeout"), 504)


async def _hung_up(_: Request, error: Exception) -> Response:
    return Response(status_code=_GONE)


_ERRORS: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    Dsv41Error: _unusable,
    RequestValidationError: _malformed,
    HTTPException: _http,
    UnknownModelError: _unknown_model,
    OverloadedError: _overloaded,
    EngineFailedError: _failed,
    RequestTimeoutError: _timed_out,
    ClientGoneError: _hung_up,
}
