"""The memory bill of calls, and the pages that a budget of bytes leaves."""

from dataclasses import replace

import pytest
from hand_made import hand_made_manifest

from dsv41c.errors import RequestError
from dsv41c.models.config import ModelConfig
from dsv41c.runtime.bill import MemoryBill
from dsv41c.runtime.caches import CacheBook
from dsv41c.runtime.sizes import Sizes

PEAKS = [
    {"chunk": chunk, "context": context, "bytes": chunk * context + 100}
    for chunk in (1, 64)
    for context in (96, 192)
]  # fmt: skip
MANIFEST = replace(hand_made_manifest(), bill={"transient_peak_bytes": PEAKS}, memory={"weights": 5})
CONFIG = ModelConfig.from_dict(MANIFEST.model)


@pytest.mark.parametrize(
    ("rows", "context", "expected"),
    [(1, 96, 196), (1, 97, 292), (64, 96, 64 * 96 + 100), (32, 192, 32 * 192 + 100), (32, 500, 32 * 192 + 100)],
)
def test_a_call_takes_what_the_next_larger_one_on_the_bill_takes(rows: int, context: int, expected: int) -> None:
    assert MemoryBill(MANIFEST).transient(rows, context) == expected


def test_rows_beyond_the_bill_count_in_proportion() -> None:
    assert MemoryBill(MANIFEST).transient(128, 96) == 2 * (64 * 96 + 100)
    assert MemoryBill(hand_made_manifest()).transient(128, 96) == 0, "a plan without a bill of transients"


def test_a_budget_of_bytes_is_shared_out() -> None:
    sizes, bill = Sizes(MANIFEST, CONFIG, 2, 32), MemoryBill(MANIFEST)
    book = CacheBook(MANIFEST.state, 16, 0, 2)
    fixed = bill.transient(32, 192) + 2 * book.ring_bytes
    assert sizes.pages(None, fixed + 3 * book.page_bytes, bill) == 3
    assert sizes.pages(48, fixed + 3 * book.page_bytes, bill) == 3
    assert sizes.pages(None, None, bill) == 2 * 192 // 16
    with pytest.raises(RequestError, match=r"cache_tokens 49 takes 4 pages of 2048 bytes, .* leaves room for 3"):
        sizes.pages(49, fixed + 3 * book.page_bytes, bill)
    with pytest.raises(
        RequestError, match=rf"memory_bytes is {fixed}; a call of 32 tokens takes 6244 bytes, the rings"
    ):
        sizes.pages(None, fixed, bill)
