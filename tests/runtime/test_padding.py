"""Calls padded to a bucket give the numbers of the call itself, and write nothing more."""

from pathlib import Path

import pytest
import torch
from tolerances import STEP_LOGITS
from torch import Tensor

from dsv41c.errors import PlanError
from dsv41c.models.rows import Chunk, step_inputs
from dsv41c.runtime.caches import CachePool
from dsv41c.runtime.executor_cpu import CpuExecutor
from dsv41c.runtime.padding import bucket_for, pad
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.plan_format import Bucket, Program

_POISON = {torch.uint8: 0x7F, torch.float32: 12345.0, torch.int32: 12345}
BUCKETS = tuple(Bucket(rows, 0, {}) for rows in (1, 4, 16))


def program(buckets: tuple[Bucket, ...]) -> Program:
    return Program((), (), (), (), buckets=buckets)


@pytest.mark.parametrize(("rows", "wanted"), [(1, 1), (2, 4), (4, 4), (5, 16), (16, 16)])
def test_the_smallest_bucket_that_holds_the_call(rows: int, wanted: int) -> None:
    assert bucket_for(program(BUCKETS), rows).rows == wanted


def test_a_call_that_fits_none_is_refused() -> None:
    with pytest.raises(PlanError, match=r"a call of 17 rows fits no bucket; the plan has 1, 4, 16: .*--buckets 17"):
        bucket_for(program(BUCKETS), 17)
    with pytest.raises(PlanError, match=r"the plan has none"):
        bucket_for(program(()), 1)


def run(plan: Plan, bucket: Bucket | None) -> tuple[Tensor, dict[str, Tensor]]:
    """Three sequences: a prompt of 20 rows each, then a decode step; its logits, and the caches."""
    pool = CachePool(plan.manifest.state, plan.manifest.page_tokens, 8, 5)
    for cache in pool.tensors.values():
        cache.fill_(_POISON[cache.dtype])
    executor = CpuExecutor(plan, pool.tensors)
    prompts = [[5 + 7 * s + i for i in range(20)] for s in range(3)]
    pages = [[2 * s, 2 * s + 1] for s in range(3)]
    executor.run("step", step_inputs([Chunk(p, 0, s, pages[s]) for s, p in enumerate(prompts)], [19, 39, 59]))
    inputs = step_inputs([Chunk([9 + s], 20, s, pages[s]) for s in range(3)], [0, 1, 2])
    found = executor.run("step", pad(inputs, bucket) if bucket else inputs)["logits"]
    return found[:3], pool.tensors


def test_padded_rows_change_neither_logits_nor_caches(mini6_plan: Path) -> None:
    plan = Plan.load(mini6_plan)
    logits, caches = run(plan, None)
    padded_logits, padded_caches = run(plan, Bucket(8, 0, {}))
    # A product's rounding may depend on its number of rows: what one flipped bf16 does to logits, as in decoding.
    assert (padded_logits - logits).abs().max() <= STEP_LOGITS
    assert torch.equal(padded_logits.argmax(-1), logits.argmax(-1))
    for name, cache in caches.items():
        untouched = (cache == _POISON[cache.dtype]).flatten(1)
        kept = (padded_caches[name] == _POISON[cache.dtype]).flatten(1)
        assert untouched.any(), name
        # A page or ring that the call does not touch stays as it was, to the last byte.
        assert torch.equal(kept.all(1), untouched.all(1)), name
