"""One query over a cache of given scores, through both selections, each as reference and as kernel."""

from collections.abc import Iterator

import torch
from torch import Tensor

from dsv41c.models import ops, quant
from dsv41c.runtime.kernels import index_topk
from dsv41c.runtime.kernels.binding import LaunchContext

DIM, PAGE = 32, 16


def selections(scores: list[float], k: int, heads: tuple[float, ...] = (1.0,)) -> Iterator[list[int]]:
    """The entries that a query chooses whose dot product with entry j is `scores[j]`, from each implementation.

    Args:
        scores: of each entry, exact in e2m1 (0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives).
        heads: the weight of each head; a head's dot product is its sign's.
    """
    width = quant.FORMATS["fp4_e8m0"].row_bytes(DIM)
    # Behind the given ones a decoy that would win: it is not visible, or visible and not in the pool.
    stored = [*scores, 6.0]
    n_pages = -(-len(stored) // PAGE)
    cache = torch.full((n_pages, PAGE * width), 0x7F, dtype=torch.uint8)
    keys = torch.zeros(len(stored), DIM, dtype=torch.bfloat16)
    # The largest code in every row gives all rows one scale, and the query does not look at it.
    keys[:, 1], keys[:, 0] = 6.0, torch.tensor(stored)
    ops.store(cache, quant.quantize(keys, "fp4_e8m0"), torch.arange(len(stored)), "fp4_e8m0", PAGE)
    query = torch.zeros(1, len(heads), DIM, dtype=torch.bfloat16)
    query[0, :, 0] = torch.tensor(heads).sign()
    weights = torch.tensor([heads], dtype=torch.bfloat16).abs()
    arguments: list[Tensor | None] = [query, weights, cache, torch.arange(n_pages).unsqueeze(0)]
    seen, more = [torch.tensor([0]), torch.tensor([len(scores) - 1])], [torch.tensor([0]), torch.tensor([len(scores)])]
    constants = tuple(cache if i == 2 else None for i in range(7))
    attributes = {"ratio": 1, "k": k, "page": PAGE, "block": 4, "n_blocks": 0}
    whole = [*arguments, *seen, None]
    yield ops.index_topk(*whole, *attributes.values())[0][0].tolist()
    yield index_topk.bind(LaunchContext(attributes, constants))(whole)[0][0].tolist()
    attributes = {"ratio": 1, "k": k, "page": PAGE, "block": 1}
    pooled = [*arguments, *more, torch.arange(len(scores), dtype=torch.int32).unsqueeze(0)]
    yield ops.index_pool_topk(*pooled, *attributes.values())[0].tolist()
    yield index_topk.bind_pool(LaunchContext(attributes, constants))(pooled)[0][0].tolist()
