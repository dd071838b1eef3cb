"""Proves what becomes of an item whose check or conversation crashes or tells no score.

The engine says every request back. Kept runs are real files.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from promotion.evaluate import SuiteRun, run_suites
from promotion.paired import InvalidScores
from promotion.suites.suite import Item, Played, Suite
from serving.engine import ChatRequest, ChatResult, OnDelta
from serving.errors import EngineRefused
from serving.records import Message
from traces.verifiers.check import Check


class Echo:
    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        answer = Message(role="assistant", content=request.messages[0].content)
        return ChatResult("r", request.model, answer, "stop", 3, 2)


def item(text: str, **fields: Any) -> Item:
    made = Item(
        item_id=text, cluster="c", text=text, messages=(Message(role="user", content=text),),
        tools=(), choices=(), max_tokens=9, check=lambda answer: Check(True, "said"),
    )  # fmt: skip
    return replace(made, **fields)


def run(home: Path, *items: Item) -> SuiteRun:
    engine: Any = Echo()
    suites = [Suite("mine", "L1", items)]
    return asyncio.run(run_suites(home, engine, suites, {"L1": "L1@111111111111"}, "e"))["mine"]


async def crashing(engine: Any, model: str, temperature: float, seed: int | None) -> Played:
    raise KeyError("secret")


async def refused(engine: Any, model: str, temperature: float, seed: int | None) -> Played:
    raise EngineRefused("no (500)")


def crashing_check(answer: Message) -> Check:
    raise KeyError(answer.content)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"check": crashing_check}, "A check crashed with KeyError"),
        ({"play": crashing}, "A conversation crashed with KeyError"),
    ],
)
def test_what_crashes_judges_nothing_and_tells_nothing_of_the_request(
    home: Path, caplog: pytest.LogCaptureFixture, broken: dict[str, Any], words: str
) -> None:
    assert run(home, item("a"), item("secret", **broken)).scores == (1.0, None)
    assert words in caplog.text
    assert "secret" not in caplog.text


def test_an_engine_that_refuses_in_a_conversation_ends_the_run(home: Path) -> None:
    with pytest.raises(EngineRefused):
        run(home, item("a"), item("b", play=refused))


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -0.1, 1.5])
def test_a_score_that_is_none_is_refused_each_time_and_never_kept(home: Path, score: float) -> None:
    broken = item("b", check=lambda answer: Check(True, "graded", score))
    for _ in range(2):
        with pytest.raises(InvalidScores, match=rf"suite 'mine' is {score!r}, which is not in"):
            run(home, item("a"), broken)
    assert list((home / "evals").iterdir()) == []
