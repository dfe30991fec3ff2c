"""Makes one op of a window row: norm, RoPE, FP8 quantization and packing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp

from dsv41c.passes.cache_rows import expected_rows, lower_rows
from dsv41c.passes.pass_base import Pass, PassContext, PassResult


@dataclass(frozen=True)
class LowerFp8Window(Pass):
    """Makes one op of a window row: norm, RoPE, FP8 quantization and packing.

    What:
        %n = the norm of %x (5 ops)
        %r = the rotation of %n (14 ops)
        %rows = dsv41.quantize %r {row_format = "fp8_e8m0"} : ...
        %y = dsv41.sparse_attention %q, %window.0, %rows, ... : ...
        %new = dsv41.store %window.0, %rows, %slots : ...
          ->  %rows = dsv41.pack_rows %x, %cos, %sin, %weight {norm_eps = 1.0e-20, row_format = "fp8_e8m0"} : ...
              (attention and store as they are)

    Why: a row of 512 channels is read and written once instead of once an op, and a kernel for it needs no form of its
    own for each model.

    Needs: `ctx.define`, whose definition of dsv41.pack_rows is the pattern.

    Does not handle: the store, which stays an op. Attention reads the ring before the chunk overwrites rows that its
    first rows still see, and takes the new rows as an operand.
    """

    name: ClassVar[str] = "lower-fp8-window"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Lower all window rows; counts `row` and `store`."""
        return lower_rows(module, ctx, "window", has_norm=True, stores=False)

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """Every store to a window cache matches."""
        return expected_rows(module, ctx, "window", stores=False)
