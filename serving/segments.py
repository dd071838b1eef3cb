"""Segments: files of whole lines that grow, are closed at a size or an age, and are never renamed.

`<UTC time>-<random>.jsonl`, so that they sort by time and processes may share a folder. A process
killed at any moment leaves at most one torn line at a segment's end; after an error a segment
ends with its last whole line. In: lines. Out: files that `traces.ingest` follows.
"""

import contextlib
import logging
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from serving.disk import sync_folder

_log = logging.getLogger(__name__)


class Segments:
    """The segment being written, and its successors; for one thread."""

    def __init__(self, folder: Path, segment_bytes: int, segment_s: float) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._segment_s = segment_s
        self._path = folder
        self._file: int | None = None
        self._size = 0
        self._opened_s = 0.0
        self._named = False
        self._named_at = datetime.min.replace(tzinfo=UTC)

    def write(self, lines: list[bytes]) -> tuple[int, OSError | None]:
        """Append lines; return how many of them are in the file, and why not all for good.

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
        full = self._size >= self._segment_bytes
        return len(lines), self.close() if full else None

    def sync(self) -> OSError | None:
        """Let what was written outlive the machine; return why it may not."""
        if self._file is None:
            return None
        try:
            os.fsync(self._file)
            if not self._named:
                sync_folder(self._folder)
                self._named = True
        except OSError as error:
            error.filename = error.filename or str(self._path)
            self._forget()
            return error
        return None

    def expires_in_s(self) -> float | None:
        """Return how long the open segment may still grow; None if there is none."""
        if self._file is None:
            return None
        return max(0.0, self._opened_s + self._segment_s - time.monotonic())

    def close_expired(self) -> None:
        """Close the segment if it is too old."""
        if self.expires_in_s() == 0.0:
            self.close()

    def close(self) -> OSError | None:
        """Close the segment; its bytes then outlive the machine. Return why they may not."""
        error = self.sync()
        if error is not None:
            _log.error("Cannot sync %s: %s", self._path, error)
        self._forget()
        return error

    def _forget(self) -> None:
        file, self._file = self._file, None
        if file is not None:
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
            self._size, self._named = 0, False
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
