"""`dsv41c run`: continues a prompt from a plan; loads no part of the compiler."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from safetensors.torch import save

from dsv41c.errors import RequestError
from dsv41c.runtime import handover
from dsv41c.runtime.api import load
from dsv41c.runtime.engine import PREFILLS, Completion, Engine, Prompt, TokenEvent
from dsv41c.runtime.sampling import SamplingParams

DEFAULT_NEW_TOKENS = 16


class TokenIds(click.ParamType):
    """Token ids as text: `5,9,2`."""

    name = "ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(word) for word in value.split(",") if word.strip())
        except ValueError:
            self.fail(f"'{value}' is no list of token ids; write them as 5,9,2", param, ctx)


@click.command("run", short_help="Continue a prompt from a plan.")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--prompt", metavar="TEXT", help="The prompt as text; needs a plan with a tokenizer.")
@click.option("--tokens", type=TokenIds(), help="The prompt as token ids, e.g. 5,9,2.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=0),
    help=f"New tokens, at most.  [default: {DEFAULT_NEW_TOKENS}, or as many as are forced]",
)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 takes the best token every time.")
@click.option("--top-k", type=int, default=0, show_default=True, help="Sample among the k best tokens; 0: all.")
@click.option("--top-p", type=float, default=1.0, show_default=True, help="Sample among the best whose sum reaches p.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sampler.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of the compiled kernels.")
@click.option("--gpu", metavar="N", type=click.IntRange(min=0), help="Run on this GPU; the CPU if absent.")
@click.option(
    "--prefill",
    type=click.Choice(PREFILLS),
    default=PREFILLS[0],
    show_default=True,
    help="exact: all layers on every token of the prompt; bounded: the decoder's layers on its last tokens only.",
)
@click.option(
    "--exact-window",
    is_flag=True,
    help="A bounded prefill takes more rows through the decoder, so many that its windows and logits are exact.",
)
@click.option(
    "--export-state",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Prefill only: write the sequence's whole state behind its first new token, for --import-state elsewhere.",
)
@click.option(
    "--import-state",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Go on from such a state; prompt and sampling are those it was written with.",
)
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Where the checkpoint lies now, if it was moved.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end and nothing else on stdout.")
@click.option(
    "--save-logits",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write fp32 logits: `prefill` [prompt, vocab], and `decode` [new, vocab] whose row k comes after feeding new "
    "token k. Implies --no-stop.",
)
@click.option("--force-tokens", type=TokenIds(), help="Feed these instead of the chosen tokens. Implies --no-stop.")
@click.option("--no-stop", is_flag=True, help="Do not stop at the model's end token.")
def run_command(
    plan: Path,
    prompt: str | None,
    tokens: tuple[int, ...] | None,
    max_new_tokens: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    threads: int,
    gpu: int | None,
    prefill: str,
    exact_window: bool,
    export_state: Path | None,
    import_state: Path | None,
    checkpoint: Path | None,
    as_json: bool,
    save_logits: Path | None,
    force_tokens: tuple[int, ...] | None,
    no_stop: bool,
) -> None:
    """Continues a prompt from a plan.

    A text prompt streams text, a prompt of ids streams ids; a line about lengths and times goes to stderr. With --json
    stdout is one object: `prompt` and `tokens` (ids), `text` if the plan has a tokenizer, `finished` ("eos" or
    "length"), `seconds`. With --force-tokens, `tokens` are the ids that the model chose at each place and `forced`
    those that were fed.

    With --export-state one process prefills, and another one goes on with --import-state and prints what comes behind
    the first token. Both plans must have the same cache formats and the same model.

    \b
    Example:
      dsv41c run plans/mini6 --prompt "The cat" --max-new-tokens 20
      dsv41c run plans/mini6 --tokens 5,9,2 --max-new-tokens 4 --temperature 0 --json --save-logits logits.safetensors
      dsv41c run plans/mini6 --prompt "The cat" --export-state state
      dsv41c run plans/mini6 --import-state state
    """
    given: Prompt | None = prompt if tokens is None else tokens
    _check_usage(given, prompt is not None and tokens is not None, export_state, import_state, save_logits)
    forced = force_tokens or ()
    params = SamplingParams(
        max_new_tokens=(len(forced) or DEFAULT_NEW_TOKENS) if max_new_tokens is None else max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop_at_eos=not (no_stop or save_logits or forced),
        forced_tokens=forced,
        collect_logits=save_logits is not None,
    )
    if save_logits is not None and not save_logits.absolute().parent.is_dir():
        raise RequestError(f"--save-logits {save_logits}: there is no folder {save_logits.parent}; make it first")
    started = time.perf_counter()
    engine = load(
        plan,
        checkpoint=checkpoint,
        gpu=gpu,
        threads=threads,
        max_sequences=1,
        prefill=prefill,
        exact_window=exact_window,
    )
    watch = _Watch(started, time.perf_counter())
    if export_state is not None:
        assert given is not None, "usage was checked"
        _write_state(export_state, handover.prefill(engine, given, params))
        return
    began = None if import_state is None else handover.import_request(engine, _read_state(import_state))
    as_text = prompt is not None if began is None else engine.plan.manifest.tokenizer is not None
    show = None if as_json else _Stream(engine, as_text)

    def on_token(event: TokenEvent) -> None:
        watch.tick()
        if show is not None:
            show.push(event.token)

    if began is None:
        assert given is not None, "usage was checked"
        completion = engine.generate([given], params, on_token)[0]
    else:
        if show is not None:
            show.skip(began.tokens)
        completion, forced = handover.finish(engine, began, on_token), began.params.forced_tokens
    watch.stop()
    if show is not None:
        show.finish()
        click.echo(watch.summary(completion), err=True)
    if save_logits is not None:
        _save_logits(save_logits, completion)
    if as_json:
        click.echo(json.dumps(_result(engine, completion, forced, watch)))


def _check_usage(
    given: Prompt | None, both: bool, export_state: Path | None, import_state: Path | None, save_logits: Path | None
) -> None:
    if both or (given is None and import_state is None):
        raise click.UsageError("give the prompt as text with --prompt, or as ids with --tokens, and not both")
    if import_state is not None and (given is not None or export_state is not None):
        raise click.UsageError("--import-state has its prompt in it; leave out --prompt, --tokens and --export-state")
    if save_logits is not None and (export_state or import_state):
        raise click.UsageError("--save-logits is for a run in one process; leave out --export-state, --import-state")


def _write_state(path: Path, state: bytes) -> None:
    try:
        path.write_bytes(state)
    except OSError as error:
        raise RequestError(f"--export-state {path} cannot be written: {error.strerror}; choose another file") from error


def _read_state(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RequestError(f"--import-state {path} cannot be read: {error.strerror}; choose another file") from error


class _Watch:
    """Times of one request, in seconds."""

    def __init__(self, started: float, loaded: float) -> None:
        self.load = loaded - started
        self._loaded = loaded
        self._first: float | None = None
        self._end = loaded

    def tick(self) -> None:
        if self._first is None:
            self._first = time.perf_counter()

    def stop(self) -> None:
        self._end = time.perf_counter()

    @property
    def prefill(self) -> float:
        return (self._first or self._end) - self._loaded

    @property
    def decode(self) -> float:
        return self._end - (self._first or self._end)

    def summary(self, completion: Completion) -> str:
        count = len(completion.tokens)
        return (
            f"{len(completion.prompt)} prompt tokens, {count} new ({completion.finished}); load {self.load:.2f} s, "
            f"first token {self.prefill:.3f} s, then {(count - 1) / self.decode if count > 1 else 0:.0f} tokens/s"
        )


class _Stream:
    """Prints a growing completion to stdout, text or ids."""

    def __init__(self, engine: Engine, as_text: bool) -> None:
        self._text = engine.tokenizer.stream() if as_text else None
        self._separator = ""
        # Bytes, so that the terminal's locale cannot refuse a character.
        self._out = sys.stdout.buffer

    def push(self, token: int) -> None:
        self._write(f"{self._separator}{token}" if self._text is None else self._text.push(token))
        self._separator = ","

    def skip(self, tokens: Sequence[int]) -> None:
        """Tokens that were shown elsewhere; a character that they began goes on here."""
        for token in tokens:
            if self._text is not None:
                self._text.push(token)

    def finish(self) -> None:
        self._write(("" if self._text is None else self._text.finish()) + "\n")

    def _write(self, piece: str) -> None:
        self._out.write(piece.encode())
        self._out.flush()


def _save_logits(path: Path, completion: Completion) -> None:
    prefill, decode = completion.prefill_logits, completion.decode_logits
    assert prefill is not None, "logits were collected"
    assert decode is not None, "logits were collected"
    data = save({"prefill": prefill.contiguous(), "decode": decode.contiguous()})
    try:
        path.write_bytes(data)
    except OSError as error:
        raise RequestError(f"--save-logits {path} cannot be written: {error.strerror}; choose another file") from error


def _result(engine: Engine, completion: Completion, forced: tuple[int, ...], watch: _Watch) -> dict[str, Any]:
    result: dict[str, Any] = {"prompt": completion.prompt, "tokens": completion.chosen}
    if forced:
        result["forced"] = completion.tokens
    if engine.plan.manifest.tokenizer is not None:
        result["text"] = engine.tokenizer.decode(completion.tokens)
    seconds = {"load": watch.load, "prefill": watch.prefill, "decode": watch.decode}
    return {**result, "finished": completion.finished, "seconds": {key: round(s, 4) for key, s in seconds.items()}}
