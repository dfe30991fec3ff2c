"""What generated row programs call: torch's arithmetic where Triton's own differs, and sums in torch's order."""

import triton
import triton.language as tl


@triton.jit
def divide(x, y):
    """x / y in fp32, rounded to nearest."""
    return tl.div_rn(x, y)


@triton.jit
def square_root(x):
    """The root of fp32, rounded to nearest."""
    return tl.sqrt_rn(x)


@triton.jit
def inverse_square_root(x):
    """1 / sqrt(x) of fp32, both rounded to nearest."""
    return tl.div_rn(1.0, tl.sqrt_rn(x))


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)) of fp32."""
    return tl.div_rn(1.0, 1.0 + tl.exp(-x))


@triton.jit
def softplus(x, threshold):
    """log(1 + exp(x)) of fp32, x itself beyond the threshold; exact where exp(x) vanishes against 1."""
    grown = tl.exp(tl.minimum(x, threshold))
    one_more = 1.0 + grown
    # log1p: what rounding 1 + e took away is put back in first order.
    logarithm = tl.where(one_more == 1.0, grown, tl.log(one_more) * tl.div_rn(grown, one_more - 1.0))
    return tl.where(x > threshold, x, logarithm)


@triton.jit
def floor_divide(x, y):
    """Integers divided, rounded down."""
    quotient = x // y
    return quotient - ((x - quotient * y != 0) & ((x < 0) != (y < 0))).to(x.dtype)


@triton.jit
def remainder(x, y):
    """What `floor_divide` leaves; its sign is that of y. A divisor of 0, as in masked places, counts as 1."""
    y = tl.where(y == 0, y + 1, y)
    rest = x % y
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@triton.jit
def sum_in_order(x, place, AXIS: tl.constexpr, COUNT: tl.constexpr):
    """The sum along an axis of few places, added from the first to the last; `place` counts along it."""
    total = tl.sum(tl.where(place == 0, x, 0.0), axis=AXIS, keep_dims=True)
    for k in tl.static_range(1, COUNT):
        total += tl.sum(tl.where(place == k, x, 0.0), axis=AXIS, keep_dims=True)
    return total
