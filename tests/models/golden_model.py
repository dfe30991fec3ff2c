"""The golden models, loaded once, and recorded runs of the eager network over them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dsv41c.models import ops
from dsv41c.models.backbone import Backbone
from dsv41c.models.checkpoint import Checkpoint
from dsv41c.models.config import ModelConfig
from dsv41c.models.dspark import DSpark, Proposal
from dsv41c.models.rows import Chunk, Rows, step_inputs
from dsv41c.models.session import EagerSession
from dsv41c.models.state import StateSpec, draft_state_specs, state_specs
from dsv41c.models.weights import load_backbone, load_dspark

GOLDEN = Path(__file__).parents[1] / "golden"
PAGE_TOKENS = 16
KINDS = ("mini6", "sched40")
PROMPTS = {"mini6": (1, 2, 3, 7, 15, 16, 17, 33, 100), "sched40": (1, 2, 17, 33, 100)}
CASES = [(kind, f"p{length}") for kind in KINDS for length in PROMPTS[kind]]
DECODED = [(kind, prompt) for kind in KINDS for prompt in ("p17", "p100")]
DEEP = {"mini6": "p33", "sched40": "p17"}
CAPACITY = 160  # tokens a sequence in these tests: p100, its 24 steps and a draft block


@dataclass(frozen=True)
class Golden:
    """One golden model with its expected outputs."""

    kind: str
    backbone: Backbone
    dspark: DSpark
    outputs: dict[str, Tensor]

    @property
    def config(self) -> ModelConfig:
        return self.backbone.config

    def ids(self, prompt: str) -> list[int]:
        return self.outputs[f"{prompt}.ids"].tolist()

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The outputs whose key starts with `prefix` and a dot, by the rest of the key."""
        start = len(prefix) + 1
        return {key[start:]: value for key, value in self.outputs.items() if key.startswith(f"{prefix}.")}

    def session(self, rings: int = 1) -> EagerSession:
        return EagerSession(self.backbone, rings, CAPACITY)


@cache
def golden(kind: str) -> Golden:
    """Loads one golden model."""
    checkpoint = Checkpoint.open(GOLDEN / kind)
    backbone = load_backbone(checkpoint, str(GOLDEN / "tokenizer.json"), PAGE_TOKENS)
    dspark = load_dspark(checkpoint, backbone)
    return Golden(kind, backbone, dspark, load_file(GOLDEN / kind / "outputs.safetensors"))


# --- recorded runs --------------------------------------------------------------------------------------------------


@dataclass
class Record:
    """What the modules of a network gave in one forward, by the golden data's key."""

    values: dict[str, Tensor] = field(default_factory=dict)
    blocks: dict[int, Tensor] = field(default_factory=dict)


@contextmanager
def recorded(backbone: Backbone) -> Iterator[Record]:
    """Records selections, routes and hashes of every layer while the context is open."""
    record = Record()
    hooks = [hook for number, layer in enumerate(backbone.layers) for hook in _layer_hooks(record, number, layer)]
    try:
        yield record
    finally:
        for hook in hooks:
            hook.remove()


def _layer_hooks(record: Record, number: int, layer: nn.Module) -> Iterator[Any]:
    values = record.values

    def selection(output: tuple[Tensor, Tensor]) -> None:
        values[f"topk.layers.{number}"], record.blocks[number] = output

    def route(output: tuple[Tensor, Tensor]) -> None:
        values[f"route_i.layers.{number}"], values[f"route_w.layers.{number}"] = output

    def hashed(output: Tensor) -> None:
        values[f"hash.layers.{number}"] = output

    yield on_output(layer.get_submodule("ffn.gate"), route)
    if hasattr(layer, "engram"):
        yield on_output(layer.get_submodule("engram.hash"), hashed)
    if hasattr(layer.get_submodule("attn"), "indexer"):
        yield on_output(layer.get_submodule("attn.indexer"), selection)


def on_output(module: nn.Module, keep: Callable[[Any], None]) -> Any:
    """Calls `keep` with every output of a module; returns the hook."""
    return module.register_forward_hook(lambda _module, _args, output: keep(output))


@dataclass
class Run:
    """One forward of one sequence: its logits, the drafts' input, what the layers gave, and the caches after it."""

    logits: Tensor
    main_hidden: Tensor
    record: Record
    session: EagerSession


@cache
def prefill(kind: str, prompt: str) -> Run:
    """A golden prompt in one chunk through an empty session. The run is shared: it must not be advanced."""
    model = golden(kind)
    session = model.session()
    with recorded(model.backbone) as record:
        logits, main_hidden = session.forward({0: model.ids(prompt)})
    return Run(logits[0], main_hidden, record, session)


# --- caches ---------------------------------------------------------------------------------------------------------


def cache_rows(spec: StateSpec, stored: Tensor, count: int) -> Tensor:
    """The first `count` rows of a cache whose pages are in order, as values: bf16, or the plain rows."""
    rows = ops.load(stored, torch.arange(count), spec.row_format, spec.page, spec.row_width)
    return rows if spec.row_format in ops.PLAIN_FORMATS else ops.dequantize(rows, spec.row_format)


def cached_values(config: ModelConfig, caches: dict[str, Tensor], length: int) -> dict[str, Tensor]:
    """All that the golden data says about the caches of ring 0 after `length` tokens, by its keys."""
    values = {}
    specs = {spec.name: spec for spec in (*state_specs(config, PAGE_TOKENS), *draft_state_specs(config))}
    for name, spec in specs.items():
        if name not in caches:
            continue
        layer = name.split(".", 1)[-1] if ".mtp." in name else f"layers.{spec.owner}"
        if spec.kind == "window":
            values[f"win.{layer}"] = cache_rows(spec, caches[name], min(length, spec.page))
        elif spec.kind in ("main", "index"):
            key = {"main": "ckv", "index": "ik"}[spec.kind]
            values[f"{key}.{layer}"] = cache_rows(spec, caches[name], length // spec.ratio)
        elif spec.kind == "tail" and length % spec.ratio:
            tail = cache_rows(spec, caches[name], spec.page)[[(length - 1) % spec.page]]
            values[f"kv_state.{layer}"], values[f"score_state.{layer}"] = tail.chunk(2, dim=-1)
    return values


# --- drafts ---------------------------------------------------------------------------------------------------------


@dataclass
class Drafter:
    """The draft network over the rings of one session."""

    model: DSpark
    rings: int = 1
    caches: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.caches = {spec.name: spec.empty(self.rings) for spec in draft_state_specs(self.model.config)}

    def seed(self, main_hidden: Tensor, context: dict[int, int], rejected: int = 0) -> None:
        """Seeds the rows of one forward, [all rows, ...]; `context` gives by ring slot the tokens cached before it.

        The last `rejected` rows of the batch are marked as not committed.
        """
        count = (main_hidden.shape[0] - rejected) // len(context)
        chunks = [Chunk([0] * count, start, ring, [0]) for ring, start in context.items()]
        inputs = step_inputs(chunks, [], rejected)
        rows = Rows.of_batch(**{k: v for k, v in inputs.items() if k not in ("tokens", "logit_rows")})
        self.model.seed(main_hidden, rows, self.caches)

    def draft(self, anchors: dict[int, tuple[int, int]]) -> Proposal:
        """Drafts from an anchor (token, position) for each ring slot."""
        tokens, positions = zip(*anchors.values(), strict=True)
        return self.model.draft(torch.tensor(tokens), torch.tensor(positions), torch.tensor(list(anchors)), self.caches)


# --- states taken from the golden data ------------------------------------------------------------------------------


def golden_state(kind: str, prompt: str) -> EagerSession:
    """A session whose caches hold the golden values after the prompt, as if the reference itself had filled them."""
    model = golden(kind)
    session, ids, want = model.session(), model.ids(prompt), model.under(prompt)
    for spec in state_specs(model.config, PAGE_TOKENS):
        if spec.kind == "history":
            slots = torch.arange(max(len(ids) - spec.page, 0), len(ids))
            rows = torch.tensor(ids, dtype=torch.int32)[slots].unsqueeze(-1)
        elif spec.kind == "tail":
            if len(ids) % spec.ratio == 0:
                continue
            slots = torch.tensor([len(ids) - 1])
            rows = torch.cat([want[f"{key}.layers.{spec.owner}"] for key in ("kv_state", "score_state")], dim=-1)
        else:
            key = {"window": "win", "main": "ckv", "index": "ik"}[spec.kind]
            values = want[f"{key}.layers.{spec.owner}"]
            slots, rows = torch.arange(values.shape[0]), ops.quantize(values, spec.row_format)
            # Values on the grid of a format must come back as they are, or this would be another state.
            assert torch.equal(ops.dequantize(rows, spec.row_format), values), spec.name
        slots = slots % spec.page if spec.pool == "rings" else slots
        ops.store(session.caches[spec.name], rows, slots, spec.row_format, spec.page)
    session.lengths[0] = len(ids)
    return session
