"""Proves what 'flows traces show' and 'list' tell: attempts, news of each hop, cuts, lookups.

Real lake; the traffic is made up.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trace_records import (
    PROFILE,
    at,
    calls,
    hop,
    result,
    says,
    signal,
    turn_of,
    user,
    write_spool,
)

from flows.turn_page import turn_lines
from serving.records import UNDATED, Message
from traces.attribute import attribute
from traces.errors import TurnNotFound
from traces.ingest import ingest
from traces.lookup import TurnFilter, find_turns, list_turns

TOOLS = json.dumps([{"type": "function", "function": {"name": "read"}}])
SYSTEM = Message(role="system", content="You are careful. " * 40)
LONG = "x" * 1000


def steps() -> Iterator[Any]:
    """Yield a turn of three answer hops, each seeing all before it: a call, its result, a retry."""
    first = hop(
        tools=TOOLS, messages=(SYSTEM, user("Read it.")), completion=calls("read", path="a.txt"),
        reasoning="I should read.", prompt_tokens=20, completion_tokens=5, cached_tokens=16,
        ttft_s=0.25, started_at=at(0),
    )  # fmt: skip
    seen = (*first.messages, first.completion, result(LONG))
    lost = hop(
        tools=TOOLS, messages=seen, completion=None, status="engine_error", error="503 busy",
        seq=2, started_at=at(2),
    )  # fmt: skip
    again = hop(
        tools=TOOLS, messages=seen, completion=says("It says x."), seq=3, started_at=at(4),
        response_id="r-again", supersedes=lost.hop_id,
    )  # fmt: skip
    hops = [first, lost, again]
    yield from hops
    yield turn_of(hops, request="Read it.", tail=(result("late"),), workload="agent.chat")
    yield signal("verifier", 0.0, detail="wrong", created_at=at(30))
    yield signal("edit", None, correction=says("It says nothing."), created_at=at(40))


def others() -> Iterator[Any]:
    """Yield a later turn of the conversation that asks again, and two of another one."""
    for n, (conversation, extra) in enumerate(
        [("c1", {"supersedes": "t1"}), ("c2", {}), ("c2", {})]
    ):
        name = f"t1{n}"
        when = at(86400 * (n + 1))
        answer = hop(
            slot="L1" if n == 1 else "L2", turn_id=name, conversation_id=conversation,
            started_at=when, completion=says(f"answer {n}"), response_id=f"r{n}",
        )  # fmt: skip
        yield answer
        yield turn_of([answer], turn_id=name, conversation_id=conversation, position=n + 1,
                      started_at=when, **extra)  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    ingest(folder / ".mol", write_spool(folder / "s.jsonl", [*steps(), *others()]))
    attribute(folder / ".mol", PROFILE)
    return folder / ".mol"


def page(home: Path, wanted: str, full: bool = False) -> str:
    return "\n\n".join(
        "\n".join(line.plain for line in turn_lines(story, full))
        for story in find_turns(home, wanted)
    )


def test_the_head_says_who_when_what_came_of_it_and_whose_doing(home: Path) -> None:
    shown = page(home, "t1")

    assert "number 1 of c1, 2026-03-01 09:00:00 UTC" in shown
    assert "u1, workload agent.chat" in shown
    assert "routed to L2@3fa9c1d2e4b5" in shown
    assert "no verdict (superseded)" in shown
    assert "verifier python_tests +0: wrong" in shown
    assert "wanted    It says nothing." in shown


def test_a_hop_shows_what_is_new_in_it(home: Path) -> None:
    first, second, third = page(home, "t1").split("\n\n")[1:4]

    assert first.startswith("1. answer L2@3fa9c1d2e4b5, 0.50 s, first token after 0.25 s, "
                            "20 (16 cached) + 5 tokens")  # fmt: skip
    assert "1 tool: read" in first
    assert "thought: I should read." in first
    assert '> read(path="a.txt")' in first
    assert second.startswith("2. answer L2@3fa9c1d2e4b5, engine_error, superseded by 3")
    assert "error: 503 busy" in second
    assert "3 messages as in 1" in second
    assert second.count("tool result call-1: xxx") == 1
    assert "You are careful" not in second + third
    assert "a further attempt" in third
    assert "4 messages as in 2" in third
    assert "> It says x." in third


def test_long_texts_are_cut_with_a_note_unless_full(home: Path) -> None:
    assert "x ... [760 more characters]" in page(home, "t1")
    assert LONG not in page(home, "t1")
    assert LONG in page(home, "t1", full=True)
    assert "more characters" not in page(home, "t1", full=True)


def test_what_followed_the_last_call_is_shown(home: Path) -> None:
    assert page(home, "t1").endswith("after the last call\n   tool result call-1: late")


def test_a_turn_asked_again_names_the_one_it_supersedes_and_what_was_before(home: Path) -> None:
    shown = page(home, "t10")

    assert "asked again; supersedes turn t1" in shown
    assert "1. Read it. -> L2: It says x. (asked again)" in shown


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("t1", ["t1"]), ("t10", ["t10"]), ("r-again", ["t1"]), ("c2", ["t11", "t12"])],
)
def test_a_turn_is_found_by_its_own_its_responses_or_its_conversations_id(
    home: Path, wanted: str, found: list[str]
) -> None:
    assert [story.bundle.turn.turn_id for story in find_turns(home, wanted)] == found


def test_a_turn_is_found_by_a_hop_of_it(home: Path) -> None:
    hop_id = next(steps()).hop_id

    for wanted in (hop_id, hop_id.removeprefix("sha256:")[:12]):
        assert [story.bundle.turn.turn_id for story in find_turns(home, wanted)] == ["t1"]


def test_an_id_that_names_none_or_several_is_refused(home: Path) -> None:
    with pytest.raises(TurnNotFound, match=r"More than one turn \('t1', 't10', 't11', ...\)"):
        find_turns(home, "t")
    with pytest.raises(TurnNotFound, match="No turn has or begins with 'zzz'"):
        find_turns(home, "zzz")


@pytest.mark.parametrize(
    ("only", "found"),
    [
        (TurnFilter(), ["t12", "t11", "t10", "t1"]),
        (TurnFilter(slot="L1"), ["t11"]),
        (TurnFilter(workload="agent.chat"), ["t1"]),
        (TurnFilter(since=at(86400 * 2)), ["t12", "t11"]),
        (TurnFilter(since=at(86400 * 2 + 1)), ["t12"]),
        (TurnFilter(failed=True), []),
        (TurnFilter(slot="L2", since=at(86400)), ["t12", "t10"]),
    ],
)
def test_turns_are_listed_newest_first_by_filters(
    home: Path, only: TurnFilter, found: list[str]
) -> None:
    assert [row["turn_id"] for row in list_turns(home, 20, only)] == found


def test_turns_are_found_as_lists_show_them_and_listed_by_blame(tmp_path: Path) -> None:
    odd = f"bench:sha256:{'ab' * 32}:3"
    answer = hop(turn_id=odd, conversation_id=f"sha256:{'cd' * 32}", started_at=UNDATED)
    undated = turn_of([answer], turn_id=odd, conversation_id=answer.conversation_id)
    ingest(tmp_path, write_spool(tmp_path / "s.jsonl", [*steps(), answer, undated]))
    attribute(tmp_path, PROFILE)

    for wanted in (odd, odd[:30], "bench:abababababab:3", "cdcdcdcdcdcd"):
        head = page(tmp_path, wanted).splitlines()[0]
        assert head == "turn      bench:abababababab:3, number 1 of cdcdcdcdcdcd, undated, 3.0 s"
    label = list_turns(tmp_path)[0]["blame"]

    assert label is not None
    for blame in (label, label.split(":")[0]):
        assert len(list_turns(tmp_path, 20, TurnFilter(blame=blame, failed=True))) == 1
    assert list_turns(tmp_path, 20, TurnFilter(blame=label[:3])) == []
