"""What the op of a kernel costs by the IR's rule, for tensors that a test has at hand."""

from collections.abc import Sequence

from torch import Tensor

from dsv41c.ir.builder import FunctionBuilder, module_of
from dsv41c.ir.cost import cost_of
from dsv41c.ir.ops.table import Cost
from dsv41c.ir.types import CacheType, TensorType, element_of

Value = Tensor | CacheType | None


def rule(op: str, operands: Sequence[Value], results: Sequence[Value], **attributes: int | float | str) -> Cost:
    """The cost of `dsv41.<op>` with operands and results of these sizes.

    Args:
        operands, results: in the op's order; tensors stand for their types. attributes: as the op takes them.
    """
    given = {f"operand_{number}": _type(value) for number, value in enumerate(operands) if value is not None}
    builder = FunctionBuilder("rule", given, {"N": (1, 1 << 20), "S": (1, 1 << 20)})
    values = [builder.args.get(f"operand_{number}") for number in range(len(operands))]
    made = builder.dsv41(op, values, [_type(result) for result in results], attributes)
    function = builder.finish({f"result_{number}": value for number, value in enumerate(made)})
    module_of([function])
    return next(cost for one, cost in cost_of(function, {"N": 1, "S": 1}).ops if one is made[0].owner)


def _type(value: Value) -> TensorType | CacheType:
    assert value is not None
    return value if isinstance(value, CacheType) else TensorType.of(tuple(value.shape), element_of(value.dtype))
