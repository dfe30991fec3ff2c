"""The other custom ops by their own definitions, for a target whose compiler could not take them."""

from __future__ import annotations

from torch import Tensor

from dsv41c.models import ops, quant
from dsv41c.runtime.kernels.binding import plain


def _linear_fp8(x: Tensor, weight: Tensor, scale: Tensor, groups: int) -> Tensor:
    return ops.linear_definition(x, quant.dequantize_weight(weight, scale), groups).contiguous()


BINDINGS = {
    "quantize": plain(quant.quantize),
    "dequantize": plain(quant.dequantize),
    "fake_quantize": plain(quant.fake_quantize),
    "dequantize_weight": plain(quant.dequantize_weight),
    "linear_fp8": plain(_linear_fp8),
    "sinkhorn": plain(ops.sinkhorn_definition),
    "select_experts": plain(ops.select_experts_definition),
    "ngram_hash": plain(ops.ngram_hash_definition),
}
