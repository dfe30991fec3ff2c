"""Makes one op of a main KV entry: RoPE, FP4 quantization, packing and store."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp

from dsv41c.passes.cache_rows import expected_rows, lower_rows
from dsv41c.passes.pass_base import Pass, PassContext, PassResult


@dataclass(frozen=True)
class LowerFp4Kv(Pass):
    """Makes one op of a main KV entry: RoPE, FP4 quantization, packing and store.

    What:
        %r = the rotation of %latent (14 ops)
        %rows = dsv41.quantize %r {row_format = "fp4_e4m3"} : ...
        %new = dsv41.store %main.2, %rows, %slots {row_format = "fp4_e4m3", page = 64} : ...
          ->  %new = dsv41.write_rows %main.2, %latent, %cos, %sin, none, %slots {norm_eps = 0.0, ...} : ...

    Why: an entry is read once and its 288 bytes are written once; nothing of it is in memory in between. The norm stays
    outside: the index keys are made of the same latent.

    Needs: `ctx.define`, whose definition of dsv41.pack_rows is the pattern.

    Does not handle: rows that something besides the store reads; with `store=false` the store stays an op for targets
    that store by a kernel of the runtime, and the rest becomes dsv41.pack_rows.
    """

    name: ClassVar[str] = "lower-fp4-kv"
    store: bool = True

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Lower all main KV entries; counts `row` and `store`."""
        return lower_rows(module, ctx, "main", has_norm=False, stores=self.store)

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """Every store to a main cache matches."""
        return expected_rows(module, ctx, "main", stores=self.store)
