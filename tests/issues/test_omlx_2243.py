"""Symptom: another set of entries in each run, and replicas that disagree (omlx#2243, vllm#54394, sglang#31115).

Cause: equal scores are taken in the order in which atomic counters hand out places.

Why this input: 100 exact ties lie at the cut, of which 30 fit. The rule is the lowest index first, in every run.
"""

from selection import selections

K = 40


def test_ties_at_the_cut_go_to_the_lowest_index_every_time() -> None:
    scores = [2.0] * 10 + [0.5] * 30 + [1.0] * 100 + [0.5] * 60
    for _ in range(20):
        for chosen in selections(scores, K):
            assert chosen == [*range(10), *range(40, 70)]
