"""Durable writes: a file or folder is either whole under its name or not there.

Temporary name in the same folder, fsync, rename, fsync of the folder.
"""

import contextlib
import errno
import glob
import hashlib
import os
import platform
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
    temporary = _temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _disk_full(path, error) from error
    sync_folder(path.parent)


@contextlib.contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yield an empty temporary folder that becomes `final` if the block succeeds.

    If `final` exists already, the new folder is dropped: content-addressed names
    hold the same bytes. On an exception nothing is left behind; one that has nothing to do
    with the disk's space passes as it is.

    Raises:
        DiskFull: if a file could not be stored.
    """
    temporary = _temporary(final)
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise _disk_full(final, error) from error
    try:
        with disk_errors(final):
            yield temporary
            for file in sorted(temporary.rglob("*")):
                if file.is_file():
                    _sync_file(file)
            sync_folder(temporary)
            if not final.exists():
                temporary.replace(final)
                sync_folder(final.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise DiskFull where a disk refuses what the block writes for `path`; others pass."""
    try:
        yield
    except OSError as error:
        if isinstance(error, MolError) or error.errno not in _REFUSALS:
            raise
        raise _disk_full(path, error) from error


def _temporary(final: Path) -> Path:
    """Return a temporary name beside `final`, after removing what killed processes left there.

    The name holds machine and process, so that what a living one is writing is never touched.
    """
    machine = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
    for left in final.parent.glob(f".{glob.escape(final.name)}.{machine}-*.tmp"):
        process = left.name.removesuffix(".tmp").rsplit("-", 2)[1]
        if not _lives(int(process)):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(
                missing_ok=True
            )
    return final.with_name(f".{final.name}.{machine}-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


_REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}


def _disk_full(path: Path, error: OSError) -> DiskFull:
    return DiskFull(
        f"Cannot write {str(path)!r}: {error.strerror or error}. "
        "Nothing was changed; free some space or choose another --home and run it again."
    )


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
