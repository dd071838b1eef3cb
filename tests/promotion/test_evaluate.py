"""Proves how suites are asked, scored, kept and compared.

The engine is a table of answers; what is proved is the bookkeeping. Kept runs are real files.
"""

import asyncio
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from promotion.evaluate import Sampling, ask_moved_alone, pair, run_suites
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
    assert runs["tools"].shape.tokens == 2


def test_a_suite_is_asked_of_its_own_slots_version(home: Path) -> None:
    asked: list[tuple[str, str]] = []
    run(home, Table(lambda model, prompt: asked.append((model, prompt)) or prompt))

    assert sorted(asked) == [
        *((OLD["L0"], word) for word in "de"), *((OLD["L1"], word) for word in "abc")
    ]  # fmt: skip


def test_no_answer_and_no_detail_of_a_sealed_set_is_kept_and_only_the_owner_may_look(
    home: Path,
) -> None:
    run(home, Table(lambda model, prompt: f"my secret {prompt}"))
    folder = home / "evals"

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"secret" not in path.read_bytes()
        assert b"wanted" not in path.read_bytes()


class Dice:
    """An engine that answers right or wrong by the seed of each request alone."""

    def __init__(self) -> None:
        self.requests: list[ChatRequest] = []

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        self.requests.append(request)
        right = request.seed is None or request.seed % 2 == 0
        text = request.messages[0].content if right else "wrong"
        answer = Message(role="assistant", content=text)
        return ChatResult("r", request.model, answer, "stop", 3, 2)


def sampled(home: Path, engine: Dice, names=OLD, seeds=(1, 2, 3, 4)):
    how = Sampling("L1", 0.7, seeds)
    return asyncio.run(run_suites(home, engine, SUITES, names, "e", sampling=how))  # type: ignore[arg-type]


def test_an_items_score_is_the_mean_of_its_samples_and_bystanders_are_asked_once(
    home: Path,
) -> None:
    engine = Dice()
    runs = sampled(home, engine)
    drawn = {word: [r for r in engine.requests if r.messages[0].content == word] for word in "abcd"}

    assert [len(drawn[word]) for word in "abcd"] == [4, 4, 4, 1]
    for score, word in zip(runs["tools"].scores, "abc", strict=True):
        assert score == sum(r.seed % 2 == 0 for r in drawn[word] if r.seed is not None) / 4
    assert {r.temperature for word in "abc" for r in drawn[word]} == {0.7}
    assert [(r.temperature, r.seed) for r in drawn["d"]] == [(0.0, None)]


def test_both_arms_draw_by_the_same_seeds_and_items_by_different_ones(home: Path) -> None:
    engine = Dice()
    sampled(home, engine)
    sampled(home, engine, NEW)
    seeds = {
        name: [r.seed for r in engine.requests if r.model == name]
        for name in (OLD["L1"], NEW["L1"])
    }

    assert sorted(map(str, seeds[OLD["L1"]])) == sorted(map(str, seeds[NEW["L1"]]))
    assert len(set(seeds[OLD["L1"]])) == 12


def test_other_seeds_are_other_answers(home: Path) -> None:
    engine = Dice()
    sampled(home, engine)
    sampled(home, engine)
    assert len(engine.requests) == 14
    sampled(home, engine, seeds=(5, 6, 7, 8))
    assert len(engine.requests) == 26


def test_an_item_is_asked_as_it_stands(home: Path) -> None:
    engine = Table(echo)
    tool = {"type": "function", "function": {"name": "f"}}
    asked = item("a", tools=(tool,), max_tokens=7)
    run(home, engine, suites=[Suite("s", "L1", (asked,))])
    plain = engine.last
    run(home, engine, suites=[Suite("r", "L0", (item("a", choices=("a", "b")),))])

    assert plain == ChatRequest(
        OLD["L1"],
        (Message(role="user", content="a"),),
        tools=(tool,),
        max_tokens=7,
        affinity=asked.item_id,  # both arms ask the same replica
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
    assert (scores.unjudged, scores.unjudged_challenger) == (1, ())
    assert not scores.identical


def test_what_only_the_challengers_answer_kept_from_being_judged_is_told(home: Path) -> None:
    crashed = replace(
        item("b"), check=lambda said: Check(None if said.content == "b" else True, "crashed")
    )
    suites = [Suite("tools", "L1", (item("a"), crashed))]
    champion = run(home, Table(lambda model, prompt: "wrong"), suites=suites)
    (scores,) = pair(suites, champion, run(home, Table(echo), NEW, suites=suites), "L1")

    assert (scores.unjudged, scores.unjudged_challenger) == (1, (("c", 1.0),))


class Crowded:
    """An engine that rounds otherwise for whoever shares a batch, or always if it `drifts`."""

    def __init__(self, drifts: bool) -> None:
        self._drifts, self._now, self._answers = drifts, 0, 0

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        self._now += 1
        await asyncio.sleep(0)
        self._answers += 1
        text = f"rounded {self._answers}" if self._now > 1 or self._drifts else "as ever"
        self._now -= 1
        answer = Message(role="assistant", content=text)
        return ChatResult("r", request.model, answer, "stop", 3, 2)


@pytest.mark.parametrize("drifts", [False, True])
def test_a_bystander_that_batches_made_differ_is_asked_again_alone(
    home: Path, drifts: bool
) -> None:
    async def ask() -> list[bool]:
        engine: Any = Crowded(drifts)
        runs = [await run_suites(home, engine, SUITES, names, "e") for names in (OLD, NEW)]
        own = [run["tools"] for run in runs]
        assert not any(scores.identical for scores in pair(SUITES, runs[0], runs[1], "L1"))
        await ask_moved_alone(engine, SUITES, "L1", (OLD, NEW), runs)
        assert [run["tools"] for run in runs] == own  # the challenged slot's answers stand
        return [scores.identical for scores in pair(SUITES, runs[0], runs[1], "L1")]

    assert asyncio.run(ask()) == [False, not drifts]
