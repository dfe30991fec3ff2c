"""Many requests through one service: none gets stuck, memory stays flat. `DSV41C_FULL_TESTS=1` sends 10,000."""

import asyncio
import os
import random
import resource
from pathlib import Path

import dsv41c
from dsv41c.errors import RequestError
from dsv41c.runtime.prefix import PrefixOptions
from dsv41c.runtime.sampling import SamplingParams
from dsv41c.runtime.server.service import Asked, EngineService

REQUESTS = 10_000 if os.environ.get("DSV41C_FULL_TESTS") else 60
CLIENTS = 24
GROWTH = 64 << 20  # bytes that the process may grow by after its first fifth; allocators keep what they had


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def one_request(service: EngineService, draw: random.Random, ends: dict[str, int]) -> None:
    """A prompt that often shares its beginning with others; some are left early, some cannot be served."""
    shared = [draw.randrange(4, 8)] * draw.choice((0, 16, 33))
    prompt = [*shared, *(draw.randrange(4, 512) for _ in range(draw.randrange(1, 9)))]
    if draw.random() < 0.05:
        prompt.append(512)
    params = SamplingParams(draw.randrange(1, 5), temperature=1.0, seed=draw.randrange(1 << 30), with_text=True)
    try:
        (job,) = await service.submit(Asked(prompt, [params]))
    except RequestError:
        ends["refused"] = ends.get("refused", 0) + 1
        return
    leaves = draw.random() < 0.1
    while await job.events.get() is not None:
        if leaves:
            service.cancel(job)
    assert job.request is not None
    reason = str(job.request.finished)
    ends[reason] = ends.get(reason, 0) + 1


async def soak(service: EngineService, requests: int) -> dict[str, int]:
    draw, ends, left = random.Random(5), dict[str, int](), iter(range(requests))
    service.start()

    async def client() -> None:
        for _ in left:
            await asyncio.wait_for(one_request(service, draw, ends), 120)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return ends


def test_many_requests_leave_nothing_behind(mini6_plan: Path) -> None:
    options = PrefixOptions(state_bytes=1 << 20)
    engine = dsv41c.load(mini6_plan, prefill="bounded", max_sequences=8, cache_tokens=640, prefix=options)
    sizes = []
    for count in (REQUESTS // 5, REQUESTS - REQUESTS // 5):
        service = EngineService(engine)
        ends = asyncio.run(soak(service, count))
        service.stop()
        sizes.append(resident())
        assert sum(ends.values()) == count
        assert engine.active == engine.waiting == engine.caches.used_bytes == 0
    assert sizes[1] - sizes[0] <= GROWTH
    assert {"length", "refused"} <= ends.keys()
    assert engine.prefix is not None
    assert engine.prefix.counts.hits > 0
    assert engine.prefix.states.bytes <= 1 << 20
    assert engine.caches.pages.idle + engine.caches.pages.held <= engine.caches.pages.count
