"""Symptom: recall drops at long context (1CatAI/1Cat-vLLM#250, second part).

Cause: the relu on each head's dot product is missing, so heads that dislike an entry outvote those that look for it.

Why this input: entry 0 has a dot product of 2 with one head and -2 with three; with the relu its score is 2, without it
-4, below the entries that no head cares for.
"""

from selection import selections


def test_heads_with_negative_products_do_not_vote() -> None:
    for chosen in selections([2.0, 0.5, 0.5, 0.5, 0.5], k=1, heads=(1.0, -1.0, -1.0, -1.0)):
        assert chosen == [0]
