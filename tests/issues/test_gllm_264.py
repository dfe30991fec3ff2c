"""Symptom: decoding waits for launches, not for memory (gLLM#264, prime-rl#3558, MTPLX#216).

Cause: Sinkhorn and the small ops around it run as kernels of their own, twenty iterations of them at each site.

Why this input: sched40 has the released model's layers, and so its launches. A Reuse layer is the one that repeats: 30
of 40. Others take 15 launches for it in prefill and 11 in decode; this is held to what the plan promises, 11 and 9.
"""

from pathlib import Path

import pytest

from dsv41c.runtime.plan import Plan


@pytest.mark.parametrize(("form", "most"), [("prefill", 11), ("decode", 9)])
def test_launches_of_a_reuse_layer(sched40_plan: Path, form: str, most: int) -> None:
    plan = Plan.load(sched40_plan)
    assert plan.manifest.bill["kernels_per_layer"]["reuse"][form] <= most


def test_sinkhorn_is_no_kernel(sched40_plan: Path) -> None:
    """It is part of the region that needs its mix; so is everything else that works row by row."""
    plan = Plan.load(sched40_plan)
    known = {
        "attend",
        "experts",
        "index_pool_topk",
        "index_topk",
        "linears",
        "moe",
        "rotary",
        "sparse_attention",
        "store",
    }
    reference = {kernel.name for kernel in plan.manifest.kernels if kernel.kind == "reference"}
    assert reference <= known
