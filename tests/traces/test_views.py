"""Proves that the views count what happened, by counting it again in Python.

Real DuckLake; the traffic is made up. Intervals are compared with statsmodels'.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from statsmodels.stats.proportion import proportion_confint
from trace_records import PROFILE, at, hop, result, says, signal, turn_of, write_spool

from serving.records import Feedback, Hop, Turn
from traces import provenance
from traces.analytics.view_definitions import VIEWS
from traces.analytics.views import describe, query, reading
from traces.attribute import attribute
from traces.errors import QueryRefused
from traces.ingest import ingest
from traces.storage.lake import Lake

Ask = Callable[[str], list[tuple[Any, ...]]]

DAY_S = 86400
SLOTS = ("L1", "L2")
TURNS = 60


def verdict(number: int) -> float | None:
    """Return what the verifier says of a turn, None if it says nothing."""
    return None if number % 7 == 0 else float(number % 3 > 0)


def task(number: int) -> str:
    """Return the task of a turn: some are always passed, some never, some now and then."""
    return f"task-{number % 6 if number < 40 else number % 4}"


def story() -> list[Hop | Turn | Feedback]:
    """Return two days of turns of two slots: judged, not judged, retried, asked again."""
    records: list[Hop | Turn | Feedback] = []
    for n in range(TURNS):
        slot = SLOTS[n % 2]
        name = f"{slot}@{'a' * 12 if n < 40 else 'b' * 12}"
        when = at(DAY_S * (n // 40) + 60 * n)
        shared: dict[str, Any] = {
            "conversation_id": f"c{n}",
            "turn_id": f"t{n:03d}",
            "workload": f"work-{n // 20}",
            "task": task(n),
        }
        answer = hop(
            status="engine_error" if n == 5 else "ok", slot=slot, model=name,
            served_name=name, response_id=f"r{n}", started_at=when,
            duration_s=1.0 + n, ttft_s=0.1, prompt_tokens=100 + n, completion_tokens=10,
            cached_tokens=n if n % 2 else None, messages=(says(f"{n}"),), **shared,
        )  # fmt: skip
        extra: dict[str, Any] = {"supersedes": f"t{n - 2:03d}"} if n == 12 else {}
        extra |= {"tail": (result("done"),)} if n == 3 else {}
        records += [answer, turn_of([answer], started_at=when, **shared, **extra)]
        value = verdict(n)
        if value is not None:
            records.append(signal(value=value, target_id=shared["turn_id"], created_at=when))
    return records


STANDING = [n for n in range(TURNS) if n != 10]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("views")
    home = folder / ".mol"
    ingest(home, write_spool(folder / "s.jsonl", story()))
    attribute(home, PROFILE)
    version = {
        "digest": f"sha256:{'b' * 64}", "slot": "L1", "version": "b" * 12, "base_digest": "x",
        "manifest_digest": "sha256:dataset", "created_at": at(DAY_S), "gate_verdict": "PASS",
    }  # fmt: skip
    tenure = {
        "tenure_id": "1", "slot": "L1", "digest": version["digest"], "version": "b" * 12,
        "kind": "champion", "traffic": 1.0, "since": at(DAY_S), "began_by": "promote",
        "generation": 1,
    }  # fmt: skip
    lesson = {
        "lesson_id": "1", "manifest_digest": "sha256:dataset", "slot": "L1", "example_id": "e1",
        "turn_id": "t003", "hop_id": "h", "split": "train", "duty": "answer", "source": "edit",
        "weight": 1.0,
    }  # fmt: skip
    provenance.publish(home, {"adapters": [version], "tenures": [tenure]}, {"lessons": [lesson]})
    provenance.publish(home, {"replays": [arm()], "preferences": [pair(), pair("t004")]}, {})
    with Lake.open(home) as opened:  # as an attribution that took the replay of t003 into account
        opened.connection.execute("UPDATE blame SET verdict = 'adapter' WHERE turn_id = 't003'")
    return home


def arm() -> dict[str, Any]:
    """Return 6 successes in 8 fresh answers of the slot that had answered."""
    return {
        "turn_id": "t003", "slot": "L1", "digest": "b" * 12, "samples": 8, "successes": 6,
        "config": "{}", "code_version": "replay-1", "created_at": at(DAY_S),
    }  # fmt: skip


def pair(turn_id: str = "t003") -> dict[str, Any]:
    seen = next(r for r in story() if isinstance(r, Turn) and r.turn_id == turn_id).hop_ids[0]
    return {
        "pair_id": turn_id, "turn_id": turn_id, "slot": "L1", "digest": "b" * 12, "hop_id": seen,
        "chosen": {"role": "assistant", "content": "good"},
        "rejected": {"role": "assistant", "content": "bad"},
        "source": "replay", "created_at": at(DAY_S),
    }  # fmt: skip


@pytest.fixture(scope="module")
def ask(lake: Path) -> Iterator[Ask]:
    """Answers questions from one open lake, for opening takes longer than asking."""
    with Lake.open(lake, read_only=True) as opened:
        yield lambda sql: opened.connection.execute(sql).fetchall()


@pytest.mark.parametrize("view", [v.name for v in VIEWS])
def test_every_view_answers_and_says_what_its_rows_are(ask: Ask, view: str) -> None:
    stored = ask(f"SELECT comment FROM duckdb_views() WHERE view_name = '{view}'")

    # There is no canary traffic here; `test_odd_evidence` has some.
    assert ask(f"FROM {view}") or view == "v_success_of_canaries"
    assert stored[0][0].startswith(dict(describe())[view])


@pytest.mark.parametrize("by", ["slot", "version", "day", "workload"])
def test_success_is_counted_without_what_was_asked_again(ask: Ask, by: str) -> None:
    keys = {
        "slot": lambda n: (SLOTS[n % 2],),
        "version": lambda n: (SLOTS[n % 2], "a" * 12 if n < 40 else "b" * 12),
        "day": lambda n: (n // 40, SLOTS[n % 2], "a" * 12 if n < 40 else "b" * 12),
        "workload": lambda n: (f"work-{n // 20}", SLOTS[n % 2]),
    }[by]
    wanted: dict[tuple[Any, ...], Counter[float | None]] = defaultdict(Counter)
    for n in STANDING:
        wanted[keys(n)][verdict(n)] += 1

    rows = ask(f"SELECT v FROM v_success_by_{by} v ORDER BY v")

    found = [row[0] for row in rows]
    assert [
        (r["turns"], r["judged"], r["succeeded"], r["failed"], r["unjudged"]) for r in found
    ] == [(c.total(), c[1.0] + c[0.0], c[1.0], c[0.0], c[None]) for _, c in sorted(wanted.items())]
    assert [r["success_rate"] for r in found] == [
        c[1.0] / (c[1.0] + c[0.0]) for _, c in sorted(wanted.items())
    ]
    for row in found:
        low, high = proportion_confint(row["succeeded"], row["judged"], method="wilson")
        assert (row["low_95"], row["high_95"]) == pytest.approx((low, high), abs=1e-12)


def test_intervals_are_wilsons_for_every_share_of_up_to_40_and_some_large_ones(ask: Ask) -> None:
    pairs = [(k, n) for n in range(1, 41) for k in range(n + 1)]
    pairs += [(0, 10**7), (1, 10**7), (10**7 - 1, 10**7), (10**7, 10**7)]
    values = ", ".join(f"({k}, {n})" for k, n in pairs)
    sql = f"SELECT wilson_low(k, n), wilson_high(k, n) FROM (VALUES {values}) p(k, n)"

    found = ask(sql)

    for (k, n), (low, high) in zip(pairs, found, strict=True):
        wanted = proportion_confint(k, n, method="wilson")
        assert (low, high) == pytest.approx((max(0.0, wanted[0]), min(1.0, wanted[1])), abs=1e-12)
        assert 0.0 <= low <= k / n <= high <= 1.0
    assert ask("SELECT wilson_low(0, 0), wilson_high(0, 0)") == [(None, None)]


def test_tasks_are_passed_by_all_some_or_none_of_their_attempts(ask: Ask) -> None:
    attempts: dict[tuple[str, str], list[float | None]] = defaultdict(list)
    for n in STANDING:
        attempts[f"work-{n // 20}", task(n)].append(verdict(n))
    wanted = []
    for (workload, name), values in sorted(attempts.items()):
        judged = [v for v in values if v is not None]
        passes = "all" if all(judged) else "none" if not any(judged) else "mixed"
        wanted.append((workload, name, len(values), len(judged), sum(judged), passes))

    sql = "SELECT workload, task, attempts, judged, passed, passes FROM v_tasks ORDER BY ALL"
    found = ask(sql)

    assert found == wanted
    assert {row[-1] for row in found} == {"all", "mixed", "none"}


def test_latency_tokens_and_cache_are_those_of_the_hops(ask: Ask) -> None:
    newer = f"slot = 'L1' AND digest = '{'b' * 12}'"
    assert ask(f"SELECT hops, p50_s, ttft_p95_s FROM v_latency WHERE {newer}") == [
        (10, 1.0 + 49, 0.1)
    ]  # turns 40, 42, ... 58
    tokens = ask("SELECT sum(prompt_tokens), sum(completion_tokens) FROM v_tokens")
    assert tokens == [(sum(100 + n for n in range(TURNS)), 10 * TURNS)]
    cached = ask("SELECT sum(hops), sum(cached_tokens), sum(prompt_tokens) FROM v_prefix_cache")
    odd = range(1, TURNS, 2)
    assert cached == [(len(odd), sum(odd), sum(100 + n for n in odd))]


def test_who_served_when_shares_a_slots_day(ask: Ask) -> None:
    sql = "SELECT slot, digest, turns, share FROM v_served ORDER BY day, slot, digest"

    assert ask(sql) == [
        ("L1", "a" * 12, 20, 1.0),
        ("L2", "a" * 12, 20, 1.0),
        ("L1", "b" * 12, 10, 1.0),
        ("L2", "b" * 12, 10, 1.0),
    ]
    assert ask("SELECT digest, turns FROM v_tenures") == [("b" * 12, 10)]


def test_lineage_goes_from_an_answer_to_rows_and_back(ask: Ask) -> None:
    forth = ask("SELECT turn_id, example_id, learned_turn_id FROM v_learned_from")
    back = ask("SELECT slot, digest, example_id FROM v_lessons WHERE turn_id = 't003'")

    assert sorted(forth) == [(f"t{n:03d}", "e1", "t003") for n in range(40, TURNS, 2)]
    assert back == [("L1", "b" * 12, "e1")]
    of_calls = ask("SELECT count(*), any_value(l.example_id) FROM hops h JOIN v_lessons l"
                   " ON h.served_name = l.slot || '@' || l.digest")  # fmt: skip
    assert of_calls == [(len(forth), "e1")]


def test_queries_that_do_not_just_read_are_refused_and_change_nothing(lake: Path) -> None:
    count = "SELECT count(*), (SELECT max(snapshot_id) FROM ducklake_snapshots('lake')) FROM hops"
    before = query(lake, count)
    for sql in (
        "DELETE FROM hops",
        "DROP TABLE turns",
        "SELECT 1; SELECT 2",
        "COPY hops TO 'x.csv'",
        "ATTACH 'x.db'",
        "SET threads = 1",
        "EXPLAIN ANALYZE DELETE FROM hops",
        "CALL ducklake_expire_snapshots('lake')",
        "FROM ducklake_expire_snapshots('lake', older_than => now())",
        "SELECT nonsense",
        "",
    ):
        with pytest.raises(QueryRefused) as refused:
            query(lake, sql)
        assert "\n" not in str(refused.value), sql

    assert query(lake, count) == before


@pytest.mark.parametrize(
    "sql", ["SHOW TABLES", "DESCRIBE v_turns", "SUMMARIZE turns", "FROM hops;"]
)
def test_a_look_at_the_tables_is_allowed(lake: Path, sql: str) -> None:
    assert query(lake, sql)[1]


def test_an_error_while_rows_are_read_is_one_line_too(lake: Path) -> None:
    sql = "SELECT CASE WHEN i > 99999 THEN error('late') ELSE i END FROM range(200000) r(i)"
    with pytest.raises(QueryRefused, match="late"), reading(lake, sql) as answer:
        list(answer.rows)


def test_a_replay_says_whether_the_slot_had_answered_and_how_sure_it_is(ask: Ask) -> None:
    ((answered, rate, low, high),) = ask(
        "SELECT answered, success_rate, low_95, high_95 FROM v_replays"
    )

    # Wilson, 6 of 8, from the formula by hand.
    assert (rate, round(low, 3), round(high, 3)) == (0.75, 0.409, 0.929)
    assert answered == (ask("SELECT slot FROM turns WHERE turn_id = 't003'") == [("L1",)])


def test_a_preference_pair_has_the_prompt_its_hop_saw(ask: Ask) -> None:
    ((pair_id, prompt, seen),) = ask(
        "SELECT p.pair_id, p.prompt, h.messages FROM v_preferences p JOIN v_hops h USING (hop_id)"
    )

    assert pair_id == "t003"  # t004 succeeded after all
    assert prompt == seen != "[]"
