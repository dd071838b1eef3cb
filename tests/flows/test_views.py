"""Proves what 'flows traces show' tells of attempts and of turns asked again. Real lake."""

from pathlib import Path

from trace_records import PROFILE, at, hop, says, turn_of, write_spool

from flows.config import Settings
from flows.views import turn_text
from traces.attribute import attribute
from traces.ingest import ingest


def test_superseded_attempts_and_turns_are_marked(home: Path, tmp_path: Path) -> None:
    lost = hop(status="engine_error", completion=None, error="503 busy")
    again = hop(seq=2, started_at=at(1.5), supersedes=lost.hop_id)
    first = turn_of([lost, again])
    answer = hop(turn_id="t2", started_at=at(30), completion=says("sorted(x, key=f)"))
    second = turn_of([answer], turn_id="t2", position=1, supersedes="t1")
    ingest(home, write_spool(tmp_path / "s.jsonl", [lost, again, answer, first, second]))
    attribute(home, PROFILE)
    settings = Settings(home=home)

    shown, later = turn_text(settings, "t1"), turn_text(settings, "t2")

    assert "outcome: no verdict (superseded)" in shown
    assert "engine_error, superseded by a later attempt: 503 busy" in shown
    assert "] L2@3fa9c1d2e4b5, ok, a further attempt" in shown
    assert "asked again; supersedes turn t1" in later
    assert "attempt" not in later
