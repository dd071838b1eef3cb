"""Proves that results of equal calls are found across a lake, and when they prove a tool wrong.

A real lake and the real attribution; the traffic is made up.
"""

from pathlib import Path
from typing import Any

import pytest
from trace_records import PROFILE, at, calls, hop, result, says, signal, turn_of, user, write_spool

from serving.records import Record, canonical_json
from traces.attribute import attribute
from traces.attribution.tool_results import Elsewhere, agreed, brackets, close_s, shape_of, unlike
from traces.ingest import ingest
from traces.read import read_turns

PRICE = {"type": "function", "function": {"name": "price", "parameters": {"type": "object"}}}
STABLE = PRICE | {"annotations": {"idempotentHint": True}}


def asked(
    n: int, content: str, *, minute: float, good: bool = True, who: str = "u1",
    tool: Any = PRICE, expected: str | None = None, **arguments: Any,
) -> list[Record]:  # fmt: skip
    """L1 looks a price up, and says something about it; ids of calls repeat."""
    shared: dict[str, Any] = {"conversation_id": f"c{n:03d}", "turn_id": f"t{n:03d}"}
    tools, text = canonical_json([tool]), "What does it cost?"
    call = calls("price", **(arguments or {"item": "tea", "shop": "north"}))
    first = hop(
        slot="L1", messages=(user(text),), completion=call, tools=tools, finish_reason="stop",
        started_at=at(60 * minute), response_id=f"r{n}a", **shared,
    )  # fmt: skip
    second = hop(
        slot="L1", messages=(user(text), call, result(content)), completion=says("Not much."),
        tools=tools, started_at=at(60 * minute + 1), seq=2, response_id=f"r{n}b", **shared,
    )  # fmt: skip
    turn = turn_of([first, second], request=text, user=who, **shared)
    told = signal("thumb", 1.0 if good else -1.0, user=who, target_id=turn.turn_id)
    if expected is not None:
        wanted = {"verifier": "short_answer", "accepted": [expected], "max_words": 24}
        told = signal(
            name="spoken", value=0.0, reference=canonical_json(wanted), target_id=turn.turn_id
        )
    return [first, second, turn, told]


def rules(folder: Path, *turns: list[Record]) -> dict[str, str | None]:
    records = [record for turn in turns for record in turn]
    folder.mkdir(exist_ok=True)
    ingest(folder / ".mol", write_spool(folder / "s.jsonl", records))  # type: ignore[arg-type]
    attribute(folder / ".mol", PROFILE)
    return {b.turn.turn_id: b.blame.rule for b in read_turns(folder / ".mol") if b.blame}


def test_equal_calls_of_others_that_agree_with_the_right_answer_blame_the_tool(
    tmp_path: Path,
) -> None:
    """Whoever asked, whatever the order of the arguments, and ids of calls are all the same."""
    found = rules(
        tmp_path,
        asked(1, '{"euros": 14}', minute=0, who="u2", shop="north", item="tea"),
        asked(2, '{"euros": 77}', minute=3, good=False, expected="14"),
        asked(3, '{"euros": 14}', minute=5, who="u3"),
    )

    assert found == {"t002": "tool_disputed"}


@pytest.mark.parametrize(
    "others",
    [
        pytest.param({"item": "milk", "shop": "north"}, id="another call"),
        pytest.param({"minute": -60}, id="an hour before"),
        pytest.param({"content": '{"euros": 9}'}, id="another price"),
    ],
)
def test_what_is_no_equal_call_close_in_time_proves_nothing(
    tmp_path: Path, others: dict[str, Any]
) -> None:
    content = others.pop("content", '{"euros": 14}')
    minute = others.pop("minute", 2)
    found = rules(
        tmp_path,
        asked(1, content, minute=minute, **others),
        asked(2, '{"euros": 77}', minute=3, good=False, expected="14"),
    )

    assert found["t002"] == "tool_lacking"


def test_a_price_that_changes_with_time_is_no_contradiction(tmp_path: Path) -> None:
    """Nobody says what is right: the same user has to get the others' before and after."""
    changing = [asked(n, f'{{"euros": {n}}}', minute=n, good=n != 3) for n in range(6)]

    assert rules(tmp_path, *changing) == {"t003": "disliked"}


@pytest.mark.parametrize(
    ("who", "minutes", "rule"),
    [("u1", (1, 5), "tool_disputed"), ("u1", (1, 2), "disliked"), ("u2", (1, 5), "disliked")],
    ids=["before and after", "before only", "another user"],
)
def test_without_a_right_answer_the_same_user_s_results_before_and_after_decide(
    tmp_path: Path, who: str, minutes: tuple[int, int], rule: str
) -> None:
    found = rules(
        tmp_path,
        asked(1, '{"euros": 14}', minute=minutes[0], who=who),
        asked(2, '{"euros": 14}', minute=minutes[1], who=who),
        asked(3, '{"euros": 77}', minute=3, good=False),
    )

    assert found == {"t003": rule}


def test_a_tool_that_declares_that_repeating_changes_nothing_is_compared_over_a_day(
    tmp_path: Path,
) -> None:
    found = rules(
        tmp_path,
        asked(1, '{"euros": 14}', minute=0, tool=STABLE),
        asked(2, '{"euros": 77}', minute=300, good=False, expected="14", tool=STABLE),
    )

    assert found == {"t002": "tool_disputed"}
    assert close_s([STABLE], "price") > close_s([PRICE], "price") == close_s([STABLE], "other")


def test_text_where_every_other_result_is_json_blames_the_tool(tmp_path: Path) -> None:
    good = [asked(n, f'{{"euros": {n}}}', minute=100 * n, item=f"i{n}") for n in range(16)]
    failed = asked(16, "the shop is closed", minute=9999, good=False, item="i16")

    assert rules(tmp_path / "many", *good, failed) == {"t016": "tool_unlike"}
    assert rules(tmp_path / "few", *good[:15], failed) == {"t016": "disliked"}


@pytest.mark.parametrize("id_", ["call_1", "call_2"])
def test_where_ids_of_calls_repeat_no_result_is_taken_for_another_s(
    tmp_path: Path, id_: str
) -> None:
    """The turn before had an error from its tool; some engines number the calls of each answer."""
    call, told = calls("price", "call_1", item="coffee"), result("Error: no such shop", "call_1")
    before = (user("And coffee?"), call, told, says("Not known."), user("What does it cost?"))
    own, fine = calls("price", id_, item="tea"), result('{"euros": 14}', id_)
    shared: dict[str, Any] = {"conversation_id": "c1", "turn_id": "t1", "slot": "L1"}
    first = hop(messages=before, completion=own, tools=canonical_json([PRICE]), **shared)
    second = hop(
        messages=(*before, own, fine), completion=says("Not much."), seq=2, started_at=at(2),
        tools=canonical_json([PRICE]), response_id="r2", **shared,
    )  # fmt: skip
    turn = turn_of([first, second], conversation_id="c1", turn_id="t1")

    found = rules(tmp_path, [first, second, turn, signal("thumb", -1.0, target_id="t1")])

    assert found == {"t1": "disliked"}


def test_looks_of_results() -> None:
    assert [shape_of(x) for x in ("{}", "[1]", "3", '"a"', "oops", "")] == [
        "object", "array", "value", "value", "text", "text",
    ]  # fmt: skip
    assert unlike("oops", {"object": 40}) == "is plain text, where 40 of 40 are a JSON object"
    assert unlike("oops", {"object": 40, "text": 1}) is None
    assert unlike("oops", {"object": 20, "array": 20}) is None
    assert unlike("oops", {}) is None


def test_results_that_differ_among_themselves_or_agree_with_this_one_prove_nothing() -> None:
    one, other = Elsewhere("14", -60.0, True), Elsewhere("15", 60.0, True)

    assert agreed("77", [one, one._replace(later_s=60.0)], 600.0)
    assert not agreed("77", [one, other], 600.0)
    assert not agreed("14", [one], 600.0)
    assert not agreed("77", [one], 30.0)
    assert not agreed("77", [], 600.0)
    assert agreed("140", [one], 600.0)
    assert not agreed("14" * 2000, [one._replace(result="14" * 1000)], 600.0)
    assert brackets([one, one._replace(later_s=1.0)])
    assert not brackets([one, one._replace(later_s=1.0, same_user=False)])
