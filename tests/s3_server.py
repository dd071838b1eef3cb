"""A real S3-compatible server (`rclone serve s3`) over a folder, gone when the block ends.

with s3_server(tmp_path) as environment:      # AWS_ENDPOINT_URL and its keys
    ...                                       # bucket `lake`
"""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from server_process import server_process

from serving.child import HOST, free_port

BUCKET = "lake"


def rclone_program() -> str | None:
    """Return the path of rclone, None if it is not installed."""
    beside = Path(sys.executable).with_name("rclone")
    return str(beside) if beside.exists() else shutil.which("rclone")


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[dict[str, str]]:
    """Serve a new bucket and yield the environment that reaches it."""
    program = rclone_program()
    assert program is not None
    root = folder / "s3"
    (root / BUCKET).mkdir(parents=True)
    port = free_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{HOST}:{port}",
        "AWS_ACCESS_KEY_ID": "test-key-id",
        "AWS_SECRET_ACCESS_KEY": "test/secret+key",
        "AWS_REGION": "eu-central-1",
    }
    key = f"{environment['AWS_ACCESS_KEY_ID']},{environment['AWS_SECRET_ACCESS_KEY']}"
    command = [program, "serve", "s3", "--addr", f"{HOST}:{port}", "--config", "/dev/null",
               "--auth-key", key, str(root)]  # fmt: skip
    with server_process(command, port, folder / "s3.log", environment={}):
        yield environment
