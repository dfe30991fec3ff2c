"""A sequence's complete state as bytes: what one process prefilled, another one continues.

The bytes are a digest and a safetensors file: pages and rings by cache, what a bounded prefill keeps for its tail, the
state of the sampler, and a description in JSON. They hold no code, and are taken only by an engine whose caches have
the same formats and whose model has the same config.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dsv41c.errors import RequestError
from dsv41c.runtime.caches import Allotment, CachePool
from dsv41c.runtime.engine import Completion, Engine, Prompt, TokenEvent
from dsv41c.runtime.prefix import Image
from dsv41c.runtime.requests import Request
from dsv41c.runtime.sampling import SamplingParams
from dsv41c.runtime.stopping import StopText

VERSION = 2
_DIGEST_BYTES = 32
_ABOUT, _GENERATOR = "about", "generator"
_FIELDS = ("pending", "context", "start", "written_from", "encodes", "cached_tokens", "tokens", "chosen", "finished")


def export_request(engine: Engine, request: Request) -> bytes:
    """The state of a request that runs; it runs on here unless the caller cancels it.

    Args:
        engine: that runs it.
        request: that has begun.
    Raises:
        RequestError: it does not hold caches, or collects logits.
    """
    if request.allotment is None:
        raise RequestError(
            f"a request that {'has ended' if request.finished else 'waits'} has no state to hand over; hand over one "
            "that runs"
        )
    if request.params.collect_logits:
        raise RequestError("a request that collects logits is not handed over; run it without collect_logits")
    caches = engine.caches
    held = max(request.context, request.written_from)
    tensors = {
        **{f"ring.{name}": row.contiguous() for name, row in caches.read_ring(request.allotment.ring).items()},
        **_pages(caches, request.allotment.pages[: caches.pages_for(held)]),
        **{f"carry.{name}": rows.contiguous() for name, rows in request.carry.items()},
        _GENERATOR: request.generator.get_state(),
    }
    spans = {group.names[0]: span for group, span in zip(engine.preconditions.groups, request.held.spans, strict=True)}
    about = {
        "version": VERSION,
        "formats": _formats(engine),
        "prompt": request.prompt,
        "images": [(image.start, image.tokens, image.digest.hex()) for image in request.images],
        "params": dataclasses.asdict(request.params),
        "held": spans,
        "tail_rows": engine.bounded.rows if engine.bounded is not None else 0,
        **{name: getattr(request, name) for name in _FIELDS},
    }
    body = save(tensors, {_ABOUT: json.dumps(about)})
    return hashlib.sha256(body).digest() + body


def import_request(engine: Engine, data: bytes) -> Request:
    """Takes a request over; `Engine.step` runs it, and its next event is the one after those that have been seen.

    Args:
        engine: that runs it from now on.
        data: of `export_request`.
    Raises:
        RequestError: damaged bytes, other cache formats, another model, a prefill that this engine does not run, or
            no room.
    """
    about, tensors = _read(data)
    _check_formats(about["formats"], _formats(engine))
    _check_prefill(engine, about, _with_prefix(tensors, "carry."))
    request = _request(engine, about)
    total = max(request.total_tokens, len(request.known))
    request.allotment = engine.caches.allot(total)
    _write(engine.caches, request.allotment, tensors)
    request.generator.set_state(tensors[_GENERATOR])
    request.carry = _with_prefix(tensors, "carry.")
    engine.adopt(request)
    return request


def prefill(engine: Engine, prompt: Prompt, params: SamplingParams) -> bytes:
    """The state of a prompt behind its first new token, for another process to go on from; nothing stays here.

    Raises:
        RequestError: a prompt that this plan cannot serve, or one whose request ends with its first token.
    """
    request = engine.submit(prompt, params)
    try:
        while not request.events:
            engine.step()
        return export_request(engine, request)
    finally:
        engine.cancel(request)


def finish(engine: Engine, request: Request, on_token: Callable[[TokenEvent], None]) -> Completion:
    """Runs a request to its end.

    Args:
        engine: that runs it.
        request: that has begun, here or elsewhere.
        on_token: called for every new token as it comes.
    """
    while not request.is_done:
        engine.step()
        while request.events:
            on_token(request.events.popleft())
    return request.completion()


def _check_prefill(engine: Engine, about: dict[str, Any], carry: dict[str, Tensor]) -> None:
    is_bounded = about["encodes"] and (about["context"] < len(about["prompt"]) or carry)
    if is_bounded and engine.bounded is None:
        raise RequestError(
            "the prompt is being prefilled bounded, and this engine prefills exact; load the plan with prefill bounded"
        )
    if is_bounded and engine.bounded is not None and about["tail_rows"] != engine.bounded.rows:
        raise RequestError(
            f"the prompt is being prefilled with {about['tail_rows']} rows for the decoder, and this engine takes "
            f"{engine.bounded.rows}; load both sides' plans alike, with exact windows or without"
        )
    if about["context"] < about["written_from"] and engine.replay is None:
        raise RequestError(
            "the sequence is being replayed, and this engine replays none; load the plan bounded, with a prefix cache"
        )


def _request(engine: Engine, about: dict[str, Any]) -> Request:
    given: dict[str, Any] = about["params"]
    params = SamplingParams(**{**given, **{name: tuple(given[name]) for name in ("forced_tokens", "stop")}})
    held = engine.preconditions.nothing_held()
    held.spans = [tuple(about["held"][group.names[0]]) for group in engine.preconditions.groups]
    fields = {name: about[name] for name in _FIELDS}
    images = tuple(Image(start, tokens, bytes.fromhex(digest)) for start, tokens, digest in about["images"])
    text = None
    if params.stop or params.with_text:
        text = StopText(engine.tokenizer.stream(), params.stop)
    request = Request(
        0, tuple(about["prompt"]), params, torch.Generator(), held=held, images=images, text=text, **fields
    )
    if text is not None:
        # What was shown there is not shown again here; the decoder stands where it stood.
        request.shown = [text.push(token) for token in request.tokens]
    return request


def _pages(caches: CachePool, pages: list[int]) -> dict[str, Tensor]:
    read = [caches.read_page(page) for page in pages]
    paged = [spec.name for spec in caches.specs if spec.pool == "pages"]
    return {f"pages.{name}": torch.stack([rows[name] for rows in read]) for name in paged if read}


def _write(caches: CachePool, allotment: Allotment, tensors: dict[str, Tensor]) -> None:
    caches.write_ring(allotment.ring, _with_prefix(tensors, "ring."))
    for name, rows in _with_prefix(tensors, "pages.").items():
        for page, row in zip(allotment.pages, rows, strict=False):
            caches.write_page(page, {name: row})


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _formats(engine: Engine) -> dict[str, Any]:
    """What both sides must agree on: the layout of every cache, the groups of the state table, and the model."""
    manifest = engine.plan.manifest
    layouts = {
        spec.name: f"{spec.pool}, {spec.row_format} x {spec.channels}, {spec.page} rows of {spec.row_width} in "
        f"{spec.page_width}, ratio {spec.ratio}"
        for spec in manifest.state
    }
    groups = {f"group of {group.names[0]}": ", ".join(group.names) for group in engine.preconditions.groups}
    config = json.dumps(manifest.model, sort_keys=True).encode()
    model = hashlib.sha256(config).hexdigest()[:16]
    return {**layouts, **groups, "tokens a page": str(manifest.page_tokens), "model config": model}


def _check_formats(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    for name in {**ours, **theirs}:
        if ours.get(name) != theirs.get(name):
            raise RequestError(
                f"the sequence's state has other cache formats: {name} is {theirs.get(name, 'not there')} in the state "
                f"and {ours.get(name, 'not there')} in this plan; compile both sides' plans alike"
            )


def _read(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    body = data[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != data[:_DIGEST_BYTES]:
        raise RequestError("the sequence's state was damaged on the way: its digest is another; export it again")
    try:
        size = int.from_bytes(body[:8], "little")
        about = json.loads(json.loads(body[8 : 8 + size])["__metadata__"][_ABOUT])
        tensors = load(body)
    except (ValueError, KeyError, SafetensorError) as error:
        raise RequestError(f"this is no state of a sequence ({error}); give the bytes of export_request") from None
    if about["version"] != VERSION:
        raise RequestError(
            f"the sequence's state has version {about['version']}, this runtime reads {VERSION}; use one release of "
            "dsv41c on both sides"
        )
    return about, tensors
