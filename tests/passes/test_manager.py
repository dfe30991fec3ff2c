"""The manager: verification, dumps, counts, origins, comparison that names pass and value, bisection, pipelines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from programs import STORE, WINDOW, function, load, state_function
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr

from dsv41c.errors import CompileError, IRError
from dsv41c.ir.builder import functions
from dsv41c.ir.interpreter import Interpreter
from dsv41c.ir.names import replace_op
from dsv41c.ir.ops.aten import aten_class
from dsv41c.ir.text import parse_module, print_module
from dsv41c.passes.common_subexpressions import CommonSubexpressions
from dsv41c.passes.dead_code import DeadCode
from dsv41c.passes.manager import PassManager, PassReport, ProbeCase, first_bad_pass, stage_of
from dsv41c.passes.pass_base import Pass, PassContext, PassResult, Tolerance, make_pass
from dsv41c.passes.pipeline import PHASES, REGISTRY, default_pipeline, parse_pipeline, pipeline_text
from dsv41c.passes.state_in_place import StateInPlace

F32 = "!dsv41.tensor<[T, 8], f32>"
BINARY = f"{F32}, {F32} -> {F32}"
CHAIN = function(
    f"%x: {F32}, %y: {F32}",
    f"""%a = torch.aten.mul.Tensor %x, %y {{origin = "net.py:1"}} : {BINARY}
    %b_7 = torch.aten.maximum %a, %x {{origin = "net.py:2"}} : {BINARY}
    %c = torch.aten.mul.Tensor %b_7, %y {{origin = "net.py:3"}} : {BINARY}
    %unused = torch.aten.mul.Tensor %b_7, %b_7 : {BINARY}
    func.return %c : {F32}""",
    F32,
)


@dataclass(frozen=True)
class Rename(Pass):
    """Replaces every torch.aten op of one name by another: right for equal ops, broken for others."""

    name: ClassVar[str] = "rename"
    old: str = "maximum"
    new: str = "maximum"
    count: int = -1

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Rename; counts `op`."""
        found = 0
        for op in list(module.walk()):
            if op.name != f"torch.aten.{self.old}":
                continue
            new_op = aten_class(f"torch.aten.{self.new}").create(
                operands=op.operands, result_types=op.result_types, attributes=dict(op.attributes)
            )
            replace_op(op, new_op)
            found += 1
        return PassResult(found > 0, {"op": found})

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """Expect `count` matches where given."""
        return {"op": self.count} if self.count >= 0 else None


@dataclass(frozen=True)
class RenameLoosely(Rename):
    """As Rename, with a declared bound."""

    name: ClassVar[str] = "rename-loosely"
    tolerance: ClassVar[Tolerance] = Tolerance(absolute=100.0)


@dataclass(frozen=True)
class MarkAllStores(Pass):
    """Marks every store as in place without asking who reads the old value."""

    name: ClassVar[str] = "mark-all-stores"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Mark stores."""
        stores = [op for op in module.walk() if op.name == "dsv41.store"]
        for op in stores:
            op.attributes["in_place"] = UnitAttr()
        return PassResult(bool(stores), {"store": len(stores)})


@dataclass(frozen=True)
class Finish(Pass):
    """Moves a module to the next stage."""

    name: ClassVar[str] = "finish"
    produces: ClassVar[str | None] = "launches"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Change nothing."""
        return PassResult(False)


def probe(module: ModuleOp) -> Sequence[ProbeCase]:
    """Two tensors of different signs; CHAIN has no weights."""
    generator = torch.Generator().manual_seed(1)
    inputs = {name: torch.randn(3, 8, generator=generator) for name in ("x", "y")}
    return [ProbeCase("step", inputs, lambda name: torch.zeros(()))]


def test_good_passes_change_no_value_and_not_the_callers_module() -> None:
    module = parse_module(CHAIN)
    before = print_module(module)
    manager = PassManager([DeadCode(), CommonSubexpressions(), StateInPlace()], verify_each=probe)
    result = manager.run(module)
    assert print_module(module) == before
    assert "%unused" not in print_module(result)
    dead = manager.reports[0]
    assert (dead.name, dead.changed, dict(dead.matches)) == ("dead-code", True, {"op": 1})
    assert dead.ops_before - dead.ops_after == 1


def test_a_broken_pass_is_named_with_the_first_value_it_moved() -> None:
    passes = [DeadCode(), Rename(new="minimum"), CommonSubexpressions()]
    with pytest.raises(CompileError) as caught:
        PassManager(passes, verify_each=probe).run(parse_module(CHAIN))
    message = str(caught.value)
    assert message.startswith("pass 'rename' moved %b_7 of 'step'")
    assert "%b_7 = torch.aten.minimum %a, %x" in message
    assert "net.py:2" in message
    assert "bytes" in message


def test_without_verify_each_a_broken_pass_goes_through() -> None:
    PassManager([Rename(new="minimum")]).run(parse_module(CHAIN))


def test_a_declared_bound_is_used() -> None:
    PassManager([RenameLoosely(new="minimum")], verify_each=probe).run(parse_module(CHAIN))


def test_bisection_finds_the_broken_pass() -> None:
    passes = [DeadCode(), Rename(), CommonSubexpressions(), Rename(new="minimum"), DeadCode(), Rename(old="neg")]
    module = parse_module(CHAIN)
    case = probe(module)[0]
    wanted = Interpreter(case.weights).run(functions(module)["step"], case.inputs)["result0"]
    asked = []

    def is_good(candidate: ModuleOp) -> bool:
        asked.append(candidate)
        return torch.equal(Interpreter(case.weights).run(functions(candidate)["step"], case.inputs)["result0"], wanted)

    assert first_bad_pass(passes, module, is_good) is passes[3]
    assert len(asked) <= 4
    assert first_bad_pass(passes[:3], module, is_good) is None


def test_a_program_that_does_not_verify_names_the_pass() -> None:
    with pytest.raises(IRError, match=r"after pass 'rename': torch.aten.eq.Tensor: result 0 is declared"):
        PassManager([Rename(new="eq.Tensor")]).run(parse_module(CHAIN))
    text = state_function(f"{STORE}\n{load('window')}\nfunc.return %stored : {WINDOW}")
    with pytest.raises(IRError, match=r"after pass 'mark-all-stores': dsv41\.load: reads %window after"):
        PassManager([MarkAllStores()]).run(parse_module(text))
    with pytest.raises(IRError, match=r"^torch\.aten\.eq\.Tensor: result 0"):
        PassManager([]).run(parse_module(CHAIN.replace("maximum", "eq.Tensor")))


def test_refusals_name_the_pass() -> None:
    text = state_function(f"{STORE}\n{load('window')}\nfunc.return %stored : {WINDOW}")
    with pytest.raises(CompileError, match=r"pass 'state-in-place': .*\n.*store: .*%stored.*\n.*reader: %loaded"):
        PassManager([StateInPlace()]).run(parse_module(text))


def test_expected_counts() -> None:
    PassManager([Rename(count=1)]).run(parse_module(CHAIN))
    with pytest.raises(CompileError, match="pass 'rename' matched 'op' 1 times; this program has 2"):
        PassManager([Rename(count=2)]).run(parse_module(CHAIN))
    with pytest.raises(CompileError, match="matched 'op' 0 times; this program has 1"):
        PassManager([Rename(old="neg", count=1)]).run(parse_module(CHAIN))


def test_origins_gain_the_pass_once() -> None:
    result = print_module(PassManager([Rename(), Rename()]).run(parse_module(CHAIN)))
    assert 'torch.aten.maximum %a, %x {origin = "net.py:2, rename"}' in result
    assert '%a = torch.aten.mul.Tensor %x, %y {origin = "net.py:1"}' in result


def test_dumps_are_numbered_and_parse(tmp_path: Path) -> None:
    seen: list[PassReport] = []
    manager = PassManager(
        [DeadCode(), CommonSubexpressions()], dump_dir=tmp_path, on_pass=lambda report, module: seen.append(report)
    )
    result = manager.run(parse_module(CHAIN))
    names = [path.name for path in sorted(tmp_path.iterdir())]
    assert names == ["00_input.mlir", "01_dead-code.mlir", "02_common-subexpressions.mlir"]
    assert (tmp_path / names[-1]).read_text() == print_module(result)
    assert parse_module((tmp_path / names[0]).read_text()).is_structurally_equivalent(parse_module(CHAIN))
    assert seen == manager.reports
    assert all(report.seconds > 0 for report in seen)


def test_passes_can_be_skipped() -> None:
    manager = PassManager([DeadCode(), CommonSubexpressions()], skip=frozenset({"dead-code"}))
    assert "%unused" in print_module(manager.run(parse_module(CHAIN)))
    assert [report.name for report in manager.reports] == ["common-subexpressions"]


def test_stages() -> None:
    module = PassManager([Finish(), DeadCode()]).run(parse_module(CHAIN))
    assert stage_of(module) == "launches"
    assert stage_of(parse_module(print_module(module))) == "launches"
    with pytest.raises(CompileError, match="pass 'rename' takes a module at stage traced; this one is at launches"):
        PassManager([Finish(), Rename()]).run(parse_module(CHAIN))


def test_pipeline_text_round_trips() -> None:
    text = "dead-code,state-in-place"
    assert pipeline_text(parse_pipeline(" dead-code , state-in-place ")) == text
    assert pipeline_text(parse_pipeline(pipeline_text(default_pipeline()))) == pipeline_text(default_pipeline())
    assert parse_pipeline("") == []
    assert Rename(new="neg", count=3).text() == "rename{new=neg,count=3}"


def test_options_are_typed() -> None:
    made = make_pass(Rename, {"new": "neg", "count": "3"})
    assert made == Rename(new="neg", count=3)
    with pytest.raises(CompileError, match="option 'count' of pass 'rename' is 'many'; it must be of type int"):
        make_pass(Rename, {"count": "many"})
    with pytest.raises(CompileError, match="pass 'rename' has no option 'size'"):
        make_pass(Rename, {"size": "3"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("dead-cod", "pass 'dead-cod' is unknown; there are .*dead-code"),
        ("dead-code{limit=3}", "has no option 'limit'"),
        ("dead-code{limit}", "has no value"),
        ("dead-code{limit=3", "is not of the form"),
        ("dead-code;state-in-place", "is not of the form"),
    ],
)
def test_bad_pipelines(text: str, reason: str) -> None:
    with pytest.raises(CompileError, match=reason):
        parse_pipeline(text)


def test_the_pipeline_is_registered_and_ordered() -> None:
    numbers = [phase.number for phase in PHASES]
    assert numbers == sorted(set(numbers))
    for name, pass_class in REGISTRY.items():
        assert pass_class.name == name
    for pass_ in default_pipeline():
        assert REGISTRY[pass_.name] is type(pass_)


@pytest.mark.parametrize("pass_class", list(REGISTRY.values()), ids=list(REGISTRY))
def test_every_pass_says_what_why_needs_and_what_it_does_not_handle(pass_class: type[Pass]) -> None:
    for part in ("What:", "Why:", "Needs:", "Does not handle:"):
        assert part in (pass_class.__doc__ or ""), f"{pass_class.name} lacks '{part}'"


def test_digests_tell_options_and_passes_apart() -> None:
    assert Rename().digest() == Rename().digest()
    assert len({Rename().digest(), Rename(count=1).digest(), DeadCode().digest(), StateInPlace().digest()}) == 4


@dataclass(frozen=True)
class AddProgram(Pass):
    """Adds a copy of the program."""

    name: ClassVar[str] = "add-program"
    extends: ClassVar[bool] = True

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Add `part`."""
        part = functions(module)["step"].clone()
        part.sym_name = StringAttr("part")
        module.body.block.add_op(part)
        return PassResult(True)


@dataclass(frozen=True)
class BreakPart(Pass):
    """Moves a value in the added program only."""

    name: ClassVar[str] = "break-part"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Replace its product by a maximum."""
        op = next(op for op in functions(module)["part"].walk() if op.name == "torch.aten.mul.Tensor")
        replace_op(op, aten_class("torch.aten.maximum").create(operands=op.operands, result_types=op.result_types))
        return PassResult(True)


def test_passes_are_compared_on_programs_that_one_before_them_added() -> None:
    def probe_all(module: ModuleOp) -> Sequence[ProbeCase]:
        (case,) = probe(module)
        return [replace(case, function=name) for name in functions(module)]

    passes = [AddProgram(), DeadCode(), BreakPart()]
    with pytest.raises(CompileError, match=r"pass 'break-part' moved %\S+ of 'part'"):
        PassManager(passes, verify_each=probe_all).run(parse_module(CHAIN))
