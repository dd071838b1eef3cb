"""Registries made by earlier code get what came later, and what they held stays.

Real SQLite files; the old one is made by taking away what later code added.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from registry_records import SLOTS, digest_of, gated, report_of, version_of

from promotion.registry import Registry
from promotion.slot_rows import PromotionRefused, VersionWithdrawn
from promotion.state import Override
from promotion.tables import Database, gate_attempts_table, overrides_table


def _older(home: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{home}/registry.sqlite")
    with engine.begin() as connection:
        for statement in (
            "DROP TABLE gate_attempts",
            "DROP TABLE overrides",
            "DROP TABLE signers",
            "ALTER TABLE versions DROP COLUMN signer",
            "DROP INDEX events_by_champion",
            "DROP INDEX events_by_kind",
            "ALTER TABLE events DROP COLUMN champion",
        ):
            connection.exec_driver_sql(statement)
    engine.dispose()


def test_a_registry_of_earlier_code_gets_the_later_tables(tmp_path: Path) -> None:
    with Registry.open(tmp_path, SLOTS) as registry:
        registry.register(version_of(1))
        registry.register(version_of(2))
        registry.bootstrap("L2", digest_of(1))
        registry.promote("L2", digest_of(2), 1, gated(registry, 1, 2))
        history = registry.history("L2")
    _older(tmp_path)
    with Registry.open(tmp_path, SLOTS) as registry:
        assert registry.version(digest_of(1)) == version_of(1)
        assert registry.verify_chain() == 2
        assert registry.history("L2", digest_of(1)) == history[:1]
    database = Database(tmp_path)
    with database.writing() as connection:
        for table in (gate_attempts_table, overrides_table):
            assert connection.execute(sa.select(table)).all() == []
        indexes = sa.inspect(connection).get_indexes("events")
        assert "events_by_champion" in {index["name"] for index in indexes}
    database.close()


def _override(**changes: object) -> Override:
    now = datetime.now(UTC)
    fields = {
        "id": "o1",
        "report_key": report_of(None, 2, gains=3).key,
        "slot": "L2",
        "challenger": digest_of(2),
        "by": "A. Person",
        "reason": "the incident of Tuesday",
        "expires_at": now + timedelta(hours=1),
        "at": now,
    }
    return Override.model_validate(fields | changes)


def test_an_override_promotes_what_did_not_pass_and_the_log_names_the_person(
    registry: Registry,
) -> None:
    report = gated(registry, None, 2, gains=3)
    assert report.verdict == "INCONCLUSIVE"
    change = registry.promote("L2", digest_of(2), 0, report, _override())
    assert change.state.champion == digest_of(2)
    assert registry.events("L2")[-1].note == {"override": "o1", "by": "A. Person"}
    assert registry.verify_chain() == 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"expires_at": datetime(2026, 1, 1, tzinfo=UTC)}, "expired at 2026-01-01"),
        ({"report_key": "f" * 64}, "about report 'f"),
        ({"challenger": digest_of(3)}, "about challenger"),
        ({"slot": "L1"}, "about slot 'L1'"),
    ],
)
def test_an_override_of_something_else_changes_nothing(
    registry: Registry, changes: dict[str, object], text: str
) -> None:
    with pytest.raises(PromotionRefused, match=text):
        registry.promote(
            "L2", digest_of(2), 0, gated(registry, None, 2, gains=3), _override(**changes)
        )
    assert registry.events() == ()


def test_an_override_does_not_stand_in_for_another_champion(registry: Registry) -> None:
    registry.bootstrap("L2", digest_of(1))
    with pytest.raises(PromotionRefused, match="is about champion"):
        registry.promote("L2", digest_of(2), 1, gated(registry, None, 2, gains=3), _override())


def test_a_remark_is_logged_and_moves_nothing(registry: Registry) -> None:
    registry.bootstrap("L2", digest_of(1))
    registry.remark("L2", "hold", {"by": "A. Person", "reason": "a look first"})
    assert registry.slot("L2").champion == digest_of(1)
    assert [t.by for t in registry.history("L2")] == ["bootstrap"]
    assert registry.events("L2")[-1].note["reason"] == "a look first"
    assert registry.verify_chain() == 2


HARM = {"reason": "it did harm", "by": "canary", "rolled_back": digest_of(2)}


def test_attempts_of_earlier_code_keep_their_order_and_their_place_in_the_log(
    tmp_path: Path,
) -> None:
    with Registry.open(tmp_path, SLOTS) as registry:
        registry.register(version_of(2))
        old = gated(registry, None, 2)
        registry.begin_canary("L2", digest_of(2), 5, old)
        registry.end_canary("L2", note=HARM)
        new = gated(registry, None, 2, gains=21)
    engine = sa.create_engine(f"sqlite:///{tmp_path}/registry.sqlite")
    with engine.begin() as connection:
        for name in ("seq", "after_event", "verdict", "asked"):
            connection.exec_driver_sql(f"ALTER TABLE gate_attempts DROP COLUMN {name}")
    engine.dispose()
    with Registry.open(tmp_path, SLOTS) as registry:
        assert registry.log.report_keys("L2") == (old.key, new.key)
        with pytest.raises(VersionWithdrawn):
            registry.check(old)
        registry.check(new)
        later = gated(registry, None, 2, gains=3)
        assert registry.log.report_keys("L2") == (old.key, new.key, later.key)
        columns = gate_attempts_table.c
        with registry._database.reading() as connection:
            rows = connection.execute(
                sa.select(columns.seq, columns.after_event, columns.verdict).order_by(columns.seq)
            ).all()
        assert rows == [(1, 0, None), (2, 2, None), (3, 2, "INCONCLUSIVE")]
