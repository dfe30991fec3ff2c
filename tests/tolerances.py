"""Every numeric bound of the tests, with its source; "README" is golden/README.md, "Tolerance advice".

Where nothing is named here a test is exact: bytes, ids, selections, masks, and values that only pass through tables.
"""

from dataclasses import dataclass

# fp32 values of one op on golden inputs, relative; README, "gate weights and logits from golden hidden".
FP32_RELATIVE = 2e-6

# Sinkhorn, relative; README (its own distance to fp64 is 2.4e-6).
SINKHORN_RELATIVE = 5e-6

# cos and sin, absolute; README.
ROTARY_ABSOLUTE = 1e-6

# bf16 values of one op on golden inputs; README, "within 1 bf16 ulp, rarely 2".
BF16_ULPS = 2
BF16_ROUGH_SHARE = 0.01  # our reading of "rarely": the share of values that may be 2 ulps away

# A layer that gets golden streams: relative L2 of a row, its worst and its median; README, "Suggested limit".
LAYER_ROW = 1e-2
LAYER_MEDIAN = 3e-3

# Logits of a run without rounding flips, absolute; README, the fp64 row of mini6 p17 (3e-06).
UNFLIPPED_LOGITS = 3e-6

# Route weights of such a run, relative, where a single bf16 of the router's input flipped and fp8 rounding of the
# experts' input took the flip away again. Not in the README; the worst seen is 2.3e-4 (mini6 p17).
FLIPPED_ROUTE = 5e-4

# Prompts with flips in few rows, and the largest logit difference of such a row: twice what is seen. The README's fp64
# rows for mini6 p33 and p100 (0.011, 0.72) and sched40 p100 (2.3) show no less. All other rows are as UNFLIPPED_LOGITS.
NEAR_LOGITS = {
    ("mini6", "p7"): 8e-4,
    ("mini6", "p33"): 0.022,
    ("mini6", "p100"): 0.62,
    ("sched40", "p100"): 0.18,
}
NEAR_SELECTIONS = 2 / 300  # rows of their selections that may differ; README, the fp64 row of mini6 p100

# Row gaps under which two right implementations may select differently; README, "Suggested limit".
LOOSE_SELECTION_ULPS = 4

# Decode steps behind a prefill: largest logit difference of a row, its median over the steps. Twice the README's own
# "prefill vs `pub` decode" (mini6 p17 0.12 median 0.06, p100 0.17 and 0.04; sched40 p100 0.17), which is what is seen.
STEP_LOGITS = 0.34
STEP_MEDIAN = 0.12


@dataclass(frozen=True)
class WholeModel:
    """What still compares after rounding flips have spread through a whole model.

    Attributes:
        argmax: least share of rows whose best token agrees; README.
        median: most that the largest logit difference of a row may be, median over rows (logit std is 3); README.
        selections: most rows of a top-k, a route or a candidate pool that may differ; README, the worst fp64 row
            (sched40 p100, 219 of 800).
        state: relative L2 of a cached row or of main_hidden, median over rows. Not in the README: its median of 0.8
            over a logit std of 3 would be 0.27; the worst seen is 0.08 (sched40 p17 after prefill), 0.12 after its
            24 decode steps from our own prefill.
    """

    argmax: float = 0.90
    median: float = 0.8
    selections: float = 219 / 800
    state: float = 0.15


WHOLE_MODEL = WholeModel()

# A draft block on golden rings, absolute; not in the README. Bf16 flips inside a block reach 0.07 in mini6's logits
# (std 3) and 0.023 in its confidences here, and no draft id changes; the bound is twice that.
DRAFT_LOGITS = 0.14
DRAFT_CONFIDENCE = 0.05


@dataclass(frozen=True)
class FamilyBound:
    """How far a family of Triton kernels may be from its reference, on values that random inputs give.

    Attributes:
        relative: error of a value by its size; where it says so, of a row or a tensor in L2.
        same: least share of values that are the reference's to the bit.
    """

    relative: float
    same: float = 0.0


# Families that are not named are exact: indexer, cache writers, norms, rotations, and every quantizer; and so are
# penalties, cuts and choices of the sampling kernels. Not in the README: kernels add in another order than torch.
TRITON = {
    # One rounding of an fp32 sum to bf16; beside it the sum's own error, FP32_SUM of the mean magnitude.
    "gemm": FamilyBound(2.0**-8, 0.99),
    # Three products and a rounding between them; of a row in L2, seen 1.5e-3.
    "experts": FamilyBound(3e-3, 0.98),
    # The mixes behind Sinkhorn, as SINKHORN_RELATIVE: sums of 20480 products tile by tile.
    "mhc": FamilyBound(SINKHORN_RELATIVE),
    # Shares of the keys have maxima of their own; of all outputs in L2, seen 1.2e-3. Unsplit: BF16_ULPS.
    "sparse_attention split": FamilyBound(3e-3),
    # exp and its quotient differ in their last bit, which a rounding to bf16 or fp8 rarely shows.
    "cache_rows tail": FamilyBound(2.0**-8, 0.999),
    "engram gate": FamilyBound(2.0**-8, 0.999),
    # Sums in another order than torch, rounded to bf16, one ulp; fp32 results: FP32_RELATIVE.
    "row_programs": FamilyBound(2.0**-7, 0.99),
    # exp and log of fp32.
    "sampling logprobs": FamilyBound(1e-6),
}
# fp32 sums of a few hundred to 20480 products in another order, relative to the mean magnitude of the sums.
FP32_SUM = 1e-5
