"""Proves that URLs are ingested like files, and that what cannot be fetched is one clear line.

A real HTTP server on the loopback; a real S3-compatible server where rclone is installed.
"""

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from s3_server import BUCKET, rclone_program, s3_server
from source_files import SPOOL, json_lines

from serving.child import HOST, free_port
from traces.errors import InputRefused
from traces.ingest import ingest
from traces.sources.locations import fetched, is_url, local_path

CONTENT = json_lines(SPOOL)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        name = self.path.partition("?")[0]
        if name == "/moved":
            self.send_response(302)
            self.send_header("Location", "/spool.jsonl")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = gzip.compress(CONTENT) if name == "/packed" else CONTENT
        self.send_response(200 if name in ("/spool.jsonl", "/packed", "/cut") else 404)
        if name == "/packed":
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body) + (name == "/cut") * 10))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = name == "/cut"

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server that has a spool."""
    with ThreadingHTTPServer((HOST, 0), _Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"{HOST}:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def test_a_url_is_ingested_and_shown_without_its_secrets(home: Path, server: str) -> None:
    report = ingest(home, f"http://me:pass@{server}/spool.jsonl?sig=secret")

    assert report.source == f"http://{server}/spool.jsonl"
    assert report.format == "native"
    assert report.funnel["hops_added"] == 12
    assert not ingest(home, f"http://{server}/moved").added


def test_a_body_that_the_server_packed_is_unpacked(server: str) -> None:
    with fetched(f"http://{server}/packed") as path:
        assert path.read_bytes() == CONTENT
    assert not path.exists()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://{server}/missing?sig=secret", r"missing': the server answers 404"),
        ("http://{server}/cut", "peer closed connection"),
        ("http://{nobody}/spool.jsonl", "Cannot fetch .*refused"),
        ("ftp://{server}/spool.jsonl", "a URL begins with http, https, s3, file"),
        ("http:///spool.jsonl", "names a host"),
        ("file://elsewhere/spool.jsonl", "a path on this machine"),
    ],
)
def test_what_cannot_be_fetched_is_one_clear_line(
    home: Path, server: str, address: str, words: str
) -> None:
    address = address.format(server=server, nobody=f"{HOST}:{free_port()}")

    with pytest.raises(InputRefused, match=words) as refused:
        ingest(home, address)

    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)
    assert not home.exists()


def test_more_than_the_limit_is_not_fetched(server: str) -> None:
    with (
        pytest.raises(InputRefused, match="larger than 100 bytes"),
        fetched(f"http://{server}/spool.jsonl", limit_bytes=100),
    ):
        pass


def test_a_file_url_is_its_path(tmp_path: Path) -> None:
    file = tmp_path / "a b%c.jsonl"
    file.write_bytes(CONTENT)

    assert local_path(file.as_uri()) == file
    assert not is_url(Path("http://host/a"))
    assert not is_url("folder/a.jsonl")


@pytest.mark.skipif(rclone_program() is None, reason="needs rclone")
def test_objects_below_a_prefix_are_ingested(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(tmp_path) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        folder = tmp_path / "s3" / BUCKET / "logs" / "day=2026-01-31"
        folder.mkdir(parents=True)
        lines = CONTENT.splitlines(keepends=True)
        (folder / "a.jsonl").write_bytes(b"".join(lines[:5]))
        (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[5:])))

        whole = ingest(home, f"s3://{BUCKET}/logs")
        one = ingest(home, f"s3://{BUCKET}/logs/day=2026-01-31/a.jsonl")
        with pytest.raises(InputRefused, match="no object of this name"):
            ingest(home, f"s3://{BUCKET}/none")

    assert whole.files == 2
    assert whole.funnel["hops_added"] == 12
    assert not one.added
