"""Proves that of a call told again and again the lake keeps the latest, however the files come.

Real ingests of Langfuse and LangSmith rows; nothing is faked.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from import_rows import hop_of, lines
from logged_calls import generation

from traces.ingest import ingest
from traces.storage.lake import Lake

RUNNING = generation(end_time=None, output="", updated_at="2025-11-29 16:00:00.100000")
ENDED = generation(updated_at="2025-11-29 16:00:02.000000")
PRICED = generation(updated_at="2025-11-29 16:20:00.000000", total_cost=0.5)
OTHER = generation(id="o2", start_time="2025-11-29 16:00:03.000000", end_time=None)


def ingested(tmp_path: Path, files: list[list[dict[str, Any]]]) -> Path:
    home = tmp_path / "home"
    for number, rows in enumerate(files):
        file = tmp_path / f"{number}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        ingest(home, file)
    return home


def stored(home: Path) -> list[tuple[Any, ...]]:
    with Lake.open(home, read_only=True) as lake:
        return (
            lake.connection.execute(
                "SELECT turn_id, hop_ids, answer FROM turns ORDER BY turn_id"
            ).fetchall()
            + lake.connection.execute("SELECT hop_id FROM hops ORDER BY ALL").fetchall()
        )


@pytest.mark.parametrize("order", [(RUNNING, ENDED, PRICED), (PRICED, RUNNING, ENDED)])
def test_the_latest_version_stands_in_whatever_order_they_come(
    tmp_path: Path, order: tuple[dict[str, Any], ...]
) -> None:
    latest, other = hop_of(PRICED)["hop_id"], hop_of(OTHER)["hop_id"]

    home = ingested(tmp_path, [[OTHER], *([row] for row in order)])

    (turn, *hops) = stored(home)
    assert turn[:2] == ("langfuse:t1", [latest, other])
    assert {hop for (hop,) in hops} == {latest, other}


def test_one_file_or_many_and_once_or_twice_is_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    one = ingested(tmp_path / "a", [[PRICED, RUNNING, OTHER, ENDED]])
    many = ingested(tmp_path / "b", [[ENDED, RUNNING], [OTHER, PRICED], [ENDED, OTHER]])

    assert stored(one) == stored(many)


def test_a_run_that_ended_replaces_itself_while_pending(tmp_path: Path) -> None:
    ended = lines("langsmith.jsonl")[2]
    pending = {k: v for k, v in ended.items() if k not in ("outputs", "end_time")}

    for number, files in enumerate(([[pending], [ended]], [[ended], [pending]])):
        (tmp_path / str(number)).mkdir()
        home = ingested(tmp_path / str(number), files)
        assert stored(home)[1:] == [(hop_of(ended)["hop_id"],)]


def test_calls_of_other_sources_that_share_an_id_all_stand(tmp_path: Path) -> None:
    call = lines("litellm.jsonl")[0]
    retried = {**call, "startTime": call["startTime"] + 1, "endTime": call["endTime"] + 1}

    home = ingested(tmp_path, [[call, retried]])

    hops = {hop_of(call)["hop_id"], hop_of(retried)["hop_id"]}
    with Lake.open(home, read_only=True) as lake:
        rows = lake.connection.execute("SELECT hop_id FROM hops").fetchall()
    assert {row[0] for row in rows} == hops
