"""The turns of a slot's versions, as the lake has them, and what was known of them when.

Proved: which turns are a version's, also where it failed or where the bare base answered; what
their unit is; and that a later word changes nothing of what was known before. Records are made
as a gateway writes them; the lake is real.
"""

from datetime import timedelta
from pathlib import Path

import pytest
from trace_records import PROFILE, START, at, calls, hop, says, signal, turn_of, user, write_spool

from serving.records import NO_KEY, Hop
from traces.arms import ArmTurn, read_arms, turns_of
from traces.attribute import attribute
from traces.errors import LakeNotFound
from traces.ingest import ingest

OURS, OTHER = "a" * 12, "b" * 12
DIGEST = f"sha256:{OURS}" + "0" * 52
GENERATED = "conv_" + "0" * 32


def turn(number: int, served: str = f"L2@{OURS}", **fields):
    """A turn with its route and its answer, ten seconds after the one before."""
    shared = {
        "conversation_id": fields.pop("conversation_id", f"c{number}"),
        "turn_id": f"t{number}",
    }
    when = at(10 * number)
    own = {name: fields.pop(name) for name in ("status", "user", "supersedes") if name in fields}
    answer = {
        "model": served,
        "served_name": served,
        "started_at": when + timedelta(seconds=1),
        "response_id": f"r{number}",
    }
    hops = [
        hop("route", "L0", completion=says("L2"), started_at=when, **shared),
        hop(**(answer | shared | fields)),
    ]
    return [*hops, turn_of(hops, duration_s=2.0, **({"user": None} | shared | own))]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("arms") / "home"
    failed = {
        "served_name": None, "completion": None, "finish_reason": None, "response_id": None,
        "error": "the engine is gone",
    }  # fmt: skip
    records = [
        *turn(0),
        *turn(1, f"L2@{OTHER}"),
        *turn(2, "base"),
        *turn(3, status="failed", **failed),
        *turn(4, conversation_id=GENERATED, user="ann"),
        *turn(5, conversation_id="session-1", user="ann"),
        *turn(6, completion=says("I'm sorry, but I can't help with that.")),
        *turn(7, completion=calls("f", x=1), tools='[{"name": "g"}]'),
        *turn(8, completion=calls("f", x=1)),
        *turn(9, supersedes="t8"),
        *turn(10, completion=calls("f", x=1), tools='{"f": 1}'),
        signal("thumb", -1.0, target_id="t0", created_at=at(5000), user="stranger"),
        signal("verifier", 1.0, target_id="t0", created_at=at(9000)),
        signal("thumb", 1.0, target_id="t4", created_at=at(100), user="ann"),
        # Dated by a clock that is decades ahead.
        *turn(10**8, f"L2@{OTHER}"),
        signal("thumb", 1.0, target_id="t1", created_at=at(10**9), user="ann"),
    ]
    # A call that no engine answered is the version's that was asked.
    records[10] = records[10].model_copy(update={"status": "engine_error"})
    records[11] = turn_of(
        records[9:11],
        turn_id="t3",
        conversation_id="c3",
        user=None,
        status="failed",
        duration_s=2.0,
    )
    ingest(home, write_spool(home.parent / "spool.jsonl", records))
    attribute(home, PROFILE)
    return home


def arms(home: Path, *digests: str | None, **options) -> dict[str, ArmTurn]:
    found = read_arms(home, "L2", digests or (DIGEST,), START, **options)
    return {turn.turn_id: turn for turn in found.turns}


def test_a_version_has_the_turns_that_it_was_asked(home: Path) -> None:
    assert list(arms(home)) == ["t0", "t3", "t4", "t5", "t6", "t7", "t8", "t9", "t10"]
    assert {turn.version for turn in arms(home).values()} == {OURS}
    # The base bears no slot's name; the route says whose turn it was.
    base = arms(home, None)
    assert {name: turn.version for name, turn in base.items()} == {"t2": None}
    assert list(arms(home, until=at(45))) == ["t0", "t3", "t4"]
    assert list(arms(home, newest=2)) == ["t9", "t10"]
    assert list(arms(home, oldest=2)) == ["t0", "t3"]
    assert arms(home)["t0"].latency_s == 0.5, "the router's time is not the version's"


def test_a_unit_is_what_serving_draws_by(home: Path) -> None:
    units = {name: turn.unit for name, turn in arms(home).items()}
    assert (units["t0"], units["t4"], units["t5"]) == ("c0", "user:ann", "session-1")


def asked(second: float, *messages, **fields) -> Hop:
    """A hop below a proxy: it names no turn, and no conversation either."""
    values = {"conversation_id": NO_KEY, "turn_id": None, "model": f"L2@{OURS}"}
    served = {"served_name": f"L2@{OURS}", "seq": int(second * 1_000_000)}
    view = {"messages": messages, "started_at": at(second), "response_id": f"r{second}"}
    return hop(**(values | served | view | fields))


def test_below_a_proxy_a_unit_is_what_the_hop_was_drawn_by(tmp_path: Path) -> None:
    system, hi, other = (
        says("Be brief.").model_copy(update={"role": "system"}),
        user("Hi"),
        user("?"),
    )
    records = [
        asked(0, system, hi, completion=says("Hello.")),
        asked(100, system, hi, completion=says("Good day.")),  # another conversation
        asked(200, system, hi, says("Hello."), other),  # the first one's next turn
        asked(300, system, other),
        asked(400, hi),
        asked(500, system, hi, user="ann"),
        asked(600, system, hi, says("Hello again."), other, user="ann"),
        # Whoever names its conversation is drawn by that, whatever the name looks like.
        asked(700, system, hi, user="ann", conversation_id=GENERATED),
    ]
    ingest(tmp_path / "home", write_spool(tmp_path / "spool.jsonl", records))
    found = read_arms(tmp_path / "home", "L2", (DIGEST,), START).turns
    units = [turn.unit for turn in found]
    assert len(found) == len(records)
    assert units[0] == units[1] == units[2]
    assert len(set(units[2:5])) == 3
    assert [turn.nameless for turn in found] == [True] * 5 + [False] * 3
    assert units[5:] == ["user:ann", "user:ann", GENERATED]


def test_what_follows_on_a_version_s_turn_is_not_free_of_it(tmp_path: Path) -> None:
    one = {"conversation_id": "c"}
    records = [
        *turn(0, **one),
        *turn(1, f"L2@{OTHER}", **one),
        *turn(2, **one),
        *turn(3),
    ]
    ingest(tmp_path / "home", write_spool(tmp_path / "spool.jsonl", records))
    ids = [f"t{number}" for number in range(4)]
    assert turns_of(tmp_path / "home", ids, {OTHER}) == {"t1", "t2"}
    assert turns_of(tmp_path / "home", ["t2"], {OTHER}) == {"t2"}
    assert turns_of(tmp_path / "home", ids, {OURS}) == {"t0", "t1", "t2", "t3"}
    assert turns_of(tmp_path / "home", ids, {"c" * 12}) == frozenset()


def test_what_an_answer_shows_by_itself(home: Path) -> None:
    found = arms(home)
    assert [name for name, turn in found.items() if turn.refused] == ["t6"]
    # Where the log does not say which tools were offered (t8, t10), only the JSON could be wrong.
    assert [name for name, turn in found.items() if turn.broken_call] == ["t7"]


def test_what_was_known_when(home: Path) -> None:
    found = arms(home)
    first = found["t0"]
    assert first.strangers == {"stranger"}
    assert [first.failed_by(at(s)) for s in (4999, 5000, 8999, 9000)] == [None, True, True, False]
    assert found["t3"].failed_by(at(31)) is True, "no answer is a failure"
    assert found["t4"].failed_by(at(100)) is False
    assert found["t8"].asked_again_at == at(90)
    assert found["t8"].failed_by(at(95)) is None


def test_all_that_happened_before_is_in_the_lake_whatever_bears_a_time_to_come(
    home: Path, tmp_path: Path
) -> None:
    assert read_arms(home, "L2", (DIGEST,), START).known_until == at(9000)
    with pytest.raises(LakeNotFound):
        read_arms(tmp_path, "L2", (DIGEST,), START)
