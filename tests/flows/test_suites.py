"""`flows suites list|show|audit` as a person uses them: what is seen of sets, and what is not.

Commands run in a process of their own; the audit's engine is the embedded one with a tiny random
base, whose answers are all wrong. Attempts on sealed sets are rows of a real registry.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_loop import tiny_settings

from flows.config import Settings
from flows.scoring import SuiteNotFound
from flows.suites import PARTS, audit_stage, suite_page, suite_rows
from promotion.spending import reserve, set_name
from promotion.suites.build import build_suites
from promotion.suites.sets import divide
from promotion.tables import Database
from serving.slots import load_profile

FLOWS = Path(sys.executable).with_name("flows")
PROFILE = load_profile()


def said(*words: object) -> Any:
    command = [FLOWS, "suites", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def spend(home: Path, slot: str, suite: str, questions: int) -> None:
    database = Database(home)
    for number in range(questions):
        reserve(
            database, set_name(slot, suite), f"q{number}", slot=slot, champion=None,
            challenger="sha256:" + "a" * 64, alpha=0.05, units=99,
        )  # fmt: skip
    database.close()


@pytest.fixture
def settings(home: Path) -> Settings:
    home.mkdir()
    return Settings(home=home)


def test_every_suite_is_listed_with_its_sets(home: Path) -> None:
    rows = said("list", "--home", home)

    primary = {row["slot"]: row["suite"] for row in rows if row["primary"]}
    assert primary == {"L0": "route", "L1": "tools", "L2": "code", "L3": "interface"}
    assert {"safety-L1", "format-L1", "living-L1", "handover-L1"} <= {r["suite"] for r in rows}
    for row in rows:
        assert (row["margin"] is None) == row["primary"]
        assert (row["least_margin"] is None) == (row["primary"] or row["margin"] == 0)
        assert sum(row[part] for part in PARTS) == row["items"]
        assert row["attempts"] == 0
    assert not (home / "registry.sqlite").exists()  # looking makes nothing


def test_requests_are_shown_of_the_search_set_alone(settings: Settings) -> None:
    suite = next(s for s in build_suites(PROFILE, "L0", 0) if s.name == "chat")
    sets = divide(suite)
    shown = suite_page(settings, "chat", "search")
    sealed = said("show", "chat", "--set", "sealed", "--home", settings.home)
    audit = suite_page(settings, "chat", "audit")

    assert [item["text"] for item in shown["items"]] == [item.text for item in sets.search.items]
    for page, hidden in ((sealed, sets.sealed), (audit, sets.audit)):
        assert len(page["items"]) == len(hidden.items)
        assert {key for item in page["items"] for key in item} == {"item"}
        told = json.dumps(page)
        assert not [item.text for item in hidden.items if item.text in told]
        assert not [item.cluster for item in hidden.items if item.cluster in told]
    assert shown["sets"] == sealed["sets"]
    assert [row["items"] for row in shown["sets"]] == [len(sets.part(p).items) for p in PARTS]


def test_attempts_move_nothing_shown_and_raise_the_least_margin_until_the_next_set(
    settings: Settings,
) -> None:
    page = suite_page(settings, "living-L1", "search")
    first = {row["suite"]: row for row in suite_rows(settings, "L1")}
    spend(settings.home, "L1", "tools", 1)
    second = {row["suite"]: row for row in suite_rows(settings, "L1")}
    spend(settings.home, "L1", "tools", 3)
    spent = {row["suite"]: row for row in suite_rows(settings, "L1")}

    assert suite_page(settings, "living-L1", "search") == page
    assert [{row["attempts"] for row in rows.values()} for rows in (first, second, spent)] == [
        {0},
        {1},
        {0},
    ]
    assert {row["attempts"] for row in suite_rows(settings, "L2")} == {0}
    least = [rows["living-L1"]["least_margin"] for rows in (first, second, spent)]
    assert least[0] == least[2] < least[1] < first["living-L1"]["margin"]


def test_a_suite_of_ones_own_is_listed_and_shown(settings: Settings, tmp_path: Path) -> None:
    mine = tmp_path / "mine.jsonl"
    lines: list[dict[str, Any]] = [{"suite": "mine", "slot": "L0"}]
    lines += [
        {"text": f"Question {n}?", "reference": {"verifier": "numeric", "value": n}}
        for n in range(40)
    ]
    mine.write_text("\n".join(map(json.dumps, lines)))
    changed = settings.model_copy(
        update={"suites": settings.suites.model_copy(update={"files": (mine,)})}
    )
    (row,) = (row for row in suite_rows(changed, "L0") if row["suite"] == "mine")

    assert (row["items"], row["clusters"], row["primary"]) == (40, 40, False)
    texts = [item["text"] for item in suite_page(changed, "mine", "search")["items"]]
    assert 0 < len(texts) == row["search"]


def test_an_unknown_suite_is_refused_with_those_there_are(settings: Settings) -> None:
    with pytest.raises(SuiteNotFound, match=r"No suite 'tolls'; there are route, chat, .*tools"):
        suite_page(settings, "tolls", "search")


def test_an_audit_scores_the_champion_and_gates_nothing(home: Path, tiny_base: Path) -> None:
    sizes = {"primary": 4, "guard": 3, "bystander": 1, "safety": 3, "format": 2, "living": 2}
    settings = tiny_settings(home, tiny_base, (), suites=sizes)
    seen: list[tuple[int, int]] = []
    found = audit_stage(settings, "L1", lambda done, total: seen.append((done, total)))

    assert (found.slot, found.version) == ("L1", "base")
    scores = {one.suite: one.score for one in found.suites}
    assert {name: score.n for name, score in scores.items()} == {
        "tools": 4, "handover-L1": 3, "safety-L1": 3, "format-L1": 2, "living-L1": 2,
    }  # fmt: skip
    assert scores["tools"].mean == scores["living-L1"].mean == 0
    assert [one.gate for one in found.suites] == [None] * 5
    assert seen[-1] == (14, 14)
    assert not (home / "gates").exists()


def test_a_slot_without_a_suite_has_no_audit(home: Path, tiny_base: Path) -> None:
    settings = tiny_settings(home, tiny_base, ())
    profile = settings.home / "profile.toml"
    profile.parent.mkdir()
    text = Path(settings.profile).read_text()
    profile.write_text(text + '\n[[slots]]\nname = "L4"\ndescription = "law"\nsystem = "Law."\n')
    with pytest.raises(SuiteNotFound, match=r"No suite judges slot 'L4'.*primary_suite"):
        audit_stage(settings.model_copy(update={"profile": profile}), "L4")
