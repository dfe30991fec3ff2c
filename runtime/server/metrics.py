"""Counts and times of the server in Prometheus' text form."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsv41c.runtime.server.service import EngineService

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
CONTENT_TYPE = "text/plain; version=0.0.4"


@dataclass
class Histogram:
    """Times in buckets."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_SECONDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(_SECONDS, seconds)] += 1
        self.total += seconds

    def lines(self, name: str) -> Iterator[str]:
        seen = 0
        for bound, count in zip((*map(str, _SECONDS), "+Inf"), self.counts, strict=True):
            seen += count
            yield f'{name}_bucket{{le="{bound}"}} {seen}'
        yield f"{name}_sum {self.total:.6f}"
        yield f"{name}_count {seen}"


class Metrics:
    """What `/metrics` shows.

    Args:
        service: whose engine it is.
    """

    def __init__(self, service: EngineService) -> None:
        self._service = service
        self._responses: dict[tuple[str, int], int] = {}
        self.first_token = Histogram()
        self.whole_request = Histogram()

    def count(self, path: str, status: int) -> None:
        """A response was sent."""
        self._responses[path, status] = self._responses.get((path, status), 0) + 1

    def text(self) -> str:
        """All metrics."""
        lines = ["# TYPE dsv41c_responses_total counter"]
        for (path, status), count in sorted(self._responses.items()):
            lines.append(f'dsv41c_responses_total{{path="{path}",status="{status}"}} {count}')
        for name, histogram in (("first_token", self.first_token), ("request", self.whole_request)):
            lines.append(f"# TYPE dsv41c_{name}_seconds histogram")
            lines += histogram.lines(f"dsv41c_{name}_seconds")
        lines.append("# TYPE dsv41c_requests_total counter")
        for reason, count in sorted(self._service.counts.ended.items()):
            lines.append(f'dsv41c_requests_total{{finished="{reason}"}} {count}')
        for name, kind, value in self._numbers():
            lines += [f"# TYPE dsv41c_{name} {kind}", f"dsv41c_{name} {value}"]
        return "\n".join(lines) + "\n"

    def _numbers(self) -> Iterator[tuple[str, str, int]]:
        engine, counts = self._service.engine, self._service.counts
        yield "healthy", "gauge", int(self._service.trouble is None)
        yield "requests_running", "gauge", engine.active
        yield "requests_waiting", "gauge", engine.waiting
        yield "cache_bytes", "gauge", engine.caches.total_bytes
        yield "cache_used_bytes", "gauge", engine.caches.used_bytes
        yield "cache_idle_pages", "gauge", engine.caches.pages.idle
        yield "calls_total", "counter", counts.calls
        yield "prompt_tokens_total", "counter", counts.prompt_tokens
        yield "new_tokens_total", "counter", counts.new_tokens
        yield "cached_tokens_total", "counter", counts.cached_tokens
        if engine.prefix is not None:
            yield "prefix_queries_total", "counter", engine.prefix.counts.queries
            yield "prefix_hits_total", "counter", engine.prefix.counts.hits
            yield "prefix_replayed_tokens_total", "counter", engine.prefix.counts.replayed_tokens
            yield "prefix_loaded_pages_total", "counter", engine.prefix.counts.loaded_pages
            yield "prefix_state_bytes", "gauge", engine.prefix.states.bytes


class Counted:
    """Counts responses by path and status; it stands before everything else, so that refusals count too.

    Args:
        app: the application.
        metrics: where they are counted.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                # A path that no route has is one label, whatever clients make up.
                path = getattr(scope.get("route"), "path", "other")
                self._metrics.count(path, message["status"])
            await send(message)

        await self._app(scope, receive, counting)
