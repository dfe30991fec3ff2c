"""Pages, rings and their bytes."""

import pytest
import torch
from hand_made import PAGE_TOKENS, hand_made_manifest

from dsv41c.errors import RequestError
from dsv41c.runtime.caches import CachePool


def pool(n_pages: int, n_rings: int, poison: bool = False) -> CachePool:
    return CachePool(hand_made_manifest().state, PAGE_TOKENS, n_pages, n_rings, poison)


def test_tensors_follow_the_state_table() -> None:
    caches = pool(5, 2)
    assert caches.tensors["main.3"].shape == (5, 768)  # 16 rows of 36 bytes, rounded up to 256
    assert caches.tensors["window.0"].shape == (2, 16 * 66)
    assert caches.tensors["history"].dtype == torch.int32
    assert all(cache.data_ptr() % 64 == 0 for cache in caches.tensors.values())
    assert caches.total_bytes == sum(cache.nbytes for cache in caches.tensors.values())


def test_pages_come_and_go() -> None:
    caches = pool(5, 2)
    first = caches.allot(33)
    assert (first.ring, first.pages) == (0, [0, 1, 2])
    second = caches.allot(32)
    assert (second.ring, second.pages) == (1, [3, 4])
    assert caches.used_bytes == caches.total_bytes
    with pytest.raises(RequestError, match=r"out of pages: 1 tokens need 1 pages of 16 tokens .* 0 of 5"):
        caches.allot(1)
    caches.release(first)
    assert caches.allot(20).pages == [0, 1]


def test_poison_covers_what_is_handed_out() -> None:
    caches = pool(2, 1, poison=True)
    caches.tensors["main.1"].zero_()
    caches.tensors["tail.1"].zero_()
    caches.allot(1)
    assert caches.tensors["main.1"].unique(dim=1).tolist() == [[0x7F], [0]]
    assert caches.tensors["tail.1"].isnan().all()
    assert caches.tensors["history"].unique().tolist() == [-1]
