"""Makes one op of each mHC site: expand, predictor, collapse and norm in one pass over the streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from dsv41c.errors import CompileError
from dsv41c.ir.builder import ORIGIN, FunctionBuilder, attribute, functions
from dsv41c.ir.effects import cache_writes
from dsv41c.ir.names import set_name
from dsv41c.ir.ops.mhc import MhcEnter, MhcLeave, MhcSite
from dsv41c.ir.text import line_of
from dsv41c.ir.types import TensorType
from dsv41c.passes.matching import dims
from dsv41c.passes.mhc_patterns import Collapse, Expand, Parts, find_parts
from dsv41c.passes.pass_base import Pass, PassContext, PassResult

MEANING = "dsv41.changed_meaning"
PROGRAM = "step"
# Ops that read the sizes of an operand and not its values.
_OF_SIZES = {f"torch.aten.{name}" for name in ("size.int", "zeros_like", "ones_like", "full_like", "empty_like")}


@dataclass(frozen=True)
class DelayMhc(Pass):
    """Makes one op of each mHC site: expand, predictor, collapse and norm in one pass over the streams.

    What:
        %h1 = bf16(%post * %y + sum_j %comb[j] * %h[j])                expand      (13 aten ops)
        %pre1, %post1, %comb1 = mixes of (%fn . %h1), mean(%h1^2)      predictor   (31)
        %c = bf16(sum_k %pre[k] * %h1[k])                              collapse    (11)
        %x = bf16(%weight * %c * rsqrt(mean(%c^2) + eps))              norm        (8)
          ->  %h1, %x, %pre1, %post1, %comb1 =
                  dsv41.mhc_site %y, %h, %post, %comb, %pre, %fn, %base, %scale, %weight {iterations = 20, ...} : ...

        without an expand, where the streams come from the embedding or from Engram:
          ->  %x, %pre1, %post1, %comb1 = dsv41.mhc_enter %h, %pre, %fn, %base, %scale, %weight {...} : ...
        without a predictor, behind the last sublayer, at the rows that are wanted:
          ->  %x = dsv41.mhc_leave %y, %h, %post, %comb, %pre, %weight, %rows {...} : ...

    Why: a site must read n streams and the sublayer's output, and write n streams and the next input: 2n + 2 rows. Four
    kernels read and write 4n + 4 (SPEC 3.7). A single pass collapses each tile of the new streams as it is made, and
    adds it to the predictor's dot products and to both sums of squares; the mixes are finished by their consumer.

    Needs: equal values to be one value. It is legal because the collapse uses the mix of the site before, which is
    known when the pass over the streams begins: %pre must not depend on %h1. A graph whose collapse uses its own site's
    mix (the V4 form, SPEC 3.6) is refused. `force=true` rewires it to the mix of the site before, the first one to
    stream 0 alone: another model, so it is counted as `rewired`, and the function says it in `dsv41.changed_meaning`.

    Does not handle: sites in other forms, which stay; in a traced `step` each of the config's must match, or the pass
    says what it expected. Before Engram the expand stays plain ops: Engram changes the streams behind it, so the site
    is in two parts, and row fusion joins the expand with Engram's gate, which reads what it writes. The same where
    `split-ced` cuts a site: `encode` returns the streams and the input, and the predictor is `tail`'s. A target
    layer's capture reads the new streams and stays outside. With `force`, `--verify-each` reports the change that was
    asked for.
    """

    name: ClassVar[str] = "delay-mhc"
    force: bool = False

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Rewrite all sites; counts them by program, and those whose mix is another now as `rewired`.

        Raises:
            CompileError: a collapse uses its own site's mix, or a site of a traced model does not match.
        """
        wanted = self.expects(module, ctx) or {}
        counts: dict[str, int] = {"rewired": 0} if self.force else {}
        for name, func in functions(module).items():
            rewired = _rewire(func, self.force)
            if self.force:
                counts["rewired"] += rewired
            parts = find_parts(func)
            counts[name] = _Rewrite(func, parts).run()
            if counts[name] < wanted.get(name, 0) and parts.misses:
                raise CompileError(
                    f"{counts[name]} of the {wanted[name]} sites of '{name}' have the form that is supported; "
                    f"the first other one is {parts.misses[0]}; write it as models/hyper_connections.py does"
                )
        return PassResult(any(counts.values()), counts)

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """Two sites a layer and the last collapse in the traced step; parts of it have no rule of their own."""
        if ctx.config is None or PROGRAM not in functions(module):
            return None
        return {PROGRAM: 2 * ctx.config.num_hidden_layers + 1}


def _rewire(func: FuncOp, force: bool) -> int:
    """Give collapses that use their own site's mix that of the site before, or refuse them; gives their number."""
    parts, order = find_parts(func), _Order.of(func)
    sites = [part for part in parts.collapses if part.h in parts.expands or part.h in parts.predictors]
    own = [part for part in sites if order.depends(part.pre, part.h)]
    if own and not force:
        raise CompileError(
            f"the collapse of streams %{own[0].h.name_hint} uses the mix %{own[0].pre.name_hint}, which is computed "
            "from these streams; one pass over the streams is possible only with the mix of the site before: trace a "
            "model with the delayed mix, leave delay-mhc out, or change the model's meaning with "
            "delay-mhc{force=true}\n"
            f"  in: {line_of(own[0].mixing)}"
        )
    used = _used(func)
    for collapse in own:
        before = [part for part in parts.predictors.values() if order.place(part.comb) < order.place(collapse.h)]
        latest = max(before, key=lambda part: order.place(part.comb), default=None)
        collapse.mixing.operands[0] = latest.pre if latest else _first_mix(func, collapse.h)
    _erase_unused(func, used)
    if own:
        note = f"delay-mhc: {len(own)} collapses take the mix of the site before instead of their own"
        func.attributes[MEANING] = StringAttr(note)
    return len(own)


def _first_mix(func: FuncOp, h: SSAValue) -> SSAValue:
    """Stream 0 alone, as `models.hyper_connections.first_mix`, computed directly behind the streams."""
    rows, n, _ = dims(h)
    assert isinstance(n, int)
    builder = FunctionBuilder("first_mix", {}, {})

    def mix(columns: int) -> list[TensorType]:
        return [TensorType.of([rows, columns], "f32")]

    (column,) = builder.aten("select.int", [h, -1, 0], [TensorType.of([rows, n], "bf16")])
    (zeros,) = builder.aten("zeros_like", [column], mix(n), dtype=torch.float32)
    (first,) = builder.aten("slice.Tensor", [zeros, 1, 0, 1, 1], mix(1))
    (one,) = builder.aten("add.Scalar", [first, 1, 1], mix(1))
    (rest,) = builder.aten("slice.Tensor", [zeros, 1, 1, n, 1], mix(n - 1))
    (result,) = builder.aten("cat", [[one, rest], -1], mix(n), names=["first_mix"])
    block = func.body.block
    anchor = h.owner.next_op if isinstance(h.owner, Operation) else block.first_op
    assert anchor is not None
    for op in list(builder.block.ops):
        op.detach()
        block.insert_op_before(op, anchor)
    return result


def _used(func: FuncOp) -> set[Operation]:
    """The ops whose results have a reader."""
    return {op for op in func.body.block.ops if any(result.first_use for result in op.results)}


def _erase_unused(func: FuncOp, used: set[Operation]) -> None:
    """Erase those of `used` that have no reader any more."""
    for op in reversed(list(func.body.block.ops)):
        if op in used and not cache_writes(op) and not any(result.first_use for result in op.results):
            op.detach()
            op.erase()


@dataclass
class _Order:
    """The places of the ops in a program."""

    places: dict[Operation, int]

    @classmethod
    def of(cls, func: FuncOp) -> _Order:
        """The order of a program as it is."""
        return cls({op: number for number, op in enumerate(func.body.block.ops)})

    def place(self, value: SSAValue) -> int:
        """The place of the op that makes a value; that of arguments is before all."""
        return self.places[value.owner] if isinstance(value.owner, Operation) else -1

    def depends(self, value: SSAValue, source: SSAValue) -> bool:
        """Whether a value is computed from the values of another one."""
        seen, waiting = {value}, [value]
        while waiting:
            found = waiting.pop()
            if found is source:
                return True
            # What stands before the source cannot need it.
            owner = found.owner
            if isinstance(owner, Operation) and owner.name not in _OF_SIZES and self.place(found) > self.place(source):
                waiting += [operand for operand in owner.operands if operand not in seen]
                seen.update(owner.operands)
        return False


class _Rewrite:
    """Rewrites the sites of one program."""

    def __init__(self, func: FuncOp, parts: Parts) -> None:
        self.func, self.parts, self.order = func, parts, _Order.of(func)
        self.new: dict[SSAValue, SSAValue] = {}  # results of the new ops by what they replace

    def run(self) -> int:
        """Rewrite, and give the number of sites."""
        used = _used(self.func)
        sites = sum(self._rewrite(collapse) for collapse in self.parts.collapses)
        _erase_unused(self.func, used)
        return sites

    def _rewrite(self, collapse: Collapse) -> bool:
        expand, predictor = self.parts.expands.get(collapse.h), self.parts.predictors.get(collapse.h)
        attributes: dict[str, int | float] = {"norm_eps": collapse.norm_eps}
        if predictor is None:
            if expand is None or not collapse.alone:
                return False
            operands = [*_before(expand), collapse.pre, collapse.weight]
            return self._replace(MhcLeave, [*operands, collapse.rows], [collapse.x], attributes)
        if collapse.rows is not None:
            return False
        attributes |= {"iterations": predictor.iterations, "eps": predictor.eps, "mix_eps": predictor.mix_eps}
        own = [collapse.pre, predictor.fn, predictor.base, predictor.scale, collapse.weight]
        old = [collapse.x, predictor.pre, predictor.post, predictor.comb]
        if expand is None:
            return self._replace(MhcEnter, [collapse.h, *own], old, attributes)
        return self._replace(MhcSite, [*_before(expand), *own], [expand.streams, *old], attributes)

    def _replace(
        self,
        kind: type[MhcSite | MhcEnter | MhcLeave],
        operands: Sequence[SSAValue | None],
        old: Sequence[SSAValue],
        attributes: Mapping[str, int | float],
    ) -> bool:
        """Put an op in the place of those that give `old`; it stands where the first of them stood."""
        anchor = min(
            (value.owner for value in old if isinstance(value.owner, Operation)), key=self.order.places.__getitem__
        )
        operands = [None if value is None else self.new.get(value, value) for value in operands]
        if any(self.order.place(value) >= self.order.places[anchor] for value in operands if value is not None):
            return False
        ordered = {name: attribute(attributes[name]) for name in kind.ARGUMENTS}
        op = kind.from_slots(operands, [value.type for value in old], ordered)
        if ORIGIN in anchor.attributes:
            op.attributes[ORIGIN] = anchor.attributes[ORIGIN]
        self.func.body.block.insert_op_before(op, anchor)
        self.order.places[op] = self.order.places[anchor] - 1
        for value, result in zip(old, op.results, strict=True):
            set_name(result, value.name_hint)
            value.replace_all_uses_with(result)
            self.new[value] = result
        return True


def _before(expand: Expand) -> list[SSAValue]:
    """What a site takes from before: the sublayer's output, the streams, and how to expand them."""
    return [expand.y, expand.h, expand.post, expand.comb]
