"""Pages, rings and their bytes."""

import json

import pytest
import torch
from hand_made import GOLDEN, PAGE_TOKENS, hand_made_manifest

from dsv41c.errors import RequestError
from dsv41c.models.config import ModelConfig
from dsv41c.models.state import draft_state_specs, state_specs
from dsv41c.runtime.caches import Allotment, CacheBook, CachePool


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


def test_a_million_tokens_of_the_released_model_take_the_bytes_of_its_rows() -> None:
    """By the allocator's own count: 890 B a token of global caches and 2,906,112 B of windows a sequence."""
    config = ModelConfig.from_dict(json.loads((GOLDEN / "released" / "config.json").read_text()))
    specs = state_specs(config) + draft_state_specs(config)
    tokens = 1 << 20
    book = CacheBook(specs, 128, tokens // 128, 1)
    book.allot(tokens)
    assert book.pages.held == tokens // 128
    rings = sum(spec.page_bytes for spec in specs if spec.pool == "rings")
    assert book.used_bytes - rings == 890 * tokens
    assert sum(spec.page_bytes for spec in specs if spec.kind == "window") == 2_906_112
    assert book.used_bytes == book.total_bytes == book.bytes_for(tokens)


def fill(caches: CachePool, page: int, value: int) -> None:
    caches.write_page(page, {name: torch.full_like(row, value) for name, row in caches.read_page(page).items()})


def values(caches: CachePool, page: int) -> set[int]:
    return {int(row.unique()) for row in caches.read_page(page).values()}


def forked(caches: CachePool, first: Allotment, length: int, tokens: int) -> Allotment:
    second = caches.allot(caches.own_tokens(tokens, length))
    caches.fork(first, second, length)
    return second


def test_a_fork_shares_full_pages_and_has_its_own_page_and_ring_to_write_on() -> None:
    caches = pool(8, 3)
    first = caches.allot(5 * PAGE_TOKENS)
    for at, page in enumerate(first.pages):
        fill(caches, page, at + 1)
    caches.tensors["history"][first.ring] = 7
    second = forked(caches, first, 2 * PAGE_TOKENS + 3, 5 * PAGE_TOKENS)
    assert second.pages[:2] == first.pages[:2]
    assert not set(second.pages[2:]) & set(first.pages)
    assert [values(caches, page) for page in second.pages[:3]] == [{1}, {2}, {3}]
    assert caches.tensors["history"][second.ring].unique().tolist() == [7]
    with pytest.raises(RequestError, match=r"out of pages: .* need 3 pages .* 0 of 8 pages and 1 of 3 slots"):
        forked(caches, first, 2 * PAGE_TOKENS + 3, 5 * PAGE_TOKENS)
    caches.release(first)
    assert caches.used_bytes == caches.page_bytes * 5 + caches.ring_bytes
    caches.release(second)
    assert caches.used_bytes == 0


def test_a_write_to_a_page_that_others_read_goes_to_a_copy() -> None:
    caches = pool(6, 2)
    first = caches.allot(2 * PAGE_TOKENS)
    for page in first.pages:
        fill(caches, page, 1)
    second = forked(caches, first, 2 * PAGE_TOKENS, 2 * PAGE_TOKENS)
    caches.make_writable(second, PAGE_TOKENS, PAGE_TOKENS + 1)
    assert second.pages[0] == first.pages[0]
    assert second.pages[1] != first.pages[1]
    fill(caches, second.pages[1], 9)
    assert (values(caches, first.pages[1]), values(caches, second.pages[1])) == ({1}, {9})
    own = list(first.pages)
    caches.make_writable(first, PAGE_TOKENS, 2 * PAGE_TOKENS)
    assert first.pages == own, "its one holder writes in place"


def test_ids_are_written_where_the_table_says() -> None:
    caches = pool(1, 2)
    caches.write_ids(1, range(100, 120), 11)
    assert caches.tensors["history"][1].tolist() == [108, 109, 110, 103, 104, 105, 106, 107]
    assert not caches.tensors["history"][0].any()
    assert not caches.tensors["tail.1"].any()


def test_shared_pages_stay_with_their_holders_when_there_is_no_room() -> None:
    caches = pool(3, 2)
    first = caches.allot(2 * PAGE_TOKENS)
    with pytest.raises(RequestError, match="out of pages"):
        caches.allot(5 * PAGE_TOKENS, first.pages)
    assert [caches.pages.holders(page) for page in first.pages] == [1, 1]
    second = caches.allot(3 * PAGE_TOKENS, first.pages)
    assert second.pages == [*first.pages, 2]
