"""Runs passes and does what is the same for all: verify, dump, time, count, note origins, compare, bisect."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation

from dsv41c.errors import CompileError, IRError
from dsv41c.ir.builder import ORIGIN, functions
from dsv41c.ir.interpreter import Interpreter, WeightSource
from dsv41c.ir.names import clone_module, value_names
from dsv41c.ir.ops.torch_ops import is_constant
from dsv41c.ir.shapes import Memo
from dsv41c.ir.text import line_of, print_module
from dsv41c.ir.verify import verify
from dsv41c.passes.pass_base import STAGES, Pass, PassContext, PassResult, Tolerance

STAGE = "dsv41.stage"


@dataclass(frozen=True)
class ProbeCase:
    """One run of a function on small inputs, the same before and after a pass."""

    function: str
    inputs: Mapping[str, torch.Tensor]
    weights: WeightSource


Probe = Callable[[ModuleOp], Sequence[ProbeCase]]


@dataclass(frozen=True)
class PassReport:
    """What one pass did: seconds of the pass alone, match counts, ops before and after."""

    name: str
    seconds: float
    changed: bool
    matches: Mapping[str, int]
    ops_before: int
    ops_after: int


@dataclass(frozen=True)
class _Move:
    """The first value that a pass moved: an inner one, or an output when no inner value is in both programs."""

    value: str
    detail: str
    is_output: bool

    def text(self, function: str, line: str) -> str:
        where = "func.return (no inner value of that name is in both programs)" if self.is_output else line
        return f"%{self.value} of '{function}' {self.detail}\n  in: {where}"


@dataclass
class PassManager:
    """Runs a pipeline on a module.

    Attributes:
        passes: in order.
        ctx: given to every pass.
        dump_dir: where `00_input.mlir`, `01_dead-code.mlir`, ... go; None for no dumps.
        skip: names of passes to leave out, for bisection by hand.
        verify_each: gives small inputs for the programs; each pass is then interpreted before and after and compared.
        on_pass: called after each pass with its report and the module, e.g. to print it.
        verifies: whether the module is verified before the first pass and after each.
        reports: filled by `run`, one a pass.
    """

    passes: Sequence[Pass]
    ctx: PassContext = field(default_factory=PassContext)
    dump_dir: Path | None = None
    skip: frozenset[str] = frozenset()
    verify_each: Probe | None = None
    on_pass: Callable[[PassReport, ModuleOp], None] | None = None
    verifies: bool = True
    reports: list[PassReport] = field(default_factory=list)

    def run(self, module: ModuleOp) -> ModuleOp:
        """Run the passes on a copy of the module and give the copy.

        Raises:
            IRError: the module does not verify, before the first pass or after one, which the message names.
            CompileError: a pass refused the program, matched another count than it expects, or moved a value.
        """
        module = clone_module(module)
        memo: Memo | None = {} if self.verifies else None
        self.reports.clear()
        if memo is not None:
            verify(module, memo)
        self._dump(0, "input", module)
        comparison = _Comparison(module, self.verify_each) if self.verify_each else None
        for number, pass_ in enumerate((p for p in self.passes if p.name not in self.skip), start=1):
            report = run_pass(pass_, module, self.ctx, memo)
            self.reports.append(report)
            self._dump(number, pass_.name, module)
            if comparison is not None:
                comparison.check(pass_, module)
            if self.on_pass is not None:
                self.on_pass(report, module)
        return module

    def _dump(self, number: int, name: str, module: ModuleOp) -> None:
        if self.dump_dir is None:
            return
        self.dump_dir.mkdir(parents=True, exist_ok=True)
        (self.dump_dir / f"{number:02d}_{name}.mlir").write_text(print_module(module))


def run_pass(pass_: Pass, module: ModuleOp, ctx: PassContext, memo: Memo | None) -> PassReport:
    """Run one pass on a verified module, in place; check its stage and counts, note origins and verify the result.

    Args:
        memo: of the verifier; None does not verify.

    Raises:
        CompileError, IRError: as in `PassManager.run`.
    """
    _check_stage(pass_, module)
    wanted = pass_.expects(module, ctx)
    ops = list(module.walk())
    start = time.perf_counter()
    result = _run(pass_, module, ctx)
    seconds = time.perf_counter() - start
    _check_matches(pass_, wanted, result)
    # `ops` keeps the old ops alive, so that no new op has the identity of an old one.
    _note_origins(pass_, module, set(map(id, ops)))
    if pass_.produces is not None:
        module.attributes[STAGE] = StringAttr(pass_.produces)
    if memo is not None:
        _verify_after(pass_, module, memo)
    ops_after = sum(1 for _ in module.walk())
    return PassReport(pass_.name, seconds, result.changed, dict(result.matches), len(ops), ops_after)


def _verify_after(pass_: Pass, module: ModuleOp, memo: Memo) -> None:
    try:
        verify(module, memo)
    except IRError as error:
        raise IRError(f"after pass '{pass_.name}': {error}") from error


def _run(pass_: Pass, module: ModuleOp, ctx: PassContext) -> PassResult:
    try:
        return pass_.run(module, ctx)
    except CompileError as error:
        raise CompileError(f"pass '{pass_.name}': {error}") from error


def stage_of(module: ModuleOp) -> str:
    """Give the stage a module is in."""
    stage = module.attributes.get(STAGE)
    return stage.data if isinstance(stage, StringAttr) else STAGES[0]


def _check_stage(pass_: Pass, module: ModuleOp) -> None:
    if stage_of(module) not in pass_.requires:
        wanted = " or ".join(pass_.requires)
        raise CompileError(f"pass '{pass_.name}' takes a module at stage {wanted}; this one is at {stage_of(module)}")


def _check_matches(pass_: Pass, wanted: Mapping[str, int] | None, result: PassResult) -> None:
    for pattern, count in (wanted or {}).items():
        if result.matches.get(pattern, 0) != count:
            found = result.matches.get(pattern, 0)
            raise CompileError(f"pass '{pass_.name}' matched '{pattern}' {found} times; this program has {count}")


def _note_origins(pass_: Pass, module: ModuleOp, old: set[int]) -> None:
    for op in module.walk():
        if id(op) in old or is_constant(op) or not op.results:
            continue
        origin = op.attributes.get(ORIGIN)
        parts = origin.data.split(", ") if isinstance(origin, StringAttr) else []
        if not parts or parts[-1] != pass_.name:
            op.attributes[ORIGIN] = StringAttr(", ".join([*parts, pass_.name]))


class _Comparison:
    """Interprets a module after each pass, and compares with what it gave before.

    Args:
        module: verified, before the first pass.
        probe: gives what to run.
    """

    def __init__(self, module: ModuleOp, probe: Probe) -> None:
        self._probe = probe
        self._start(module)

    def _start(self, module: ModuleOp) -> None:
        self._cases = self._probe(module)
        self._runs = [_interpret(module, case) for case in self._cases]

    def check(self, pass_: Pass, module: ModuleOp) -> None:
        """Compare after a pass.

        Raises:
            CompileError: a value moved by more than the pass may, or the program no longer runs.
        """
        if not pass_.comparable:
            self._start(module)
            return
        try:
            runs = [_interpret(module, case) for case in self._cases]
        except IRError as error:
            raise CompileError(f"after pass '{pass_.name}' the program does not run: {error}") from error
        for case, before, after in zip(self._cases, self._runs, runs, strict=True):
            move = _first_move(before, after, pass_.tolerance)
            if move is not None:
                line = _lines(module, case.function).get(move.value, "an outlined function")
                raise CompileError(f"pass '{pass_.name}' moved {move.text(case.function, line)}")
        self._runs = runs
        if pass_.extends:
            self._start(module)


@dataclass(frozen=True)
class _Run:
    """What a program gave: its inner values by their name in the text, and its outputs, final caches included."""

    values: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]


def _interpret(module: ModuleOp, case: ProbeCase) -> _Run:
    values: dict[str, torch.Tensor] = {}
    funcs = functions(module)
    if case.function not in funcs:
        raise CompileError(f"function '{case.function}' is gone; a pass that removes programs must not be comparable")
    outputs = Interpreter(case.weights, values.__setitem__).run(funcs[case.function], case.inputs)
    return _Run(values, outputs)


def _first_move(before: _Run, after: _Run, tolerance: Tolerance) -> _Move | None:
    """Find the first value that differs, in the order of `after`; None when all outputs agree within the tolerance.

    Outputs decide whether anything moved; inner values, which are the same when they have the same name, say where.
    """
    bad = next(
        (name for name, value in after.outputs.items() if _differ(before.outputs.get(name), value, tolerance)), None
    )
    if bad is None:
        return None
    for name, value in after.values.items():
        if name in before.values and (detail := _differ(before.values[name], value, tolerance)):
            return _Move(name, detail, is_output=False)
    return _Move(bad, _differ(before.outputs.get(bad), after.outputs[bad], tolerance), is_output=True)


def _lines(module: ModuleOp, function: str) -> dict[str, str]:
    names = value_names(functions(module)[function].body.block)
    lines: dict[str, str] = {}
    for value, name in names.items():
        if isinstance(value.owner, Operation):
            lines[name] = line_of(value.owner)
    return lines


def _differ(before: torch.Tensor | None, after: torch.Tensor, tolerance: Tolerance) -> str:
    """Say how two values differ, or nothing when they do not."""
    if before is None:
        return "is new"
    if before.shape != after.shape or before.dtype != after.dtype:
        return f"was {before.dtype} {list(before.shape)} and is {after.dtype} {list(after.shape)}"
    if tolerance == Tolerance() or not before.is_floating_point():
        same = _bytes(before) == _bytes(after)
        return "" if torch.all(same) else f"differs in {int((~same).sum())} of {same.numel()} bytes"
    old, new = before.to(torch.float64), after.to(torch.float64)
    close = torch.isclose(new, old, rtol=tolerance.relative, atol=tolerance.absolute, equal_nan=True)
    return "" if torch.all(close) else f"differs by up to {(new - old).abs().nan_to_num(float('inf')).max():.3g}"


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8)


def first_bad_pass(
    passes: Sequence[Pass], module: ModuleOp, is_good: Callable[[ModuleOp], bool], ctx: PassContext | None = None
) -> Pass | None:
    """Find by bisection the first pass after which a module is bad.

    Args:
        is_good: asked about the module after a prefix of the passes; once bad it must stay bad.

    Returns:
        That pass, or None when the module is good after all passes.
    """

    def good_after(count: int) -> bool:
        return is_good(PassManager(passes[:count], ctx or PassContext()).run(module))

    if good_after(len(passes)):
        return None
    low, high = 0, len(passes)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good_after(middle) else (low, middle)
    return passes[low]
