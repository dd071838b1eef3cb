"""The folder on disk in which confined code writes where there are no namespaces.

No limit of the kernel counts what a process has on disk, so it is looked at while the code runs;
and what the code left may be deeper than any path is long, so it is removed level by level.
"""

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Iterator

from traces.verifiers.sandbox.limits import FOLDER_FILES_LIMIT, FOLDER_LIMIT_BYTES

_TRIES = 100
"""A process that was killed may take a moment to be gone."""


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """Make a folder and remove it afterwards, whatever is in it."""
    path = tempfile.mkdtemp(prefix="mol-python-")
    try:
        yield path
    finally:
        for _ in range(_TRIES):
            with contextlib.suppress(OSError):
                _empty(path)
                os.rmdir(path)
                break
            time.sleep(0.01)


def is_overfull(path: str) -> bool:
    """Whether a folder holds more than it may, or something that cannot be looked at."""
    waiting, held_bytes, count = [path], 0, 0
    while waiting:
        try:
            for entry in _entries(waiting.pop()):
                count += 1
                held_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                if held_bytes > FOLDER_LIMIT_BYTES or count > FOLDER_FILES_LIMIT:
                    return True
        except FileNotFoundError:
            continue
        except OSError:
            return True
    return False


def _empty(top: str) -> None:
    waiting = [top]
    while waiting:
        path = waiting.pop()
        for entry in list(_entries(path)):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            if entry.stat(follow_symlinks=False).st_mode & 0o700 != 0o700:
                os.chmod(entry.path, 0o700)
            moved = os.path.join(top, secrets.token_hex(16))
            os.rename(entry.path, moved)
            waiting.append(moved)
        if path != top:
            os.rmdir(path)


def _entries(path: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        yield from entries
