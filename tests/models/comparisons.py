"""Comparisons of tensors; each fails with the numbers it saw. Bounds come from tests/tolerances.py."""

from dataclasses import dataclass

import torch
from tolerances import BF16_ROUGH_SHARE, BF16_ULPS, LAYER_MEDIAN, LAYER_ROW, WHOLE_MODEL
from torch import Tensor


def assert_bits(ours: Tensor, expected: Tensor, what: str = "") -> None:
    """Equal bit for bit, so -0 is not 0 and equal NaNs agree."""
    assert (ours.shape, ours.dtype) == (expected.shape, expected.dtype), what
    bits = {2: torch.int16, 4: torch.int32}.get(ours.element_size(), torch.uint8)
    if not ours.is_floating_point():
        bits = ours.dtype
    different = (ours.contiguous().view(bits) != expected.contiguous().view(bits)).sum().item()
    assert different == 0, f"{what}: {different} of {ours.numel()} values differ"


def assert_relative(ours: Tensor, expected: Tensor, bound: float, what: str = "") -> None:
    """Each value within `bound` of the expected one, relative to it."""
    assert ours.shape == expected.shape, what
    excess = ((ours - expected).abs() - bound * expected.abs()).max().item()
    assert excess <= 0, f"{what}: beyond {bound} relative by {excess}"


def assert_absolute(ours: Tensor, expected: Tensor, bound: float, what: str = "") -> None:
    """Each value within `bound` of the expected one."""
    assert ours.shape == expected.shape, what
    worst = (ours - expected).abs().max().item()
    assert worst <= bound, f"{what}: off by {worst}, bound {bound}"


def assert_ulps(ours: Tensor, expected: Tensor, what: str = "") -> None:
    """bf16 values of one op: within 1 ulp, rarely 2."""
    distance = (_ordered(ours) - _ordered(expected)).abs()
    rough = (distance > 1).float().mean().item()
    seen = f"{what}: {int(distance.max())} ulps at most, {rough:.2%} above one"
    assert distance.max() <= BF16_ULPS, seen
    assert rough <= BF16_ROUGH_SHARE, seen


def _ordered(x: Tensor) -> Tensor:
    """bf16 to integers that count representable values; both zeros are 0."""
    bits = x.contiguous().view(torch.int16).to(torch.int32)
    return torch.where(bits < 0, -32768 - bits, bits)


def row_error(ours: Tensor, expected: Tensor) -> Tensor:
    """Relative L2 of each row, fp64 [rows]; a row of zeros on both sides is 0."""
    assert ours.shape == expected.shape
    ours, expected = ours.double().flatten(1), expected.double().flatten(1)
    return (ours - expected).norm(dim=1) / expected.norm(dim=1).clamp(min=1e-300)


def assert_rows(ours: Tensor, expected: Tensor, bound: float, what: str = "") -> None:
    """Each row within `bound` in relative L2: for fp32 products, whose single values may cancel to nearly nothing."""
    worst = row_error(ours, expected).max().item()
    assert worst <= bound, f"{what}: row error {worst:.2g}, bound {bound}"


def assert_layer(ours: Tensor, expected: Tensor, what: str = "") -> None:
    """A value inside a layer that got golden streams."""
    error = row_error(ours, expected)
    seen = f"{what}: worst row {error.max().item():.2g}, median {error.median().item():.2g}"
    assert error.max() <= LAYER_ROW, seen
    assert error.median() <= LAYER_MEDIAN, seen


def assert_whole_logits(ours: Tensor, expected: Tensor, what: str = "") -> None:
    """Logits fp32 [rows, vocab] of a whole model, after rounding flips have spread."""
    assert ours.shape == expected.shape, what
    agreement = (ours.argmax(-1) == expected.argmax(-1)).float().mean().item()
    median = (ours - expected).abs().amax(-1).median().item()
    seen = f"{what}: argmax agrees in {agreement:.1%} of rows, median of the largest difference {median:.3g}"
    assert agreement >= WHOLE_MODEL.argmax, seen
    assert median < WHOLE_MODEL.median, seen


def assert_whole_state(ours: Tensor, expected: Tensor, what: str = "") -> None:
    """Cached rows or hidden rows of a whole model, after rounding flips have spread."""
    if expected.numel() == 0:
        assert ours.shape == expected.shape, what
        return
    assert_median_row(ours, expected, WHOLE_MODEL.state, what)


def assert_median_row(ours: Tensor, expected: Tensor, bound: float, what: str = "") -> None:
    """The median row within `bound` in relative L2; 0 asks half of the rows to be equal."""
    median = row_error(ours, expected).median().item() if expected.numel() else 0.0
    assert median <= bound, f"{what}: median row error {median:.3g}"


@dataclass
class Changed:
    """Counts rows of selections that differ from the expected ones."""

    rows: int = 0
    total: int = 0

    def add(self, ours: Tensor, expected: Tensor) -> None:
        assert ours.shape == expected.shape
        self.rows += int((ours != expected).any(-1).sum())
        self.total += ours.shape[0]

    def check(self, share: float, what: str) -> None:
        assert self.rows <= share * self.total, f"{what}: {self.rows} of {self.total} rows differ"
