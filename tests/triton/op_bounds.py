"""How close values of a device program must be to the IR interpreter's, by the op: the bounds of the table."""

import torch
from tolerances import BF16_ROUGH_SHARE, BF16_ULPS, FP32_SUM, ROTARY_ABSOLUTE, TRITON
from torch import Tensor

_GEMM = ("linear_bf16", "linears")
_ROWS = {"moe": TRITON["experts"], "attend": TRITON["sparse_attention split"]}


def assert_bf16_close(ours: Tensor, theirs: Tensor) -> None:
    """Within the bound of bf16 values of one op."""
    steps = (ours.view(torch.int16).int() - theirs.view(torch.int16).int()).abs()
    assert steps.max() <= BF16_ULPS
    assert (steps > 1).float().mean() <= BF16_ROUGH_SHARE


def assert_within_bounds(kernel: str, ours: Tensor, theirs: Tensor) -> None:
    """Lists, bytes and what is only rounded again are equal; sums are within the bound of their family.

    Args:
        kernel: a custom op, or a region: aten ops, with exp among them, whose bf16 results are rounded once.
    """
    a, b = (value.double() for value in (ours, theirs))
    if not theirs.is_floating_point() or theirs.numel() == 0:
        assert torch.equal(ours, theirs), kernel
    elif kernel == "rotary":
        assert (a - b).abs().max() <= ROTARY_ABSOLUTE
    elif kernel in _ROWS:
        assert (a - b).norm() <= _ROWS[kernel].relative * b.norm(), kernel
    elif kernel in _GEMM:
        rounding = TRITON["gemm"].relative if theirs.dtype == torch.bfloat16 else 0.0
        assert ((a - b).abs() <= rounding * b.abs() + FP32_SUM * b.abs().mean()).all(), kernel
    elif theirs.dtype == torch.float32:
        assert ((a - b).norm(dim=-1) <= TRITON["mhc"].relative * b.norm(dim=-1)).all(), kernel
    elif kernel.startswith("region") or kernel == "sparse_attention":
        assert_bf16_close(ours, theirs)
    else:
        assert torch.equal(ours, theirs), kernel
