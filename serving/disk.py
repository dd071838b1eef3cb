"""Durable writes: a file or folder is either whole under its name or not there.

Temporary name in the same folder, fsync, rename, fsync of the folder.
"""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from serving.errors import MolError


class DiskFull(MolError, OSError):
    """The disk refused a write; nothing under the final name has changed."""


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write `data` under `path`, replacing it as a whole.

    Raises:
        DiskFull: if the bytes could not be stored; `path` is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise DiskFull(
            f"Cannot write {str(path)!r}: {error.strerror or error}. "
            "Nothing was changed; free some space or choose another --home and run it again."
        ) from error
    sync_folder(path.parent)


@contextlib.contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yield an empty temporary folder that becomes `final` if the block succeeds.

    If `final` exists already, the new folder is dropped: content-addressed names
    hold the same bytes. On an exception nothing is left behind.

    Raises:
        DiskFull: if a file could not be stored.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        for file in sorted(temporary.rglob("*")):
            if file.is_file():
                _sync_file(file)
        sync_folder(temporary)
        if not final.exists():
            temporary.replace(final)
            sync_folder(final.parent)
    except OSError as error:
        if isinstance(error, MolError):
            raise
        raise DiskFull(
            f"Cannot write {str(final)!r}: {error.strerror or error}. "
            "Nothing was changed; free some space or choose another --home and run it again."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_file(file: Path) -> None:
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
