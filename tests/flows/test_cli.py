"""The `flows` command as a person uses it: in a process of its own, real files, real errors.

Nothing is faked. Bad input gives one line on stderr, a status of its own, and no change.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tiny_loop import tiny_settings

from flows import manual, stages
from flows.cli import app

pytestmark = pytest.mark.timeout(600)

FLOWS = Path(sys.executable).with_name("flows")
COMMANDS = [
    ["run"], ["config"], ["promote"], ["rollback"], ["sql"], ["traces", "list"],
    ["traces", "show"], ["datasets", "list"], ["datasets", "show"], ["adapters", "list"],
    ["adapters", "show"], ["runs", "list"], ["runs", "show"], ["router", "train"],
    ["router", "show"], ["router", "rollback"], ["router", "estimate"],
    ["quarantine", "list"], ["quarantine", "show"], ["quarantine", "fix"],
    ["quarantine", "replay"], ["schedule"],
]  # fmt: skip


def numbers(command: Any, path: str = "flows") -> Iterator[tuple[str, int | None]]:
    """Yield each option that is a number, with the most that it takes."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from numbers(inner, f"{path} {name}")
    for option in command.params:
        described = getattr(option, "type_descriptor", None)
        if re.search("int|float", str(described and described.annotation)):
            yield f"{path} {option.opts[0]}", option.max


def flows(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [FLOWS, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def assert_one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check that a command failed with nothing but one line that has `words` in it."""
    assert_refused(done, *words)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check that a command failed and that its last line says why; progress may precede it."""
    assert done.returncode == 1, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("flows: ")
    for word in words:
        assert word in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_a_help_text(command):
    done = flows(*command, "--help")
    assert done.returncode == 0
    assert "Usage: flows" in done.stdout


def test_help_loads_nothing_heavy():
    code = "import sys, flows.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "trl", "prefect", "great_expectations", "duckdb", "pandas"}
    assert heavy & set(done.stdout.split()) == set()


@pytest.mark.parametrize(
    "words",
    [
        ["run", "bogus"], ["nonsense"], ["run", "ingest", "a", "b"], ["run", "attribute", "extra"],
        ["traces", "list", "--since", "999999d"], ["traces", "list", "--since", "200000w"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_has_status_2(words):
    assert flows(*words).returncode == 2


def test_dotted_flags_may_stand_anywhere(spool, tmp_path):
    flag = ["--curation.min-rows", "3"]
    for words in (["ingest", spool, *flag], [*flag, "ingest", spool], ["ingest", *flag, spool]):
        done = flows("run", *words, "--home", tmp_path / "home", "--dry-run", "--json")
        assert [step["stage"] for step in json.loads(done.stdout)] == ["ingest"]


@pytest.mark.parametrize(
    ("name", "bytes_"),
    [
        ("missing", None),
        ("prose.jsonl", b"this is not JSON\n" * 5),
        ("binary.jsonl", bytes(range(256)) * 64),
        ("empty.jsonl", b""),
        ("other.json", b'{"a": 1}\n'),
    ],
)
def test_input_that_is_no_trace_changes_nothing(name, bytes_, tmp_path):
    path = tmp_path / name
    if bytes_ is not None:
        path.write_bytes(bytes_)
    home = tmp_path / "home"
    assert_one_line(flows("run", "ingest", path, "--home", home), name)
    assert not home.exists()


def test_an_empty_folder_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    done = flows("run", "ingest", tmp_path / "empty", "--home", tmp_path / "home")
    assert_one_line(done, "empty")
    assert not (tmp_path / "home").exists()


def test_a_truncated_last_line_waits_and_the_rest_comes_in(prefect, spool, tmp_path):
    import gzip

    text = gzip.decompress(sorted(spool.glob("*.gz"))[0].read_bytes())
    traces = tmp_path / "growing.jsonl"
    traces.write_bytes(text[:-20])
    home = tmp_path / "home"
    done = flows("run", "ingest", traces, "--home", home, "--json")
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)
    assert report["waiting_bytes"] > 0
    assert report["quarantined"] == {}
    traces.write_bytes(text)
    (report,) = json.loads(flows("run", "ingest", traces, "--home", home, "--json").stdout)
    assert report["waiting_bytes"] == 0
    assert sum(n for key, n in report["funnel"].items() if key.endswith("_added")) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["run", "curate", "--slot", "L9"],
        ["run", "cycle", "--slot", "L9"],
    ],
    ids=" ".join,
)
def test_an_unknown_slot_is_named_with_those_there_are(words, tmp_path):
    home = tmp_path / "home"
    assert_one_line(flows(*words, "--home", home), "'L9'", "L0, L1, L2, L3")
    assert not home.exists()


@pytest.mark.parametrize("command", ["rollback", "promote"])
def test_an_unknown_slot_of_the_registry_is_named_with_those_there_are(command, tmp_path):
    done = flows(command, "L9", "--home", tmp_path / "home")
    assert_one_line(done, "'L9'", "'L0', 'L1', 'L2', 'L3'", "flows slots list")


@pytest.mark.parametrize("stage", ["curate", "train", "gate", "promote"])
def test_a_stage_of_one_slot_asks_which(stage, tmp_path):
    assert_one_line(flows("run", stage, "--home", tmp_path / "home"), "--slot")


def test_a_missing_base_says_how_to_get_one(tmp_path, spool):
    done = flows("run", "cycle", spool, "--home", tmp_path / "home", "--base", tmp_path / "none")
    assert_one_line(done, "infra.base_model")


def test_a_wrong_setting_is_named(tmp_path):
    done = flows("run", "--training.epohcs", "3", "--home", tmp_path / "home")
    assert_one_line(done, "training.epohcs", "flows config")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_loses_nothing(spool, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this container may not mount a small disk")
    try:
        done = flows("run", "ingest", spool, "--home", disk / "home", PREFECT_HOME=str(tmp_path))
        assert done.returncode == 1
        assert "space" in done.stderr.splitlines()[-1]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_dry_run_says_what_it_would_do_and_changes_nothing(tiny_base, spool, tmp_path):
    home = tmp_path / "home"
    done = flows("run", "cycle", spool, "--home", home, "--base", tiny_base, "--dry-run", "--json")
    steps = [step["stage"] for step in json.loads(done.stdout)]
    assert steps == ["ingest", "attribute", "curate", "train", "gate", "promote", "lineage"]
    assert not home.exists()


@pytest.fixture(scope="session")
def looped(prefect, tiny_base, spool, tmp_path_factory):
    """A home that went through ingest, attribution, curation and training of L0."""
    settings = tiny_settings(
        tmp_path_factory.mktemp("cli") / "home", tiny_base, (spool,), slot="L0"
    )
    for stage in ("ingest", "attribute", "curate", "train"):
        manual.run(settings, stage)
    return settings


def test_tables_come_as_json_too(looped):
    home = looped.home
    for group in ("traces", "datasets", "adapters", "runs"):
        rows = json.loads(flows(group, "list", "--home", home, "--json").stdout)
        assert rows
    turn = json.loads(flows("traces", "list", "--home", home, "--json").stdout)[0]["turn_id"]
    shown = json.loads(flows("traces", "show", turn, "--home", home, "--json").stdout)
    assert shown["turn"]["turn_id"] == turn
    assert flows("traces", "show", turn, "--home", home).stdout.startswith("turn ")


def test_sql_reads_and_never_writes(looped):
    home = looped.home
    done = flows("sql", "SELECT count(*) AS n FROM turns", "--home", home, "--json")
    assert json.loads(done.stdout)[0]["n"] > 100
    assert_one_line(flows("sql", "DELETE FROM turns", "--home", home), "DELETE")
    assert_one_line(flows("sql", "SELECT * FROM nothing", "--home", home), "Views:")


def gate(home: Path, base: Path) -> subprocess.CompletedProcess[str]:
    return flows("run", "gate", "--slot", "L0", "--home", home, "--base", base)


def test_a_pickle_in_an_adapter_is_refused(looped, tmp_path):
    home = shutil.copytree(looped.home, tmp_path / "home")
    adapter = home / stages.latest_run(looped, "L0").path
    (adapter / "adapter_model.bin").write_bytes(b"\x80\x04N.")
    before = content(home / "adapters")
    assert_refused(gate(home, looped.base), "adapter_model.bin")
    assert content(home / "adapters") == before
    assert not (home / "gates").exists()


def test_an_adapter_of_another_base_is_refused(looped, tmp_path):
    from tiny_loop import make_tiny_base

    home = shutil.copytree(looped.home, tmp_path / "home")
    other = make_tiny_base(tmp_path / "other", seed=1)
    assert_refused(gate(home, other), "base")
    assert not (home / "gates").exists()


def test_an_altered_adapter_is_refused(looped, tmp_path):
    home = shutil.copytree(looped.home, tmp_path / "home")
    weights = home / stages.latest_run(looped, "L0").path / "adapter_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert_refused(gate(home, looped.base), "digest")


def test_promoting_what_the_gate_did_not_judge_is_refused(looped):
    assert_one_line(flows("promote", "L0", "--home", looped.home), "flows run gate")


_LONG_QUERY = """
import os, signal, sys, threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from flows import cli
from traces.storage.lake import Lake

def app():
    with Lake.open(Path(sys.argv[1])) as lake:
        lake.connection.execute("CREATE TEMP TABLE long AS FROM range(1000000) r(n)")
        threading.Timer(1, os.kill, [os.getpid(), signal.SIGINT]).start()
        try:
            lake.connection.execute("SELECT sum(sqrt(a.n + b.n)) FROM long a, long b")
        finally:
            lake.connection.execute("SELECT 1")

cli.app = app
cli.main()
"""


def test_an_interrupt_within_a_query_ends_as_any_other(tmp_path: Path) -> None:
    """DuckDB raises an error of its own, and its other threads would go on for hours."""
    done = subprocess.run(
        [sys.executable, "-c", _LONG_QUERY, tmp_path],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert done.returncode == 130
    assert done.stderr == "flows: interrupted; run the same command again to go on.\n"


def test_no_number_on_the_command_line_is_beyond_what_can_be_counted() -> None:
    most = dict(numbers(typer.main.get_command(app)))
    assert len(most) >= 12
    assert [name for name, number in most.items() if number is None or number > 2**32] == []
