"""The traced step program: legal at every size, the same as the eager model, also for other layer groupings."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from golden_model import PAGE_TOKENS, golden
from test_groupings import other_grouping, random_backbone

from dsv41c.compiler.driver import PROGRAM, CompileOptions, step_ranges
from dsv41c.compiler.importer import import_program
from dsv41c.compiler.trace import Trace, trace_backbone
from dsv41c.ir.builder import get_symbols, module_of
from dsv41c.ir.interpreter import Interpreter
from dsv41c.ir.types import CacheType
from dsv41c.ir.verify import verify
from dsv41c.models.backbone import Backbone
from dsv41c.models.config import ModelConfig
from dsv41c.models.session import EagerSession, step_inputs
from dsv41c.models.weights import checkpoint_name, empty_backbone

GOLDEN = Path(__file__).parents[1] / "golden"
OPTIONS = CompileOptions(page_tokens=PAGE_TOKENS)


def trace(config: ModelConfig) -> Trace:
    return trace_backbone(empty_backbone(config, PAGE_TOKENS), step_ranges(config, OPTIONS))


@cache
def mini6_trace() -> Trace:
    return trace(golden("mini6").config)


@cache
def mini6_program():  # type: ignore[no-untyped-def]
    func = import_program(PROGRAM, mini6_trace(), golden("mini6").config, PAGE_TOKENS)
    module_of([func])
    return func


def weights_of(model: Backbone):  # type: ignore[no-untyped-def]
    tensors = {checkpoint_name(name): parameter for name, parameter in model.named_parameters()}
    return (tensors | dict(model.named_buffers())).__getitem__


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_the_export_has_no_guard_on_sizes() -> None:
    """torch.export specializes or narrows a size where the network asks about it; every range must stay as declared."""
    found = mini6_trace()
    constraints = {str(symbol): (int(r.lower), int(r.upper)) for symbol, r in found.program.range_constraints.items()}
    assert sorted(constraints.values()) == sorted(found.symbols.values())
    asserts = [node for node in found.program.graph.nodes if "_assert_scalar" in str(node.target)]
    assert not asserts


def test_every_symbol_starts_at_one() -> None:
    assert {low for low, _ in get_symbols(mini6_program()).values()} == {1}


@pytest.mark.parametrize(
    ("rings", "chunks"),
    [
        (1, [{0: [5]}, {0: [9]}, {0: [2]}]),  # T = B = P = R = S = 1, from an empty context on
        (1, [{0: [5, 9, 2]}, {0: [7]}]),
        (3, [{2: [5], 0: [9, 8]}, {0: [1], 1: [4, 4, 4], 2: [6]}]),
    ],
)
def test_the_program_is_the_model_at_every_size(rings: int, chunks: list[dict[int, list[int]]]) -> None:
    """Interpreted, with logits of all rows; one page a sequence, so that N = rings."""
    model = golden("mini6").backbone
    session = EagerSession(model, rings, PAGE_TOKENS)
    interpreter = Interpreter(weights_of(model))
    caches = {name: cache.clone() for name, cache in session.caches.items()}
    for tokens in chunks:
        pieces = [session.chunk(ring, ids) for ring, ids in tokens.items()]
        rows = sum(map(len, tokens.values()))
        inputs = step_inputs(pieces, list(range(rows)))
        logits, hidden = session.forward(tokens)
        given = interpreter.run(mini6_program(), inputs | caches)
        assert torch.equal(given["logits"], torch.cat(list(logits.values())))
        assert torch.equal(given["main_hidden"], hidden)
        caches = {name: given[name] for name in caches}
    for name, expected in session.caches.items():
        assert torch.equal(caches[name], expected), name


def test_few_logit_rows() -> None:
    model = golden("mini6").backbone
    session = EagerSession(model, 1, 32)
    pieces = [session.chunk(0, list(range(5, 22)))]
    interpreter = Interpreter(weights_of(model))
    whole = interpreter.run(mini6_program(), step_inputs(pieces, list(range(17))) | session.caches)["logits"]
    last = interpreter.run(mini6_program(), step_inputs(pieces, [16]) | session.caches)["logits"]
    assert last.shape == (1, 512)
    assert (last[0] - whole[16]).abs().max() <= 3e-6  # golden README, "full logits vs last-row-only"


# --- what the program says -------------------------------------------------------------------------------------------


def test_layers_own_no_more_than_their_mode_says() -> None:
    """Reuse layers have no indexer: as many selections as index sources, each of its source's cache."""
    config, func = golden("mini6").config, mini6_program()
    selections = [op for op in func.body.block.ops if op.name == "dsv41.index_topk"]
    assert len(selections) == len(config.index_source_layer_ids)
    owners = [op.index.type.data.owner for op in selections]  # type: ignore[attr-defined]
    assert owners == [config.kv_source(layer) for layer in config.index_source_layer_ids]
    stored = [op.cache.type.data for op in func.body.block.ops if op.name == "dsv41.store"]  # type: ignore[attr-defined]
    assert [data.owner for data in stored if data.kind == "window"] == list(range(config.num_hidden_layers))
    assert [data.owner for data in stored if data.kind == "main"] == list(config.kv_source_layer_ids)


def test_another_grouping_traces_and_computes_the_same() -> None:
    config = other_grouping()
    model = random_backbone(config, seed=3)
    func = import_program(PROGRAM, trace(config), config, PAGE_TOKENS)
    verify(module_of([func]))
    session = EagerSession(model, 1, 32)
    tokens = {0: list(range(5, 28))}
    inputs = step_inputs([session.chunk(0, tokens[0])], list(range(23))) | {
        k: v.clone() for k, v in session.caches.items()
    }
    logits, _ = session.forward(tokens)
    given = Interpreter(weights_of(model)).run(func, inputs)
    assert torch.equal(given["logits"], logits[0])
    for argument in func.args:
        if isinstance(argument.type, CacheType):
            name = str(argument.name_hint)
            assert torch.equal(given[name], session.caches[name]), name


# --- the released config ----------------------------------------------------------------------------------------------

_RELEASED = """
import json, resource, sys, time
from dsv41c.compiler.driver import PROGRAM, CompileOptions, step_ranges
from dsv41c.compiler.importer import import_program
from dsv41c.compiler.trace import trace_backbone
from dsv41c.ir.builder import module_of
from dsv41c.ir.verify import verify
from dsv41c.models.config import ModelConfig
from dsv41c.models.weights import empty_backbone

config, options = ModelConfig.from_json(sys.argv[1]), CompileOptions()
start = time.perf_counter()
trace = trace_backbone(empty_backbone(config, options.page_tokens), step_ranges(config, options))
func = import_program(PROGRAM, trace, config, options.page_tokens)
verify(module_of([func]))
print(json.dumps({
    "seconds": time.perf_counter() - start,
    "ops": sum(1 for _ in func.walk()),
    "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
}))
"""


def test_the_released_config_traces_and_verifies() -> None:
    """No weight is made: 1.5 GiB for a model of hundreds. Its seconds are for the reader; a busy machine needs more."""
    command = [sys.executable, "-c", _RELEASED, str(GOLDEN / "released")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=400)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["peak_gib"] < 1.5
    assert 10_000 < found["ops"] < 25_000
