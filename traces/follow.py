"""Following sources that grow: ingest again whenever a file has changed, until told to stop.

In: `<home>`, a path and an event that ends it. Out: a report for every ingest that found
something. By hand: `flows run ingest PATH --follow`.
"""

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from traces.errors import InputRefused
from traces.ingest import IngestReport, ingest
from traces.sources.detect import candidates

POLL_S = 1.0
_MAX_POLL_S = 10.0
"""What was consumed is hashed again each time, so a step that took long waits longer."""

Stamp = tuple[int, int, int]


class Follower:
    """Ingests one path again and again."""

    def __init__(self, home: Path, source: Path, format: str | None = None) -> None:
        self._home = home
        self._source = source
        self._format = format
        self._stamps: dict[Path, Stamp] = {}
        self.waiting: str | None = None
        """Why there is nothing to ingest yet."""

    def step(self) -> IngestReport | None:
        """Ingest what has changed since the last step; None if nothing has."""
        try:
            stamps = {path: stamp for path in candidates(self._source) if (stamp := _stamp(path))}
        except InputRefused as refusal:
            self.waiting = str(refusal)
            return None
        changed = {path for path, stamp in stamps.items() if self._stamps.get(path) != stamp}
        if not changed:
            return None
        try:
            report = ingest(self._home, self._source, self._format, only=changed)
        except InputRefused as refusal:
            self.waiting = str(refusal)
            report = None
        else:
            self.waiting = None
        # Taken before the ingest: what was written meanwhile is seen the next time.
        self._stamps = stamps
        return report


def follow(
    follower: Follower,
    stop: Event,
    tell: Callable[[IngestReport], None],
    wait: Callable[[str], None],
    poll_s: float = POLL_S,
) -> None:
    """Follow until `stop` is set.

    `tell` gets a report that has something to say, `wait` why there is nothing to ingest.
    """
    said: str | None = None
    while not stop.is_set():
        began = time.monotonic()
        report = follower.step()
        if report is not None and (report.added or report.noticed):
            tell(report)
        if follower.waiting is not None and follower.waiting != said:
            wait(follower.waiting)
        said = follower.waiting
        stop.wait(max(poll_s, min(time.monotonic() - began, _MAX_POLL_S)))


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
