"""A soak of the server: many requests by OpenAI's client, and the server's memory on the way.

    python bench/soak.py
    python bench/soak.py --plan plans/mini6 --requests 10000

`dsv41c serve` runs in a process of its own. Prompts often share their beginning with others; half of the answers are
streams; some clients leave early, and some ask for what cannot be served. It fails if a request does not end in time,
if an answer has another status than its request must have, if anything is held at the end, or if the server has grown
by more than `--growth` MiB since the first fifth.
"""

import argparse
import asyncio
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import openai
from cpu_step import conditions

from dsv41c.compiler.codegen.mlir.iree import KernelCache
from dsv41c.compiler.driver import CompileOptions, compile_checkpoint

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "mini6"
MODEL = "m"
CLIENTS = 24
STUCK_SECONDS = 120
OPTIONS = ("--prefill", "bounded", "--max-sequences", "8", "--cache-tokens", "640", "--max-waiting", "64")


class Server:
    """`dsv41c serve` on a free port."""

    def __init__(self, plan: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "dsv41c.compiler.cli", "serve", str(plan), "--port", str(port)]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen([*command, "--model", MODEL, *OPTIONS], stdout=quiet, stderr=quiet)
        self.url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 120
        while not self.is_healthy():
            if time.monotonic() > end or self.process.poll() is not None:
                raise SystemExit("the server did not start")
            time.sleep(0.1)

    def is_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    @property
    def resident(self) -> float:
        """MiB of the server in memory."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s*(\d+) kB", text)
        assert found is not None, "Linux lists it"
        return int(found[1]) / 1024

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).rsplit(" ", 1)[1])

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


async def one_request(client: openai.AsyncOpenAI, draw: random.Random) -> str:
    """Asks for something, and says how it ended."""
    shared = [draw.randrange(4, 8)] * draw.choice((0, 16, 33))
    prompt = [*shared, *(draw.randrange(4, 512) for _ in range(draw.randrange(1, 9)))]
    asked: dict[str, Any] = {"max_tokens": draw.randrange(1, 5), "seed": draw.randrange(1 << 30)}
    way = draw.random()
    if way < 0.03:
        return await refused(client.completions.create(model="other", prompt=prompt, **asked), 404)
    if way < 0.06:
        return await refused(client.completions.create(model=MODEL, prompt=[*prompt, 1 << 20], **asked), 400)
    if way < 0.5:
        answer = await client.completions.create(model=MODEL, prompt=prompt, **asked)
        return str(answer.choices[0].finish_reason)
    stream = await client.completions.create(model=MODEL, prompt=prompt, **asked, stream=True)
    reason = "none"
    async for chunk in stream:
        if way < 0.6:
            await stream.close()
            return "left"
        reason = str(chunk.choices[0].finish_reason)
    return reason


async def refused(asking: Any, status: int) -> str:
    found = 200
    try:
        await asking
    except openai.APIStatusError as error:
        found = error.status_code
    assert found == status, f"status {found} and not {status}"
    return str(status)


async def soak(url: str, requests: int, draw: random.Random) -> Counter[str]:
    ends: Counter[str] = Counter()
    left = iter(range(requests))
    # A client's own five seconds for a connection pass on a busy machine; what is stuck is judged below.
    patient = float(STUCK_SECONDS)
    async with openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0, timeout=patient) as client:

        async def caller() -> None:
            for _ in left:
                ends[await asyncio.wait_for(one_request(client, draw), STUCK_SECONDS)] += 1

        await asyncio.gather(*(caller() for _ in range(CLIENTS)))
    return ends


def run(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    draw, ends = random.Random(5), Counter[str]()
    rows: list[dict[str, float]] = []
    started = time.monotonic()
    for _ in range(10):
        ends += asyncio.run(soak(server.url, options.requests // 10, draw))
        row = {
            "requests": sum(ends.values()),
            "seconds": round(time.monotonic() - started, 1),
            "resident MiB": round(server.resident, 1),
        }
        print(row, flush=True)
        rows.append(row)
    growth = rows[-1]["resident MiB"] - rows[1]["resident MiB"]
    end = time.monotonic() + STUCK_SECONDS
    held = ("dsv41c_requests_running", "dsv41c_requests_waiting", "dsv41c_cache_used_bytes")
    while any(server.metric(name) for name in held):
        assert time.monotonic() < end, "something is still held"
        time.sleep(0.1)
    assert server.is_healthy()
    assert growth <= options.growth, f"the server has grown by {growth:.1f} MiB"
    return {"rows": rows, "ends": dict(ends), "growth MiB": round(growth, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, help="a plan folder; the small golden model is compiled if absent")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--growth", type=float, default=64.0, help="MiB that the server may grow by")
    parser.add_argument("--threads", type=int, default=1, help="of the plan")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "soak.json")
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory() as folder:
        plan = options.plan or Path(folder) / "plan"
        if options.plan is None:
            compile_checkpoint(GOLDEN, plan, CompileOptions(page_tokens=16, cache=KernelCache.default()))
        server = Server(plan)
        try:
            found = run(server, options)
        finally:
            server.close()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    described = {"conditions": asdict(conditions(options)), "load_average_before": load}
    options.out.write_text(json.dumps({**described, **found}, indent=1) + "\n")
    print(f"{found['ends']}; the server grew by {found['growth MiB']} MiB; written to {options.out}")


if __name__ == "__main__":
    main()
