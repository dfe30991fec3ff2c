"""The other custom ops by their own definitions, for a target whose compiler could not take them."""

from __future__ import annotations

from dsv41c.models import ops, quant
from dsv41c.runtime.kernels.binding import plain

BINDINGS = {
    "quantize": plain(quant.quantize),
    "dequantize": plain(quant.dequantize),
    "fake_quantize": plain(quant.fake_quantize),
    "dequantize_weight": plain(quant.dequantize_weight),
    "sinkhorn": plain(ops.sinkhorn_definition),
    "select_experts": plain(ops.select_experts_definition),
    "ngram_hash": plain(ops.ngram_hash_definition),
    "sparse_attention": plain(ops.sparse_attention_definition),
}
