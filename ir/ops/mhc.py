"""The sites of mHC as single ops (SPEC 3.7): what `delay-mhc` makes of the chains between sublayers."""

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.ir import Operation
from xdsl.irdl import (
    AttrSizedOperandSegments,
    attr_def,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from dsv41c.ir.ops.custom import CustomOp, run_reference, shaped
from dsv41c.ir.ops.table import Argument, Cost, Effect, OpRule, Shaped, moved_bytes
from dsv41c.ir.types import TensorType

Dims = tuple[int | str, ...]


class _SiteOp(CustomOp):
    def dims(self, name: str) -> Dims:
        """The sizes of an operand."""
        type_ = getattr(self, name).type
        assert isinstance(type_, TensorType)
        return type_.dims

    def check_sizes(self, **wanted: Dims) -> None:
        """Refuse operands of other sizes than the streams ask for."""
        for name, sizes in wanted.items():
            if self.dims(name) != sizes:
                raise VerifyException(
                    f"{self.name}: {name} has sizes {list(self.dims(name))}; "
                    f"streams of {list(self.dims('h'))} ask for {list(sizes)}"
                )

    def streams(self) -> tuple[int | str, int, int]:
        """Rows, streams and channels."""
        match self.dims("h"):
            case (rows, int(n), int(d)):
                return rows, n, d
        raise VerifyException(
            f"{self.name}: h has sizes {list(self.dims('h'))}; streams are [rows, n, d], where n and d are numbers"
        )

    def check_expand(self) -> None:
        """Check what an expand reads."""
        rows, n, d = self.streams()
        self.check_sizes(y=(rows, d), post=(rows, n), comb=(rows, n, n))

    def check_predictor(self) -> None:
        """Check what a predictor reads."""
        _, n, d = self.streams()
        mixes = (2 + n) * n
        self.check_sizes(fn=(mixes, n * d), base=(mixes,), scale=(3,))

    def check_collapse(self) -> None:
        """Check what collapse and norm read."""
        rows, n, d = self.streams()
        self.check_sizes(pre=(rows, n), weight=(d,))


@irdl_op_definition
class MhcSite(_SiteOp):
    """From a sublayer's output to the next one's input: streams bf16 [T, n, d], x bf16 [T, d], and the next mixes."""

    name = "dsv41.mhc_site"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("iterations", "eps", "mix_eps", "norm_eps")
    y = operand_def(TensorType)
    h = operand_def(TensorType)
    post = operand_def(TensorType)
    comb = operand_def(TensorType)
    pre = operand_def(TensorType)
    fn = operand_def(TensorType)
    base = operand_def(TensorType)
    scale = operand_def(TensorType)
    weight = operand_def(TensorType)
    iterations = attr_def(IntegerAttr)
    eps = attr_def(FloatAttr)
    mix_eps = attr_def(FloatAttr)
    norm_eps = attr_def(FloatAttr)
    new_streams = result_def(TensorType)
    x = result_def(TensorType)
    new_pre = result_def(TensorType)
    new_post = result_def(TensorType)
    new_comb = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        self.check_expand()
        self.check_predictor()
        self.check_collapse()


@irdl_op_definition
class MhcEnter(_SiteOp):
    """The same from streams as they stand: x bf16 [T, d] and the next mixes."""

    name = "dsv41.mhc_enter"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("iterations", "eps", "mix_eps", "norm_eps")
    h = operand_def(TensorType)
    pre = operand_def(TensorType)
    fn = operand_def(TensorType)
    base = operand_def(TensorType)
    scale = operand_def(TensorType)
    weight = operand_def(TensorType)
    iterations = attr_def(IntegerAttr)
    eps = attr_def(FloatAttr)
    mix_eps = attr_def(FloatAttr)
    norm_eps = attr_def(FloatAttr)
    x = result_def(TensorType)
    new_pre = result_def(TensorType)
    new_post = result_def(TensorType)
    new_comb = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        self.check_predictor()
        self.check_collapse()


@irdl_op_definition
class MhcLeave(_SiteOp):
    """The same without new mixes, at `rows` where they are given: x bf16 [R, d]."""

    name = "dsv41.mhc_leave"
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("norm_eps",)
    y = operand_def(TensorType)
    h = operand_def(TensorType)
    post = operand_def(TensorType)
    comb = operand_def(TensorType)
    pre = operand_def(TensorType)
    weight = operand_def(TensorType)
    rows = opt_operand_def(TensorType)
    norm_eps = attr_def(FloatAttr)
    x = result_def(TensorType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        self.check_expand()
        self.check_collapse()
        if self.rows is not None and len(self.dims("rows")) != 1:
            raise VerifyException(f"{self.name}: rows has sizes {list(self.dims('rows'))}; it is a list of rows")


def _mix_shapes(h: Shaped) -> list[Argument]:
    rows, n, d = h.shape
    mix = Shaped((rows, n), "f32")
    return [Shaped((rows, d), "bf16"), mix, mix, Shaped((rows, n, n), "f32")]


def _site_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    h = shaped(operands[1])
    return [h, *_mix_shapes(h)]


def _enter_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    return _mix_shapes(shaped(operands[0]))


def _leave_shape(op: Operation, operands: Sequence[Argument]) -> list[Argument]:
    y, rows = shaped(operands[0]), operands[6]
    return [y if rows is None else Shaped((shaped(rows).shape[0], y.shape[1]), "bf16")]


def _expand_flops(rows: int, n: int, d: int) -> int:
    # Each new value: n + 1 products and n sums.
    return rows * n * d * (2 * n + 1)


def _collapse_flops(rows: int, n: int, d: int) -> int:
    # Each channel: n products and n - 1 sums, then the norm's square, sum and two products.
    return rows * d * (2 * n - 1 + 4)


def _predictor_flops(op: MhcSite | MhcEnter, rows: int, n: int, d: int) -> dict[str, int]:
    # A product and a sum for each mix and value, and for the statistic. An iteration of Sinkhorn normalizes rows and
    # columns: a sum and a division each.
    sinkhorn = 4 * op.iterations.value.data * rows * n * n
    return {"f64": 2 * rows * (2 + n) * n * n * d, "f32": 2 * rows * n * d + sinkhorn}


def _site_cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    assert isinstance(op, MhcSite)
    sizes = _streams(operands[1])
    flops = {"f32": _expand_flops(*sizes) + _collapse_flops(*sizes)}
    own = Cost(moved_bytes(operands), moved_bytes(results), flops)
    return own + Cost(flops=_predictor_flops(op, *sizes))


def _enter_cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    assert isinstance(op, MhcEnter)
    sizes = _streams(operands[0])
    own = Cost(moved_bytes(operands), moved_bytes(results), {"f32": _collapse_flops(*sizes)})
    return own + Cost(flops=_predictor_flops(op, *sizes))


def _leave_cost(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    *rows_of, weight, rows = operands
    _, n, d = _streams(operands[1])
    wanted, given = shaped(results[0]).shape[0], shaped(operands[0]).shape[0]
    # Only the wanted rows are read.
    read = moved_bytes(rows_of) // given * wanted + moved_bytes([weight, rows])
    flops = _expand_flops(wanted, n, d) + _collapse_flops(wanted, n, d)
    return Cost(read, moved_bytes(results), {"f32": flops})


def _streams(h: Argument) -> tuple[int, int, int]:
    rows, n, d = shaped(h).shape
    return rows, n, d


RULES = [
    OpRule(MhcSite, shape=_site_shape, effect=Effect(), cost=_site_cost, reference=run_reference),
    OpRule(MhcEnter, shape=_enter_shape, effect=Effect(), cost=_enter_cost, reference=run_reference),
    OpRule(MhcLeave, shape=_leave_shape, effect=Effect(), cost=_leave_cost, reference=run_reference),
]
