"""Pages on disk: bounded, checksummed, and there after any death of the writer."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import lmdb
import pytest

from dsv41c.errors import RequestError
from dsv41c.runtime.page_store import PageStore

LIMIT = 1 << 20


def open_store(folder: Path, limit: int = LIMIT) -> PageStore:
    return PageStore(folder, b"plan", limit)


def body(number: int) -> bytes:
    return bytes([number % 256]) * 1000


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_pages_are_there_when_it_is_opened_again(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    store.put({name(1): body(1), name(2): body(2)})
    store.close()
    store = open_store(tmp_path / "store")
    assert (store.get(name(1)), store.get(name(2)), store.get(name(3))) == (body(1), body(2), None)
    assert (len(store), store.size) == (2, 2000)
    store.put({name(1): body(9)})
    assert store.get(name(1)) == body(1), "a name stands for one content"


def test_the_page_used_longest_ago_goes_first(tmp_path: Path) -> None:
    store = open_store(tmp_path, 3500)
    store.put({name(n): body(n) for n in (1, 2, 3)})
    assert store.get(name(1)) == body(1)
    store.put({name(4): body(4)})
    assert [store.get(name(n)) is not None for n in (1, 2, 3, 4)] == [True, False, True, True]
    store.put({name(5): bytes(3600)})
    assert (len(store), store.size) == (3, 3000), "larger than all may be"


@pytest.mark.parametrize("at", [0, 15, 24, 500, -1])
def test_a_damaged_page_is_a_miss(tmp_path: Path, at: int) -> None:
    store = open_store(tmp_path)
    store.put({name(1): body(1), name(2): body(2)})
    store.close()
    with lmdb.open(str(tmp_path), max_dbs=3) as environment:
        pages = environment.open_db(b"pages")
        with environment.begin(write=True, db=pages) as write:
            record = bytearray(write.get(name(1)))
            record[at] ^= 4
            write.put(name(1), bytes(record))
    store = open_store(tmp_path)
    assert store.get(name(1)) is None
    assert (store.damaged, len(store), store.size) == (1, 1, 1000)
    assert store.get(name(2)) == body(2)
    store.put({name(1): body(1)})
    assert store.get(name(1)) == body(1)


def test_a_record_cut_short_or_under_another_name_is_a_miss(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put({name(1): body(1)})
    store.close()
    with lmdb.open(str(tmp_path), max_dbs=3) as environment:
        pages = environment.open_db(b"pages")
        with environment.begin(write=True, db=pages) as write:
            write.put(name(2), write.get(name(1)))
            write.put(name(3), b"short")
    store = open_store(tmp_path)
    assert [store.get(name(n)) for n in (1, 2, 3)] == [body(1), None, None]


def test_a_store_of_another_plan_or_no_store_is_refused(tmp_path: Path) -> None:
    open_store(tmp_path / "a").close()
    with pytest.raises(RequestError, match="another model, other weights or other cache formats"):
        PageStore(tmp_path / "a", b"other", LIMIT)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "data.mdb").write_bytes(b"x" * 9000)
    with pytest.raises(RequestError, match="is no store of pages"):
        open_store(tmp_path / "b")


def test_a_disk_without_room_costs_pages_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv41c.runtime.page_store._LEAST_MAP", 1 << 16)
    monkeypatch.setattr("dsv41c.runtime.page_store._SLACK", 0)
    store = open_store(tmp_path)
    for number in range(100):
        store.put({name(number): body(number)})
    found = [store.get(name(number)) for number in range(100)]
    assert found[0] == body(0)
    assert found[99] is None
    assert all(one in (None, body(number)) for number, one in enumerate(found))


_WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from test_page_store import body, name, open_store
from pathlib import Path
store = open_store(Path(sys.argv[1]), 60_000)
print("open", flush=True)
for number in range(int(sys.argv[3]), 1 << 30):
    store.put({name(3 * number + i): body(3 * number + i) for i in range(3)})
    store.get(name(max(0, 3 * number - 30)))
"""


def killed_at_random_moments(folder: Path, times: int, seed: int) -> int:
    """Kills a writer so many times and reads everything in between; gives the pages that were read."""
    draw, first, read = random.Random(seed), 0, 0
    for _ in range(times):
        command = [sys.executable, "-c", _WRITER, str(folder), str(Path(__file__).parent), str(first)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        time.sleep(draw.uniform(0, 0.03))
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        store = open_store(folder, 60_000)
        present = 0
        for number in range(3 * first, 3 * first + 3000):
            found = store.get(name(number))
            assert found in (None, body(number))
            present += found is not None
        assert store.damaged == 0
        assert store.size <= 60_000
        assert len(store) * 1000 == store.size
        store.close()
        read, first = read + present, first + 1000
    return read


def test_a_killed_writer_leaves_whole_pages(tmp_path: Path) -> None:
    """At three random moments; with DSV41C_FULL_TESTS=1 at a hundred."""
    times = 100 if os.environ.get("DSV41C_FULL_TESTS") else 3
    read = killed_at_random_moments(tmp_path, times, 1)
    assert read >= times, f"{read} pages were read after {times} kills"
