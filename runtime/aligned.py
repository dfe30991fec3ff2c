"""Host memory that compiled kernels of any kind can share."""

from __future__ import annotations

from collections.abc import Sequence

import torch

ALIGNMENT = 64  # bytes; IREE refuses to import host memory that starts elsewhere


def aligned_empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised contiguous tensor whose memory starts at a multiple of 64 bytes.

    Torch's own CPU allocator aligns to 64 bytes today, without promising it; this does not rely on that.

    Args:
        shape: its sizes.
        dtype: its element type.
    """
    tensor = torch.empty(tuple(shape), dtype=dtype)
    if tensor.data_ptr() % ALIGNMENT == 0:
        return tensor
    n_bytes = tensor.nbytes
    raw = torch.empty(n_bytes + ALIGNMENT, dtype=torch.uint8)
    start = -raw.data_ptr() % ALIGNMENT
    return raw[start : start + n_bytes].view(dtype).view(tuple(shape))
