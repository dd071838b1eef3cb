"""Proves that the lake is told what the registry and the datasets know, once and rightly.

Real registry, real lake; the bundled history of `examples/promoted` is a real loop's.
"""

import shutil
from pathlib import Path

import pytest
from registry_records import SLOTS, attempted, digest_of, gated, report_of, version_of

from flows import lineage
from flows.config import Settings
from promotion.gate import save_report
from promotion.registry import Registry
from traces.analytics.views import query
from traces.ingest import ingest
from traces.joins.mark import learning_mark
from traces.storage.lake import Lake

EXAMPLES = Path(__file__).parents[2] / "examples"
PROMOTED = EXAMPLES / "promoted"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled history with one day of its turns; tests work on copies."""
    home = tmp_path_factory.mktemp("history") / "home"
    shutil.copytree(PROMOTED, home, ignore=shutil.ignore_patterns("traces"))
    ingest(home, next((PROMOTED / "traces").glob("*.gz")))
    return home


@pytest.fixture
def settings(history: Path, tmp_path: Path) -> Settings:
    """Settings for a copy of the history."""
    return Settings(home=Path(shutil.copytree(history, tmp_path / "home")))


def test_tenures_are_those_of_the_registrys_log(tmp_path: Path) -> None:
    with Registry.open(tmp_path, SLOTS) as registry:
        for number in (1, 2):
            registry.register(version_of(number))
        registry.bootstrap("L2", digest_of(1))
        registry.begin_canary("L2", digest_of(2), 10, gated(registry, 1, 2))
        registry.begin_canary("L2", digest_of(2), 50, gated(registry, 1, 2))
        registry.promote("L2", digest_of(2), 3, gated(registry, 1, 2))
        registry.rollback("L2")
        events, history = registry.events(), registry.history("L2")

    rows = lineage.tenure_rows(events)

    champions = [row for row in rows if row["kind"] == "champion"]
    assert [(r["digest"], r["since"], r["until"], r["began_by"]) for r in champions] == [
        (t.champion, t.since, t.until, t.by) for t in history
    ]
    canaries = [row for row in rows if row["kind"] == "canary"]
    assert [(r["digest"], r["traffic"], r["since"], r["until"]) for r in canaries] == [
        (digest_of(2), 0.1, events[1].at, events[2].at),
        (digest_of(2), 0.5, events[2].at, events[3].at),
    ]
    assert len({row["tenure_id"] for row in rows}) == len(rows)


def test_a_slot_that_was_only_configured_served_nothing(tmp_path: Path) -> None:
    with Registry.open(tmp_path, SLOTS) as registry:
        registry.configure("L2", {"description": "code"})
        assert lineage.tenure_rows(registry.events()) == []


def test_a_version_has_the_report_that_promoted_it_else_the_newest(tmp_path: Path) -> None:
    early, late = report_of(1, 2), report_of(1, 2, gains=0)
    with Registry.open(tmp_path, SLOTS) as registry:
        for number in (1, 2):
            registry.register(version_of(number))
        registry.bootstrap("L2", digest_of(1))
        versions, before = registry.versions(), registry.events()
        registry.promote("L2", digest_of(2), 1, attempted(registry, early))
        after = registry.events()

    def verdicts(events: object) -> dict[str, str | None]:
        used = {event.report_key for event in events}  # type: ignore[attr-defined]
        rows = lineage.adapter_rows(versions, used, [early, late])
        return {row["digest"]: row["gate_verdict"] for row in rows}

    assert verdicts(before) == {digest_of(1): None, digest_of(2): late.verdict}
    assert verdicts(after) == {digest_of(1): None, digest_of(2): "PASS"}
    assert late.verdict != "PASS"


def test_publishing_again_changes_nothing_and_learning_does_not_see_it(settings: Settings) -> None:
    mark = learning_mark(settings.home)

    first, second = lineage.publish(settings), lineage.publish(settings)

    # Five versions, five periods, and the 180 rows of the dataset.
    assert (first, second) == (190, 0)
    assert learning_mark(settings.home) == mark
    columns = "slot, digest, train_rows, holdout_rows, serves"
    sql = f"SELECT {columns} FROM v_adapters WHERE gate_verdict = 'PASS'"
    assert query(settings.home, sql)[1] == [("L1", "fb434168be11", 162, 18, "champion")]


def test_what_changed_in_the_registry_replaces_what_the_lake_said(settings: Settings) -> None:
    lineage.publish(settings)
    with Registry.open(settings.home) as registry:
        registry.rollback("L1")

    assert lineage.publish(settings) == 2  # one period ended, one began
    sql = "SELECT digest FROM v_adapters WHERE slot = 'L1' AND serves = 'champion'"
    assert query(settings.home, sql)[1] == [("85e412084850",)]


def _said(settings: Settings) -> list[list[tuple[object, ...]]]:
    return [
        sorted(query(settings.home, f"SELECT * FROM {table}")[1], key=str)
        for table in ("adapters", "tenures")
    ]


def test_publishing_bit_by_bit_says_what_publishing_at_once_would(settings, tmp_path) -> None:
    """A slot's life, told to the lake after each step, and to a fresh lake at the end."""
    steps = (
        lambda r: [r.register(version_of(n, slot="L2")) for n in (1, 2, 3)],
        lambda r: r.bootstrap("L2", digest_of(1)),
        lambda r: r.configure("L2", {"description": "code"}),
        lambda r: r.begin_canary("L2", digest_of(2), 10, gated(r, 1, 2)),
        lambda r: r.end_canary("L2"),
        lambda r: r.promote("L2", digest_of(2), 4, gated(r, 1, 2)),
        lambda r: r.rollback("L2"),
        lambda r: r.configure("L2", {"description": "Python"}),
        lambda r: r.begin_canary("L2", digest_of(3), 5, gated(r, 1, 3)),
        lambda r: r.promote("L2", digest_of(3), 8, gated(r, 1, 3)),
    )
    save_report(settings.home, report_of(1, 2))
    (settings.home / "registry.sqlite").unlink()
    with Registry.open(settings.home, SLOTS) as registry:
        for number, step in enumerate(steps):
            step(registry)
            if number in (1, 3, 4, 6, 9):
                lineage.publish(settings)
    assert lineage.publish(settings) == 0
    bit_by_bit = _said(settings)
    assert any(row for row in bit_by_bit[1] if digest_of(3) in row)
    with Lake.open(settings.home) as lake:
        lake.commit(lambda c: [c.execute(f"DELETE FROM {t}") for t in ("adapters", "tenures")])
    lineage.publish(settings)
    assert _said(settings) == bit_by_bit


def test_another_registry_replaces_what_the_lake_said_of_the_first(settings: Settings) -> None:
    lineage.publish(settings)
    (settings.home / "registry.sqlite").unlink()
    with Registry.open(settings.home, SLOTS) as registry:
        registry.register(version_of(1))
    lineage.publish(settings)
    adapters, tenures = _said(settings)
    assert [row[0] for row in adapters] == [digest_of(1)]
    assert tenures == []


def test_what_cannot_be_published_is_said_and_undoes_nothing(settings, tmp_path, capsys) -> None:
    lineage.publish_or_say(Settings(home=tmp_path / "no lake yet"))
    assert capsys.readouterr() == ("", "")
    damaged = next((settings.home / "datasets").glob("*/manifest.json"))
    damaged.write_text("{")

    lineage.publish_or_say(settings)

    said = capsys.readouterr().err
    assert "lineage is not up to date" in said
    assert "flows run lineage" in said


def test_the_mark_of_learning_moves_with_the_turns(settings: Settings) -> None:
    before = learning_mark(settings.home)
    ingest(settings.home, PROMOTED / "traces")

    assert learning_mark(settings.home) != before


def test_a_report_on_disk_is_found_if_an_attempt_ended_in_it(settings: Settings) -> None:
    with Registry.open(settings.home) as registry:
        registry.register(version_of(1))
    save_report(settings.home, report_of(None, 1))
    sql = f"SELECT gate_verdict, judged_against FROM adapters WHERE digest = '{digest_of(1)}'"
    lineage.publish(settings)
    assert query(settings.home, sql)[1] == [(None, None)]

    attempted(settings.home, report_of(None, 1))
    lineage.publish(settings)
    assert query(settings.home, sql)[1] == [("PASS", None)]
