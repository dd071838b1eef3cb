"""Which sealed set comes next: what none of another asks, while guards can pass; else why not.

Suites and registry are the real ones. No engine.
"""

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from curation.manifest import Manifest
from flows.config import Settings
from flows.sealed import SealedSet, present_set, sealed_sets, why_not_trained
from promotion.paired import effective_clusters
from promotion.spending import MOST_ATTEMPTS, reserve, set_name
from promotion.suites.build import build_suites
from promotion.suites.sets import divide, take
from promotion.suites.suite import Item, Suite
from promotion.tables import Database, gate_attempts_table
from serving.slots import load_profile
from traces.verifiers.check import Check
from training.runs import TrainedAdapter, write_result

PROFILE = load_profile()
CHALLENGER = "sha256:" + "c" * 64


@pytest.fixture
def database(home: Path):
    opened = Database(home)
    yield opened
    opened.close()


def settings_of(home: Path, **suites: Any) -> Settings:
    return Settings.model_validate({"home": home, "suites": suites})


def suite_of(name: str, count: int, start: int = 0, clusters: int = 10_000) -> Suite:
    """A suite of L1 whose sealed set has `count` items; items of two starts are others."""
    items: list[Item] = []
    for number in range(start, start + 10 * count):
        one = Item(
            item_id=f"{name} {number}", cluster=f"c{number % clusters}", text=f"{name} {number}?",
            messages=(), tools=(), choices=(), max_tokens=9, check=lambda answer: Check(True, ""),
        )  # fmt: skip
        items.append(one)
    sealed = divide(Suite(name, "L1", tuple(items))).sealed
    return Suite(name, "L1", take(sealed, count).items)


def spend(database: Database, sealed: SealedSet, attempts: int = 1) -> None:
    for number in range(attempts):
        reserve(
            database, set_name("L1", sealed.suites[0].name, sealed.number),
            f"{sealed.number} {sealed.attempts + number}", slot="L1", champion=None,
            challenger=CHALLENGER, alpha=0.05, units=99,
            asked={item.asked_id for item in sealed.suites[0].items},
        )  # fmt: skip


def asked_of(sealed: SealedSet) -> set[str]:
    return {item.text for item in sealed.suites[0].items}


def test_no_set_asks_what_another_asked_whatever_the_sizes_were(
    home: Path, database: Database
) -> None:
    mine = [suite_of("mine", 100)]
    first = present_set(settings_of(home, primary=40), mine, database)
    spend(database, first, MOST_ATTEMPTS)
    second = present_set(settings_of(home, primary=16), mine, database)
    assert (first.number, second.number, len(asked_of(second))) == (0, 1, 16)
    assert not asked_of(first) & asked_of(second)
    spend(database, second, MOST_ATTEMPTS)
    sets = list(sealed_sets(settings_of(home, primary=16), mine, database))
    assert [(one.number, one.attempts, one.most) for one in sets] == [
        (0, 20, 20), (1, 20, 20), (2, 0, 20)
    ]  # fmt: skip
    assert not asked_of(sets[0]) & asked_of(sets[1])  # should set 0 be asked again
    assert not (asked_of(first) | asked_of(second)) & asked_of(sets[2])


def test_a_set_lasts_while_its_guards_can_pass_and_the_last_one_as_long_as_they_do(
    home: Path, database: Database
) -> None:
    def most(primary: int, guard: int) -> int | None:
        suites = [suite_of("mine", 100), suite_of("guard", guard)]
        return present_set(settings_of(home, primary=primary, guard=256), suites, database).most

    assert most(40, 30) == MOST_ATTEMPTS  # such a guard could never pass
    assert most(40, 200) == 1  # 200 clusters exclude 2 points at 0.03, not at 0.0076
    assert most(80, 200) == 1
    assert most(80, 30) is None


def test_where_no_set_is_left_the_gate_says_what_to_do_before_anything_is_asked(
    home: Path, database: Database
) -> None:
    settings = settings_of(home, primary=40, guard=256)
    suites = [suite_of("mine", 100), suite_of("guard", 200)]
    for number in (0, 1):
        sealed = present_set(settings, suites, database)
        assert (sealed.number, sealed.why_spent) == (number, "")
        spend(database, sealed)
    why = present_set(settings, suites, database).why_spent
    assert why.startswith("The sealed set 'L1/mine/1' is spent after 1 attempts, no other has ")
    assert "of guard where hardly an item differs, 200 clusters exclude no loss of less than" in why
    assert "'\"guard\" = 0.03' under [gate.margins]" in why
    assert "for 'L1' under [suites.primary_suite]" in why
    assert "\n" not in why
    larger = Settings.model_validate(
        {**settings.model_dump(), "gate": {"margins": {"guard": 0.04}}}
    )
    assert present_set(larger, suites, database).why_spent == ""


def test_a_cycle_trains_nothing_that_no_gate_could_ask_about(
    home: Path, database: Database
) -> None:
    settings = settings_of(home)
    whole = build_suites(PROFILE, "L1", settings.seed, settings.suites)
    manifest = Manifest.model_construct(slot="L1", digest=CHALLENGER)
    assert why_not_trained(settings, manifest) == ""
    while not (sealed := present_set(settings, whole, database)).why_spent:
        spend(database, sealed)
    assert (sealed.number, sealed.attempts) == (1, 2)
    assert why_not_trained(settings, manifest) == sealed.why_spent
    run = TrainedAdapter(
        slot="L1", digest="sha256:" + "a" * 64, run_key="sha256:" + "b" * 64,
        base_digest="b", manifest_digest=manifest.digest, seed=settings.seed, metrics={}, drops={},
    )  # fmt: skip
    write_result(home, run)  # what was made may have its attempt, and its answer
    assert why_not_trained(settings, manifest) == ""


@pytest.mark.parametrize("slot", PROFILE.labels)
def test_guards_of_every_set_tell_as_much_as_those_of_the_first(home: Path, slot: str) -> None:
    settings = settings_of(home)
    whole = build_suites(PROFILE, slot, settings.seed, settings.suites)
    database = Database(home)
    told: list[list[float]] = []
    for sealed in sealed_sets(settings, whole, database):
        guards = [suite for suite in sealed.suites[1:] if suite.slot == slot]
        told.append([effective_clusters([i.cluster for i in suite.items]) for suite in guards])
        spend_on = set_name(slot, whole[0].name, sealed.number)
        reserve(
            database, spend_on, "q", slot=slot, champion=None, challenger=CHALLENGER, alpha=0.05,
            units=99, asked={item.asked_id for item in sealed.suites[0].items},
        )  # fmt: skip
    database.close()
    assert len(told) >= 2
    assert all(sizes == told[0] for sizes in told)


def test_attempts_that_did_not_keep_what_they_asked_asked_one_stretch_after_the_other(
    home: Path, database: Database
) -> None:
    settings, mine = settings_of(home, primary=40), [suite_of("mine", 100, clusters=30)]
    spend(database, present_set(settings, mine, database), MOST_ATTEMPTS)
    with database.writing() as connection:
        connection.execute(gate_attempts_table.update().values(asked=sa.null()))
    second = present_set(settings, mine, database)
    assert second.number == 1
    assert len(asked_of(second)) == 40
    assert not asked_of(second) & {item.text for item in take(mine[0], 40).items}
