"""Makes one op of an index key: norm, RoPE, FP4 quantization, packing and store."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp

from dsv41c.passes.cache_rows import expected_rows, lower_rows
from dsv41c.passes.pass_base import Pass, PassContext, PassResult


@dataclass(frozen=True)
class LowerIndexK(Pass):
    """Makes one op of an index key: norm, RoPE, FP4 quantization, packing and store.

    What:
        %n = the norm of %k (5 ops)
        %r = the rotation of %n (14 ops)
        %rows = dsv41.quantize %r {row_format = "fp4_e8m0"} : ...
        %new = dsv41.store %index.2, %rows, %slots {row_format = "fp4_e8m0", page = 64} : ...
          ->  %new = dsv41.write_rows %index.2, %k, %cos, %sin, %weight, %slots {norm_eps = 1.0e-20, ...} : ...

    Why: a key is read once and its 68 bytes are written once; nothing of it is in memory in between.

    Needs: `ctx.define`, whose definition of dsv41.pack_rows is the pattern.

    Does not handle: rows that something besides the store reads; with `store=false` the store stays an op for targets
    that store by a kernel of the runtime, and the rest becomes dsv41.pack_rows.
    """

    name: ClassVar[str] = "lower-index-k"
    store: bool = True

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Lower all index keys; counts `row` and `store`."""
        return lower_rows(module, ctx, "index", has_norm=True, stores=self.store)

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """Every store to a index cache matches."""
        return expected_rows(module, ctx, "index", stores=self.store)
