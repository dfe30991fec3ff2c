"""A sequence's state goes from one engine to another, and on as if it had stayed."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from driving import prompt_of

import dsv41c
from dsv41c.errors import RequestError
from dsv41c.runtime.engine import PREFILLS, Engine
from dsv41c.runtime.handover import export_request, import_request
from dsv41c.runtime.prefix import PrefixOptions
from dsv41c.runtime.requests import Request
from dsv41c.runtime.sampling import SamplingParams

# Draws, counts and text go along, not only caches.
PARAMS = SamplingParams(
    max_new_tokens=9, temperature=0.9, seed=4, frequency_penalty=0.5, with_text=True, stop_at_eos=False, logprobs=1
)


@pytest.fixture(scope="module")
def engines(mini6_plan: Path) -> dict[str, Engine]:
    return {
        prefill: dsv41c.load(mini6_plan, prefill=prefill, max_sequences=3, row_multiple=2, poison=True)
        for prefill in PREFILLS
    }


def finish(engine: Engine, request: Request) -> Request:
    while request.finished is None:
        engine.step()
    return request


@pytest.mark.parametrize("prefill", PREFILLS)
@pytest.mark.parametrize(("length", "calls"), [(33, 1), (41, 5)])
def test_what_one_engine_began_another_ends(
    mini6_plan: Path, engines: dict[str, Engine], prefill: str, length: int, calls: int
) -> None:
    """At any call: within the prompt, between a bounded prefill and its tail, in the middle of the answer."""
    here = engines[prefill]
    there = dsv41c.load(
        mini6_plan, prefill=prefill, chunk_tokens=24, row_multiple=2, poison=True, prefix=PrefixOptions()
    )
    (want,) = here.generate([prompt_of(length)], PARAMS)
    began = there.submit(prompt_of(length), PARAMS)
    for _ in range(calls):
        there.step()
    blocker = here.submit([5], SamplingParams(max_new_tokens=1))
    here.step()  # takes the ring slot and the page that the sequence had there
    taken = import_request(here, export_request(there, began))
    seen = list(began.events)
    there.cancel(began)
    done = finish(here, taken).completion()
    assert (done.tokens, done.text) == (want.tokens, want.text)
    assert [event.index for event in (*seen, *taken.events)] == list(range(9))
    here.cancel(blocker)
    here.step()
    assert here.caches.used_bytes == 0


_PREFILL = """
import sys, dsv41c
from dsv41c.runtime.handover import export_request
from dsv41c.runtime.sampling import SamplingParams
engine = dsv41c.load(sys.argv[1], row_multiple=2)
request = engine.submit([int(word) for word in sys.argv[3].split(",")], SamplingParams(max_new_tokens=5, seed=1))
while not request.events:
    engine.step()
open(sys.argv[2], "wb").write(export_request(engine, request))
"""


def test_prefill_in_one_process_and_decode_in_another(
    mini6_plan: Path, engines: dict[str, Engine], tmp_path: Path
) -> None:
    prompt = prompt_of(35)
    arguments = [str(mini6_plan), str(tmp_path / "state"), ",".join(map(str, prompt))]
    subprocess.run([sys.executable, "-c", _PREFILL, *arguments], check=True, timeout=120)
    request = import_request(engines["exact"], (tmp_path / "state").read_bytes())
    assert len(request.tokens) == 1
    (want,) = engines["exact"].generate([prompt], SamplingParams(max_new_tokens=5, seed=1))
    assert finish(engines["exact"], request).completion().tokens == want.tokens


@pytest.fixture
def state(engines: dict[str, Engine]) -> bytes:
    engine = engines["exact"]
    request = engine.submit(prompt_of(20), PARAMS)
    engine.step()
    data = export_request(engine, request)
    engine.cancel(request)
    return data


def test_damage_and_other_bytes_are_refused(engines: dict[str, Engine], state: bytes) -> None:
    engine = engines["exact"]
    with pytest.raises(RequestError, match="was damaged on the way"):
        import_request(engine, state[:-1] + bytes([state[-1] ^ 1]))
    other = b"not a state of anything"
    with pytest.raises(RequestError, match="this is no state of a sequence"):
        import_request(engine, hashlib.sha256(other).digest() + other)
    body = state[32:].replace(b'\\"version\\": 2', b'\\"version\\": 3')
    with pytest.raises(RequestError, match="has version 3, this runtime reads 2"):
        import_request(engine, hashlib.sha256(body).digest() + body)
    assert engine.caches.used_bytes == 0


def test_other_formats_and_prefills_are_refused(
    mini6_plan: Path, engines: dict[str, Engine], state: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines["exact"]
    manifest = engine.plan.manifest
    wider = tuple(replace(spec, page_width=spec.page_width + 256) for spec in manifest.state)
    monkeypatch.setattr(engine, "plan", replace(engine.plan, manifest=replace(manifest, state=wider)))
    with pytest.raises(RequestError, match=r"window\.0 is rings, fp8_e8m0 x 64, 16 rows of 66 in 1056, .* in 1312"):
        import_request(engine, state)
    monkeypatch.undo()
    bounded = dsv41c.load(mini6_plan, prefill="bounded", chunk_tokens=16)
    request = bounded.submit(prompt_of(20), PARAMS)
    for _ in range(2):  # within the prompt, and before its tail
        bounded.step()
        with pytest.raises(RequestError, match="prefilled bounded, and this engine prefills exact"):
            import_request(engine, export_request(bounded, request))
    bounded.step()
    assert request.events
    replaying = dsv41c.load(mini6_plan, prefill="bounded", chunk_tokens=8, prefix=PrefixOptions(state_bytes=0))
    replaying.generate([prompt_of(40)], SamplingParams(max_new_tokens=1))
    request = replaying.submit(prompt_of(40), PARAMS)
    replaying.step()
    with pytest.raises(RequestError, match="is being replayed, and this engine replays none"):
        import_request(bounded, export_request(replaying, request))
    assert engine.caches.used_bytes == 0


def test_tails_of_other_sizes_are_refused(mini6_plan: Path) -> None:
    """A prompt whose exact windows need 46 rows of it, in an engine that takes 16 through the decoder."""
    here, there = (
        dsv41c.load(mini6_plan, prefill="bounded", exact_window=exact, chunk_tokens=50) for exact in (True, False)
    )
    request = here.submit(prompt_of(60), PARAMS)
    here.step()
    with pytest.raises(RequestError, match="prefilled with 46 rows for the decoder, and this engine takes 16"):
        import_request(there, export_request(here, request))
    while not request.events:
        here.step()
    there.cancel(import_request(there, export_request(here, request)))
    assert there.caches.used_bytes == 0


def test_only_what_runs_is_handed_over(engines: dict[str, Engine]) -> None:
    engine = engines["exact"]
    waiting = engine.submit(prompt_of(5), PARAMS)
    with pytest.raises(RequestError, match="a request that waits has no state"):
        export_request(engine, waiting)
    engine.cancel(waiting)
    with pytest.raises(RequestError, match="a request that has ended has no state"):
        export_request(engine, waiting)
    collecting = engine.submit(prompt_of(5), SamplingParams(collect_logits=True))
    engine.step()
    with pytest.raises(RequestError, match="collects logits is not handed over"):
        export_request(engine, collecting)
    engine.cancel(collecting)
