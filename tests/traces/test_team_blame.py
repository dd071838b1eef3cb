"""Proves that a run of several agents is blamed on an agent and its call, and when it is not.

Runs of both published forms of Who&When go through importer, lake and attribution; what the rule
leaves alone is shown on records made here. Nothing is faked.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from team_runs import AGREES, CODE, FAILED, FIGURES, OPENING, REQUEST, hop_of, turn_of
from trace_records import PROFILE, at

from serving.records import Feedback, Hop, Message
from traces.analytics.views import query
from traces.attribute import attribute
from traces.attribution.blame import Blame, Context, blame
from traces.attribution.outcomes import settle
from traces.ingest import ingest

SAID = [("Planner", OPENING), ("Counter", CODE), ("Shell", FAILED), ("Planner", AGREES)]


def run(agent: str = "Counter", step: int = 1) -> dict[str, Any]:
    return {
        "question": REQUEST, "question_ID": "q", "mistake_agent": agent, "mistake_step": str(step),
        "mistake_reason": f"{agent} is wrong.",
        "history": [{"role": "user", "name": name, "content": text} for name, text in SAID],
    }  # fmt: skip


def blamed_of(home: Path, *runs: dict[str, Any]) -> list[tuple[Any, ...]]:
    source = home.parent / f"{home.name}.json"
    source.write_text(json.dumps(runs))
    ingest(home, source)
    attribute(home, PROFILE)
    return query(
        home,
        "SELECT b.klass, b.slot, b.method, h.seq, h.model, b.confidence, b.evidence FROM blame b"
        " LEFT JOIN hops h USING (hop_id)",
    )[1]


def test_the_blame_is_the_agents_with_its_call_whatever_the_label_says(tmp_path: Path) -> None:
    ((*found, confidence, evidence),) = blamed_of(tmp_path / "a", run())

    assert found == ["adapter", "Counter", "steps", 1, "Counter"]
    assert 0.3 < confidence < 1
    assert "the first whose execution failed" in evidence
    assert blamed_of(tmp_path / "b", run("Planner", 3)) == [(*found, confidence, evidence)]


def heard(*said: tuple[str, str], deaf: bool = False, **changes: Any) -> list[Hop]:
    """Return the hops of a run in which everybody was given all that was said before."""
    hops = []
    for place, (name, text) in enumerate(said):
        before = tuple(Message(role="user", content=t) for _, t in said[:place])
        messages = () if deaf else before
        said_now = Message(role="assistant", content=text)
        hops.append(hop_of(place, name, said_now, messages=messages, started_at=at(place)))
    return [hop.model_copy(update=changes) if hop is hops[-1] else hop for hop in hops]


def verdict(hops: list[Hop], *, missing: int = 0, **fields: Any) -> Blame:
    turn = turn_of().model_copy(
        update={
            "hop_ids": (*(h.hop_id for h in hops), *("gone",) * missing),
            "slot": hops[-1].slot,
            **fields,
        }
    )
    failed = Feedback(
        source="test", target_kind="turn", target_id=turn.turn_id, kind="verifier", name="exact",
        value=0.0, created_at=at(99),
    )  # fmt: skip
    found = blame(turn, hops, settle(turn, [failed]), Context(), PROFILE)
    assert found is not None
    return found


def test_hops_that_are_missing_are_not_guessed_around() -> None:
    found = verdict(heard(*SAID), missing=1)

    assert (found.klass, found.evidence) == ("unknown", "1 hops are missing")


def test_clocks_that_run_backwards_name_nobody() -> None:
    assert verdict(heard(*SAID, started_at=at(-5))).klass == "unknown"


def test_answers_that_never_heard_of_each_other_compete() -> None:
    found = verdict(heard(*SAID, deaf=True))

    assert (found.klass, found.method) == ("unknown", "structure")
    assert found.evidence == "two answers compete for the turn"


@pytest.mark.parametrize(
    ("names", "method"),
    [(("L1", "L2"), "structure"), (("L1", "L2", "L3"), "steps"), (("L1", "Zoe"), "steps")],
)
def test_two_of_the_profiles_own_slots_are_no_team(names: tuple[str, ...], method: str) -> None:
    said = [(names[0], OPENING), (names[1], CODE), ("Shell", FAILED), (names[-1], AGREES)]
    if set(names) == {"L1", "L2"}:
        said.remove(("Shell", FAILED))

    assert verdict(heard(*said)).method == method


def test_agents_that_are_as_likely_are_told_apart_by_nobody() -> None:
    found = verdict(heard(("A", OPENING), ("B", AGREES), ("C", AGREES)))

    assert (found.method, found.slot, found.confidence) == ("steps", None, 0.0)
    assert found.evidence.startswith("no agent of the run stands out")


def test_an_agent_alone_is_left_to_the_other_rules() -> None:
    assert verdict(heard(("A", OPENING), ("A", FIGURES))).method == "structure"
