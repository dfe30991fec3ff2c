"""Pages on disk, by name: an LMDB environment that other processes may have open too.

A process that is killed in the middle of a write leaves what was there before the write: LMDB replaces a page of its
tree by a new one and switches the root at the end. Every record carries a checksum over its name and bytes, and a
record that does not match is removed and counts as a miss, so the store can lose pages but never gives a wrong one.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsv41c.errors import RequestError

_LOG = logging.getLogger(__name__)
_CHECK = 16  # bytes of a checksum
_ORDER = struct.Struct(">Q")
_PAGES, _USES, _ABOUT = b"pages", b"uses", b"about"
_IDENTITY = b"identity"
# LMDB's own pages, free ones and the tree come on top of the records.
_SLACK = 2
_LEAST_MAP = 16 << 20


class PageStore:
    """Page bytes by name, bounded in size; the page used longest ago goes first.

    Args:
        folder: where it lies; made if absent.
        identity: what made the pages: cache formats, model, weights. A store of another identity is refused.
        limit: bytes of all records.
    Raises:
        RequestError: the folder holds pages of something else, is no store, or `lmdb` is not installed.

    Attributes:
        damaged: records that failed their checksum since it was opened.
    """

    def __init__(self, folder: Path, identity: bytes, limit: int) -> None:
        try:
            import lmdb
        except ImportError:
            raise RequestError(
                "pages on disk need the package lmdb; install dsv41c[server], or serve without a store"
            ) from None
        self._folder, self._limit = folder, limit
        self._fault: type[Exception] = lmdb.Error
        self.damaged = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._env = lmdb.open(
                str(folder), map_size=max(_LEAST_MAP, _SLACK * limit), max_dbs=3, metasync=False, mode=0o600
            )
            self._pages, self._uses, self._about = (self._env.open_db(name) for name in (_PAGES, _USES, _ABOUT))
        except (lmdb.Error, OSError) as error:
            raise RequestError(f"{folder} is no store of pages ({error}); name another folder, or remove it") from None
        self._claim(identity)
        self._touched: list[bytes] = []

    def close(self) -> None:
        self._env.close()

    def __len__(self) -> int:
        with self._env.begin(db=self._pages) as read:
            return int(read.stat(self._pages)["entries"])

    @property
    def size(self) -> int:
        """Bytes of all records, by the store's own count."""
        with self._env.begin(db=self._about) as read:
            return _number(read.get(_PAGES))

    def get(self, name: bytes) -> bytes | None:
        """The bytes of that name, or None."""
        try:
            with self._env.begin(db=self._pages) as read:
                record = read.get(name)
        except self._fault as error:
            _LOG.warning("a page cannot be read from %s: %s", self._folder, error)
            return None
        if record is None:
            return None
        body = record[_CHECK + _ORDER.size :]
        if record[:_CHECK] != _checksum(name, body):
            self._remove_damaged(name)
            return None
        self._touched.append(name)
        return bytes(body)

    def put(self, records: Mapping[bytes, bytes]) -> None:
        """Adds pages in one transaction; a name that is there already keeps its bytes.

        A disk that is full or broken costs the pages and a line in the log, and nothing else.
        """
        touched, self._touched = self._touched, []
        try:
            with self._env.begin(write=True) as write:
                for name in touched:
                    self._touch(write, name)
                for name, body in records.items():
                    if write.get(name, db=self._pages) is None and len(body) <= self._limit:
                        self._add(write, name, body)
        except self._fault as error:
            _LOG.warning("%d pages cannot be written to %s: %s", len(records), self._folder, error)

    def _claim(self, identity: bytes) -> None:
        with self._env.begin(write=True, db=self._about) as write:
            found = write.get(_IDENTITY)
            if found is None:
                write.put(_IDENTITY, identity)
            elif found != identity:
                raise RequestError(
                    f"{self._folder} holds pages of another model, other weights or other cache formats "
                    f"({found.hex()[:16]}..., this plan is {identity.hex()[:16]}...); name another folder for this plan"
                )

    def _remove_damaged(self, name: bytes) -> None:
        self.damaged += 1
        _LOG.warning("page %s of %s was damaged; removed", name.hex(), self._folder)
        try:
            with self._env.begin(write=True) as write:
                self._remove(write, name)
        except self._fault as error:
            _LOG.warning("it cannot be removed: %s", error)

    # --- within a transaction; `write` is an lmdb.Transaction -----------------------------------------------------

    def _add(self, write: Any, name: bytes, body: bytes) -> None:
        while self._total(write) + len(body) > self._limit:
            oldest = next(iter(write.cursor(self._uses)), None)
            if oldest is None:
                # Damage took the order away: what it stood for is out of reach of the limit, so it goes.
                write.drop(self._pages, delete=False)
                self._set_total(write, 0)
                return
            self._remove(write, bytes(oldest[1]), bytes(oldest[0]))
        order = self._next_order(write)
        write.put(name, _checksum(name, body) + order + body, db=self._pages)
        write.put(order, name, db=self._uses)
        self._set_total(write, self._total(write) + len(body))

    def _remove(self, write: Any, name: bytes, order: bytes | None = None) -> None:
        """Removes a record and its place in the order of use; one of the two may be damaged or gone."""
        record = write.pop(name, db=self._pages)
        if record is not None:
            self._set_total(write, self._total(write) - max(0, len(record) - _CHECK - _ORDER.size))
            order = order or bytes(record[_CHECK : _CHECK + _ORDER.size])
        if order:
            write.delete(order, db=self._uses)

    def _touch(self, write: Any, name: bytes) -> None:
        record = write.get(name, db=self._pages)
        if record is None:
            return
        order = self._next_order(write)
        write.delete(bytes(record[_CHECK : _CHECK + _ORDER.size]), db=self._uses)
        write.put(name, record[:_CHECK] + order + record[_CHECK + _ORDER.size :], db=self._pages)
        write.put(order, name, db=self._uses)

    def _next_order(self, write: Any) -> bytes:
        cursor = write.cursor(self._uses)
        last = _ORDER.unpack(cursor.key())[0] if cursor.last() else 0
        return _ORDER.pack(last + 1)

    def _total(self, read: Any) -> int:
        return _number(read.get(_PAGES, db=self._about))

    def _set_total(self, write: Any, total: int) -> None:
        write.put(_PAGES, _ORDER.pack(max(0, total)), db=self._about)


def _number(packed: bytes | None) -> int:
    return 0 if packed is None else int(_ORDER.unpack(packed)[0])


def _checksum(name: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECK, key=name).digest()
