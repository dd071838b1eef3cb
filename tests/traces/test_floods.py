"""Proves that a flood of signals changes no outcome, fills no row and no memory.

A real lake and the real attribution; what the row should say is worked out from all signals by
the rule for records.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from trace_records import PROFILE, at, hop, says, signal, turn_of, user, write_spool

from serving.records import Feedback, Record
from traces.attribute import attribute
from traces.attribution.floods import MANY
from traces.attribution.outcomes import settle
from traces.attribution.rechecking import MANY as CHECKS
from traces.ingest import ingest
from traces.read import read_turns
from traces.storage.lake import Lake

REPOSITORY = Path(__file__).parents[2]
USERS = ("u0", "u1", "u2")
"""Who asked something; everybody else is a stranger."""


def asked(number: int, who: str | None) -> list[Record]:
    own = {"conversation_id": f"c{number}", "turn_id": f"t{number}"}
    made = hop(messages=(user("Sort it."),), started_at=at(number), **own)
    return [made, turn_of([made], request="Sort it.", user=who, **own)]


def drawn(number: int, rng: random.Random, sorts: list[str]) -> Feedback:
    """A third is anonymous; some say both at one moment, for their last moment is the same."""
    who = rng.choice((None, rng.choice(USERS), f"bot-{rng.randrange(300)}"))
    kind = rng.choice(sorts)
    value = {"thumb": rng.choice((-1.0, 1.0, 1.0)), "verifier": rng.choice((0.0, 1.0, None))}
    said = says(f"so {rng.randrange(3)}") if kind == "edit" else None
    moment = min(rng.randrange(10_000), 6000) if kind == "thumb" else rng.randrange(100)
    return signal(
        kind, value.get(kind), user=who, correction=said, target_id=f"t{number}",
        created_at=at(moment), annotator=rng.choice((None, None, "human", "model")),
        detail=str(rng.random()),
    )  # fmt: skip


def test_a_flood_has_the_outcome_of_all_its_signals_and_a_short_row(tmp_path: Path) -> None:
    rng = random.Random(5)
    sorts = [["thumb"], ["thumb", "comment"], ["thumb", "edit"], ["thumb", "verifier"]]
    turns = [asked(n, who) for n, who in enumerate((*USERS, None) * 4)]
    said: dict[str, list[Feedback]] = {}
    for number in range(len(turns)):
        count = 40 if number == 0 else rng.randrange(MANY + 1, 900)
        said[f"t{number}"] = [drawn(number, rng, sorts[number // 4]) for _ in range(count)]
    records = [record for turn in turns for record in turn]
    records += [each for signals in said.values() for each in signals]
    ingest(tmp_path / ".mol", write_spool(tmp_path / "s.jsonl", records))  # type: ignore[arg-type]
    attribute(tmp_path / ".mol", PROFILE)

    strangers = {f"bot-{n}" for n in range(300)}
    for bundle in read_turns(tmp_path / ".mol"):
        known = {f.feedback_id: f for f in said[bundle.turn.turn_id]}
        expected = settle(bundle.turn, list(known.values()), strangers=strangers)
        found, signals = bundle.outcome, json.loads(bundle.outcome.signals)
        assert (found.success, found.tier, found.rule) == (
            expected.success, expected.tier, expected.rule,
        )  # fmt: skip
        assert found.correction == expected.correction
        if bundle.turn.turn_id == "t0":
            assert signals == json.loads(expected.signals)
        else:
            (note,) = (each for each in signals if each["name"] == "left_out")
            kept = [each for each in signals if each is not note]
            counted = sum(int(words.split()[0]) for words in note["detail"][10:].split(", "))
            assert len(kept) + counted == len(known)
            assert len(kept) <= MANY


def test_a_flood_of_other_verifiers_changes_no_blame(tmp_path: Path) -> None:
    """What the slot's own verifier said stays, and what there is to check an answer against."""
    wanted = '{"verifier": "exact", "accepted": ["Sorted."]}'
    records: list[Record] = []
    for number, count in enumerate((3, MANY + 50)):
        own = {"conversation_id": f"c{number}", "turn_id": f"t{number}"}
        made = hop(slot="L1", messages=(user("Sort it."),), **own)
        records += [made, turn_of([made], request="Sort it.", **own)]
        said = {"target_id": f"t{number}", "value": 0.0}
        records += [signal(name=f"early{n}", created_at=at(n), **said) for n in range(3)]
        records.append(signal(name="tool_call", created_at=at(5), **said))
        records.append(signal(name="told", reference=wanted, created_at=at(6), **said))
        records += [signal(name=f"v{n}", created_at=at(9 + n), **said) for n in range(count)]
    ingest(tmp_path / ".mol", write_spool(tmp_path / "s.jsonl", records))  # type: ignore[arg-type]
    attribute(tmp_path / ".mol", PROFILE)

    few, many = read_turns(tmp_path / ".mol")

    kept = {each["name"]: each["reference"] for each in json.loads(many.outcome.signals)}
    assert kept["told"] == wanted
    assert {"tool_call", "left_out"} <= kept.keys()
    assert len(kept) < MANY
    assert few.blame is not None
    assert many.blame is not None
    assert (many.blame.rule, many.blame.confidence) == (few.blame.rule, few.blame.confidence)


def test_strangers_stay_on_the_side_of_most(tmp_path: Path) -> None:
    """A close vote of a thousand."""
    records: list[Record] = [*asked(0, None), *asked(1, None)]
    for number, against in enumerate((501, 499)):
        records += [
            signal(
                "thumb", -1.0 if n < against else 1.0, user=f"bot-{n}", target_id=f"t{number}",
                created_at=at(n),
            )
            for n in range(1000)
        ]  # fmt: skip
    ingest(tmp_path / ".mol", write_spool(tmp_path / "s.jsonl", records))  # type: ignore[arg-type]
    attribute(tmp_path / ".mol", PROFILE)

    outcomes = {b.turn.turn_id: b.outcome for b in read_turns(tmp_path / ".mol")}

    assert {name: o.success for name, o in outcomes.items()} == {"t0": False, "t1": True}
    assert "left out: 491 thumb down, 490 thumb up" in outcomes["t0"].signals
    assert "left out: 490 thumb down, 491 thumb up" in outcomes["t1"].signals


def test_a_close_vote_of_anonymous_thumbs_and_users_who_said_both(tmp_path: Path) -> None:
    records: list[Record] = [*asked(0, None), *asked(1, None), *asked(2, None)]
    for number, against in enumerate((501, 499)):
        records += [
            signal("thumb", -1.0 if n < against else 1.0, target_id=f"t{number}", created_at=at(n))
            for n in range(1000)
        ]  # fmt: skip
    for name in ("t0", "t1", "t2"):
        records += [
            signal("thumb", value, user=f"bot-{n}", target_id=name, created_at=at(2000 + n % 7))
            for n in range(200) for value in (1.0, -1.0)
        ]  # fmt: skip
    ingest(tmp_path / ".mol", write_spool(tmp_path / "s.jsonl", records))  # type: ignore[arg-type]
    attribute(tmp_path / ".mol", PROFILE)

    outcomes = {b.turn.turn_id: b.outcome for b in read_turns(tmp_path / ".mol")}

    assert {name: (o.success, o.rule) for name, o in outcomes.items()} == {
        "t0": (False, "thumbed"), "t1": (True, "thumbed"), "t2": (None, "divided"),
    }  # fmt: skip
    assert all(len(json.loads(o.signals)) <= MANY for o in outcomes.values())


def test_the_correction_outlasts_edits_that_say_nothing(tmp_path: Path) -> None:
    edit = signal("edit", None, user="u0", target_id="t0")
    records = [*asked(0, "u0"), edit.model_copy(update={"correction": says("Sorted.")})]
    for n in range(MANY + 100):
        records.append(edit.model_copy(update={"created_at": at(1000 + n), "detail": f"{n}"}))
        early = {"created_at": at(n - 1000), "detail": f"{n}"}
        records.append(edit.model_copy(update=early))
    ingest(tmp_path / ".mol", write_spool(tmp_path / "s.jsonl", records))  # type: ignore[arg-type]
    attribute(tmp_path / ".mol", PROFILE)

    (bundle,) = read_turns(tmp_path / ".mol")

    assert bundle.outcome.correction == says("Sorted.")


def test_of_many_checks_that_had_crashed_the_latest_are_made_again(tmp_path: Path) -> None:
    reference = '{"verifier": "exact", "accepted": ["No."]}'
    records: list[Record] = [*asked(0, "u0"), *asked(1, "u0")]
    for n in range(3 * CHECKS):
        silent = signal(value=None, reference=reference, created_at=at(n))
        for turn_id, name in (("t0", f"v{n}"), ("t1", "v")):
            records.append(silent.model_copy(update={"target_id": turn_id, "name": name}))
    ingest(tmp_path / ".mol", write_spool(tmp_path / "s.jsonl", records))  # type: ignore[arg-type]
    attribute(tmp_path / ".mol", PROFILE)

    made = {
        b.turn.turn_id: [s["name"] for s in json.loads(b.outcome.signals) if s["value"] == 0.0]
        for b in read_turns(tmp_path / ".mol")
    }

    assert sorted(made["t0"]) == sorted(f"v{n}" for n in range(2 * CHECKS, 3 * CHECKS))
    assert made["t1"] == ["v"]


_FLOOD = """
    INSERT INTO feedback BY NAME
    SELECT 'f' || i AS feedback_id, 1 AS schema_version, 'x' AS source, 'turn' AS target_kind,
           't0' AS target_id, 'thumb' AS kind, 'thumb' AS name, 1.0 AS value,
           'bot-' || i AS "user", repeat('spam ', 40) AS detail,
           make_timestamp(1767225600000000 + i) AT TIME ZONE 'UTC' AS created_at,
           DATE '2026-01-01' AS day
    FROM range({signals}) r(i)
"""
_PEAK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, "tests")
from trace_records import PROFILE
from traces.attribute import attribute
print(attribute(Path(sys.argv[1]), PROFILE).outcomes)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
SIGNALS, LIMIT_MB = 1_000_000, 1000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_million_signals_about_one_turn_fit_in_bounded_memory(tmp_path: Path) -> None:
    home = tmp_path / ".mol"
    ingest(home, write_spool(tmp_path / "s.jsonl", asked(0, None)))  # type: ignore[arg-type]
    with Lake.open(home) as lake:
        lake.connection.execute(_FLOOD.format(signals=SIGNALS))

    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(home)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *outcomes, peak = done.stdout.splitlines()

    assert outcomes == ["{'success': 1}"]
    (bundle,) = read_turns(home)
    assert len(bundle.outcome.signals) < 20_000
    assert f"left out: {SIGNALS - 10} thumb up" in bundle.outcome.signals
    assert int(peak) < LIMIT_MB, peak
