"""Documents by key, in memory and behind it in a SQLite file: conversations and stored answers.

    documents = Documents(home / "conversations.sqlite")
    documents.put("c:1", b"...")      # memory at once, the disk within some hundredths of a second
    await documents.get("c:1")        # always what was put last
    documents.close()

A thread of its own writes what was put, many documents in one transaction. What a
transaction holds outlives the process (write-ahead log). A full disk fails no
`put`: the documents stay in memory and are tried again. In: bytes under a key.
Out: the same bytes, also after a restart.

A file belongs to one process at a time, which is what makes its memory true.
"""

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from serving.document_file import (
    claim,
    connect,
    delete_older,
    prepare,
    read,
    unavailable,
    write,
)

MAX_IN_MEMORY = 10_000
"""Documents kept in memory; of those on disk the longest unused leave first."""
MAX_IN_MEMORY_BYTES = 256 << 20
BATCH_DOCUMENTS = 1_000
"""Most documents of one transaction."""
LINGER_S = 0.02
"""The writer waits this long for company, and for a later version of the same document."""
PAUSE_S = 0.5
"""Between two tries while the disk refuses."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DocumentsStats:
    """How memory and disk stand."""

    in_memory: int
    in_memory_bytes: int
    unsaved: int
    """Documents and deletions that the disk does not have yet."""
    failures: int
    """Writes that the disk refused so far; they are repeated."""
    last_error: str | None
    """What the disk said to the last write; None if it took it."""


@dataclass(frozen=True, slots=True)
class _Entry:
    document: bytes | None
    """None: deleted."""
    touched_us: int

    @property
    def size(self) -> int:
        return len(self.document or b"")


class Documents:
    """A store of small documents that is as fast as memory and as lasting as a file.

    Safe to call from several threads.

    Raises:
        DocumentsUnavailable: if the file is corrupt, foreign, of a newer version, in use by
            another process, or cannot be made.
    """

    def __init__(
        self,
        path: Path,
        max_in_memory: int = MAX_IN_MEMORY,
        max_in_memory_bytes: int = MAX_IN_MEMORY_BYTES,
    ) -> None:
        self._path = path
        self._limits = max_in_memory, max_in_memory_bytes
        self._lock_file = claim(path)
        try:
            prepare(path)
            self._reader = connect(path)
        except BaseException:
            os.close(self._lock_file)
            raise
        self._read_lock = threading.Lock()
        self._changed = threading.Condition()
        # All below only while holding `_changed`. An entry is in one of these three.
        self._waiting: dict[str, _Entry] = {}
        self._writing: dict[str, _Entry] = {}
        self._saved: OrderedDict[str, _Entry] = OrderedDict()
        self._bytes = 0
        self._reads: dict[str, object] = {}
        self._forget_us = 0
        self._forgotten_us = 0
        self._failures = 0
        self._last_error: str | None = None
        self._closing = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="documents", daemon=True)
        self._thread.start()

    def put(self, key: str, document: bytes) -> None:
        """Keep a document under a key, in place of an earlier one; it counts as touched now."""
        self._set(key, _Entry(bytes(document), time.time_ns() // 1000))

    def delete(self, key: str) -> None:
        """Remove the document of a key, if there is one."""
        self._set(key, _Entry(None, time.time_ns() // 1000))

    async def get(self, key: str) -> bytes | None:
        """Return the document of a key; None if there is none.

        Raises:
            DocumentsUnavailable: if it is not in memory and the file cannot be read.
        """
        with self._changed:
            entry = self._find(key)
            if entry is not None:
                return entry.document
            # Taken away by every later `put`: what is read then must not be kept.
            token = self._reads[key] = object()
        try:
            document = await asyncio.to_thread(self._read, key)
        except BaseException:
            with self._changed:
                self._end_read(key, token)
            raise
        with self._changed:
            unchanged = self._end_read(key, token)
            entry = self._find(key)
            if entry is not None:
                return entry.document
            if document is not None and unchanged:
                # Its time on disk counts; here it only has to be later than `forget`.
                self._keep(key, _Entry(document, self._forget_us))
            return document

    def forget(self, older_than: datetime) -> None:
        """Remove the documents that were put before a time and not since."""
        limit = min(int(older_than.timestamp() * 1e6), time.time_ns() // 1000)
        with self._changed:
            self._forget_us = max(self._forget_us, limit)
            for key, entry in [*self._saved.items()]:
                if entry.touched_us < limit:
                    self._drop_saved(key)
            now_us = time.time_ns() // 1000
            for key, entry in [*self._writing.items(), *self._waiting.items()]:
                if entry.touched_us < limit and self._find(key) is entry:
                    self._set(key, _Entry(None, now_us))
            self._reads.clear()
            self._changed.notify_all()

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until the disk has everything; return whether it has. It blocks the caller."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unsaved(), timeout_s)

    def stats(self) -> DocumentsStats:
        """Return how memory and disk stand; for `/metrics`."""
        with self._changed:
            unsaved = len(self._waiting) + len(self._writing)
            count = unsaved + len(self._saved)
            return DocumentsStats(count, self._bytes, unsaved, self._failures, self._last_error)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Write what is left and close the file; return whether the disk has everything."""
        with self._changed:
            if self._closed:
                return not self._unsaved()
            self._closed = True
        done = self.flush(timeout_s)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        with self._read_lock:
            self._reader.close()
        if not self._thread.is_alive():
            os.close(self._lock_file)
        return done

    def _unsaved(self) -> bool:
        return bool(self._waiting or self._writing or self._forgotten_us < self._forget_us)

    def _end_read(self, key: str, token: object) -> bool:
        """Return whether nobody changed the document since the read began."""
        unchanged = self._reads.get(key) is token
        if unchanged:
            del self._reads[key]
        return unchanged

    def _find(self, key: str) -> _Entry | None:
        entry = self._waiting.get(key) or self._writing.get(key)
        if entry is None and (entry := self._saved.get(key)) is not None:
            self._saved.move_to_end(key)
        return entry

    def _set(self, key: str, entry: _Entry) -> None:
        with self._changed:
            self._reads.pop(key, None)
            self._drop_saved(key)
            before = self._waiting.get(key)
            self._bytes += entry.size - (before.size if before else 0)
            self._waiting[key] = entry
            if len(self._waiting) == 1:
                self._changed.notify_all()
            self._evict()

    def _keep(self, key: str, entry: _Entry) -> None:
        self._saved[key] = entry
        self._bytes += entry.size
        self._evict()

    def _drop_saved(self, key: str) -> None:
        entry = self._saved.pop(key, None)
        self._bytes -= entry.size if entry else 0

    def _evict(self) -> None:
        most, most_bytes = self._limits
        while self._saved and (
            self._bytes > most_bytes
            or len(self._saved) + len(self._waiting) + len(self._writing) > most
        ):
            _, entry = self._saved.popitem(last=False)
            self._bytes -= entry.size

    def _read(self, key: str) -> bytes | None:
        try:
            with self._read_lock:
                return read(self._reader, key, self._forget_us)
        except sqlite3.Error as error:
            raise unavailable(self._path, error) from error

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unsaved() or self._closing)
                if self._closing and (not self._unsaved() or self._last_error):
                    break
                if not self._closing and not self._writing:
                    self._changed.wait_for(lambda: self._closing, LINGER_S)
                self._take()
                forget_us = self._forget_us if self._forgotten_us < self._forget_us else 0
            try:
                connection = connection or connect(self._path)
                if forget_us:
                    delete_older(connection, forget_us)
                rows = [(k, e.touched_us, e.document) for k, e in self._writing.items()]
                write(connection, rows)
            except Exception as error:
                # Whatever it is, the thread goes on; with a new connection, for this one failed.
                if connection is not None:
                    connection.close()
                connection = None
                self._failed(error)
            else:
                self._succeeded(forget_us)
        if connection is not None:
            connection.close()

    def _take(self) -> None:
        """Move waiting entries to the batch; what a failed write left there stays."""
        for key in [*self._waiting][: BATCH_DOCUMENTS - len(self._writing)]:
            entry = self._waiting.pop(key)
            before = self._writing.get(key)
            self._bytes -= before.size if before else 0
            self._writing[key] = entry

    def _failed(self, error: Exception) -> None:
        with self._changed:
            if self._last_error is None:
                _log.error("Documents cannot be written to %s: %s", self._path, error)
            self._failures += 1
            self._last_error = str(error)
            self._changed.wait_for(lambda: self._closing, PAUSE_S)

    def _succeeded(self, forget_us: int) -> None:
        with self._changed:
            if self._last_error is not None:
                _log.info("Documents are written to %s again.", self._path)
            self._last_error = None
            self._forgotten_us = max(self._forgotten_us, forget_us)
            written, self._writing = self._writing, {}
            for key, entry in written.items():
                if key in self._waiting or entry.document is None:
                    self._bytes -= entry.size
                else:
                    self._saved[key] = entry
            self._evict()
            self._changed.notify_all()
