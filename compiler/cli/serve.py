"""`dsv41c serve`: answers OpenAI's completions over HTTP from a plan; loads no part of the compiler."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

import click

from dsv41c.errors import RequestError
from dsv41c.runtime.api import load
from dsv41c.runtime.engine import PREFILLS
from dsv41c.runtime.prefix import PrefixOptions

KEY_VARIABLE = "DSV41C_API_KEY"
_SECONDS = click.FloatRange(min=0, min_open=True)


@click.command("serve", short_help="Answer OpenAI's completions over HTTP from a plan.")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--model", metavar="NAME", help="The name that requests give.  [default: the plan folder's]")
@click.option(
    "--api-key-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help=f"A file with the key that requests must carry.  [default: ${KEY_VARIABLE}, else no key]",
)
@click.option("--prefill", type=click.Choice(PREFILLS), default=PREFILLS[0], show_default=True, help="As of `run`.")
@click.option("--exact-window", is_flag=True, help="As of `run`; prefixes then go on from window states only.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of the compiled kernels.")
@click.option("--gpu", metavar="N", type=click.IntRange(min=0), help="Run on this GPU; the CPU if absent.")
@click.option("--max-sequences", type=click.IntRange(min=1), help="Requests that run at the same time.")
@click.option("--cache-tokens", type=click.IntRange(min=1), help="Tokens that the caches hold for all of them.")
@click.option("--memory-bytes", type=click.IntRange(min=1), help="Of caches and of the values of a call.")
@click.option("--chunk-tokens", type=click.IntRange(min=1), help="Tokens of one call, at most.")
@click.option(
    "--row-multiple",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Pad calls to a multiple of so many rows; from 2 on an answer is the same whatever runs beside it.",
)
@click.option("--max-waiting", type=click.IntRange(min=0), default=256, show_default=True, help="More get status 429.")
@click.option("--max-body-bytes", type=click.IntRange(min=1), default=8 << 20, show_default=True, help="Of a request.")
@click.option("--request-seconds", type=_SECONDS, default=600.0, show_default=True, help="Until an answer is whole.")
@click.option("--no-prefix", is_flag=True, help="Keep nothing of prompts; each runs from its first token.")
@click.option("--state-seconds", type=_SECONDS, default=300.0, show_default=True, help="Lifetime of window states.")
@click.option("--store", metavar="DIR", type=click.Path(path_type=Path), help="Keep pages of prompts on disk too.")
@click.option("--store-bytes", type=click.IntRange(min=1), default=1 << 30, show_default=True, help="Of that folder.")
@click.option("--chat-template", metavar="FILE", type=click.Path(path_type=Path), help="A Jinja file for chats.")
@click.option("--check", is_flag=True, help="After every call, see that it wrote nothing of other requests; slow.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Where the checkpoint lies now, if it was moved.")
def serve_command(
    plan: Path,
    host: str,
    port: int,
    model: str | None,
    api_key_file: Path | None,
    prefill: str,
    exact_window: bool,
    threads: int,
    gpu: int | None,
    max_sequences: int | None,
    cache_tokens: int | None,
    memory_bytes: int | None,
    chunk_tokens: int | None,
    row_multiple: int,
    max_waiting: int,
    max_body_bytes: int,
    request_seconds: float,
    no_prefix: bool,
    state_seconds: float,
    store: Path | None,
    store_bytes: int,
    chat_template: Path | None,
    check: bool,
    checkpoint: Path | None,
) -> None:
    """Answers OpenAI's completions over HTTP from a plan, until it is interrupted.

    \b
    Paths:
      POST /v1/completions, /v1/chat/completions    GET /v1/models, /health, /metrics

    \b
    Example:
      dsv41c serve plans/mini6 --port 8000
      curl localhost:8000/v1/completions -H 'content-type: application/json' \\
        -d '{"model": "mini6", "prompt": "The cat", "max_tokens": 8}'
    """
    try:
        import uvicorn

        from dsv41c.runtime.server.app import Limits, ServerOptions, make_app
        from dsv41c.runtime.server.chat import DEFAULT_TEMPLATE
    except ImportError as error:
        raise RequestError(f"serving needs the package {error.name}; install dsv41c[server]") from None
    if no_prefix and store is not None:
        raise RequestError(f"--store {store} keeps prefixes, and --no-prefix keeps none; leave out one of the two")
    key = _api_key(api_key_file)
    if not _is_loopback(host) and key is None:
        click.echo(f"warning: {host} can be reached from other machines, and no API key is asked for", err=True)
    engine = load(
        plan,
        checkpoint=checkpoint,
        gpu=gpu,
        prefill=prefill,
        exact_window=exact_window,
        threads=threads,
        max_sequences=max_sequences,
        cache_tokens=cache_tokens,
        memory_bytes=memory_bytes,
        chunk_tokens=chunk_tokens,
        row_multiple=row_multiple,
        check=check,
        prefix=None if no_prefix else PrefixOptions(state_seconds, store=store, store_bytes=store_bytes),
    )
    options = ServerOptions(
        model or plan.resolve().name,
        key,
        Limits(max_body_bytes, request_seconds=request_seconds),
        max_waiting,
        chat_template or DEFAULT_TEMPLATE,
    )
    app = make_app(engine, options)
    uvicorn.run(app, host=host, port=port, log_level="info", server_header=False)


def _api_key(file: Path | None) -> str | None:
    if file is None:
        key = os.environ.get(KEY_VARIABLE)
        if key is not None and not key.strip():
            raise RequestError(f"{KEY_VARIABLE} is set and empty; set it to a key, or unset it")
        return key.strip() if key else None
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--api-key-file {file} cannot be read: {error}") from error
    if not key:
        raise RequestError(f"--api-key-file {file} is empty; write the key into it")
    return key


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
