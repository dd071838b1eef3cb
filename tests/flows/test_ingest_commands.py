"""Proves `flows run ingest --follow|--format` and `flows quarantine` as a person uses them.

Nothing is faked; following runs in a process of its own and gets a real Ctrl-C.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from source_files import SPOOL, json_lines
from typer.testing import CliRunner, Result

from flows.cli import app
from serving.errors import MolError
from traces.ingest import ingest

LINES = json_lines(SPOOL)
BROKEN = b'{"kind": "hop", "record": {"password": "hunter2"}}\n'


def flows(*words: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


@pytest.fixture
def broken(home: Path, tmp_path: Path) -> Path:
    """A home with one record in quarantine."""
    (tmp_path / "a.jsonl").write_bytes(BROKEN + LINES)
    ingest(home, tmp_path / "a.jsonl")
    return home


def test_a_record_goes_from_list_to_show_to_fix(broken: Path, tmp_path: Path) -> None:
    listed = flows("quarantine", "list", "--home", broken)
    found = json.loads(flows("quarantine", "list", "--home", broken, "--json").stdout)
    (row,) = found["records"]
    id = row["quarantine_id"].removeprefix("sha256:")[:12]
    shown = flows("quarantine", "show", id, "--home", broken)
    mended = tmp_path / "mended.json"
    record = {**SPOOL[0]["record"], "seq": 9}
    mended.write_text(json.dumps({"kind": "hop", "record": record}))

    fixed = flows("quarantine", "fix", id, "--file", mended, "--home", broken)

    assert id in listed.stdout
    assert "bad_record" in listed.stdout
    assert "hunter2" not in listed.output
    assert found["counts"][0] | {"bytes": 0} == {
        "source": "a.jsonl", "reason": "bad_record", "format": "native", "records": 1, "bytes": 0
    }  # fmt: skip
    assert shown.stdout_bytes == BROKEN
    assert "a.jsonl at 0 (native)" in shown.stderr
    assert "1 left quarantine (1 hops)" in fixed.stdout
    assert "Nothing is in quarantine." in flows("quarantine", "list", "--home", broken).stdout


def test_a_record_is_mended_from_stdin_and_refused_where_it_is_none(broken: Path) -> None:
    (row,) = json.loads(flows("quarantine", "list", "--home", broken, "--json").stdout)["records"]
    id = row["quarantine_id"]

    refused = flows("quarantine", "fix", id, "--home", broken, stdin=b"{}")
    missing = flows("quarantine", "fix", id, "--file", "none.json", "--home", broken)
    unknown = flows("quarantine", "show", "zz", "--home", broken)
    replayed = flows("quarantine", "replay", "--home", broken, "--json")
    record = {**SPOOL[0], "record": {**SPOOL[0]["record"], "seq": 9}}
    fixed = flows("quarantine", "fix", id, "--home", broken, stdin=json.dumps(record).encode())

    for done, words in ((refused, "refused too"), (missing, "none.json"), (unknown, "No record")):
        assert isinstance(done.exception, MolError)
        assert words in str(done.exception)
    assert json.loads(replayed.stdout)["left"] == {"bad_record": 1}
    assert fixed.exit_code == 0


def test_a_plan_says_which_format_was_found_and_a_named_one_is_kept_to(
    tmp_path: Path, home: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    words = ["run", "ingest", tmp_path / "a.jsonl", "--dry-run", "--json", "--home", home]

    found = flows(*words)
    other = flows(*words, "--format", "otlp")
    unknown = flows(*words, "--format", "oltp")
    url = flows("run", "ingest", "https://host/a.jsonl", "--dry-run", "--json", "--home", home)

    assert "as native" in json.loads(found.stdout)[0]["would"]
    assert "is native, not otlp" in str(other.exception)
    assert "Unknown trace format 'oltp'" in str(unknown.exception)
    assert json.loads(url.stdout)[0]["would"] == "fetch https://host/a.jsonl"
    assert not home.exists()


def test_following_ends_cleanly_at_ctrl_c(tmp_path: Path, home: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(LINES[: len(LINES) // 2])
    command = [Path(sys.executable).with_name("flows"), "run", "ingest", file, "--follow", "--json",
               "--home", home]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            first = json.loads(process.stdout.readline())
            with file.open("ab") as out:
                out.write(LINES[len(LINES) // 2 :])
            second = json.loads(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            process.kill()

    assert process.returncode == 0
    assert first["funnel"]["hops_added"] + second["funnel"]["hops_added"] == 12


@pytest.mark.parametrize("words", [["a", "b"], ["https://host/a.jsonl"]])
def test_only_one_local_source_can_be_followed(
    tmp_path: Path, home: Path, words: list[str]
) -> None:
    config = tmp_path / "loop.toml"
    config.write_text(f"sources = {json.dumps(words)}")

    done = flows("run", "ingest", "--follow", "--config", config, "--home", home)

    assert "--follow takes one file or folder of this machine" in str(done.exception)
    assert flows("run", "train", "--follow", "--home", home).exit_code == 2
