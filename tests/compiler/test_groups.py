"""group-csa2 and restrict-candidates on traced models: groups, sharing, refusals, values, work a query."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from golden_model import PAGE_TOKENS
from test_groupings import grouped, other_grouping, random_backbone
from test_split_ced import clean, config_of
from test_trace import PROGRAM, trace, weights_of
from torch import Tensor
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from dsv41c.compiler.importer import import_program
from dsv41c.errors import CompileError
from dsv41c.ir.builder import functions, module_of
from dsv41c.ir.interpreter import Interpreter
from dsv41c.ir.names import clone_module
from dsv41c.ir.ops.program import Weight
from dsv41c.ir.ops.state import IndexPoolTopk, IndexTopk, SparseAttention, rows_scored
from dsv41c.ir.ops.table import Shaped
from dsv41c.ir.text import parse_module, print_module
from dsv41c.ir.types import TensorType
from dsv41c.models import ops, quant
from dsv41c.models.config import ModelConfig
from dsv41c.models.session import EagerSession, step_inputs
from dsv41c.passes.group_csa2 import GroupCsa2, Member, csa2_groups, group_table
from dsv41c.passes.manager import PassManager, ProbeCase, first_bad_pass
from dsv41c.passes.pass_base import Pass, PassContext, PassResult
from dsv41c.passes.restrict_candidates import RestrictCandidates

CASES = Path(__file__).parents[1] / "passes" / "cases"
PASSES: list[Pass] = [GroupCsa2(), RestrictCandidates()]


def lonely_source() -> ModelConfig:
    """Six layers: a ratio 2 source at 1 that nobody follows, then a ratio 1 source at 2 with a Reindex at the end."""
    return grouped(
        compress_ratios=[0, 2, 1, 1, 1, 1, 0, 0],
        kv_source_layer_ids=[1, 2],
        index_source_layer_ids=[1, 2, 5],
        candidate_source_layer_id=2,
    )


def traced(config: ModelConfig) -> ModuleOp:
    return module_of([import_program(PROGRAM, trace(config), config, PAGE_TOKENS)])


def step_of(module: ModuleOp) -> FuncOp:
    return functions(module)[PROGRAM]


def members(func: FuncOp) -> dict[int, Member]:
    """By layer, which a window cache's name holds."""
    return {int(m.name.removeprefix("window.")): m for group in csa2_groups(func) for m in group.members}


def check_groups(config: ModelConfig, func: FuncOp) -> None:
    """The graph's groups are those that the config describes, which the graph's groups were not made from."""
    layers = range(config.num_hidden_layers)
    found = members(func)
    assert {layer: found[layer].mode for layer in layers} == {layer: config.layer_mode(layer) for layer in layers}
    owners = [group.owner for group in csa2_groups(func) if group.owner]
    assert owners == [f"main.{layer}" for layer in config.kv_source_layer_ids]
    for group in csa2_groups(func):
        own = [int(member.name.removeprefix("window.")) for member in group.members]
        owner = int(group.owner.removeprefix("main.")) if group.owner else None
        assert own == [layer for layer in layers if config.kv_source(layer) == owner]
    for layer in layers:
        source = config.index_source(layer)
        assert found[layer].selection is (found[source].selection if source is not None else None)


# --- groups ----------------------------------------------------------------------------------------------------------


def test_groups_of_mini6() -> None:
    func = step_of(clean("mini6"))
    check_groups(config_of("mini6"), func)
    lines = group_table(csa2_groups(func)).splitlines()
    assert lines[0].split() == ["group", "main", "index", "layer", "mode", "selects", "from"]
    assert lines[-1].split() == ["2", "-", "-", "window.0", "swa"]
    assert len(lines) == 7


@pytest.mark.parametrize("config", [other_grouping(), lonely_source()], ids=["two_reindex", "lonely_source"])
def test_other_groupings_and_their_values(config: ModelConfig) -> None:
    """Ratios 4 and 1 with two Reindex in a row, a source without followers: groups, and the same bits after the passes.

    23 and 9 tokens of two sequences: longer than the pool of 16 entries, and shorter.
    """
    module = traced(config)
    rewritten = step_of(PassManager(PASSES, PassContext(config=config)).run(module))
    check_groups(config, rewritten)
    assert not any(isinstance(op, IndexTopk) and op.candidates is not None for op in rewritten.body.block.ops)
    model = random_backbone(config, seed=3)
    session = EagerSession(model, 2, 32)
    interpreter = Interpreter(weights_of(model))
    for tokens in ({0: list(range(5, 28)), 1: list(range(40, 49))}, {0: [7], 1: [3, 9]}):
        rows = sum(map(len, tokens.values()))
        chunks = [session.chunk(ring, ids) for ring, ids in tokens.items()]
        caches = {name: cache.clone() for name, cache in session.caches.items()}
        inputs = step_inputs(chunks, list(range(rows)), 1) | caches
        before, after = (interpreter.run(func, inputs) for func in (step_of(module), rewritten))
        for name, value in before.items():
            assert torch.equal(after[name].view(torch.uint8), value.view(torch.uint8)), name
        session.forward(tokens)


def test_lists_that_are_made_again_go() -> None:
    """Each Reuse layer of mini6 gets a copy of its source's page translation; the pass alone restores the program."""
    module = clone_module(clean("mini6"))
    func = step_of(module)
    before = sum(1 for _ in func.walk())
    copied = 0
    for op in [member.attention for member in members(func).values() if member.mode == "reuse"]:
        assert op.main_slots is not None
        op.operands = [copy_of(value, op) if value is op.main_slots else value for value in op.operands]
        copied += 1
    assert copied == 2
    assert sum(1 for _ in func.walk()) >= before + 8 * copied
    manager = PassManager([GroupCsa2()], PassContext(config=config_of("mini6")))
    shared = step_of(manager.run(module))
    assert manager.reports[0].matches["list"] == copied
    assert sum(1 for _ in shared.walk()) == before
    for member in members(shared).values():
        assert member.attention.mode is not None
        assert member.attention.mode.data == member.mode


def copy_of(value: SSAValue, before: Operation) -> SSAValue:
    """Computes a value anew, back to what touches caches."""
    op = value.owner
    if not isinstance(op, Operation) or isinstance(op, IndexTopk | Weight):
        return value
    copy = op.clone(dict.fromkeys(()))
    copy.operands = [copy_of(operand, before) for operand in op.operands]
    block = before.parent_block()
    assert block is not None
    block.insert_op_before(copy, before)
    return copy.results[op.results.index(value)]


def test_the_released_config() -> None:
    """4 sources of main KV, 8 of selections, 30 Reuse, 2 SWA; index rows a query as SPEC 15.2 counts them."""
    config = config_of("released")
    manager = PassManager(PASSES, PassContext(config=config))
    func = step_of(manager.run(clean("released")))
    counts = manager.reports[0].matches
    assert {name: counts[name] for name in ("full", "reindex", "reuse", "swa")} == {
        "full": 4,
        "reindex": 4,
        "reuse": 30,
        "swa": 2,
    }
    check_groups(config, func)
    lists = {member.attention.main_slots for member in members(func).values() if member.selection}
    assert len(lists) == 8
    indexers = {
        op.symbol.data.split(".")[1] for op in func.walk() if isinstance(op, Weight) and ".indexer." in op.symbol.data
    }
    assert indexers == {str(layer) for layer in config.index_source_layer_ids}
    for context in (4096, 65536, 1 << 20):
        pages = context // PAGE_TOKENS
        scored = [
            rows_scored(op, arguments(op, {"T": 1, "B": 1, "P": pages}))
            for op in func.body.block.ops
            if isinstance(op, IndexTopk | IndexPoolTopk)
        ]
        assert sum(scored) == 3 * (context // 2) + context + 4 * min(context, 16384)


def arguments(op: Operation, sizes: dict[str, int]) -> list[Shaped | None]:
    """The tensor operands of a selection with their sizes; caches are no tensors here."""
    slots = op.slots() if isinstance(op, IndexTopk | IndexPoolTopk) else op.operands
    return [
        Shaped(slot.type.shape(sizes), slot.type.element)
        if slot is not None and isinstance(slot.type, TensorType)
        else None
        for slot in slots
    ]


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_layer_that_reuses_the_owner_before_its_own_is_refused() -> None:
    module = clone_module(clean("mini6"))
    found = members(step_of(module))
    op, wrong = found[4].attention, found[2].attention.main_slots
    assert wrong is not None
    op.operands = [wrong if value is op.main_slots else value for value in op.operands]
    with pytest.raises(CompileError, match=r"window\.4 gathers from main\.3 by a list chosen from index\.1, and their"):
        csa2_groups(step_of(module))
    with pytest.raises(CompileError, match=r"pass 'group-csa2': attention of window\.4"):
        PassManager([GroupCsa2()]).run(module)


@pytest.mark.parametrize(("role", "layer"), [("main", 4), ("index", 5)])
def test_a_cache_as_it_was_before_the_step_is_refused(role: str, layer: int) -> None:
    module = clone_module(clean("mini6"))
    func = step_of(module)
    member = members(func)[layer]
    op = member.attention if role == "main" else member.selection
    assert op is not None
    fresh = getattr(op, role)
    old = next(argument for argument in func.args if argument.name_hint == f"{role}.3")
    op.operands = [old if value is fresh else value for value in op.operands]
    with pytest.raises(CompileError, match=rf"stale {role} cache: an op reads {role}\.3"):
        csa2_groups(func)


# --- broken copies of the passes are caught ---------------------------------------------------------------------------


@dataclass(frozen=True)
class OtherBlocks(RestrictCandidates):
    """Takes candidate blocks for twice as large as they are."""

    name: ClassVar[str] = "other-blocks"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Rewrite, and change the attribute."""
        result = super().run(module, ctx)
        for op in module.walk():
            if isinstance(op, IndexPoolTopk):
                op.block = IntegerAttr(2 * op.block.value.data, op.block.type)
        return result


@dataclass(frozen=True)
class OneListForAll(GroupCsa2):
    """Lets a Reindex layer gather by the list of its owner."""

    name: ClassVar[str] = "one-list-for-all"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Rewrite, and exchange the lists."""
        result = super().run(module, ctx)
        attentions = [op for op in module.walk() if isinstance(op, SparseAttention) and op.main is not None]
        for op in attentions:
            op.operands = [attentions[0].main_slots if value is op.main_slots else value for value in op.operands]
        return result


def probe(module: ModuleOp) -> Sequence[ProbeCase]:
    """Random caches and queries for `group-csa2_matches.mlir`: eight rows of one sequence of 32 entries in 8 pages."""
    generator = torch.Generator().manual_seed(2)
    func = functions(module)["f"]

    def cache(form: str, columns: int, page: int, pages: int, stride: int) -> Tensor:
        buffer = torch.zeros(pages, stride, dtype=torch.uint8)
        rows = torch.randn(pages * page, columns, generator=generator).bfloat16()
        ops.store(buffer, quant.quantize(rows, form), torch.arange(pages * page), form, page)
        return buffer

    values = {
        "q": torch.randn(8, 2, 64, generator=generator).bfloat16(),
        "iq": quant.fake_quantize(torch.randn(8, 2, 32, generator=generator).bfloat16(), "fp4_e8m0"),
        "iw": torch.rand(8, 2, generator=generator).bfloat16(),
        "fresh": quant.quantize(torch.randn(8, 64, generator=generator).bfloat16(), "fp8_e8m0"),
        "window_index": torch.full((8, 8), -2, dtype=ops.LIST),
        "sink": torch.zeros(2),
        "pages": torch.randperm(8, generator=generator).unsqueeze(0),
        "sequence": torch.zeros(8, dtype=torch.int64),
        "positions": torch.arange(56, 64),
        "rows": quant.quantize(torch.randn(8, 64, generator=generator).bfloat16(), "fp4_e4m3"),
        "slots": torch.full((8,), -1),
        "main.2": cache("fp4_e4m3", 64, 4, 8, 256),
        "index.2": cache("fp4_e8m0", 32, 4, 8, 256),
    } | {f"window.{i}": cache("fp8_e8m0", 64, 8, 1, 528) for i in range(4)}
    names = [str(argument.name_hint) for argument in func.args]
    return [ProbeCase("f", {name: values[name] for name in names}, lambda name: torch.zeros(()))]


@pytest.mark.parametrize(
    ("good", "broken", "value"),
    [(RestrictCandidates(), OtherBlocks(), "topk2"), (GroupCsa2(), OneListForAll(), "c")],
    ids=["restrict-candidates", "group-csa2"],
)
def test_broken_copies_are_caught_and_named(good: Pass, broken: Pass, value: str) -> None:
    module = parse_module((CASES / "group-csa2_matches.mlir").read_text())
    PassManager([*PASSES, good], verify_each=probe).run(module)
    passes = [GroupCsa2(), broken, GroupCsa2()] if isinstance(broken, OtherBlocks) else [broken, RestrictCandidates()]
    with pytest.raises(CompileError, match=rf"pass '{broken.name}' moved %{value} "):
        PassManager(passes, verify_each=probe).run(module)
    case = probe(module)[0]
    wanted = Interpreter(case.weights).run(functions(module)["f"], case.inputs)

    def is_good(candidate: ModuleOp) -> bool:
        given = Interpreter(case.weights).run(functions(candidate)["f"], case.inputs)
        return all(torch.equal(given[name], wanted[name]) for name in wanted)

    assert first_bad_pass(passes, module, is_good) is broken
    assert print_module(module) == print_module(parse_module((CASES / "group-csa2_matches.mlir").read_text()))
