"""Runs ingests that die: a process that has imported all forks a child for each of them.

    with Forks() as forks:
        points = forks.run(home, source)                 # whole; what it asked of DuckDB
        forks.run(home, source, die_at=7)                # SIGKILL at the seventh of these points
        forks.run(home, source, die_after_s=0.2)         # SIGKILL from outside

A point is a statement about to be run by DuckDB, or one just run; it is named by the source
line that runs it. By hand it is not run: tests start it as `python tests/ingest_forks.py`.
"""

import json
import linecache
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Self

_REPOSITORY = Path(__file__).parents[1]


class Forks:
    """The process that forks, and the way to ask it."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=_REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def run(self, home: Path, source: Path, **how: float) -> list[str] | None:
        """Ingest in a child; return the points it came by, None if it was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"home": str(home), "source": str(source), **how}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert answer["error"] is None, answer["error"]
        return answer["points"]


def _serve() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _ingest(order, writing)
        os.close(writing)
        # Readable once the child is done and says what it did.
        if not select.select([reading], [], [], order.get("die_after_s"))[0]:
            os.kill(child, signal.SIGKILL)
        with os.fdopen(reading) as stream:
            said = stream.read()
        os.waitpid(child, 0)
        print(said or json.dumps({"points": None, "error": None}), flush=True)


def _ingest(order: dict[str, Any], writing: int) -> None:
    """Ingest, counting points, and end this process."""
    from traces.ingest import ingest

    points: list[str] = []

    def watch(frame: FrameType, event: str, called: Any) -> None:
        if event in ("c_call", "c_return") and getattr(called, "__name__", "") == "execute":
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            when = "before" if event == "c_call" else "after"
            points.append(f"{when} {frame.f_code.co_name}: {text}")
            if len(points) == order.get("die_at"):
                os.kill(os.getpid(), signal.SIGKILL)

    # The loads are stored by a thread of their own.
    threading.setprofile(watch)
    sys.setprofile(watch)
    error = None
    try:
        ingest(Path(order["home"]), Path(order["source"]), batch_lines=60)
    except Exception as failure:
        error = repr(failure)
    sys.setprofile(None)
    with os.fdopen(writing, "w") as stream:
        stream.write(json.dumps({"points": points, "error": error}))
    os._exit(0)


if __name__ == "__main__":
    # Imported before the forks: a child that dies young should have done something.
    import traces.ingest
    import traces.storage.lake_address  # noqa: F401

    _serve()
