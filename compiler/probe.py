"""Small inputs on which the interpreter compares programs before and after each pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from dsv41c.errors import CompileError
from dsv41c.ir.builder import functions
from dsv41c.ir.interpreter import Interpreter, WeightSource
from dsv41c.models.checkpoint import Checkpoint
from dsv41c.models.rows import INPUT_NAMES, Chunk, Rows, step_inputs
from dsv41c.models.session import EagerSession
from dsv41c.models.weights import load_backbone, stacked_names
from dsv41c.passes.derive_replay import REPLAY, WINDOW, slots_input
from dsv41c.passes.manager import Probe, ProbeCase
from dsv41c.passes.split_ced import ENCODE, TAIL

# Each pass is interpreted twice a case, on the CPU and op by op.
MAX_CHECKPOINT_BYTES = 2 << 30
PROGRAM = "step"
_CAPACITY = 64  # tokens a sequence
_PROMPTS = {0: 19, 1: 5}  # tokens by ring slot: one prompt longer than a page of 16, one odd and short
_CONTINUED = {0: 1, 1: 2}
_PADDED_ROWS = 2


def checkpoint_probe(
    checkpoint: Checkpoint, tokenizer: Path | None, constants: Mapping[str, Tensor], page_tokens: int
) -> Probe:
    """Two forwards of two sequences with the checkpoint's weights: their prompts, then tokens behind filled caches.

    Once a module has the two parts of a prefill, the prompts go through these too, and through the replay as one that
    leaves nothing out.

    Args:
        checkpoint: verified.
        tokenizer: tokenizer.json, for a model with Engram.
        constants: the derived weights by symbol.
        page_tokens: tokens a page of the global caches.
    Errors: CompileError for a checkpoint that is too large to interpret.
    """
    size = sum(file.bytes for file in checkpoint.files.values())
    if size > MAX_CHECKPOINT_BYTES:
        raise CompileError(
            f"verify_each interprets the program with its weights, and the checkpoint has {size / 2**30:.1f} GiB; "
            f"at most {MAX_CHECKPOINT_BYTES >> 30} GiB are supported: check the passes on a smaller config of the same "
            "architecture, or leave it out"
        )
    experts = checkpoint.config.n_routed_experts

    def weights(symbol: str) -> Tensor | Sequence[Tensor]:
        if symbol in constants:
            return constants[symbol]
        tensors = [checkpoint.tensor(name) for name in stacked_names(symbol, experts)]
        return tensors if "*" in symbol else tensors[0]

    def probe(module: ModuleOp) -> list[ProbeCase]:
        backbone = load_backbone(checkpoint, str(tokenizer), page_tokens)
        session = EagerSession(backbone, len(_PROMPTS), _CAPACITY)
        generator = torch.Generator().manual_seed(0)
        cases = []
        for counts in (_PROMPTS, _CONTINUED):
            tokens = {ring: _tokens(checkpoint.config.vocab_size, n, generator) for ring, n in counts.items()}
            if counts is _PROMPTS and ENCODE in functions(module):
                cases += _prefill_cases(module, session, tokens, weights)
            cases.append(ProbeCase(PROGRAM, _inputs(session, tokens), weights))
            session.forward(tokens)
        return cases

    return probe


def _prefill_cases(
    module: ModuleOp, session: EagerSession, tokens: Mapping[int, list[int]], weights: WeightSource
) -> list[ProbeCase]:
    """`encode` over whole prompts, then `tail` over the last rows of each, as many as a window has."""
    encode, tail = functions(module)[ENCODE], functions(module)[TAIL]
    given = _inputs(session, tokens)
    encoded = Interpreter(weights).run(encode, _arguments(encode, given))
    chunks: list[Chunk] = []
    rows: list[int] = []
    start = 0
    for ring, ids in tokens.items():
        whole = session.chunk(ring, ids)
        kept = min(len(ids), session.model.config.sliding_window)
        chunks.append(Chunk(ids[-kept:], len(ids) - kept, ring, whole.pages))
        rows += range(start + len(ids) - kept, start + len(ids))
        start += len(ids)
    # The padded rows lie behind all others in both programs.
    inputs = step_inputs(chunks, list(range(len(rows))), _PADDED_ROWS)
    rows += range(start, start + _PADDED_ROWS)
    carried = {name: value[rows] for name, value in encoded.items() if name not in session.caches}
    cases = [
        ProbeCase(ENCODE, _arguments(encode, given), weights),
        ProbeCase(TAIL, _arguments(tail, given | encoded | inputs | carried), weights),
    ]
    if (replay := functions(module).get(REPLAY)) is not None:
        cases.append(ProbeCase(REPLAY, _arguments(replay, given | _replay_lists(session, given)), weights))
    return cases


def _replay_lists(session: EagerSession, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The lists that a replay takes, as its program would compute them."""
    rows = Rows.of_batch(*(given[name] for name in INPUT_NAMES[1:-1]))
    config, page = session.model.config, session.model.page_tokens
    ratios = {config.ratio(layer) for layer in config.kv_source_layer_ids}
    slots = {slots_input(ratio): rows.entry_store(ratio, page // ratio) for ratio in ratios}
    return {WINDOW: rows.window_index(config.sliding_window), **slots}


def _arguments(func: FuncOp, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {str(argument.name_hint): given[str(argument.name_hint)] for argument in func.args}


def _tokens(vocab_size: int, count: int, generator: torch.Generator) -> list[int]:
    ids: list[int] = torch.randint(vocab_size, (count,), generator=generator).tolist()
    return ids


def _inputs(session: EagerSession, tokens: Mapping[int, list[int]]) -> dict[str, Tensor]:
    """The inputs of the session's next forward, with the caches as they are now."""
    chunks = [session.chunk(ring, ids) for ring, ids in tokens.items()]
    rows = sum(len(ids) for ids in tokens.values())
    caches = {name: cache.clone() for name, cache in session.caches.items()}
    return step_inputs(chunks, list(range(rows)), _PADDED_ROWS) | caches
