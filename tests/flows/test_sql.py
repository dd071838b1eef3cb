"""Proves what 'flows sql' takes and prints. Real lake; the command runs in this process."""

import csv
import io
import json
from pathlib import Path

import pytest
from trace_records import traffic, write_spool
from typer.testing import CliRunner, Result

from flows import cli
from traces.analytics.view_definitions import VIEWS
from traces.errors import QueryRefused
from traces.ingest import ingest


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sql")
    ingest(folder / ".mol", write_spool(folder / "s.jsonl", traffic(3)))
    return folder / ".mol"


def sql(home: Path, *words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, ["sql", *words, "--home", str(home)], input=stdin)


def test_without_a_query_the_views_are_listed(home: Path) -> None:
    listed = json.loads(sql(home, "--json").stdout)

    assert {view.name for view in VIEWS} <= {row["name"] for row in listed}


def test_a_query_comes_from_words_a_file_or_stdin(home: Path, tmp_path: Path) -> None:
    query = "SELECT count(*) AS n -- how many\nFROM turns;\n"
    file = tmp_path / "query.sql"
    file.write_text(query)

    for done in (
        sql(home, query, "--json"),
        sql(home, "--file", str(file), "--json"),
        sql(home, "-", "--json", stdin=query),
    ):
        assert json.loads(done.stdout) == [{"n": 3}]


def test_a_file_that_is_not_there_is_one_clear_error(home: Path, tmp_path: Path) -> None:
    done = sql(home, "--file", str(tmp_path / "none.sql"))

    assert "none.sql" in str(done.exception)
    assert "\n" not in str(done.exception)


def test_csv_and_json_are_whole_and_hold_plain_values(home: Path) -> None:
    query = (
        "SELECT i, DATE '2026-03-01' AS day, TIMESTAMP '2026-03-01 09:00:00' AS at, 1.50 AS price,"
        " ['a', 'b'] AS words, {'k': i} AS pair, 'x,\"y' AS text, NULL AS nothing,"
        " '\\xFFz'::BLOB AS raw FROM range(1000) r(i)"
    )

    rows = json.loads(sql(home, query, "--json").stdout)
    lines = list(csv.reader(io.StringIO(sql(home, query, "--csv").stdout)))

    assert len(rows) == 1000
    assert rows[7] == {
        "i": 7, "day": "2026-03-01", "at": "2026-03-01T09:00:00", "price": 1.5,
        "words": ["a", "b"], "pair": {"k": 7}, "text": 'x,"y', "nothing": None, "raw": "\\xffz",
    }  # fmt: skip
    assert lines[0] == list(rows[0])
    assert [line[0] for line in lines[1:]] == [str(i) for i in range(1000)]
    assert lines[1][6] == 'x,"y'


def test_a_table_is_cut_with_a_notice(home: Path) -> None:
    few = sql(home, "FROM range(1000)")
    all_of_them = sql(home, "FROM range(1000)", "--limit", "0")
    cut = sql(home, "FROM range(1000)", "--limit", "3", "--csv")

    assert "Only the first 200 rows are shown" in few.stderr
    assert len(few.stdout.split()) < len(all_of_them.stdout.split()) > 1000
    assert all_of_them.stderr == ""
    assert cut.stdout == "range\n0\n1\n2\n"
    assert "first 3 rows" in cut.stderr
    assert sql(home, "FROM range(3)", "--limit", "3").stderr == ""


def test_columns_of_one_name_are_told_apart(home: Path) -> None:
    assert json.loads(sql(home, "SELECT 1 AS a, 2 AS a, 3 AS a", "--json").stdout) == [
        {"a": 1, "a_2": 2, "a_3": 3}
    ]


def test_an_error_names_what_was_meant(home: Path) -> None:
    done = sql(home, "SELECT sucess FROM v_turns")

    assert isinstance(done.exception, QueryRefused)
    assert "success" in str(done.exception)
    assert "\n" not in str(done.exception)


@pytest.mark.parametrize("words", [["FROM hops", "--attach"], ["FROM hops", "--csv", "--json"]])
def test_contradicting_options_are_wrong_usage(home: Path, words: list[str]) -> None:
    assert sql(home, *words).exit_code == 2
