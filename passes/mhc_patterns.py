"""The parts of an mHC site as chains of aten ops: expand, predictor, collapse with its norm (SPEC 3.2, 3.3, 2.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from dsv41c.ir.ops.custom import Sinkhorn
from dsv41c.ir.ops.torch_ops import ListConstruct
from dsv41c.ir.text import line_of
from dsv41c.passes.matching import NoMatch, dims, expect, match, match_cast, match_one, only_user, same, scalar

Part = TypeVar("Part")


@dataclass(frozen=True)
class Expand:
    """`streams` bf16 [T, n, d] = y spread by post, and h mixed by comb."""

    y: SSAValue
    h: SSAValue
    post: SSAValue
    comb: SSAValue
    streams: SSAValue


@dataclass(frozen=True)
class Predictor:
    """The mixes `pre`, `post` and `comb` from streams h."""

    h: SSAValue
    fn: SSAValue
    base: SSAValue
    scale: SSAValue
    iterations: int
    eps: float
    mix_eps: float
    pre: SSAValue
    post: SSAValue
    comb: SSAValue


@dataclass(frozen=True)
class Collapse:
    """The sublayer's input `x` bf16: streams h weighted by pre, at `rows` or at all, and normalized.

    Attributes:
        mixing: the op that reads pre, with its first operand.
        alone: whether nothing else reads the streams.
    """

    h: SSAValue
    pre: SSAValue
    rows: SSAValue | None
    weight: SSAValue
    norm_eps: float
    x: SSAValue
    mixing: Operation
    alone: bool


@dataclass
class Parts:
    """All parts of one program, in program order; the streams say which belong together.

    Attributes:
        misses: for each predictor that does not match, its op and why.
    """

    expands: dict[SSAValue, Expand]
    predictors: dict[SSAValue, Predictor]
    collapses: list[Collapse]
    misses: list[str]


def find_parts(func: FuncOp) -> Parts:
    """Find the parts of all sites of a program."""
    misses: list[str] = []
    predictors = _found(match_predictor, (op.result for op in func.body.block.ops if isinstance(op, Sinkhorn)), misses)
    casts = [op.results[0] for op in func.body.block.ops if op.name == "torch.aten.to.dtype"]
    expands = {part.streams: part for part in _found(match_expand, casts)}
    collapses = _found(match_collapse, casts)
    return Parts(expands, {part.h: part for part in predictors}, collapses, misses)


def _found(
    pattern: Callable[[SSAValue], Part], roots: Iterable[SSAValue], misses: list[str] | None = None
) -> list[Part]:
    parts = []
    for root in roots:
        try:
            parts.append(pattern(root))
        except NoMatch as reason:
            if misses is not None and isinstance(root.owner, Operation):
                misses.append(f"{line_of(root.owner)}: {reason}")
    return parts


def match_expand(streams: SSAValue) -> Expand:
    """Match `(post[..., None] * y[:, None] + sum_j comb[:, j, :, None] * h[:, j, None]).to(bf16)`."""
    spread, mixed = match(match_cast(streams, torch.bfloat16), "add.Tensor", ..., ..., 1)
    post, y = match(spread, "mul.Tensor", ..., ...)
    comb, h = match(_match_sum_in_order(mixed), "mul.Tensor", ..., ...)
    return Expand(
        y=match_cast(match_one(y, "unsqueeze", ..., 1), torch.float32),
        h=match_cast(match_one(h, "unsqueeze", ..., 2), torch.float32),
        post=match_one(post, "unsqueeze", ..., -1),
        comb=match_one(comb, "unsqueeze", ..., -1),
        streams=streams,
    )


def match_collapse(x: SSAValue) -> Collapse:
    """Match the norm of `sum_k pre[:, k, None] * h[:, k]`, whose bf16 value nothing else reads."""
    collapsed, weight, norm_eps = _match_norm(x)
    summed = match_cast(collapsed, torch.bfloat16)
    weighted = _match_sum_in_order(summed)
    mix, wide = match(weighted, "mul.Tensor", ..., ...)
    pre, h = match_one(mix, "unsqueeze", ..., -1), match_cast(wide, torch.float32)
    expect(len(dims(h)) == 3, "expected streams of three dimensions")
    rows, read, mixing = None, [wide, h], mix.owner
    if isinstance(h.owner, Operation) and h.owner.name == "torch.aten.index.Tensor_hacked_twin":
        mixing = pre.owner
        (h, rows), (pre, pre_rows) = _match_rows(h), _match_rows(pre)
        same([rows, pre_rows], "list of rows")
        read.append(h)
    assert isinstance(mixing, Operation)
    alone = all(len(list(value.uses)) == 1 for value in read)
    return Collapse(h, pre, rows, weight, norm_eps, x, mixing, alone)


def match_predictor(comb: SSAValue) -> Predictor:
    """Match the three mixes from the last op of one, the Sinkhorn normalization."""
    assert isinstance(comb.owner, Sinkhorn)
    n = dims(comb)[1]
    if not isinstance(n, int):
        raise NoMatch(f"expected a number of streams, found {n}")
    affine = match_one(comb.owner.logits, "unflatten.int", ..., -1, [n, n])
    m, base, scale = _match_affine(affine, 2, (2 * n, (2 + n) * n))
    eps = comb.owner.eps.value.data
    pre, post = only_user(_mix(m, 0, n), "add.Scalar"), only_user(_mix(m, n, 2 * n), "mul.Scalar")
    of_pre = _match_affine(_sigmoid(match_one(pre, "add.Scalar", ..., eps, 1)), 0, (0, n))
    of_post = _match_affine(_sigmoid(match_one(post, "mul.Scalar", ..., 2)), 1, (n, 2 * n))
    for own, others in zip((m, base, scale), zip(of_pre, of_post, strict=True), strict=True):
        same([own, *others], "projection, base and scale of the three mixes")
    h, fn, mix_eps = _match_projection(m)
    iterations = comb.owner.iterations.value.data
    return Predictor(h, fn, base, scale, iterations, eps, mix_eps, pre, post, comb)


def _sigmoid(value: SSAValue) -> SSAValue:
    return match_one(value, "sigmoid", ...)


def _mix(m: SSAValue, start: int, end: int) -> SSAValue:
    """Follow the sigmoid of one mix, from the projection down."""
    for use in m.uses:
        op = use.operation
        if op.name != "torch.aten.slice.Tensor" or [scalar(v) for v in op.operands[1:]] != [-1, start, end, 1]:
            continue
        return only_user(only_user(only_user(op.results[0], "mul.Tensor"), "add.Tensor"), "sigmoid")
    raise NoMatch(f"expected a slice {start} to {end} of the projection, found none")


def _match_affine(value: SSAValue, part: int, columns: tuple[int, int]) -> tuple[SSAValue, SSAValue, SSAValue]:
    """Match `m[:, a:b] * scale[part] + base[a:b]` and give m, base, scale."""
    scaled, own_base = match(value, "add.Tensor", ..., ..., 1)
    own, own_scale = match(scaled, "mul.Tensor", ..., ...)
    start, end = columns
    m = match_one(own, "slice.Tensor", ..., -1, start, end, 1)
    scale = match_one(own_scale, "slice.Tensor", ..., 0, part, part + 1, 1)
    return m, match_one(own_base, "slice.Tensor", ..., 0, start, end, 1), scale


def _match_projection(m: SSAValue) -> tuple[SSAValue, SSAValue, float]:
    """Match `(fn . v) * rsqrt(mean(v^2) + eps)` over the flattened streams v and give the streams, fn, eps."""
    projected, factor = match(m, "mul.Tensor", ..., ...)
    row, fn = match(match_cast(projected, torch.float32), "linear", ..., ..., None)
    squared, eps = _match_statistic(factor)
    flat = same([match_cast(row, torch.float64), match_cast(squared, torch.float32)], "row of streams")
    return match_one(flat, "flatten.using_ints", ..., 1, -1), match_cast(fn, torch.float64), eps


def _match_statistic(factor: SSAValue) -> tuple[SSAValue, float]:
    """Match `rsqrt(mean(v^2) + eps)` and give v, eps."""
    mean, eps, _ = match(match_one(factor, "rsqrt", ...), "add.Scalar", ..., ..., ...)
    squared = match_one(match_one(mean, "mean.dim", ..., [-1], True, None), "square", ...)
    return squared, float(scalar(eps))


def _match_norm(x: SSAValue) -> tuple[SSAValue, SSAValue, float]:
    """Match an RMS norm whose input nothing else reads and give that input, the weight, eps."""
    weight, normalized = match(match_cast(x, torch.bfloat16), "mul.Tensor", ..., ...)
    wide, factor = match(normalized, "mul.Tensor", ..., ...)
    squared, eps = _match_statistic(factor)
    same([wide, squared], "input of the norm")
    collapsed = match_cast(wide, torch.float32)
    expect(len(list(wide.uses)) == 2, "expected an input that only the norm reads")
    expect(len(list(collapsed.uses)) == 1, "expected a collapsed value that only the norm reads")
    return collapsed, match_cast(weight, torch.float32), eps


def _match_sum_in_order(value: SSAValue) -> SSAValue:
    """Match the sum over dimension 1, first to last, squeezed, and give what is summed."""
    total = match_one(match_one(value, "squeeze.dim", ..., 1), "unsqueeze", ..., 1)
    last: list[SSAValue] = []
    while isinstance(total.owner, Operation) and total.owner.name == "torch.aten.add.Tensor":
        total, summand = match(total, "add.Tensor", ..., ..., 1)
        last.append(summand)
    selected = [match_one(summand, "select.int", ..., 1, i) for i, summand in enumerate([total, *reversed(last)])]
    summed = same(selected, "summed value")
    expect(dims(summed)[1] == len(selected), f"expected a sum of {dims(summed)[1]} streams, found {len(selected)}")
    return summed


def _match_rows(value: SSAValue) -> tuple[SSAValue, SSAValue]:
    """Match `x[rows]` and give x, rows."""
    x, index = match(value, "index.Tensor_hacked_twin", ..., ...)
    expect(isinstance(index.owner, ListConstruct) and len(index.owner.operands) == 1, "expected rows by one index")
    assert isinstance(index.owner, ListConstruct)
    return x, index.owner.operands[0]
