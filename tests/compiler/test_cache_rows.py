"""Cache rows as single ops, on mini6 with its weights: every row is lowered, stored as part of it, and no bit moves."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from dsv41c.compiler.definitions import DEFINITIONS, Definitions
from dsv41c.compiler.driver import CompileOptions, derived_constants, step_ranges
from dsv41c.compiler.importer import import_program
from dsv41c.compiler.probe import checkpoint_probe
from dsv41c.compiler.trace import trace_backbone
from dsv41c.errors import CompileError
from dsv41c.ir.builder import functions, module_of
from dsv41c.ir.ops.pack import PackRows, WriteRows
from dsv41c.models.checkpoint import Checkpoint
from dsv41c.models.weights import empty_backbone
from dsv41c.passes.cache_rows import stores_of
from dsv41c.passes.common_subexpressions import CommonSubexpressions
from dsv41c.passes.dead_code import DeadCode
from dsv41c.passes.lower_fp4_kv import LowerFp4Kv
from dsv41c.passes.lower_fp8_window import LowerFp8Window
from dsv41c.passes.lower_index_k import LowerIndexK
from dsv41c.passes.manager import PassManager, Probe
from dsv41c.passes.pass_base import Pass, PassContext, PassResult

GOLDEN = Path(__file__).parents[1] / "golden"
OPTIONS = CompileOptions(page_tokens=16)
CHECKPOINT = Checkpoint.open(GOLDEN / "mini6")


@cache
def traced() -> ModuleOp:
    config, page_tokens = CHECKPOINT.config, OPTIONS.page_tokens
    trace = trace_backbone(empty_backbone(config, page_tokens), step_ranges(config, OPTIONS))
    return module_of([import_program("step", trace, config, page_tokens)])


def probe() -> Probe:
    tokenizer = GOLDEN / "tokenizer.json"
    return checkpoint_probe(CHECKPOINT, tokenizer, derived_constants(CHECKPOINT.config, tokenizer), OPTIONS.page_tokens)


def run(*passes: Pass, compares: bool = True) -> ModuleOp:
    definitions = Definitions(step_ranges(CHECKPOINT.config, OPTIONS).symbols())
    ctx = PassContext("cpu", CHECKPOINT.config, frozenset(DEFINITIONS), definitions.define)
    manager = PassManager(
        [DeadCode(), CommonSubexpressions(), *passes, DeadCode()], ctx, verify_each=probe() if compares else None
    )
    return manager.run(traced())


def test_every_row_is_one_op_and_its_bytes_stay() -> None:
    step = functions(run(LowerFp8Window(), LowerFp4Kv(), LowerIndexK()))["step"]
    config = CHECKPOINT.config
    ops = list(step.body.block.ops)
    written = [op.cache_type("cache").data.kind for op in ops if isinstance(op, WriteRows)]
    sources = len(config.kv_source_layer_ids)
    assert sum(isinstance(op, PackRows) for op in ops) == config.num_hidden_layers
    assert sorted(written) == ["index"] * sources + ["main"] * sources
    assert not [op for op in ops if op.name == "dsv41.quantize"]


def test_a_network_with_another_row_is_refused() -> None:
    """The count is the graph's: a row that is computed otherwise is an error, and none is left as it is in silence."""
    with pytest.raises(CompileError, match="pass 'lower-index-k' matched 'row' 0 times; this program has 2"):
        run(_OtherRows("index"), LowerIndexK(), compares=False)


@pytest.mark.parametrize("lowers", [LowerFp8Window(), LowerFp4Kv(), LowerIndexK()], ids=["window", "main", "index"])
def test_a_broken_copy_is_caught(lowers: Pass) -> None:
    with pytest.raises(CompileError, match="pass 'turned' moved"):
        run(lowers, _Turned())


@dataclass(frozen=True)
class _Turned(Pass):
    """Swaps sine and cosine of the last row: what a wrong lowering would leave."""

    name: ClassVar[str] = "turned"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Swap them; counts `row`."""
        row = [op for op in module.walk() if isinstance(op, PackRows | WriteRows)][-1]
        at = [list(row.operands).index(value) for value in (row.cos, row.sin)]
        row.operands[at[0]], row.operands[at[1]] = row.sin, row.cos
        return PassResult(True, {"row": 1})


@dataclass(frozen=True)
class _OtherRows(Pass):
    """Lets the rows of one kind of cache be quantized before they are rotated."""

    kind: str
    name: ClassVar[str] = "other-rows"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Give `quantize` another input of its type; counts `row`."""
        count = 0
        for func in functions(module).values():
            for store in stores_of(func, self.kind):
                rotated = store.rows.owner.operands[0]
                source = next(op for op in _before(rotated.owner) if op.results and op.results[0].type == rotated.type)
                store.rows.owner.operands[0] = source.results[0]
                count += 1
        return PassResult(True, {"row": count})


def _before(op: Operation) -> Iterator[Operation]:
    earlier = op.prev_op
    while earlier is not None:
        yield earlier
        earlier = earlier.prev_op
