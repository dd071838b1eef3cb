"""Proves that a lake on a real PostgreSQL and a real S3-compatible server is the default one.

Both servers run on loopback for this module; two homes stand in for two machines. The tests
are skipped only where a server's program is not installed.
"""

import concurrent.futures
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import psycopg
import pytest
from postgres_server import PASSWORD, PostgresServer, postgres_folder, postgres_server
from s3_server import BUCKET, rclone_program, s3_server
from trace_records import PROFILE, line, tables, traffic

from traces.analytics.views import attach_statements, query
from traces.attribute import attribute
from traces.config import LakeConfig
from traces.errors import LakeNotFound, LakeUnavailable
from traces.ingest import ingest
from traces.read import read_turns
from traces.storage import migrations
from traces.storage.lake import Lake
from traces.storage.lake_address import LakeAddressRefused, attach, settle_address
from traces.storage.upkeep import upkeep
from traces.storage.writer_lock import WriterLock

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(postgres_folder() is None, reason="PostgreSQL is not installed"),
    pytest.mark.skipif(rclone_program() is None, reason="rclone is not installed"),
]

TURNS = 30


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3")) as environment:
        yield environment


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(autouse=True)
def secrets(s3: dict[str, str], postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    for name, value in s3.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def cluster(postgres: PostgresServer, request: pytest.FixtureRequest) -> LakeConfig:
    """A new database and a new prefix."""
    name = f"lake_{abs(hash(request.node.name))}"
    return LakeConfig(catalog=postgres.make_database(name), data=f"s3://{BUCKET}/{name}")


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Two files of turns and signals, and a line that is no record."""
    folder = tmp_path / "spool"
    folder.mkdir()
    lines = [line(record) + "\n" for record in traffic(TURNS)]
    (folder / "a.jsonl").write_text("".join(lines[:80]) + '{"kind": "hop"}\n')
    (folder / "b.jsonl").write_text("".join(lines[50:]))
    return folder


_INGEST = """
import sys
from pathlib import Path
from traces.ingest import ingest
ingest(Path(sys.argv[1]), Path(sys.argv[2]), batch_lines=20)
"""


CONTENT = ("hops", "turns", "feedback", "messages", "outcomes", "blame", "quarantine")


def objects(home: Path, cluster: LakeConfig) -> int:
    """Count the lake's objects in S3."""
    with Lake.open(home, read_only=True) as lake:
        found = lake.connection.execute(f"FROM glob('{cluster.data}/**')").fetchall()
    return len(found)


def test_two_machines_ingesting_the_same_files_at_once_make_the_rows_of_the_default_lake(
    tmp_path: Path, cluster: LakeConfig, spool: Path
) -> None:
    ingest(tmp_path / "default", spool)
    attribute(tmp_path / "default", PROFILE)
    homes = [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        settle_address(home, cluster)

    writers = [
        subprocess.Popen([sys.executable, "-c", _INGEST, home, spool], stderr=subprocess.PIPE)
        for home in homes
    ]
    errors = [writer.communicate(timeout=120)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], errors
    attribute(homes[0], PROFILE)

    assert tables(homes[1]) == tables(tmp_path / "default")
    assert not ingest(homes[1], spool).added
    before = objects(homes[0], cluster)
    report = upkeep(homes[0], LakeConfig(keep_snapshots_days=0, keep_files_hours=0))
    assert objects(homes[0], cluster) == report.files_after < before
    assert tables(homes[1], *CONTENT) == tables(tmp_path / "default", *CONTENT)
    assert query(homes[1], "SELECT count(*) FROM v_turns WHERE success")[1] == [(TURNS * 2 // 3,)]
    assert list(read_turns(homes[0])) == list(read_turns(tmp_path / "default"))
    assert not list((tmp_path / "one").rglob("*.parquet"))
    assert not list((tmp_path / "one").rglob("*.sqlite"))


def test_a_lake_that_another_machine_makes_meanwhile_is_opened(
    tmp_path: Path, cluster: LakeConfig, postgres: PostgresServer
) -> None:
    homes = [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        address = settle_address(home, cluster)
    root = homes[0] / "lake"
    lock = WriterLock(root, address)
    waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    rows = [{"request_id": "r", "source": "s", "started_at": "2026-01-01T00:00:00Z", "body": {}}]

    with concurrent.futures.ThreadPoolExecutor() as pool:
        with lock.held():
            other = pool.submit(Lake.open, homes[1])
            while not postgres.execute("postgres", waiting):
                time.sleep(0.01)
            with Lake(attach(root, address, create=True), root, lock) as made:
                made.commit(migrations.upgrade)
                made.commit(lambda _: made.insert_new("requests", rows))
        other.result(timeout=60).close()

    assert query(homes[1], "SELECT count(*) FROM requests")[1] == [(1,)]


@pytest.mark.parametrize("local", ["catalog", "data"])
def test_catalog_and_files_can_each_be_in_the_home(
    tmp_path: Path, home: Path, cluster: LakeConfig, spool: Path, local: str
) -> None:
    settle_address(home, cluster.model_copy(update={local: None}))
    ingest(home, spool)
    ingest(tmp_path / "default", spool)

    assert tables(home) == tables(tmp_path / "default")
    assert bool(list(home.rglob("*.parquet"))) == (local == "data")
    assert bool(list(home.rglob("catalog.sqlite"))) == (local == "catalog")


def test_a_writer_that_lost_its_lock_doubles_nothing(
    tmp_path: Path, cluster: LakeConfig, postgres: PostgresServer
) -> None:
    homes = [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        settle_address(home, cluster)
    rows = [
        {"request_id": f"r{n}", "source": "s", "started_at": "2026-01-01T00:00:00Z", "body": {}}
        for n in range(100)
    ]
    runs: list[int] = []
    with Lake.open(homes[0]) as slow, Lake.open(homes[1]) as quick:

        def work(connection: duckdb.DuckDBPyConnection) -> int:
            added = slow.insert_new("requests", rows)
            runs.append(len(added))
            if len(runs) == 1:
                postgres.execute(
                    "postgres",
                    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'",
                )
                quick.commit(lambda _: quick.insert_new("requests", rows))
            return len(added)

        assert slow.commit(work) == 0

    assert runs == [100, 0]
    assert query(homes[0], "SELECT count(*) FROM requests")[1] == [(100,)]


def test_a_database_without_a_lake_is_no_lake(home: Path, cluster: LakeConfig) -> None:
    settle_address(home, cluster)

    with pytest.raises(LakeNotFound, match="flows run ingest"):
        list(read_turns(home))


def test_another_place_for_the_files_of_a_shared_catalog_is_refused(
    tmp_path: Path, cluster: LakeConfig
) -> None:
    settle_address(tmp_path / "one", cluster)
    Lake.open(tmp_path / "one").close()
    settle_address(tmp_path / "two", cluster.model_copy(update={"data": f"s3://{BUCKET}/other"}))

    with pytest.raises(LakeUnavailable, match="does not match existing data path") as refusal:
        Lake.open(tmp_path / "two")
    assert "\n" not in str(refusal.value)


def test_files_of_another_lake_are_in_the_way_of_a_new_one(
    tmp_path: Path, cluster: LakeConfig, postgres: PostgresServer, spool: Path
) -> None:
    settle_address(tmp_path / "one", cluster)
    ingest(tmp_path / "one", spool)
    other = cluster.model_copy(update={"catalog": postgres.make_database("other")})
    settle_address(tmp_path / "two", other)

    with pytest.raises(LakeAddressRefused, match="empty prefix"):
        Lake.open(tmp_path / "two")


def test_no_secret_is_kept_or_said(
    home: Path,
    cluster: LakeConfig,
    spool: Path,
    postgres: PostgresServer,
    s3: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settle_address(home, cluster)
    ingest(home, spool)
    secrets = [PASSWORD, s3["AWS_SECRET_ACCESS_KEY"]]

    said = [str(query(home, "FROM duckdb_secrets()")), str(query(home, "FROM duckdb_settings()"))]
    said += [str(query(home, "FROM duckdb_databases()"))]
    for name, word in (("AWS_SECRET_ACCESS_KEY", "403"), ("PGPASSWORD", "authentication failed")):
        with monkeypatch.context() as wrong:
            wrong.setenv(name, "wrong-" + secrets[0])
            with pytest.raises(LakeUnavailable, match=word) as refusal:
                list(read_turns(home))
            said.append(str(refusal.value))
            assert "\n" not in said[-1]
    kept = [f.read_bytes().decode(errors="replace") for f in home.rglob("*") if f.is_file()]
    assert cluster.catalog is not None
    with psycopg.connect(cluster.catalog, password=PASSWORD) as connection:
        kept.append(str(connection.execute("SELECT * FROM ducklake_metadata").fetchall()))

    assert [text for text in said + kept if any(secret in text for secret in secrets)] == []


def test_a_bare_client_attaches_it_by_the_printed_statements(
    home: Path, cluster: LakeConfig, spool: Path
) -> None:
    settle_address(home, cluster)
    ingest(home, spool)
    statements = attach_statements(home)
    code = f"""
from duckdb_extensions import import_extension
for name in ("ducklake", "postgres_scanner", "httpfs"):
    import_extension(name)
import duckdb
connection = duckdb.connect()
connection.execute({statements!r})
print(connection.execute("SELECT sum(turns) FROM v_success").fetchone())
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout == f"({TURNS},)\n"
    assert PASSWORD not in statements
    assert "secret" not in statements.lower()
