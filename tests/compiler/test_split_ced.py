"""encode and tail: what they read and write, and their values against the whole program and against eager modules."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache as once
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from golden_model import PAGE_TOKENS, golden
from shared_folders import once as shared_folder
from shared_folders import tree_hash
from test_groupings import other_grouping, random_backbone
from test_trace import trace, weights_of
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from dsv41c.compiler.driver import PROGRAM
from dsv41c.compiler.importer import import_program
from dsv41c.errors import CompileError
from dsv41c.ir.builder import functions, module_of, output_names
from dsv41c.ir.effects import cache_reads
from dsv41c.ir.interpreter import Interpreter
from dsv41c.ir.ops.program import Weight
from dsv41c.ir.text import parse_module, print_module
from dsv41c.ir.types import CacheType
from dsv41c.models.backbone import Backbone
from dsv41c.models.config import ModelConfig
from dsv41c.models.hyper_connections import collapse
from dsv41c.models.rows import Chunk, Rows, step_inputs
from dsv41c.models.session import EagerSession
from dsv41c.models.state import state_specs
from dsv41c.passes.common_subexpressions import CommonSubexpressions
from dsv41c.passes.dead_code import DeadCode
from dsv41c.passes.manager import PassManager, first_bad_pass
from dsv41c.passes.pass_base import PassContext, PassResult
from dsv41c.passes.split_ced import ENCODE, TAIL, SplitCed, backward_slice, encoded_states, state_values

GOLDEN = Path(__file__).parents[1] / "golden"
CLEAN = (DeadCode(), CommonSubexpressions())
# What of the last KV source's own layer its entries need (SPEC 5.2).
KV_WEIGHTS = r"attn_norm\.weight|attn\.compressor\..*|attn\.indexer\.(wk|k_norm)\..*"
OUTSIDE_LAYERS = {"embed.weight", "rotary.window", "rotary.compressed", "look_back.token_map", "look_back.pad"}


@once
def config_of(kind: str) -> ModelConfig:
    return ModelConfig.from_json(GOLDEN / kind)


@once
def clean(kind: str) -> ModuleOp:
    """The trace without what nobody needs, each value once."""
    folder = shared_folder(f"traced-{kind}-{tree_hash(kind)}", lambda folder: write_trace(kind, folder))
    traced = parse_module((folder / "step.mlir").read_text())
    return PassManager(CLEAN, PassContext(config=config_of(kind))).run(traced)


def write_trace(kind: str, folder: Path) -> None:
    config = config_of(kind)
    traced = module_of([import_program(PROGRAM, trace(config), config, PAGE_TOKENS)])
    staged = folder.with_suffix(".staged")
    staged.mkdir(exist_ok=True)
    (staged / "step.mlir").write_text(print_module(traced))
    staged.rename(folder)


@once
def split(kind: str) -> dict[str, FuncOp]:
    return functions(PassManager([SplitCed()], PassContext(config=config_of(kind))).run(clean(kind)))


def weights_in(func: FuncOp, source: str) -> set[str]:
    return {op.symbol.data for op in func.body.block.ops if isinstance(op, Weight) and op.source.data == source}


def written(func: FuncOp) -> list[str]:
    outputs = zip(output_names(func), func.function_type.outputs.data, strict=True)
    return [name for name, type_ in outputs if isinstance(type_, CacheType)]


def layer_of(symbol: str) -> int:
    match = re.match(r"layers\.(\d+)\.", symbol)
    return int(match[1]) if match else -1


# --- what the parts read and write ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mini6", "sched40", "released"])
def test_the_parts_read_and_write_what_prefill_asks_for(kind: str) -> None:
    config, programs = config_of(kind), split(kind)
    encode, tail = programs[ENCODE], programs[TAIL]
    last = config.kv_source_layer_ids[-1]
    read = weights_in(encode, "checkpoint") | weights_in(encode, "derived")
    assert {symbol for symbol in read if layer_of(symbol) > last} == set()
    own = {symbol for symbol in read if layer_of(symbol) == last}
    assert own
    assert all(re.fullmatch(rf"layers\.{last}\.({KV_WEIGHTS})", symbol) for symbol in own), own
    assert {symbol for symbol in read if layer_of(symbol) < 0} <= OUTSIDE_LAYERS
    assert {layer_of(symbol) for symbol in read} == {-1, *range(last + 1)}

    assert not weights_in(encode, "checkpoint") & weights_in(tail, "checkpoint")
    assert weights_in(tail, "derived") <= {"rotary.compressed", "rotary.window"}
    everything = weights_in(programs[PROGRAM], "checkpoint")
    assert weights_in(encode, "checkpoint") | weights_in(tail, "checkpoint") == everything

    states = {spec.name: spec for spec in state_specs(config, PAGE_TOKENS)}
    decoder = [name for name, spec in states.items() if spec.kind == "window" and spec.owner >= last]
    assert written(tail) == decoder
    assert sorted(written(encode)) == sorted(set(states) - set(decoder))

    streams, d = config.hc_mult, config.hidden_size
    carried = [str(arg.type) for arg in tail.args if str(arg.name_hint).startswith("carry.")]
    assert carried == [f"!dsv41.tensor<[T, {streams}, {d}], bf16>", f"!dsv41.tensor<[T, {d}], bf16>"]
    assert output_names(encode)[:3] == ["carry.0", "carry.1", "window.0"]
    assert output_names(tail)[:2] == ["logits", "main_hidden"]


def test_each_state_of_the_request_holds_its_own_part_of_the_slice() -> None:
    """Windows, tails and the history lead to nothing else in one forward; main KV and index keys of the encoder feed
    later layers and stay whatever is asked; those of the last source are needed for themselves alone."""
    func = functions(clean("sched40"))[PROGRAM]
    requested = [name for name in state_values(func) if not name.startswith("window.")]
    values, states = state_values(func), encoded_states(func, requested)
    whole = backward_slice(values[name] for name in states)

    def lost(*names: str) -> set[str]:
        rest = backward_slice(values[name] for name in states if name not in names)
        assert rest <= whole
        return {op.symbol.data if isinstance(op, Weight) else op.name for op in whole - rest}

    for name in states:
        kind, _, owner = name.partition(".")
        if kind in ("window", "tail", "history"):
            assert "dsv41.store" in lost(name), name
            assert not {symbol for symbol in lost(name) if layer_of(symbol) >= 0}, name
        elif owner != "20":
            assert lost(name) == set(), name
    assert {"dsv41.store", "dsv41.quantize"} <= lost("main.20")
    assert not {symbol for symbol in lost("main.20") if layer_of(symbol) >= 0}
    indexer = {"layers.20.attn.indexer.wk.weight", "layers.20.attn.indexer.k_norm.weight"}
    assert {symbol for symbol in lost("index.20") if layer_of(symbol) >= 0} == indexer
    both = {symbol for symbol in lost("main.20", "index.20") if layer_of(symbol) >= 0}
    assert both >= indexer | {"layers.20.attn.compressor.wkv.weight", "layers.20.attn_norm.weight"}
    # Without its consumer, layer 19 is not needed behind the row that it stores to its window.
    assert {layer_of(symbol) for symbol in both} == {19, 20}
    assert "layers.19.ffn.gate.weight" in both
    assert "layers.19.attn.wkv.weight" not in both


def test_what_the_slice_reads_comes_in_unasked() -> None:
    """Asked for the last source's entries only, the pass finds the same encoder."""
    narrow = PassManager([SplitCed(states="main.20+index.20")]).run(clean("sched40"))
    for name in (ENCODE, TAIL):
        ours = print_module(module_of([functions(narrow)[name].clone()]))
        assert ours == print_module(module_of([split("sched40")[name].clone()]))


@pytest.mark.parametrize("states", ["main+tail+history", "index+tail+history"])
def test_a_request_without_global_entries_is_refused(states: str) -> None:
    with pytest.raises(CompileError, match=r"'tail' would write (main|index)\.3, .*; add it to `states`"):
        PassManager([SplitCed(states=states)]).run(clean("mini6"))


def test_only_windows_are_read_and_cut_off_in_the_tail() -> None:
    tail = split("mini6")[TAIL]
    reads = {str(cache.name_hint) for op in tail.body.block.ops for cache in cache_reads(op)}
    assert {name for name in reads if not name.startswith("window.")} == {"main.3", "index.3"}
    attentions = [op for op in tail.body.block.ops if op.name == "dsv41.sparse_attention"]
    assert [op.window_index.name_hint for op in attentions] == ["fresh_index"] * 3  # type: ignore[attr-defined]


# --- values -----------------------------------------------------------------------------------------------------------

Programs = Mapping[str, FuncOp]
State = dict[str, Tensor]


@dataclass
class Prefill:
    """Interprets encode over chunks of prompts, then tail over the last rows of each."""

    programs: Programs
    model: Backbone
    session: EagerSession

    def __post_init__(self) -> None:
        self.interpreter = Interpreter(weights_of(self.model))
        self.caches = {name: cache.clone() for name, cache in self.session.caches.items()}
        self.held: dict[int, list[State]] = {}
        self.context: dict[int, int] = {}

    def chunk(self, ring: int, ids: Sequence[int], context: int) -> Chunk:
        return replace(self.session.chunk(ring, list(ids)), context=context)

    def run(self, name: str, given: Mapping[str, Tensor]) -> State:
        func = self.programs[name]
        everything = {**self.caches, **given}
        found = self.interpreter.run(func, {str(arg.name_hint): everything[str(arg.name_hint)] for arg in func.args})
        self.caches |= {key: value for key, value in found.items() if key in self.caches}
        return found

    def encode(self, tokens: Mapping[int, Sequence[int]], padded: int = 0) -> None:
        chunks = [self.chunk(ring, ids, self.context.get(ring, 0)) for ring, ids in tokens.items()]
        found = self.run(ENCODE, step_inputs(chunks, [0], padded))
        start = 0
        for ring, ids in tokens.items():
            rows = slice(start, start + len(ids))
            self.held.setdefault(ring, []).append({k: v[rows] for k, v in found.items() if k.startswith("carry.")})
            self.context[ring] = self.context.get(ring, 0) + len(ids)
            start += len(ids)

    def tail(self, prompts: Mapping[int, Sequence[int]], padded: int = 0) -> State:
        window = self.model.config.sliding_window
        kept = {ring: ids[-window:] for ring, ids in prompts.items()}
        chunks = [self.chunk(ring, ids, len(prompts[ring]) - len(ids)) for ring, ids in kept.items()]
        carried: State = {}
        for name in next(iter(self.held.values()))[0]:
            rows = torch.cat([torch.cat([part[name] for part in self.held[ring]])[-window:] for ring in prompts])
            carried[name] = torch.cat([rows, rows.new_zeros(padded, *rows.shape[1:])])
        total = sum(len(ids) for ids in kept.values())
        return self.run(TAIL, step_inputs(chunks, list(range(total)), padded) | carried)


def tokens_of(count: int, seed: int) -> list[int]:
    found: list[int] = torch.randint(4, 500, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return found


def test_prompts_no_longer_than_a_window_are_exact() -> None:
    """encode and tail give the bits of the whole network: logits, the drafts' input, and every cache."""
    model = golden("mini6").backbone
    session = EagerSession(model, 2, 48)
    prompts = {0: tokens_of(16, 0), 1: tokens_of(5, 1)}
    prefill = Prefill(split("mini6"), model, EagerSession(model, 2, 48))
    prefill.encode(prompts, padded=2)
    given = prefill.tail(prompts, padded=3)
    logits, hidden = session.forward(prompts)
    assert torch.equal(given["logits"], torch.cat([logits[0], logits[1]]))
    assert torch.equal(given["main_hidden"][:21], hidden)
    assert_caches(prefill.caches, session.caches)


def assert_caches(ours: State, expected: State) -> None:
    for name, cache in expected.items():
        assert torch.equal(ours[name], cache), name


def replayed(
    model: Backbone, session: EagerSession, ids: Sequence[int], chunks: Sequence[int]
) -> tuple[Tensor, Tensor, State]:
    """The oracle of SPEC 5.4: eager encoder layers on all rows, the decoder's on the last ones, with the window of
    SPEC 5.6 written out. Gives logits, the drafts' input and all caches."""
    first = model.config.kv_source_layer_ids[-1]
    crossing: list[tuple[Tensor, ...]] = []
    hook = model.layers[first].register_forward_pre_hook(lambda _, given: crossing.append(given))
    # In the same chunks: a product of few rows may be summed in another order than one of many.
    for end, count in zip(itertools.accumulate(chunks), chunks, strict=True):
        session.forward({0: list(ids[end - count : end])})
    hook.remove()
    h, pre = (torch.cat([given[i] for given in crossing]) for i in (0, 1))
    window = model.config.sliding_window
    start = len(ids) - window
    for layer in range(first, model.config.num_hidden_layers):
        session.caches[f"window.{layer}"].zero_()
    segment = step_inputs([replace(session.chunk(0, list(ids[start:])), context=start)], [0])
    rows = Rows.of_batch(*(segment[name] for name in list(segment)[1:-1]))
    index = torch.full((window, window), -1)
    for i in range(window):
        for key in range(i + 1):  # max(s, i - W + 1) <= p <= i, oldest first
            index[i, window - 1 - i + key] = -2 - key
    context = replace(model._context(rows, session.caches), window_index=index)
    h, pre, targets = h[start:], pre[start:], []
    # The first of these layers is an index source, and none has an Engram module.
    selection = None
    with torch.no_grad():
        for layer in model.layers[first:]:
            h, pre, selection, target = layer(h, pre, context, selection, None)
            targets += [] if target is None else [target]
        logits = model.head(model.norm(collapse(h, pre)))
    return logits, torch.cat(targets, dim=-1), session.caches


@pytest.mark.parametrize("chunks", [(41,), (23, 18), (5, 33, 3)], ids=str)
def test_the_tail_is_the_eager_decoder_on_the_last_rows(chunks: tuple[int, ...]) -> None:
    model = golden("mini6").backbone
    check_tail(split("mini6"), model, tokens_of(41, 2), chunks)


def check_tail(programs: Programs, model: Backbone, ids: Sequence[int], chunks: Sequence[int]) -> None:
    prefill = Prefill(programs, model, EagerSession(model, 1, 48))
    start = 0
    for count in chunks:
        prefill.encode({0: ids[start : start + count]})
        start += count
    given = prefill.tail({0: ids})
    logits, hidden, caches = replayed(model, EagerSession(model, 1, 48), ids, chunks)
    assert torch.equal(given["logits"], logits)
    assert torch.equal(given["main_hidden"], hidden)
    assert_caches(prefill.caches, caches)


def test_another_grouping_is_split_where_its_last_source_is() -> None:
    """Eight layers, sources 1 (ratio 4) and 4: nothing of the pass names a layer."""
    config = other_grouping()
    traced = module_of([import_program(PROGRAM, trace(config), config, PAGE_TOKENS)])
    programs = functions(PassManager([*CLEAN, SplitCed()], PassContext(config=config)).run(traced))
    assert written(programs[TAIL]) == [f"window.{layer}" for layer in range(4, 8)]
    check_tail(programs, random_backbone(config, seed=3), tokens_of(38, 4), (21, 17))


@dataclass(frozen=True)
class Uncut(SplitCed):
    """Leaves the windows of the tail as they are, so that it reads rows that nobody wrote."""

    name: ClassVar[str] = "uncut"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """As split-ced, with the cut undone."""
        result = super().run(module, ctx)
        for op in list(functions(module)[TAIL].body.block.ops):
            if op.name == "torch.aten.clamp" and op.results[0].name_hint == "fresh_index":
                op.results[0].replace_all_uses_with(op.operands[0])
        return result


def test_a_broken_split_is_named() -> None:
    model, ids = golden("mini6").backbone, tokens_of(41, 2)
    passes = [DeadCode(), Uncut(), DeadCode()]

    def is_good(module: ModuleOp) -> bool:
        if TAIL not in functions(module):
            return True
        try:
            check_tail(functions(module), model, ids, (41,))
        except AssertionError:
            return False
        return True

    assert first_bad_pass(passes, clean("mini6"), is_good, PassContext(config=config_of("mini6"))) is passes[1]
    fixed = [DeadCode(), SplitCed(), DeadCode()]
    assert first_bad_pass(fixed, clean("mini6"), is_good, PassContext(config=config_of("mini6"))) is None
