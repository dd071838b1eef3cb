"""Proves that docs/analytics.md says what the lake answers, and that any DuckDB client may ask.

Real lake of the bundled examples; the client is a process that has DuckDB and its packaged
extensions, and nothing of this project.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.analytics import PAGE, answered, make_lake
from serving.slots import load_profile
from traces.analytics.questions import QUESTIONS
from traces.analytics.view_definitions import VIEWS
from traces.analytics.views import attach_statements, query
from traces.attribute import attribute
from traces.ingest import ingest

TEXT = PAGE.read_text(encoding="utf-8")
# `INSTALL` looks in the folder of extensions before it looks for a network.
PACKAGED = """
from duckdb_extensions import import_extension
import_extension("ducklake"), import_extension("sqlite_scanner")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's lake in `.mol`."""
    folder = tmp_path_factory.mktemp("analytics")
    make_lake(folder / ".mol")
    return folder


def client(code: str, folder: Path) -> str:
    """Run Python in isolation, so that it can import nothing of this checkout."""
    command = [sys.executable, "-I", "-c", PACKAGED + code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_the_page_holds_what_the_lake_answers(folder: Path) -> None:
    assert answered(TEXT, folder / ".mol") == TEXT


def test_every_question_and_every_view_is_on_the_page() -> None:
    marks = re.findall(r"<!-- (\w+) -->", TEXT)

    assert sorted(marks) == sorted(
        [q.name for q in QUESTIONS] + ["views", "shown"] + ["end"] * (len(QUESTIONS) + 2)
    )
    assert [v.name for v in VIEWS if f"`{v.name}`" not in TEXT] == []


def test_the_pages_client_attaches_a_lake_and_asks_its_views(folder: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)

    printed = client(code, folder)

    for slot, turns in query(folder / ".mol", "SELECT slot, turns FROM v_success_by_slot")[1]:
        assert re.search(rf"│ {slot} +│ +{turns} │", printed)


EMPTY = ["v_errors", "v_replays", "v_preferences", "v_success_of_canaries"]
"""Views of what the bundled traffic has none of."""


def test_the_printed_statements_give_a_client_every_view_and_no_way_to_write(folder: Path) -> None:
    names = [view.name for view in VIEWS]
    code = f"""
import duckdb, sys
connection = duckdb.connect()
connection.execute({attach_statements(folder / ".mol")!r})
for name in {names!r}:
    assert connection.execute("FROM " + name).fetchone() or name in {EMPTY!r}, name
try:
    connection.execute("DELETE FROM hops")
except duckdb.Error as error:
    print(error)
print(connection.execute("SELECT wilson_low(1, 2) < 0.5").fetchone())
print([name for name in sys.modules if name.split(".")[0] in ("traces", "flows", "serving")])
"""
    printed = client(code, folder)

    assert "attached in read-only mode" in printed
    assert printed.endswith("(True,)\n[]\n")


def test_a_lake_that_was_moved_is_attached_where_it_is(folder: Path, tmp_path: Path) -> None:
    moved = (folder / ".mol").rename(tmp_path / "moved")
    try:
        code = f"""
import duckdb
connection = duckdb.connect()
connection.execute({attach_statements(moved)!r})
print(connection.execute("SELECT count(*) FROM hops").fetchone())
"""
        assert client(code, tmp_path) == f"{query(moved, 'SELECT count(*) FROM hops')[1][0]}\n"
    finally:
        moved.rename(folder / ".mol")


@pytest.mark.slow
def test_tasks_of_the_whole_benchmark_are_as_its_rewards_say(
    shared_data: Path, tmp_path: Path
) -> None:
    ingest(tmp_path, shared_data / "tau-bench" / "gpt-4o-airline.json")
    attribute(tmp_path, load_profile())

    sql = "SELECT passes, count(*), sum(attempts), sum(passed) FROM v_tasks GROUP BY ALL ORDER BY 1"
    found = {passes: counts for passes, *counts in query(tmp_path, sql)[1]}

    assert {passes: tasks for passes, (tasks, _, _) in found.items()} == {
        "all": 10, "mixed": 26, "none": 14,
    }  # fmt: skip
    assert sum(attempts for _, attempts, _ in found.values()) == 200
    assert sum(passed for *_, passed in found.values()) == 84
