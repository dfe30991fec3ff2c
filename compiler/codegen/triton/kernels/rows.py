"""Whole rows inside kernels: sums in torch's order, RMS norm, rotation of adjacent channels (SPEC 2.1, 2.6)."""

import triton
import triton.language as tl

# How torch adds up a row, see models/ops.py: eight lanes in four chains, sixteen steps a group.
_LANES = tl.constexpr(8)
_CHAINS = tl.constexpr(4)
_GROUP = tl.constexpr(16)


@triton.jit
def sum_in_chains(x, ROWS: tl.constexpr, D: tl.constexpr):
    """fp32 [ROWS, D] to its row sums [ROWS], added as `models.ops.sum_in_chains` adds; D a power of two from 32 on.

    A compiler keeps this order only where it keeps an axis inside a thread; then, and in the interpreter, the sum is
    torch's to the bit.
    """
    STEPS: tl.constexpr = D // (_LANES * _CHAINS)
    if STEPS > _GROUP:
        grouped = tl.sum(tl.reshape(x, (ROWS, STEPS // _GROUP, _GROUP, _LANES * _CHAINS)), axis=2)
        chains = tl.sum(grouped, axis=1)
    else:
        chains = tl.sum(tl.reshape(x, (ROWS, STEPS, _LANES * _CHAINS)), axis=1)
    return sum_of_chains(chains, ROWS)


@triton.jit
def sum_of_chains(chains, ROWS: tl.constexpr):
    """The last additions of `sum_in_chains`: its 32 partial sums fp32 [ROWS, 32] to [ROWS]."""
    lanes = tl.sum(tl.reshape(chains, (ROWS, _CHAINS, _LANES)), axis=1)
    # Splitting gives even and odd places, so three splits give the bits of a lane's number from the lowest on.
    even, odd = tl.split(tl.reshape(lanes, (ROWS, 2, 2, 2)))
    zero_four, two_six = tl.split(even)
    one_five, three_seven = tl.split(odd)
    zero, four = tl.split(zero_four)
    two, six = tl.split(two_six)
    one, five = tl.split(one_five)
    three, seven = tl.split(three_seven)
    return ((((((zero + one) + two) + three) + four) + five) + six) + seven


@triton.jit
def inverse_root(total, COUNT: tl.constexpr, eps):
    """1 / sqrt(total / COUNT + eps), rounded as IEEE division and root round."""
    mean = tl.div_rn(total, tl.full(total.shape, COUNT, tl.float32))
    return tl.div_rn(tl.full(total.shape, 1.0, tl.float32), tl.sqrt_rn(mean + eps))


@triton.jit
def rotate_pairs(even, odd, cos, sin, rotated):
    """Turns pairs where `rotated`, with one rounding to bf16; all are fp32 [ROWS, pairs], cos and sin too."""
    first = (even * cos - odd * sin).to(tl.bfloat16).to(tl.float32)
    second = (even * sin + odd * cos).to(tl.bfloat16).to(tl.float32)
    return tl.where(rotated, first, even), tl.where(rotated, second, odd)
