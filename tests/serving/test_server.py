"""The server, as OpenAI's own client and plain sockets see it."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn

import dsv41c
from dsv41c.errors import RequestError
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.prefix import PrefixOptions
from dsv41c.runtime.server.app import Limits, ServerOptions, make_app
from dsv41c.runtime.server.chat import DEFAULT_TEMPLATE, ChatTemplate

KEY = "a key"
LIMITS = Limits(body_bytes=20_000, body_seconds=1.0, request_seconds=60.0)
USER, ASSISTANT, END = (
    f"<\N{FULLWIDTH VERTICAL LINE}{word}\N{FULLWIDTH VERTICAL LINE}>"
    for word in ("User", "Assistant", "end\N{LOWER ONE EIGHTH BLOCK}of\N{LOWER ONE EIGHTH BLOCK}sentence")
)
Ask = Callable[..., httpx.Response]


class Running:
    """A server on a free port of this machine."""

    def __init__(self, engine: Engine, options: ServerOptions) -> None:
        self.engine = engine
        config = uvicorn.Config(make_app(engine, options), port=0, log_level="error")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        wait_for(lambda: self._server.started)
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def server(mini6_plan: Path) -> Iterator[Running]:
    engine = dsv41c.load(mini6_plan, prefill="bounded", max_sequences=16, row_multiple=2, prefix=PrefixOptions())
    running = Running(engine, ServerOptions("mini6", KEY, LIMITS, max_waiting=40))
    yield running
    running.close()
    assert engine.caches.used_bytes == 0


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key=KEY, base_url=f"{server.url}/v1", max_retries=0) as made:
        yield made


@pytest.fixture
def post(server: Running) -> Ask:
    def send(path: str, content: str | bytes, key: str = KEY) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        return httpx.post(f"{server.url}{path}", content=content, headers=headers, timeout=60)

    return send


def is_idle(server: Running) -> bool:
    return server.engine.active == server.engine.waiting == server.engine.caches.used_bytes == 0


def test_a_completion_and_its_stream_are_the_engines(server: Running, client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "mini6", "prompt": "The cat", "max_tokens": 6, "temperature": 0, "seed": 3}
    whole = client.completions.create(**asked, extra_body={"ignore_eos": True})
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 6)
    assert whole.choices[0].finish_reason == "length"
    options = {"include_usage": True}
    chunks = list(
        client.completions.create(**asked, stream=True, stream_options=options, extra_body={"ignore_eos": True})
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * 5 + ["length"]
    assert chunks[-1].usage == whole.usage


def test_a_chat_reports_cached_tokens_and_logprobs(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "system", "content": "Short."}, {"role": "user", "content": "The cat " * 4}]
    answers = [
        client.chat.completions.create(
            model="mini6", messages=messages, max_completion_tokens=3, seed=5, logprobs=True, top_logprobs=2
        )
        for _ in range(2)
    ]
    first, second = (answer.choices[0] for answer in answers)
    assert first.message.role == "assistant"
    assert first.logprobs is not None
    assert first.logprobs.content is not None
    assert len(first.logprobs.content) == answers[0].usage.completion_tokens  # type: ignore[union-attr]
    assert all(len(token.top_logprobs) == 2 for token in first.logprobs.content)
    assert first.message.content == second.message.content
    details = answers[1].usage.prompt_tokens_details  # type: ignore[union-attr]
    assert details is not None
    assert details.cached_tokens
    stream = client.chat.completions.create(
        model="mini6", messages=messages, max_completion_tokens=3, seed=5, stream=True, reasoning_effort="high"
    )
    assert next(iter(stream)).choices[0].delta.role == "assistant"


def test_choices_have_seeds_of_their_own(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "mini6", "prompt": [5, 9, 2], "max_tokens": 4, "temperature": 1.5}
    several = client.completions.create(**asked, n=3, seed=7)
    texts = [choice.text for choice in several.choices]
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert client.completions.create(**asked, seed=8).choices[0].text == texts[1]
    assert several.usage is not None
    assert several.usage.prompt_tokens == 3
    both = client.completions.create(model="mini6", prompt=["The cat", "A"], max_tokens=1)
    assert len(both.choices) == 2


def test_a_stop_string_ends_an_answer(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "mini6", "prompt": "The cat", "max_tokens": 12, "temperature": 0}
    text = client.completions.create(**asked).choices[0].text
    stopped = client.completions.create(**asked, stop=text[3:5]).choices[0]
    assert (stopped.text, stopped.finish_reason) == (text[: text.index(text[3:5])], "stop")


def test_thirty_two_at_a_time_get_what_each_gets_alone(server: Running) -> None:
    """Sixteen run, sixteen wait; half of them stream."""

    async def answers(clients: int) -> list[str]:
        async with openai.AsyncOpenAI(api_key=KEY, base_url=f"{server.url}/v1", max_retries=0) as client:
            limit = asyncio.Semaphore(clients)

            async def one(at: int) -> str:
                asked: dict[str, Any] = {"prompt": [at + 5] * (at % 20 + 1), "max_tokens": 2, "seed": at}
                async with limit:
                    if at % 2:
                        return (await client.completions.create(model="mini6", **asked)).choices[0].text
                    stream = await client.completions.create(model="mini6", **asked, stream=True)
                    return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*(one(at) for at in range(32)))

    together = asyncio.run(answers(32))
    assert together == asyncio.run(answers(1))
    wait_for(lambda: is_idle(server))


def test_a_client_that_hangs_up_frees_what_it_held(server: Running, client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="mini6", prompt="The cat", max_tokens=180, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    assert server.engine.active == 1
    stream.close()
    wait_for(lambda: is_idle(server))
    body = json.dumps({"model": "mini6", "prompt": "The cat", "max_tokens": 180, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + body)
        wait_for(lambda: server.engine.active == 1)
    wait_for(lambda: is_idle(server))


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ('{"model": "gpt", "prompt": "x"}', 404, "there is no model 'gpt' here; this server has 'mini6'"),
        ('{"model": "mini6", "prompt": ', 400, "JSON decode error"),
        ('{"model": "mini6"}', 400, "prompt: Field required"),
        ('{"model": "mini6", "prompt": 5}', 400, "prompt"),
        ('{"model": "mini6", "prompt": []}', 400, "prompt is empty"),
        ('{"model": "mini6", "prompt": ""}', 400, "prompt 0 is empty"),
        ('{"model": "mini6", "prompt": [512]}', 400, "id 512 at 0; the vocabulary has ids 0..511"),
        ('{"model": "mini6", "prompt": "x", "echo": true}', 400, "echo: Extra inputs are not permitted"),
        ('{"model": "mini6", "prompt": "x", "temperature": -1}', 400, "temperature is -1.0; give 0 for greedy"),
        ('{"model": "mini6", "prompt": "x", "temperature": NaN}', 400, "temperature"),
        ('{"model": "mini6", "prompt": "x", "max_tokens": 0}', 400, "max_tokens is 0; give 1 or more"),
        ('{"model": "mini6", "prompt": "x", "max_tokens": 999}', 400, "this plan serves 192"),
        ('{"model": "mini6", "prompt": "x", "n": 17}', 400, "n: Input should be less than or equal to 16"),
        ("[" * 9_000, 400, ""),
        (b"\xff\xfe", 400, ""),
        ('{"model": "mini6", "prompt": "' + "x" * 20_000 + '"}', 413, "larger than 20000 bytes"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_what_cannot_be_served_has_its_status(post: Ask, body: str | bytes, status: int, message: str) -> None:
    response = post("/v1/completions", body)
    assert response.status_code == status
    error = response.json()["error"]
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("asked", "key", "status", "kind"),
    [
        ({"model": "gpt"}, KEY, 404, openai.NotFoundError),
        ({"prompt": "x" * 20_000}, KEY, 413, openai.APIStatusError),
        ({"max_tokens": 999}, KEY, 400, openai.BadRequestError),
        ({"extra_body": {"prompt": {"a": 1}}}, KEY, 400, openai.BadRequestError),
        ({}, f"{KEY}s", 401, openai.AuthenticationError),
    ],
    ids=["wrong model", "too large a body", "more than fits", "malformed", "wrong key"],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_openais_client_is_told_what_is_wrong(
    server: Running, asked: dict[str, Any], key: str, status: int, kind: type[openai.APIStatusError], stream: bool
) -> None:
    with (
        openai.OpenAI(api_key=key, base_url=f"{server.url}/v1", max_retries=0) as client,
        pytest.raises(kind) as caught,
    ):
        client.completions.create(**{"model": "mini6", "prompt": "x", **asked}, stream=stream)
    assert caught.value.status_code == status
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"]


def test_chats_that_cannot_be_served(post: Ask) -> None:
    for content, message in (
        ('"messages": []', "messages"),
        ('"messages": [{"role": "tool", "content": "x"}]', "messages.0.role"),
        ('"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]', "messages.0.content"),
        ('"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2', "without logprobs"),
        ('"messages": [{"role": "user", "content": "x"}], "tools": []', "tools: Extra inputs"),
    ):
        response = post("/v1/chat/completions", '{"model": "mini6", ' + content + "}")
        assert response.status_code == 400
        assert message in response.json()["error"]["message"]


def test_the_key_is_asked_for_everywhere_but_for_health(server: Running, post: Ask) -> None:
    assert post("/v1/completions", "{}", key="another").status_code == 401
    assert post("/v1/completions", "{}", key=f"{KEY}s").json()["error"]["code"] == "invalid_api_key"
    for path in ("/v1/models", "/metrics", "/nothing"):
        assert httpx.get(server.url + path).status_code == 401
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    with pytest.raises(openai.AuthenticationError), openai.OpenAI(api_key="x", base_url=f"{server.url}/v1") as wrong:
        wrong.models.list()


def test_bodies_that_never_end_are_cut_off(server: Running) -> None:
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + b"content-length: 100\r\n\r\n{")
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n" + (b"1000\r\n" + b"x" * 0x1000 + b"\r\n") * 6)
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_models_and_metrics(server: Running, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["mini6"]
    assert client.models.retrieve("mini6").owned_by == "dsv41c"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    text = httpx.get(f"{server.url}/metrics", headers={"authorization": f"Bearer {KEY}"}).text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values["dsv41c_healthy"] == "1"
    assert float(values['dsv41c_responses_total{path="/v1/models",status="200"}']) >= 1
    assert "dsv41c_first_token_seconds_count" in values


def test_an_answer_that_takes_too_long(mini6_plan: Path) -> None:
    engine = dsv41c.load(mini6_plan, max_sequences=1)
    server = Running(engine, ServerOptions("m", limits=Limits(request_seconds=0.3)))
    original = engine.step

    def slow_step() -> Any:
        time.sleep(0.05)
        return original()

    engine.step = slow_step  # type: ignore[method-assign]
    asked = {"model": "m", "prompt": "x", "max_tokens": 100, "ignore_eos": True}
    url = f"{server.url}/v1/completions"
    assert httpx.post(url, json=asked, timeout=60).status_code == 504
    wait_for(lambda: is_idle(server))
    with httpx.stream("POST", url, json={**asked, "stream": True}, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert "timeout" in "".join(lines)
    wait_for(lambda: is_idle(server))
    server.close()


def test_more_than_may_wait_are_told_to_come_back(mini6_plan: Path) -> None:
    engine = dsv41c.load(mini6_plan, max_sequences=1)
    server = Running(engine, ServerOptions("m", max_waiting=1))
    release = threading.Event()
    original = engine.step

    def held_step() -> Any:
        release.wait(60)
        return original()

    engine.step = held_step  # type: ignore[method-assign]
    url = f"{server.url}/v1/completions"
    statuses: list[int] = []

    def ask() -> None:
        response = httpx.post(url, json={"model": "m", "prompt": "x", "max_tokens": 1}, timeout=60)
        statuses.append(response.status_code)
        if statuses == [429, 429]:
            release.set()

    # In the middle of a call: one request runs, one may wait, and two hear at once that no more may.
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [429, 429, 200, 200]
    server.close()


def test_health_turns_bad_with_the_engine(mini6_plan: Path) -> None:
    engine = dsv41c.load(mini6_plan, max_sequences=2)
    server = Running(engine, ServerOptions("m"))

    def broken(*_: object) -> None:
        raise RuntimeError("a kernel broke")

    engine.executor.run = broken  # type: ignore[assignment, method-assign]
    asked = {"model": "m", "prompt": "x"}
    first = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=60)
    assert first.status_code == 503
    assert "the engine failed: a kernel broke" in first.json()["error"]["message"]
    assert httpx.post(f"{server.url}/v1/completions", json=asked, timeout=60).status_code == 503
    health = httpx.get(f"{server.url}/health")
    assert health.status_code == 503
    assert health.json() == {"status": "bad", "trouble": "the engine failed: a kernel broke"}
    assert "dsv41c_healthy 0" in httpx.get(f"{server.url}/metrics").text
    server.close()


def test_the_chat_template_is_a_file(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "{{ u }}"}]
    talk = [*messages, {"role": "assistant", "content": "A"}, {"role": "user", "content": "B"}]
    template = ChatTemplate(DEFAULT_TEMPLATE, "<bos>")
    assert template.prompt(messages, "none") == f"<bos>S\n\n{USER}{{{{ u }}}}{ASSISTANT}</think>"
    start = f"<bos>S\n\nReasoning effort: high\n\n{USER}{{{{ u }}}}{ASSISTANT}</think>A{END}"
    assert template.prompt(talk, "high") == f"{start}{USER}B{ASSISTANT}<think>"
    own = tmp_path / "own.jinja"
    own.write_text("{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}{{ messages[0].content }}")
    assert ChatTemplate(own, "").prompt(messages[:1], "none") == "S"
    with pytest.raises(RequestError, match="refuses these messages: one only"):
        ChatTemplate(own, "").prompt(messages, "none")
    own.write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(RequestError, match="refuses these messages"):
        ChatTemplate(own, "").prompt(messages, "none")
    own.write_text("{% if %}")
    with pytest.raises(RequestError, match="is no Jinja template"):
        ChatTemplate(own, "")
    with pytest.raises(RequestError, match="cannot be read"):
        ChatTemplate(tmp_path / "none", "")
