"""Proves how suites are asked, scored, kept and compared.

The engine is a table of answers; what is proved is the bookkeeping. Kept runs are real files.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from promotion.evaluate import SuiteRun, pair, run_suites
from promotion.suites.suite import Item, Suite
from serving.engine import ChatRequest, ChatResult, OnDelta
from serving.errors import EngineRefused
from serving.records import Message, ToolCall, content_id
from traces.verifiers.check import Check

OLD = {"L0": "L0@000000000000", "L1": "L1@111111111111"}
NEW = OLD | {"L1": "L1@222222222222"}


@dataclass
class Table:
    """An engine that answers by a function of model and prompt, and counts."""

    answer: Callable[[str, str], Message | str]
    asked: int = 0
    last: ChatRequest | None = None

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        self.asked += 1
        self.last = request
        answer = self.answer(request.model, request.messages[0].content)
        if isinstance(answer, str):
            answer = Message(role="assistant", content=answer)
        return ChatResult(f"r{self.asked}", request.model, answer, "stop", 3, 2)


def item(word: str, **fields) -> Item:
    def check(answer: Message) -> Check:
        return Check(answer.content == word, f"wanted {word}")

    made = Item(
        item_id=content_id(word), cluster="c", text=word,
        messages=(Message(role="user", content=word),), tools=(), choices=(), max_tokens=9,
        check=check,
    )  # fmt: skip
    return replace(made, **fields)


SUITES = [
    Suite("tools", "L1", (item("a"), item("b"), item("c"))),
    Suite("chat", "L0", (item("d"), item("e"))),
]


def run(home: Path, engine: Table, names=OLD, suites=SUITES, engine_id="e", progress=None):
    return asyncio.run(run_suites(home, engine, suites, names, engine_id, progress))  # type: ignore[arg-type]


def echo(model: str, prompt: str) -> str:
    return prompt


def test_every_item_is_scored_by_its_check(home: Path) -> None:
    runs = run(home, Table(lambda model, prompt: "wrong" if prompt in "bd" else prompt))

    assert runs["tools"].scores == (1.0, 0.0, 1.0)
    assert runs["chat"].scores == (0.0, 1.0)
    assert runs["tools"].details == ("wanted a", "wanted b", "wanted c")
    assert runs["tools"].completion_tokens == 6
    assert [m.content for m in runs["tools"].answers] == ["a", "wrong", "c"]


def test_a_suite_is_asked_of_its_own_slots_version(home: Path) -> None:
    runs = run(home, Table(lambda model, prompt: model))

    assert {m.content for m in runs["tools"].answers} == {OLD["L1"]}
    assert {m.content for m in runs["chat"].answers} == {OLD["L0"]}


def test_an_item_is_asked_as_it_stands(home: Path) -> None:
    engine = Table(echo)
    tool = {"type": "function", "function": {"name": "f"}}
    run(home, engine, suites=[Suite("s", "L1", (item("a", tools=(tool,), max_tokens=7),))])
    plain = engine.last
    run(home, engine, suites=[Suite("r", "L0", (item("a", choices=("a", "b")),))])

    assert plain == ChatRequest(
        OLD["L1"], (Message(role="user", content="a"),), tools=(tool,), max_tokens=7
    )
    assert engine.last is not None
    assert engine.last.choices == ("a", "b")
    assert engine.last.continue_final
    assert engine.last.temperature == 0.0


def test_a_kept_run_is_not_asked_again(home: Path) -> None:
    engine = Table(echo)
    first = run(home, engine)

    again = run(home, engine)

    assert again == first
    assert engine.asked == 5


def test_only_what_is_missing_is_asked_after_a_failure(home: Path) -> None:
    def broken(model: str, prompt: str) -> str:
        if prompt == "e":
            raise EngineRefused("no (500)")
        return prompt

    with pytest.raises(EngineRefused):
        run(home, Table(broken))
    engine = Table(echo)
    runs = run(home, engine)

    assert engine.asked == 2
    assert runs["tools"].scores == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("damage", [b"", b"{", b"null", b"\xff\x00", b'{"suite": "tools"}'])
def test_a_damaged_kept_run_is_done_again(home: Path, damage: bytes) -> None:
    first = run(home, Table(echo))
    files = sorted((home / "evals").iterdir())
    whole = files[0].read_bytes()
    files[0].write_bytes(damage)
    engine = Table(echo)

    again = run(home, engine)

    assert again == first
    assert engine.asked in (2, 3)
    assert files[0].read_bytes() == whole


def test_a_truncated_kept_run_is_done_again(home: Path) -> None:
    run(home, Table(echo))
    for file in (home / "evals").iterdir():
        file.write_bytes(file.read_bytes()[:-20])
    engine = Table(echo)

    run(home, engine)

    assert engine.asked == 5


@pytest.mark.parametrize(
    "change",
    [
        {"names": NEW},
        {"engine_id": "another"},
        {"suites": [replace(SUITES[0], items=SUITES[0].items[::-1])]},
        {"suites": [replace(SUITES[0], items=SUITES[0].items[:2])]},
        {"suites": [replace(SUITES[0], name="other")]},
    ],
)
def test_other_versions_engines_or_items_are_asked_anew(home: Path, change: dict) -> None:
    engine = Table(echo)
    run(home, engine, suites=SUITES[:1])
    before = engine.asked

    suites = change.get("suites", SUITES[:1])
    run(home, engine, **({"suites": suites} | change))

    assert engine.asked == before + len(suites[0].items)


def test_progress_counts_to_the_total_also_over_kept_runs(home: Path) -> None:
    for _ in range(2):
        seen: list[tuple[int, int]] = []
        run(home, Table(echo), progress=lambda done, total, seen=seen: seen.append((done, total)))

        assert seen[-1] == (5, 5)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert {total for _, total in seen} == {5}


def both(home: Path, better: Callable[[str, str], Message | str]):
    engine = Table(better)
    return pair(SUITES, run(home, engine, OLD), run(home, engine, NEW), "L1")


def test_both_arms_stand_side_by_side(home: Path) -> None:
    def better(model: str, prompt: str) -> str:
        return prompt if model == NEW["L1"] or prompt in "ade" else "wrong"

    tools, chat = both(home, better)

    assert (tools.suite, tools.slot) == ("tools", "L1")
    assert tools.champion == (1.0, 0.0, 0.0)
    assert tools.challenger == (1.0, 1.0, 1.0)
    assert tools.item_ids == tuple(i.item_id for i in SUITES[0].items)
    assert tools.clusters == ("c",) * 3
    assert (tools.identical, tools.unchanged) == (False, False)
    assert (chat.identical, chat.unchanged) == (True, True)


def test_an_unchanged_slot_that_answers_otherwise_is_not_identical(home: Path) -> None:
    asked: list[str] = []

    def drifting(model: str, prompt: str) -> str:
        asked.append(prompt)
        return prompt + str(asked.count(prompt)) if prompt == "e" else prompt

    _, chat = both(home, drifting)

    assert chat.unchanged
    assert not chat.identical


def test_random_call_ids_do_not_make_answers_differ(home: Path) -> None:
    number = iter(range(100))

    def calling(model: str, prompt: str) -> Message:
        call = ToolCall(id=f"random-{next(number)}", name="f", arguments="{}")
        return Message(role="assistant", tool_calls=(call,))

    tools, chat = both(home, calling)

    assert tools.identical
    assert chat.identical


def test_other_arguments_make_answers_differ(home: Path) -> None:
    def calling(model: str, prompt: str) -> Message:
        call = ToolCall(id="1", name="f", arguments=f'{{"model": "{model}"}}')
        return Message(role="assistant", tool_calls=(call,))

    assert not both(home, calling)[0].identical


def test_a_run_survives_its_file() -> None:
    one = SuiteRun(
        suite="s", answers=(Message(role="assistant", content="é"),), scores=(1.0,),
        details=("ok",), completion_tokens=3,
    )  # fmt: skip

    assert SuiteRun.model_validate_json(one.model_dump_json()) == one


def test_what_could_not_be_judged_is_no_failure_and_is_asked_again(home: Path) -> None:
    silent = replace(item("b"), check=lambda answer: Check(None, "the verifier crashed"))
    suites = [Suite("tools", "L1", (item("a"), silent, item("c")))]
    champion = run(home, Table(lambda model, prompt: "wrong"), suites=suites)
    again = Table(echo)
    challenger = run(home, again, suites=suites)

    (scores,) = pair(suites, champion, challenger, "L1")

    assert champion["tools"].scores == (0.0, None, 0.0)
    assert again.asked == 3
    assert scores.item_ids == (suites[0].items[0].item_id, suites[0].items[2].item_id)
    assert (scores.champion, scores.challenger) == ((0.0, 0.0), (1.0, 1.0))
    assert scores.clusters == ("c", "c")
    assert not scores.identical
