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

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from serving.config import RecordConfig
from serving.records import Feedback, Hop, Record, Turn
from serving.segments import Segments

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
        self._spool = Segments(folder, config.segment_bytes, config.segment_s)
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
