"""Symptom: a misleading assertion, or a path that was never meant (flashinfer#4336, #4541; spark-vllm-docker#319).

Cause: a finite table of (heads, top-k) pairs picks the kernel; a draft block asks for 256 or 192 and is not in it.

Why this input: heads from 1 (one a rank) to 64 with 12 among them, by top-k from 5 to 512 with 12 and 192 among them,
none of which a tile divides. Each pair has a kernel on every target; those on the diagonals run against the reference.
What is not there is refused with what is.
"""

import pytest
from op_bounds import assert_bf16_close
from test_attention_kernels import Case

from dsv41c.compiler.codegen.triton.kernels import sparse_attention
from dsv41c.compiler.codegen.triton.targets import TARGETS
from dsv41c.errors import CompileError

HEADS, TOPK = (1, 2, 4, 8, 12, 16, 64), (5, 8, 12, 128, 192, 256, 512)
PAIRS = [*zip(HEADS, TOPK, strict=True), *zip(HEADS, reversed(TOPK), strict=True)]


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("topk", TOPK)
def test_every_pair_has_a_kernel_on_every_target(heads: int, topk: int) -> None:
    kernel = sparse_attention.attend("attend", heads, 64, (16, 128, 8448), (topk, 64, 2304))
    programs = [kernel.programs(tile, {"n_rows": 3, "n_splits": 1}) for tile in kernel.tiles]
    blocks = [int(tile.holes["BLOCK_HEADS"]) for tile in kernel.tiles]
    assert programs == [(3, -(-heads // block), 1) for block in blocks]
    assert all(any(target.startswith(tile.targets) for tile in kernel.tiles) for target in TARGETS)


@pytest.mark.parametrize(("heads", "topk"), PAIRS)
def test_pairs_that_no_tile_divides(heads: int, topk: int) -> None:
    case = Case(heads, 32, 16, topk, tokens=1)
    assert_bf16_close(case.run(), case.expected())


@pytest.mark.parametrize("channels", [48, 16, 0])
def test_other_widths_are_refused_by_name(channels: int) -> None:
    with pytest.raises(CompileError, match=rf"heads of 32, 64, 128, \.\.\. channels, not {channels}: .*'head_dim'"):
        sparse_attention.attend("attend", 4, channels, (16, 128, 8448), (8, 64, 2304))
