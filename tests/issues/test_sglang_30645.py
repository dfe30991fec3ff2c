"""Symptom: -1 inside a top-k, out-of-bounds reads, a set that is not the top-k (sglang#30645, #35257).

Cause: a buffer for 1024 ties; the indexer's relu makes thousands of scores exactly zero, and they overflow it.

Why this input: 50 positive scores among 1,200 and a k of 512, so 462 of 1,150 equal zeros must be taken. The right set
is the positives and the zeros of the lowest index.
"""

from selection import selections

K, ENTRIES = 512, 1200
POSITIVE = list(range(7, ENTRIES, 24))


def test_a_plateau_of_zeros_is_filled_from_the_lowest_index() -> None:
    scores = [0.5 if entry in POSITIVE else -1.0 for entry in range(ENTRIES)]
    assert len(POSITIVE) == 50
    zeros = [entry for entry in range(ENTRIES) if entry not in POSITIVE]
    for chosen in selections(scores, K):
        assert chosen == sorted(POSITIVE + zeros[: K - len(POSITIVE)])
