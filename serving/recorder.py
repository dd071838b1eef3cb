"""The spool: hops, turns and feedback go to disk from a thread of their own.

    recorder = Recorder(home / "spool", config.record)
    recorder.start()
    recorder.put(lambda: [finished(turn)])   # never blocks, never raises
    recorder.close(timeout_s=10)

In: records, or a callable that builds them in the writer thread. Out: segments
`<UTC time>-<random>.jsonl` of lines `{"kind": ..., "record": ...}`, which
`traces.ingest` reads, also while they grow. What cannot be kept is dropped and
counted by reason: an answer never waits for the disk.

Whole lines are appended, so a process killed at any moment leaves at most one
torn line at a segment's end. Segments are fsynced when they are closed; until
then their bytes outlive the process but not the machine.
"""

import contextlib
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from serving.config import RecordConfig
from serving.disk import sync_folder
from serving.records import Feedback, Hop, Record, Turn

Make = Record | Callable[[], Iterable[Record]]
DropReason = Literal["queue_full", "disk", "invalid", "closed"]

BATCH_ENTRIES = 512
"""Most entries that leave the queue at once."""
BATCH_BYTES = 8 << 20
"""About as much goes to the disk in one write."""
LINGER_S = 0.005
"""The writer waits this long for company: a wake-up a record would cost the event loop more, and
so would a long batch, which an answer may have to wait behind."""
TRIES = 5
"""Writes in a row that bring nothing to the disk, before a batch is given up."""
PAUSE_S = 0.5
"""Between two of them."""
MAX_LINE_BYTES = 32 << 20
"""A longer record is refused; ingest cuts lines of twice that."""

_KINDS: dict[type[Record], bytes] = {Hop: b"hop", Turn: b"turn", Feedback: b"feedback"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecorderStats:
    """What became of the records so far."""

    recorded: int
    """Records on disk."""
    dropped: dict[DropReason, int] = field(default_factory=dict)
    """Records lost, by reason; an entry that was never built counts as one."""
    queued: int = 0
    """Entries that wait for the writer."""
    last_error: str | None = None
    """What the disk said to the last write; None if it took it."""


class Recorder:
    """A bounded queue and the thread that empties it into the spool.

    Safe to call from several threads. Processes may share a folder.
    """

    def __init__(self, folder: Path, config: RecordConfig) -> None:
        self._config = config
        self._spool = _Spool(folder, config)
        self._queue: deque[Make] = deque()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._dropped: Counter[DropReason] = Counter()
        self._recorded = 0
        self._taken = 0
        self._last_error: str | None = None
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def start(self) -> None:
        """Start the writer; nothing happens where recording is off."""
        if self._config.enabled:
            self._thread.start()

    def put(self, make: Make) -> bool:
        """Hand over a record, or a callable that builds some later in the writer thread.

        What a callable reads must not change after this call. Returns whether it was
        taken; a full queue or a closed recorder drops and counts it.
        """
        if not self._config.enabled:
            return False
        if len(self._queue) >= self._config.queue or self._stop.is_set():
            self._drop("closed" if self._stop.is_set() else "queue_full")
            return False
        self._queue.append(make)
        # Append, then look; the writer clears, then drains: no entry is left asleep.
        if not self._wake.is_set():
            self._wake.set()
        return True

    def stats(self) -> RecorderStats:
        """Return the counts so far; for `/metrics`."""
        with self._lock:
            dropped = dict(self._dropped)
        queued = len(self._queue) + self._taken
        return RecorderStats(self._recorded, dropped, queued, self._last_error)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Write what is queued and stop; return whether all of it was settled in time.

        A writer that hangs on the disk is left to die with the process.
        """
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self._queue

    def _drop(self, reason: DropReason, count: int = 1) -> None:
        with self._lock:
            self._dropped[reason] += count

    def _run(self) -> None:
        while True:
            self._wake.wait(self._spool.expires_in_s())
            if self._wake.is_set() and not self._stop.is_set():
                self._stop.wait(LINGER_S)
            self._wake.clear()
            while batch := self._take():
                self._store(batch)
                self._taken = 0
            self._spool.close_expired()
            if self._stop.is_set() and not self._queue:
                self._spool.close()
                return

    def _take(self) -> list[Make]:
        size = min(len(self._queue), BATCH_ENTRIES)
        # Counted before they leave the queue, so that `queued` never shows too few.
        self._taken = size
        return [self._queue.popleft() for _ in range(size)]

    def _store(self, batch: list[Make]) -> None:
        lines: list[bytes] = []
        size = 0
        for make in batch:
            rendered = self._render(make)
            lines += rendered
            size += sum(map(len, rendered))
            if size >= BATCH_BYTES:
                self._write(lines)
                lines, size = [], 0
        self._write(lines)

    def _write(self, lines: list[bytes]) -> None:
        tries = 0
        while lines and tries < TRIES:
            written, error = self._spool.write(lines)
            self._recorded += written
            del lines[:written]
            self._note(error)
            tries = 0 if written else tries + 1
            if error is not None and tries < TRIES:
                self._stop.wait(PAUSE_S)
        if lines:
            self._drop("disk", len(lines))

    def _render(self, make: Make) -> list[bytes]:
        """Return the lines of one entry; all of it or nothing."""
        try:
            records = (make,) if isinstance(make, Record) else make()
            return [_line(record) for record in records]
        except Exception as error:
            # Whatever a builder raises, the writer goes on: it serves everyone.
            self._drop("invalid")
            _log.error("A record was dropped: %s: %s", type(error).__name__, error)
            return []

    def _note(self, error: OSError | None) -> None:
        text = None if error is None else f"{error.strerror or error}: {error.filename}"
        if error is not None and self._last_error != text:
            _log.error("The spool cannot be written: %s", text)
        elif error is None and self._last_error is not None:
            _log.info("The spool is written again.")
        self._last_error = text


def _line(record: Record) -> bytes:
    kind = _KINDS[type(record)]
    line = b'{"kind":"%b","record":%b}\n' % (kind, record.__pydantic_serializer__.to_json(record))
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"a {kind.decode()} of {len(line)} bytes; at most {MAX_LINE_BYTES} fit")
    return line


class _Spool:
    """The segment being written, and its successors; for one thread."""

    def __init__(self, folder: Path, config: RecordConfig) -> None:
        self._folder = folder
        self._config = config
        self._path = folder
        self._file: int | None = None
        self._size = 0
        self._opened_s = 0.0
        self._named_at = datetime.min.replace(tzinfo=UTC)

    def write(self, lines: list[bytes]) -> tuple[int, OSError | None]:
        """Append lines; return how many of them are in the file, and why not all.

        After an error the segment ends with its last whole line and is closed; the
        next write begins another one, in case only this file is bad.
        """
        data = memoryview(b"".join(lines))
        done = 0
        try:
            file = self._open()
            while done < len(data):
                done += os.write(file, data[done:])
        except OSError as error:
            error.filename = error.filename or str(self._path)
            whole, kept = 0, 0
            while kept < len(lines) and whole + len(lines[kept]) <= done:
                whole += len(lines[kept])
                kept += 1
            self._size += whole
            self._cut()
            return kept, error
        self._size += done
        if self._size >= self._config.segment_bytes:
            self.close()
        return len(lines), None

    def expires_in_s(self) -> float | None:
        """Return how long the open segment may still grow; None if there is none."""
        if self._file is None:
            return None
        return max(0.0, self._opened_s + self._config.segment_s - time.monotonic())

    def close_expired(self) -> None:
        """Close the segment if it is too old."""
        if self.expires_in_s() == 0.0:
            self.close()

    def close(self) -> None:
        """Close the segment; its bytes then outlive the machine."""
        file, self._file = self._file, None
        if file is not None:
            try:
                os.fsync(file)
                sync_folder(self._folder)
            except OSError as error:
                _log.error("Cannot sync %s: %s", self._path, error)
            finally:
                os.close(file)

    def _open(self) -> int:
        # A segment that someone removed still takes bytes, which nobody would ever see.
        if self._file is not None and os.fstat(self._file).st_nlink == 0:
            self.close()
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._path = self._folder / self._name()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600)
            self._size = 0
            self._opened_s = time.monotonic()
        return self._file

    def _name(self) -> str:
        """Return a name that sorts after this process's earlier ones, whatever the clock does."""
        now = max(datetime.now(UTC), self._named_at + timedelta(microseconds=1))
        self._named_at = now
        return f"{now:%Y%m%dT%H%M%S.%fZ}-{os.urandom(4).hex()}.jsonl"

    def _cut(self) -> None:
        if self._file is None:
            return
        # If even this fails a torn line stays, which ingest leaves alone.
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self._size)
            if self._size == 0:
                self._path.unlink()
        self.close()
