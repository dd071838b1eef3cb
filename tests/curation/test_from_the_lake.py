"""A dataset from traces on disk: spool, lake, attribution, rows.

Proved with the real lake and the real attribution; the spool is written by hand. What each
turn teaches is not told to curation: it follows from the feedback.
"""

from pathlib import Path

import pytest
from curation_turns import PROFILE, bundle, hop, route_hop, says, user

from curation.build import NotEnoughExamples, build
from curation.config import CurationConfig
from curation.examples import prompt_id
from curation.manifest import Manifest, read_examples
from serving.records import Feedback, Message, Record, Turn, canonical_json
from traces.attribute import attribute
from traces.ingest import ingest
from traces.storage.lake import Lake

CONFIG = CurationConfig(min_rows=4, holdout_percent=25)


def line(kind: str, record: Record) -> str:
    return canonical_json({"kind": kind, "record": record.model_dump(mode="json")}) + "\n"


def signal(turn_id: str, kind: str, **fields) -> Feedback:
    created_at = bundle().turn.started_at
    values = {"source": "mol", "target_kind": "turn", "name": kind, "created_at": created_at}
    return Feedback(target_id=turn_id, kind=kind, **values | fields)


def spool_of(name: str, n: int) -> tuple[list[Record], Feedback | None]:
    """The hops, the turn and the feedback of one request to L2."""
    text = f"{name} request {n}"
    view = [Message(role="system", content="You are L2."), user(text)]
    hops = [
        route_hop(text, "L2", conversation_id=f"c-{name}{n}", seq=10 * n),
        hop("L2", view, says(f"served {n}"), conversation_id=f"c-{name}{n}", seq=10 * n + 1),
    ]
    turn = bundle(f"{name}{n}", hops=hops, request=text, who=f"u{n % 4}", minute=n).turn
    feedback = {
        "edited": signal(turn.turn_id, "edit", correction=says(f"wanted {n}")),
        "verified": signal(turn.turn_id, "verifier", name="python_tests", value=1.0),
        "liked": signal(turn.turn_id, "thumb", value=1.0),
        "misrouted": signal(turn.turn_id, "verifier", name="tool_call", value=0.0),
        "retried": signal(turn.turn_id, "retry"),
    }
    return [*hops, turn], feedback.get(name)


NAMES = ("edited", "verified", "liked", "misrouted", "retried", "unjudged")


def fill(home: Path) -> Path:
    lines = []
    for name in NAMES:
        for n in range(4):
            records, feedback = spool_of(name, n)
            lines += [line("turn" if isinstance(r, Turn) else "hop", r) for r in records]
            lines += [line("feedback", feedback)] if feedback else []
    spool = home.parent / f"{home.name}.jsonl"
    spool.write_text("".join(lines))
    ingest(home, spool)
    attribute(home, PROFILE)
    return home


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    return fill(tmp_path_factory.mktemp("lake") / "home")


@pytest.fixture(scope="module")
def made(filled) -> Manifest:
    return build(filled, "L2", PROFILE, CONFIG)


def test_the_rows_follow_from_the_feedback(filled, made):
    rows = read_examples(filled, made, None)
    assert {(row.source, row.completion.content) for row in rows} == {
        *(("edit", f"wanted {n}") for n in range(4)),
        *(("verified", f"served {n}") for n in range(4)),
        *(("thumb", f"served {n}") for n in range(4)),
    }
    assert {row.messages[0].content for row in rows} == {"You are L2."}


def test_every_other_turn_has_its_reason(made):
    assert made.counts["turns_seen"] == 4 * len(NAMES)
    assert made.drops == {
        "blamed on the router": 4,
        "implicit outcome only": 4,
        "no outcome": 4,
    }


def test_a_users_turns_are_on_one_side(filled, made):
    rows = read_examples(filled, made, None)
    assert len({(row.user, row.split) for row in rows}) == 4


def test_building_does_not_touch_the_lake(filled, made):
    with Lake.open(filled, read_only=True) as lake:
        assert lake.snapshot_id() == made.snapshot_id


def test_a_router_that_has_only_routes_to_learn_is_refused(filled):
    with pytest.raises(NotEnoughExamples, match="8 training rows and 0 of duty 'answer'"):
        build(filled, "L0", PROFILE, CurationConfig(min_rows=1, holdout_percent=0))


def test_two_lakes_of_the_same_traces_give_the_same_bytes(filled, made, tmp_path):
    other = fill(tmp_path / "elsewhere")
    again = build(other, "L2", PROFILE, CONFIG)
    for file in ("manifest.json", "examples.parquet"):
        one, two = filled / made.path / file, other / again.path / file
        assert one.read_bytes() == two.read_bytes()


def test_requests_of_the_gate_suites_stay_out(filled):
    sealed = frozenset(prompt_id(f"Verified request {n}!") for n in range(4))
    sealed_out = build(filled, "L2", PROFILE, CONFIG, sealed)
    assert sealed_out.drops["in gate suite"] == 4
    assert "answer/verified" not in sealed_out.mix
