"""What stands before the application: the key, the size of bodies, and the time they may take to come."""

from __future__ import annotations

import asyncio
import hmac
import json
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = ("/health",)


@dataclass(frozen=True)
class Limits:
    """Of requests.

    Attributes:
        body_bytes: of a body.
        body_seconds: until it is there.
        request_seconds: until the answer is whole.
    """

    body_bytes: int = 8 << 20
    body_seconds: float = 30.0
    request_seconds: float = 600.0


def error_body(message: str, kind: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's API has it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class Guard:
    """Reads a request's body whole before the application sees it, or answers with the error.

    Args:
        app: the application.
        limits: of bodies.
        api_key: that requests must carry as a bearer token; None for none.
    """

    def __init__(self, app: ASGIApp, limits: Limits, api_key: str | None) -> None:
        self._app, self._limits = app, limits
        self._key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if self._key is not None and scope["path"] not in OPEN_PATHS and not self._has_key(headers):
            message = "the API key is missing or wrong; send it as `Authorization: Bearer KEY`"
            await _refuse(send, 401, message, "authentication_error", "invalid_api_key")
            return
        try:
            body = await asyncio.wait_for(self._body(receive, headers), self._limits.body_seconds)
        except TimeoutError:
            message = f"the body did not come within {self._limits.body_seconds:g} s"
            await _refuse(send, 408, message, "timeout_error", "timeout")
            return
        if body is None:
            message = (
                f"the body is larger than {self._limits.body_bytes} bytes; send less, or serve with a larger limit"
            )
            await _refuse(send, 413, message, "invalid_request_error", "body_too_large")
            return
        await self._app(scope, _replayed(body, receive), send)

    def _has_key(self, headers: dict[bytes, bytes]) -> bool:
        assert self._key is not None, "only called where a key is asked for"
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        # In constant time, whatever is given: how far a wrong key is right must not show.
        return hmac.compare_digest(given.strip(), self._key) and scheme.lower() == b"bearer"

    async def _body(self, receive: Receive, headers: dict[bytes, bytes]) -> bytes | None:
        """The body, or None if it is too large."""
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._limits.body_bytes:
            return None
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return b""
            part = message.get("body", b"")
            size += len(part)
            if size > self._limits.body_bytes:
                return None
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was read, and after it what else comes: that the client has gone."""
    waiting = [body]

    async def next_message() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return next_message


async def _refuse(send: Send, status: int, message: str, kind: str, code: str) -> None:
    body = json.dumps(error_body(message, kind, code)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
