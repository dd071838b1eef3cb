"""Attempts on a sealed set: what each may cost, who gets which, and when the set is spent.

A real registry file; gates at once are threads with a connection each, or processes killed.
"""

import math
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from registry_records import report_of

from benchmarks.gate_limits import independent_better
from promotion.spending import (
    Attempt,
    SetSpent,
    Spent,
    alpha_of,
    attempts_worth,
    finish,
    reserve,
    set_name,
    spent_on,
)
from promotion.tables import Database, gate_attempts_table


@pytest.fixture
def database(tmp_path: Path):
    opened = Database(tmp_path)
    yield opened
    opened.close()


def ask(database: Database, question: str, suite: str = "tools", units: int = 99) -> Attempt:
    return reserve(
        database, set_name("L1", suite), question, slot="L1", champion=None,
        challenger="sha256:c", alpha=0.05, units=units,
    )  # fmt: skip


def attempts_made(database: Database, sealed_set: str) -> int:
    slot, _, suite = sealed_set.partition("/")
    return spent_on(database, slot, suite).get(0, Spent()).attempts


def test_all_attempts_together_spend_alpha() -> None:
    assert alpha_of(1, 0.05) == pytest.approx(0.0304, abs=5e-5)
    spent = sum(alpha_of(k, 0.05) for k in range(1, 100_000))
    assert spent < 0.05
    assert spent == pytest.approx(0.05, rel=1e-4)


def test_questions_are_counted_and_the_same_one_is_the_same_attempt(database: Database) -> None:
    first, second = ask(database, "a"), ask(database, "b")
    assert (first.attempt, second.attempt) == (1, 2)
    assert second.alpha == alpha_of(2, 0.05)
    assert ask(database, "a") == first
    assert ask(database, "c").attempt == 3


def test_sets_are_counted_apart(database: Database) -> None:
    ask(database, "a")
    other = reserve(
        database, set_name("L2", "code"), "a", slot="L2", champion=None, challenger="c", alpha=0.05,
        units=99,
    )  # fmt: skip
    assert other.attempt == 1
    assert ask(database, "a", "mine").attempt == 1
    assert [attempts_made(database, name) for name in ("L1/tools", "L1/mine", "L1/none")] == [
        1, 1, 0
    ]  # fmt: skip


def test_what_was_asked_is_kept_for_each_set_and_no_other_suite(database: Database) -> None:
    def spend(suite: str, number: int, question: str, *asked: str) -> None:
        reserve(
            database, set_name("L1", suite, number), question, slot="L1", champion=None,
            challenger="c", alpha=0.05, units=99, asked=asked,
        )  # fmt: skip

    spend("tools", 0, "a", "x", "y")
    spend("tools", 0, "b", "y", "z")
    spend("tools", 1, "c", "v")
    spend("tools2", 0, "d", "w")
    spend("tools/mine", 0, "e", "w")
    assert spent_on(database, "L1", "tools") == {
        0: Spent(2, frozenset("xyz")), 1: Spent(1, frozenset("v"))
    }  # fmt: skip


def test_a_set_is_worth_the_attempts_that_its_guards_can_pass() -> None:
    assert attempts_worth([(200, 0.03), (256, 0.03)], 0.05) == 3
    assert attempts_worth([(200, 0.03), (30, 0.02)], 0.05) == 3  # the other never could
    assert attempts_worth([(30, 0.02)], 0.05) is None
    assert (attempts_worth([(5000, 0.9)], 0.05) or 0) > 10**6  # beyond what a float's power holds


def test_the_count_goes_on_for_as_long_as_the_set_is_asked(database: Database) -> None:
    made = [ask(database, str(number)) for number in range(30)]
    assert [attempt.attempt for attempt in made] == list(range(1, 31))
    assert sum(attempt.alpha for attempt in made) < 0.05


def test_a_spent_set_takes_no_new_question_but_answers_an_old_one(database: Database) -> None:
    first = ask(database, "a", units=8)
    ask(database, "b", units=8)
    with pytest.raises(SetSpent, match=r"'L1/tools' is spent after 2 attempts.*9 clusters.*has 8"):
        ask(database, "c", units=8)
    assert ask(database, "a", units=8) == first
    assert attempts_made(database, "L1/tools") == 2
    assert ask(database, "c", units=9).attempt == 3


def test_the_first_report_of_an_attempt_stands(database: Database) -> None:
    attempt = ask(database, "a")
    one, two = report_of(None, 2, gains=20), report_of(None, 2, gains=3)
    assert finish(database, attempt, one) == one.key
    assert finish(database, attempt, two) == one.key
    assert ask(database, "a").report_key == one.key
    with database.reading() as connection:
        assert connection.scalar(sa.select(gate_attempts_table.c.verdict)) == one.verdict == "PASS"


def test_gates_at_once_get_different_attempts(tmp_path: Path) -> None:
    Database(tmp_path).close()
    taken: list[int] = []

    def gate(number: int) -> None:
        own = Database(tmp_path)
        taken.append(ask(own, f"question {number}").attempt)
        own.close()

    threads = [threading.Thread(target=gate, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1, 9))


def test_a_killed_gate_has_spent_its_attempt(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from promotion.tables import Database;"
        "from promotion.spending import reserve; d = Database(Path(sys.argv[1]));"
        "reserve(d, 'L1/tools', 'killed', slot='L1', champion=None, challenger='c', alpha=.05,"
        " units=99); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert killed.returncode == -9
    database = Database(tmp_path)
    assert ask(database, "another").attempt == 2
    assert ask(database, "killed").attempt == 1
    with database.reading() as connection:
        rows = connection.execute(sa.select(gate_attempts_table)).all()
    assert [(row.attempt, row.report_key) for row in rows] == [(1, None), (2, None)]
    database.close()


@pytest.mark.parametrize("units", [1, 5, 8, 10, 12])
def test_a_set_is_spent_when_nothing_on_it_could_reach_alpha_k(
    database: Database, units: int
) -> None:
    shown = [k for k in range(2, 200) if 0.5**units <= 0.05 * 6 / (math.pi * k) ** 2]
    most = max(shown, default=1)
    for number in range(most):
        ask(database, str(number), units=units)
    with pytest.raises(SetSpent):
        ask(database, "one more", units=units)
    assert attempts_made(database, "L1/tools") == most


def test_heads_of_20_nights_with_a_few_held_out_turns_more_each_keep_the_error_level() -> None:
    """Heads that are no better, on 300 turns in the first night and one more in every other."""
    rng, runs = np.random.default_rng(1), 10_000
    right_R_N = rng.random((runs, 320)) < 0.7
    promoted = {rule: np.zeros(runs, dtype=bool) for rule in ("counted on", "each night a new set")}
    for night in range(20):
        n = 300 + night
        before_R_N = right_R_N[:, :n]
        other_R_N = rng.random(before_R_N.shape) < 0.25  # turns that this night's head deals anew
        after_R_N = np.where(other_R_N, rng.random(before_R_N.shape) < 0.7, before_R_N)
        gains_R, losses_R = (after_R_N & ~before_R_N).sum(1), (before_R_N & ~after_R_N).sum(1)
        for rule, k in (("counted on", night + 1), ("each night a new set", 1)):
            promoted[rule] |= independent_better(gains_R, losses_R, n, alpha_of(k, 0.05))
    assert promoted["counted on"].mean() < 0.05
    assert promoted["each night a new set"].mean() > 0.3  # so the simulation can tell
