"""Proves that each request for a form can be satisfied, and that what breaks the form is refused.

The bundled file, and for each of its clusters a right answer and a wrong one (`tests/data`);
further wrong ones are made from the right. No engine.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from promotion.suites.build import DATA
from promotion.suites.files import read_suite
from promotion.suites.sets import divide
from promotion.suites.suite import Item
from serving.records import Message, ToolCall
from serving.slots import load_profile

SUITE = read_suite(DATA / "format_text.jsonl", load_profile(), "L0")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


ANSWERS = rows(Path(__file__).parents[1] / "data" / "format_text_answers.jsonl")
REFERENCE = {row["cluster"]: row["reference"] for row in rows(DATA / "format_text.jsonl")[1:]}
ITEMS: dict[str, list[Item]] = {}
for _item in SUITE.items:
    ITEMS.setdefault(_item.cluster, []).append(_item)


def passed(cluster: str, text: str) -> set[bool | None]:
    """Return what the items of a cluster say to an answer."""
    answer = Message(role="assistant", content=text)
    return {item.check(answer).passed for item in ITEMS[cluster]}


def form(cluster: str) -> str:
    reference = REFERENCE[cluster]
    return str(reference.get("form", reference["verifier"]))


def right_json(kind: type) -> list[tuple[str, Any]]:
    """Return cluster and value of the right answers that are JSON of this type."""
    values = [
        (row["cluster"], json.loads(row["right"]))
        for row in ANSWERS
        if form(row["cluster"]) == "json"
    ]
    return [(cluster, value) for cluster, value in values if type(value) is kind]


def test_there_are_clusters_enough_for_the_default_margins() -> None:
    assert len(ITEMS) >= 320
    assert len({item.cluster for item in divide(SUITE).sealed.items}) >= 173


def test_no_two_requests_are_alike() -> None:
    plain = Counter(
        " ".join(re.sub(r"\W+|\b(?:please|pls)\b", " ", item.text.casefold()).split())
        for item in SUITE.items
    )

    assert [text for text, count in plain.items() if count > 1] == []


def test_many_requests_are_in_chinese() -> None:
    chinese = {i.cluster for i in SUITE.items if re.search("[\u4e00-\u9fff]", i.text)}

    assert 80 <= len(chinese) <= len(ITEMS) / 3


def test_forms_are_of_many_kinds() -> None:
    forms = Counter(map(form, REFERENCE))
    text = [r["schema"] for r in REFERENCE.values() if r.get("form") == "text"]
    schemas = [json.dumps(r["schema"]) for r in REFERENCE.values() if r.get("form") == "json"]
    keywords = ("integer", "number", "boolean", "array", "enum", "minimum", "pattern", "minItems")

    assert forms["json"] >= 140
    assert forms["text"] >= 140
    assert forms["exact"] >= 40
    assert forms["python"] >= 5
    assert all(sum(f'"{word}"' in one for one in schemas) >= 8 for word in keywords)
    assert sum(len(re.findall('"(?:object|array)"', one)) > 1 for one in schemas) >= 20  # nested
    assert len({json.dumps(one, sort_keys=True) for one in text}) >= 110
    assert len(set(schemas)) >= 110


def test_a_right_answer_of_every_cluster_passes() -> None:
    assert sorted(row["cluster"] for row in ANSWERS) == sorted(ITEMS)
    assert [r for r in ANSWERS if passed(r["cluster"], r["right"]) != {True}] == []


def test_a_wrong_answer_of_every_cluster_is_refused() -> None:
    assert [r for r in ANSWERS if passed(r["cluster"], r["wrong"]) != {False}] == []


def test_a_right_answer_has_room_at_two_bytes_a_token() -> None:
    for row in ANSWERS:
        room = min(item.max_tokens for item in ITEMS[row["cluster"]])
        assert len(row["right"].encode()) / 2 <= room, row


def test_words_around_a_right_answer_are_refused() -> None:
    taken = [
        (row["cluster"], text)
        for row in ANSWERS
        if form(row["cluster"]) != "python"  # which may stand in an explanation
        for text in (
            f"Sure! Here you are:\n{row['right']}",
            f"{row['right']}\n\nI hope that this helps you.",
        )
        if passed(row["cluster"], text) != {False}
    ]

    assert taken == []


def test_no_answer_and_a_refusal_are_refused() -> None:
    for cluster in ITEMS:
        for text in ("", " \n", "I am sorry, I cannot help with that."):
            assert passed(cluster, text) == {False}, (cluster, text)


def test_a_tool_call_is_refused_where_a_form_is_checked() -> None:
    calls = (ToolCall(id="c", name="answer", arguments="{}"),)
    for row in ANSWERS:
        if form(row["cluster"]) != "exact":
            called = Message(role="assistant", content=row["right"], tool_calls=calls)
            assert not any(item.check(called).passed for item in ITEMS[row["cluster"]])


def test_json_in_a_fence_is_refused() -> None:
    for row in ANSWERS:
        if form(row["cluster"]) == "json":
            assert passed(row["cluster"], f"```json\n{row['right']}\n```") == {False}, row


def test_an_object_that_lacks_a_key_or_has_another_is_refused() -> None:
    objects = right_json(dict)
    taken = [
        (cluster, wrong)
        for cluster, right in objects
        for wrong in (
            {**right, "made_up_1": [], "made_up_2": {}},
            *({k: v for k, v in right.items() if k != key} for key in right),
        )
        if passed(cluster, json.dumps(wrong)) != {False}
    ]

    assert taken == []
    assert len(objects) >= 100


def test_an_array_that_is_longer_than_asked_is_refused() -> None:
    arrays = right_json(list)
    taken = [
        cluster
        for cluster, right in arrays
        if passed(cluster, json.dumps([*right, *(right or [0]) * 8])) != {False}
    ]

    assert taken == []
    assert len(arrays) >= 25
