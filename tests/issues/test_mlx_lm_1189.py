"""Two reports of one pull request (mlx-lm#1189).

First symptom: a needle is lost after a chunked prefill. Cause: index keys are kept for the current chunk only, and
decode steps see rows of zeros. Why this input: three chunks of 16 tokens, then one token; the selections of the third
chunk and of the token must reach entries of the first, and be those of one chunk.

Second symptom: decode differs from prefill (also omlx#2271). Cause: the compressor forgets its waiting tokens between
steps. Why this input: prompts around the window's size (16) and the group's (2), with the last one to three tokens fed
one by one.
"""

from itertools import pairwise

import pytest
import torch
from golden_model import golden, recorded
from tolerances import STEP_LOGITS

W = 16
LENGTHS = [1, 2, 3, 4, 5, W - 1, W, W + 1, 2 * W - 1, 2 * W, 2 * W + 1, 3 * W - 1, 3 * W]


def selections_of(chunks: list[list[int]]) -> dict[str, torch.Tensor]:
    """The top-k of the last row, by layer."""
    model = golden("mini6")
    session = model.session()
    for chunk in chunks:
        with recorded(model.backbone) as record:
            session.forward({0: chunk})
    return {key: value[-1] for key, value in record.values.items() if key.startswith("topk")}


@pytest.mark.parametrize("last", [[3 * W], [2 * W, 3 * W], [3 * W, 3 * W + 1]])
def test_selections_reach_all_of_the_history(last: list[int]) -> None:
    ids = golden("mini6").ids("p100")[: last[-1]]
    cuts = [0, W, 2 * W, *last]
    chunked = selections_of([ids[a:b] for a, b in pairwise(cuts) if a < b])
    whole = selections_of([ids])
    for key, chosen in chunked.items():
        assert torch.equal(chosen, whole[key]), key
    # Ratio 1 and 2: entries below W // 2 belong to the first chunk in any layer.
    assert any(((chosen >= 0) & (chosen < W // 2)).any() for chosen in chunked.values())


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("length", LENGTHS)
def test_prefill_is_prefill_and_decode(length: int, steps: int) -> None:
    """Row counts choose other product kernels; the golden README measures the flips of that."""
    model = golden("mini6")
    ids = model.ids("p100")[:length]
    whole, _ = model.session().forward({0: ids})
    session = model.session()
    head = max(0, length - steps)
    if head:
        session.forward({0: ids[:head]})
    rows = [session.forward({0: [token]})[0][0] for token in ids[head:]]
    difference = (torch.cat(rows) - whole[0][head:]).abs()
    assert difference.amax(-1).median() <= STEP_LOGITS
