"""Proves that odd turns, hops and signals are settled and blamed without an exception or a guess.

Turns with missing hops, two answers, contradictory feedback, floods of strangers, clocks that run
backwards and verifiers that crashed. The records are real and made up; nothing is faked.
"""

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_records import PROFILE, at, calls, hop, result, says, signal, turn_of, user, write_spool

from serving.records import Feedback, Hop, Message, Turn
from traces.attribute import attribute
from traces.attribution.apart import apart
from traces.attribution.blame import Blame, Context
from traces.attribution.blaming import Evidence, explain
from traces.attribution.case import Klass
from traces.attribution.outcomes import Outcome, settle, thumbs_by_voice
from traces.attribution.pooled import Pool
from traces.attribution.replay_rows import Replays
from traces.bundles import TurnBundle
from traces.config import AttributionConfig
from traces.ingest import ingest
from traces.read import read_turns
from traces.storage.lake import Lake

EVIDENCE = Evidence(PROFILE, AttributionConfig(), Pool({}, frozenset()), Replays())
ODD_TEXT = st.sampled_from(
    [
        "",
        "yes",
        "{",
        "[" * 3000,
        '{"error": null}',
        "Error",
        "\u0000",
        "你好" * 50,
        "-1e999",
        "null",
    ]
)
SCORES = st.sampled_from([None, 0.0, 1.0, -1.0, 0.5, math.nan, math.inf, -0.0])
MESSAGES = st.one_of(
    st.builds(user, ODD_TEXT),
    st.builds(says, ODD_TEXT),
    st.builds(result, ODD_TEXT),
    st.just(calls("light", room="kitchen")),
    st.builds(lambda text: bad_call(text), ODD_TEXT),
)


def bad_call(arguments: str) -> Message:
    made = calls("light")
    return made.model_copy(
        update={"tool_calls": (made.tool_calls[0].model_copy(update={"arguments": arguments}),)}
    )


HOPS = st.builds(
    lambda role, model, finish, status, tools, messages, said, seconds: hop(
        role, model, finish_reason=finish, status=status, tools=tools, messages=tuple(messages),
        completion=said, started_at=at(seconds),
    ),
    st.sampled_from(["route", "answer", "summary"]),
    st.sampled_from(["L0", "L1", "L2", "L9", "base", ""]),
    st.sampled_from(["stop", "length", "tool_calls", None, "?"]),
    st.sampled_from(["ok", "engine_error", "broken_stream", "abandoned"]),
    st.sampled_from(["[]", "{", "null", "[1]", '[{"function": {"name": "light"}}]', '[{"a": 1}]']),
    st.lists(MESSAGES, max_size=4),
    st.none() | MESSAGES,
    st.integers(-10, 10),
)  # fmt: skip
SIGNALS = st.builds(
    lambda kind, value, name, said, detail, reference, who, seconds: signal(
        kind, value, name=name, correction=said, detail=detail, reference=reference, user=who,
        created_at=at(seconds),
    ),
    st.sampled_from(sorted(get_args(Feedback.model_fields["kind"].annotation))),
    SCORES,
    st.sampled_from(["tool_call", "python_tests", "interface", "nobody's", ""]),
    st.none() | MESSAGES,
    st.none() | ODD_TEXT,
    st.none() | ODD_TEXT | st.just('{"verifier":"exact","accepted":["x"]}'),
    st.sampled_from([None, "u0", "u1", "stranger"]),
    st.integers(-10, 10),
)  # fmt: skip


def explained(turn: Turn, hops: list[Hop], signals: list[Feedback], **facts: Any) -> Blame | None:
    outcome = settle(turn, signals, **facts)
    bundle = TurnBundle(turn, tuple(hops), outcome, None)
    return explain(bundle, Context(later=((turn, outcome),)), EVIDENCE)


@settings(deadline=None, max_examples=400)
@given(
    st.lists(HOPS, max_size=4),
    st.lists(SIGNALS, max_size=5),
    st.fixed_dictionaries(
        {
            "status": st.sampled_from(["ok", "failed", "abandoned"]),
            "slot": st.sampled_from([None, "L0", "L2", "L9", "base"]),
            "decision": st.sampled_from(["routed", "fallback", "explored", "rule", "unsure"]),
            "error": st.none() | ODD_TEXT,
            "user": st.sampled_from([None, "u0"]),
            "answer": st.none() | MESSAGES,
            "request": ODD_TEXT,
        }
    ),
    st.integers(0, 2),
)
def test_whatever_a_turn_holds_it_is_one_of_the_classes_or_nobody_s(
    hops: list[Hop], signals: list[Feedback], fields: dict[str, Any], missing: int
) -> None:
    turn = turn_of(hops or [hop()]).model_copy(update=fields)
    lost = tuple(f"sha256:{n:064x}" for n in range(missing))
    turn = turn.model_copy(update={"hop_ids": (*(h.hop_id for h in hops), *lost)})

    found = explained(turn, hops, signals)

    if found is None:
        return
    assert found.klass in get_args(Klass)
    assert 0.0 <= found.confidence <= 1.0
    assert found.evidence
    # A case that broke a rule is said to be odd, but nothing a log may hold should break one.
    assert not found.evidence.startswith("the record can")
    assert found.klass != "unknown" or found.confidence == 0.0


def case(name: str) -> tuple[Turn, list[Hop], list[Feedback], str]:
    hops = [hop("route", "L0", completion=says("L2")), hop(started_at=at(1))]
    turn, failed = turn_of(hops), signal(value=0.0, created_at=at(2))
    match name:
        case "missing hops":
            return turn, hops[:1], [failed], "missing"
        case "two answers":
            both = [*hops, hop(model="L1", started_at=at(2), messages=(user("again"),))]
            return turn_of(both), both, [failed], "two answers"
        case "clocks run backwards":
            late = [hops[0].model_copy(update={"started_at": at(9)}), hops[1]]
            return turn_of(late), late, [failed], "backwards"
        case "crashed verifier":
            return turn, hops, [signal(value=None)], "crashed"
        case _:
            return turn, hops, [failed, signal(value=1.0, created_at=at(3))], "passed and failed"


@pytest.mark.parametrize(
    "name",
    ["missing hops", "two answers", "clocks run backwards", "crashed verifier", "contradiction"],
)
def test_evidence_that_cannot_be_trusted_blames_nobody_and_says_why(name: str) -> None:
    turn, hops, signals, reason = case(name)

    found = explained(turn, hops, signals)

    assert found is not None
    assert (found.klass, found.slot, found.confidence) == ("unknown", None, 0.0)
    assert reason in found.evidence


def flood(value: float, users: int) -> list[Feedback]:
    return [signal("thumb", value, user=f"bot-{n}", created_at=at(n)) for n in range(users)]


def test_a_flood_of_strangers_is_one_voice() -> None:
    names = {f"bot-{n}" for n in range(500)}
    mine = signal("thumb", 1.0, user="friend")

    voices = thumbs_by_voice([*flood(-1.0, 500), mine], names)

    assert voices == {None: False, "friend": True}
    assert thumbs_by_voice([*flood(-1.0, 200), *flood(1.0, 500)], names) == {None: True}


@pytest.mark.parametrize("liked", [1.0, -1.0])
def test_the_user_who_asked_decides_whatever_the_flood_says(liked: float) -> None:
    turn = turn_of([hop()]).model_copy(update={"user": "u0"})
    own = signal("thumb", liked, user="u0")

    outcome = settle(turn, [*flood(-liked, 300), own], strangers={f"bot-{n}" for n in range(300)})

    assert (outcome.success, outcome.rule) == (liked > 0, "thumbed")


def test_a_stranger_s_edit_is_not_the_correction_of_who_asked() -> None:
    turn = turn_of([hop()]).model_copy(update={"user": "u0"})
    own = signal("edit", None, user="u0", correction=says("mine"), created_at=at(1))
    other = signal("edit", None, user="bot", correction=says("poison"), created_at=at(9))

    assert settle(turn, [own, other]).correction == says("mine")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A turn cut at its limit, one an engine failed, one of a canary; each failed."""
    folder = tmp_path_factory.mktemp("odd")
    records: list[Any] = []
    kinds: dict[str, dict[str, Any]] = {
        "cut": {"finish_reason": "length"},
        "broken": {"status": "engine_error", "completion": None},
        "trial": {"canary": True},
        "plain": {},
    }
    for number, (name, fields) in enumerate(kinds.items()):
        own = {"conversation_id": f"c-{name}", "turn_id": f"t-{name}"}
        made = hop(messages=(user(name),), started_at=at(number), **own, **fields)
        extra = {"status": "failed"} if name == "broken" else {}
        extra |= {"canary": True} if name == "trial" else {}
        records += [made, turn_of([made], request=name, **own, **extra)]
        records.append(signal(value=0.0, target_id=f"t-{name}", created_at=at(100)))
    ingest(folder / ".mol", write_spool(folder / "s.jsonl", records))
    attribute(folder / ".mol", PROFILE)
    return folder / ".mol"


def test_failures_of_nobody_s_model_are_told_apart(lake: Path) -> None:
    report = attribute(lake, PROFILE)

    assert report.apart == {"canary": 1, "engine": 1, "truncated": 1}
    assert report.outcomes == {"failure": 4}
    assert report.by_slot["L2"] == {"turns": 4, "failed": 1, "blamed": 1}
    outcomes: dict[str, Outcome] = {b.turn.turn_id: b.outcome for b in read_turns(lake)}
    assert {k for k, o in outcomes.items() if o.truncated} == {"t-cut"}
    assert outcomes["t-broken"].rule == "engine"
    # The rule for records is that of the SQL.
    assert {b.turn.turn_id: apart(b.turn, b.outcome) for b in read_turns(lake)} == {
        "t-broken": "engine", "t-cut": "truncated", "t-plain": None, "t-trial": "canary",
    }  # fmt: skip


def test_a_time_to_come_ends_no_conversation_of_now(tmp_path: Path) -> None:
    now, records = datetime.now(UTC), []
    for name, moment in (("now", now), ("clock", now + timedelta(days=3650))):
        own = {"conversation_id": f"c-{name}", "turn_id": f"t-{name}"}
        made = hop(status="engine_error", completion=None, started_at=moment, **own)
        records += [made, turn_of([made], status="failed", **own)]
    ingest(tmp_path / ".mol", write_spool(tmp_path / "s.jsonl", records))
    attribute(tmp_path / ".mol", PROFILE)
    with Lake.open(tmp_path / ".mol", read_only=True) as opened:
        said = opened.connection.execute("SELECT turn_id, signals FROM outcomes").fetchall()
    assert {turn: signals for turn, signals in said if "abandonment" in signals} == {}
    assert len(said) == 2


def test_no_rate_charges_them_to_the_model(lake: Path) -> None:
    with Lake.open(lake, read_only=True) as opened:
        ((slot, *counts),) = opened.connection.execute(
            "SELECT slot, turns, judged, succeeded, failed, unjudged, canary, engine_errors,"
            " truncated FROM v_success_by_slot"
        ).fetchall()
        canaries = opened.connection.execute(
            "SELECT turns, judged, success_rate FROM v_success_of_canaries"
        ).fetchall()

    assert (slot, counts) == ("L2", [4, 1, 0, 1, 0, 1, 1, 1])
    assert canaries == [(1, 1, 0.0)]


@pytest.mark.parametrize("friend", [1.0, -1.0])
def test_users_contradict_each_other_by_voices(friend: float) -> None:
    """Strangers who are against each other are one voice, the friend's is another one."""
    turn = turn_of([hop()]).model_copy(update={"user": None})
    names = {f"bot-{n}" for n in range(50)}
    torn = [signal("thumb", 1.0, user="bot-0", created_at=at(99)), *flood(-1.0, 50)[1:]]
    mine = signal("thumb", friend, user="friend")

    alone = explained(turn, [hop()], torn, strangers=names)
    both = explained(turn, [hop()], [*torn, mine], strangers=names)

    assert alone is not None
    assert alone.rule == "disliked"
    assert both is not None
    assert both.rule == ("contradicted" if friend > 0 else "disliked")


def test_a_flood_against_who_asked_does_not_hide_what_they_disliked() -> None:
    turn = turn_of([hop()]).model_copy(update={"user": "u0"})
    names = {f"bot-{n}" for n in range(300)}

    found = explained(
        turn, [hop()], [*flood(1.0, 300), signal("thumb", -1.0, user="u0")], strangers=names
    )

    assert found is not None
    assert (found.label, found.rule) == ("adapter:L2", "disliked")
