"""Where traces are: a path, or a URL whose files are fetched for the time of one ingest.

`http(s)://` is one file; `s3://bucket/key` an object or all objects below a prefix, with the
keys of the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
AWS_ENDPOINT_URL); `file://` a local path. In: a path or URL. Out: a local path. A URL is shown
without its user, password and query, for these may be secrets.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import url2pathname

import tenacity

from traces.errors import InputRefused

if TYPE_CHECKING:
    import httpx
    from pyarrow.fs import FileInfo, S3FileSystem

MAX_FETCHED_BYTES = 64 * 1024**3
"""More is not fetched from one URL: split it, or ingest from a local copy."""

_SCHEMES = ("http", "https", "s3", "file")
_TIMEOUT_S = 30.0
_TRIES = 3
_CHUNK_BYTES = 1024 * 1024


def is_url(source: Path | str) -> bool:
    """Return whether a source is a URL; a path of pathlib's never is."""
    return isinstance(source, str) and "://" in source


def local_path(source: Path | str) -> Path | None:
    """Return the path of a source on this machine; None if it has to be fetched.

    Raises:
        InputRefused: if it is a URL of a kind that cannot be read.
    """
    if not is_url(source):
        return Path(source)
    url = urlsplit(str(source))
    if url.scheme not in _SCHEMES or (url.scheme != "file" and not url.netloc):
        raise InputRefused(
            f"Cannot ingest {shown(source)!r}: a URL begins with {', '.join(_SCHEMES)} and names "
            "a host, as in 'https://host/traces.jsonl' or 's3://bucket/prefix'."
        )
    if url.scheme != "file":
        return None
    if url.netloc not in ("", "localhost"):
        raise InputRefused(
            f"Cannot ingest {shown(source)!r}: 'file://' names a path on this machine, as in "
            "'file://var/log/traces'."
        )
    return Path(url2pathname(url.path))


@contextmanager
def fetched(source: Path | str, limit_bytes: int = MAX_FETCHED_BYTES) -> Iterator[Path]:
    """Give a local path of the source; what was fetched is gone when the block ends.

    Raises:
        InputRefused: if it cannot be fetched.
    """
    path = local_path(source)
    if path is not None:
        yield path
        return
    url = urlsplit(str(source))
    with tempfile.TemporaryDirectory(prefix="mol-traces-") as folder:
        name = PurePosixPath(unquote(url.path)).name or "traces"
        into = Path(folder) / name
        try:
            if url.scheme == "s3":
                _fetch_s3(url, into, limit_bytes)
            else:
                _fetch_http(str(source), into, limit_bytes)
        except OSError as error:
            raise _refused(source, error.strerror or str(error)) from error
        yield into


def shown(source: Path | str) -> str:
    """Return a source as reports show it."""
    if not is_url(source):
        return str(source)
    url = urlsplit(str(source))
    host = url.netloc.rpartition("@")[2]
    return f"{url.scheme}://{host}{url.path}"


def _fetch_http(address: str, into: Path, limit_bytes: int) -> None:
    # Loaded here: `flows --help` imports this package and must stay fast.
    import httpx

    tries = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(httpx.TransportError),
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=5),
        stop=tenacity.stop_after_attempt(_TRIES),
        reraise=True,
    )
    try:
        with httpx.Client(timeout=_TIMEOUT_S, follow_redirects=True) as client:
            tries(_download, client, address, into, limit_bytes)
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        raise _refused(address, f"the server answers {status}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise _refused(address, str(error) or type(error).__name__) from error


def _download(client: "httpx.Client", address: str, into: Path, limit_bytes: int) -> None:
    done = 0
    with client.stream("GET", address) as response, into.open("wb") as file:
        response.raise_for_status()
        for chunk in response.iter_bytes(_CHUNK_BYTES):
            done += len(chunk)
            if done > limit_bytes:
                raise _too_large(address, limit_bytes)
            file.write(chunk)


def _fetch_s3(url: SplitResult, into: Path, limit_bytes: int) -> None:
    from pyarrow.fs import FileSelector, FileType, S3FileSystem

    endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL", ""))
    store = S3FileSystem(
        region=os.environ.get("AWS_REGION"),
        endpoint_override=endpoint.netloc or None,
        scheme=endpoint.scheme or "https",
        connect_timeout=_TIMEOUT_S,
        request_timeout=_TIMEOUT_S,
    )
    root = (url.netloc + unquote(url.path)).rstrip("/")
    (found,) = store.get_file_info([root])
    objects = [found]
    if found.type is not FileType.File:
        selector = FileSelector(root, recursive=True, allow_not_found=True)
        objects = [i for i in store.get_file_info(selector) if i.type is FileType.File]
    if not objects:
        raise _refused(url.geturl(), "there is no object of this name or below it")
    if sum(info.size for info in objects) > limit_bytes:
        raise _too_large(url.geturl(), limit_bytes)
    for info in objects:
        inner = PurePosixPath(info.path).relative_to(root)
        if ".." in inner.parts:
            raise _refused(url.geturl(), f"the object {info.path!r} would leave the folder")
        _copy(store, info, into / inner)


def _copy(store: "S3FileSystem", info: "FileInfo", into: Path) -> None:
    into.parent.mkdir(parents=True, exist_ok=True)
    with store.open_input_stream(info.path) as stream, into.open("wb") as file:
        shutil.copyfileobj(stream, file, _CHUNK_BYTES)


def _refused(source: str | Path, reason: str) -> InputRefused:
    line = reason.strip().splitlines()[0] if reason.strip() else "no reason was given"
    return InputRefused(
        f"Cannot fetch {shown(source)!r}: {line}. Check the address, or download it and ingest "
        "the file."
    )


def _too_large(source: str | Path, limit_bytes: int) -> InputRefused:
    return InputRefused(
        f"Cannot fetch {shown(source)!r}: it is larger than {limit_bytes:,} bytes. Split it, or "
        "download it and ingest the file."
    )
