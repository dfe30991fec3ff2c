"""The format whose values a tensor holds, where that says more than its type: bf16 tensors often hold fp8 values."""

from xdsl.ir import Operation, SSAValue

from dsv41c.ir.ops.aten import PREFIX, is_view
from dsv41c.ir.ops.custom import Dequantize, DequantizeWeight, FakeQuantize, LinearFp8
from dsv41c.ir.ops.products import Linears
from dsv41c.ir.types import FORMATS, TensorType

_PRODUCTS = {f"{PREFIX}{name}" for name in ("linear", "matmul", "mm", "bmm")}
_NAMES = {"e4m3": "fp8", "e2m1": "fp4"}


def value_format(value: SSAValue) -> str | None:
    """Give "fp8" or "fp4" for a tensor whose values come straight from quantization, else None.

    Looks through views that keep the type; the argument of a function tells nothing of where it came from.
    """
    owner = value.owner
    if not isinstance(owner, Operation):
        return None
    if isinstance(owner, FakeQuantize | Dequantize):
        return _NAMES.get(FORMATS[owner.row_format.data][0])
    if isinstance(owner, DequantizeWeight):
        return "fp8"
    if is_view(owner) and _element(owner.operands[0]) == _element(value):
        return value_format(owner.operands[0])
    return None


def product_precision(op: Operation) -> str | None:
    """Give the precision of a product whose weight and activations both hold packed formats' values, else None.

    Example: `torch.aten.linear(fake_quantize(x), dequantize_weight(w, s))` is "fp8_fp8": its result is that of fp8
    tensor cores. With plain bf16 activations it is a bf16 product, however the weight is stored.
    """
    packed = isinstance(op, Linears | LinearFp8)
    if op.name not in _PRODUCTS and not packed:
        return None
    quantizes = isinstance(op, Linears) and op.quantize.value.data == 1
    x = "fp8" if quantizes else value_format(op.operands[0])
    weight = "fp8" if packed else value_format(op.operands[1])
    if x is None or weight is None:
        return None
    # No unit multiplies fp8 weights with fp4 activations; those run as fp8.
    return f"{weight}_{x}" if weight == "fp4" else "fp8_fp8"


def _element(value: SSAValue) -> str | None:
    return value.type.element if isinstance(value.type, TensorType) else None
