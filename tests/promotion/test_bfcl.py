"""Proves that BFCL's items are graded as bfcl-eval grades them, by its own leaderboard command.

Right answers are made here from the package's possible answers; wrong ones by one change each.
The package is the real one, in .venv-bfcl ('make bfcl-test').
"""

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from promotion.suites.external.bfcl_suite import CATEGORIES, _load, as_bfcl, bfcl_suite
from promotion.suites.external.worker import WorkerFailed
from promotion.suites.suite import Item, Suite
from serving.records import Message, ToolCall
from serving.slots import load_profile

pytestmark = pytest.mark.bfcl

VENV = Path(".venv-bfcl")
# A model of the package's own list that speaks as the engine does: OpenAI's tool calls.
THEIR_MODEL = "openbmb/MiniCPM-SALA-FC"
EACH = 12
LIMIT_S = 180.0


@pytest.fixture(scope="module")
def suite() -> Suite:
    return bfcl_suite(load_profile(), "L1", VENV, LIMIT_S)


def name_of(item: Item) -> str:
    return item.check.keywords["name"]  # type: ignore[attr-defined]


def category_of(item: Item) -> str:
    return name_of(item).rsplit("_", 1)[0]


@pytest.fixture(scope="module")
def some(suite: Suite) -> dict[str, list[Item]]:
    """The first items of each category."""
    found: dict[str, list[Item]] = {category: [] for category in CATEGORIES}
    for item in suite.items:
        found[category_of(item)].append(item)
    return {category: items[:EACH] for category, items in found.items()}


@pytest.fixture(scope="module")
def truths() -> dict[str, Any]:
    return {raw["id"]: raw["answer"] for raw in _load(VENV)[2]}


def first(possible: Any) -> Any:
    """One right value out of those that the package accepts; an object has them at each key."""
    value = next(v for v in possible if v != "")
    if isinstance(value, dict):
        return {key: first(inner) for key, inner in value.items() if "" not in inner}
    if isinstance(value, list):
        return [
            {key: first(inner) for key, inner in part.items() if "" not in inner}
            if isinstance(part, dict)
            else part
            for part in value
        ]
    return value


def right(truth: list[dict[str, Any]] | None) -> Message:
    """Return the answer that the package's data ask for: its calls, or none."""
    calls = [
        ToolCall(
            id=f"c{k}",
            name=name.replace(".", "_"),
            arguments=json.dumps({p: first(v) for p, v in arguments.items() if "" not in v}),
        )
        for k, call in enumerate(truth or ())
        for name, arguments in call.items()
    ]
    return Message(role="assistant", content="" if calls else "None fits.", tool_calls=tuple(calls))


def changed(answer: Message, **fields: Any) -> Message:
    first_call, *rest = answer.tool_calls
    call = first_call.model_copy(update=fields)
    return answer.model_copy(update={"tool_calls": (call, *rest)})


def said(item: Item, answer: Message) -> tuple[bool | None, str]:
    check = item.check(answer)
    return check.passed, check.detail


def has_truth(category: str) -> bool:
    return "relevance" not in category


@pytest.mark.parametrize("category", [c for c in CATEGORIES if has_truth(c)])
def test_the_packages_own_answers_are_valid_and_one_change_makes_them_wrong(
    some: dict[str, list[Item]], truths: dict[str, Any], category: str
) -> None:
    for item in some[category]:
        answer = right(truths[name_of(item)])
        assert said(item, answer) == (True, f"{name_of(item)}: valid")
        again = answer.model_copy(update={"tool_calls": (*answer.tool_calls, *answer.tool_calls)})
        assert said(item, again)[0] is False
        assert "wrong_count" in said(item, again)[1]
        assert said(item, changed(answer, name="no_such_function"))[0] is False
        assert said(item, changed(answer, arguments='{"no_such_parameter": 1}'))[0] is False
        assert "decoder_failed" in said(item, changed(answer, arguments="{"))[1]
        assert said(item, Message(role="assistant", content="It is done."))[0] is False


def test_where_no_function_fits_the_right_answer_calls_none(some: dict[str, list[Item]]) -> None:
    talk = Message(role="assistant", content="None of them can do that.")
    call = Message(role="assistant", tool_calls=(ToolCall(id="c", name="f", arguments="{}"),))
    for category in ("irrelevance", "live_irrelevance"):
        for item in some[category]:
            assert (said(item, talk)[0], said(item, call)[0]) == (True, False)
    for item in some["live_relevance"]:
        assert (said(item, talk)[0], said(item, call)[0]) == (False, True)


def test_a_value_is_compared_as_the_package_does(some: dict[str, list[Item]]) -> None:
    item = some["simple_python"][0]  # the area of a triangle: base 10, height 5
    arguments = [
        ('{"base": 10, "height": 5}', True),
        ('{"base": 10, "height": 5, "unit": "units"}', True),
        ('{"base": 10, "height": 6}', False),
        ('{"base": 10}', False),
        ('{"base": "10", "height": 5}', False),
    ]
    for text, valid in arguments:
        calls = (ToolCall(id="c", name="calculate_triangle_area", arguments=text),)
        assert said(item, Message(role="assistant", tool_calls=calls))[0] is valid, text


def test_every_verdict_is_that_of_the_packages_own_leaderboard(
    some: dict[str, list[Item]], truths: dict[str, Any], tmp_path: Path
) -> None:
    ours: dict[str, bool] = {}
    for category, items in some.items():
        rows = []
        for number, item in enumerate(items):
            answer = right(truths[name_of(item)])
            if number % 3 == 1:
                answer = Message(role="assistant", content="I cannot.")
            elif number % 3 == 2 and answer.tool_calls:
                answer = changed(answer, arguments='{"x": 1}')
            ours[name_of(item)] = bool(item.check(answer).passed)
            rows.append({"id": name_of(item), "result": as_bfcl(answer)})
        group = "live" if category.startswith("live") else "non_live"
        folder = tmp_path / "result" / THEIR_MODEL.replace("/", "_") / group
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"BFCL_v4_{category}_result.json").write_text(text)

    assert ours == dict(leaderboard(tmp_path, ours))
    assert Counter(ours.values())[True] > 30
    assert Counter(ours.values())[False] > 30


def leaderboard(root: Path, asked: dict[str, bool]) -> Iterator[tuple[str, bool]]:
    """Run the package's evaluation and return its verdict on each answer."""
    subprocess.run(
        [
            VENV.absolute() / "bin" / "python", "-m", "bfcl_eval.eval_checker.eval_runner",
            "--model", THEIR_MODEL, "--test-category", *CATEGORIES, "--partial-eval",
        ],
        env={**os.environ, "BFCL_PROJECT_ROOT": str(root), "OPENAI_API_KEY": "unused"},
        cwd=root, check=True, capture_output=True, timeout=100,
    )  # fmt: skip
    failed = set()
    files = list((root / "score").rglob("*_score.json"))
    assert len(files) == len(CATEGORIES)
    for file in files:
        _, *wrong = map(json.loads, file.read_text().splitlines())
        failed |= {row["id"] for row in wrong}
    for name in asked:
        yield name, name not in failed


def test_the_items_are_the_packages_and_the_same_each_time(suite: Suite) -> None:
    sizes = Counter(map(category_of, suite.items))

    # Lines of the package's files, without what is too long for a window of 8,192 tokens.
    assert sizes["simple_python"] == 400
    assert sizes["parallel_multiple"] == sizes["multiple"] == sizes["parallel"] == 200
    assert sizes["irrelevance"] == 240
    assert 1040 < sizes["live_multiple"] <= 1053
    assert bfcl_suite(load_profile(), "L1", VENV, LIMIT_S).digest == suite.digest
    assert len({item.item_id for item in suite.items}) == len(suite.items)


def test_requests_for_the_same_functions_are_one_cluster(suite: Suite) -> None:
    functions = {
        item.cluster: sorted(tool["function"]["name"] for tool in item.tools)
        for item in suite.items
    }

    for item in suite.items:
        names = sorted(tool["function"]["name"] for tool in item.tools)
        assert functions[item.cluster] == names
    assert len({tuple(names) for names in functions.values()}) == len(functions)


def test_an_item_is_asked_behind_the_slots_own_system_prompt(suite: Suite) -> None:
    own = load_profile().slot("L1").system

    assert all(item.messages[0].content.startswith(own) for item in suite.items)
    assert all(item.messages[0].role == "system" for item in suite.items)
    assert {item.messages[-1].role for item in suite.items} == {"user"}


def test_what_the_checker_cannot_grade_is_nobodys_failure(suite: Suite) -> None:
    worker = _load(VENV)[0]

    with pytest.raises(WorkerFailed, match="No such file"):
        worker.ask({"do": "grade", "id": "no_such_category_1", "result": ""}, LIMIT_S)
    # It goes on after that.
    assert suite.items[0].check(Message(role="assistant", content="No.")).passed is False


def test_a_checker_that_was_killed_grades_the_next_answer_anew(suite: Suite) -> None:
    worker, item = _load(VENV)[0], suite.items[0]
    talk = Message(role="assistant", content="No.")
    wanted = said(item, talk)
    assert worker._process is not None
    os.kill(worker._process.pid, signal.SIGKILL)

    assert said(item, talk)[0] is None
    assert said(item, talk) == wanted
