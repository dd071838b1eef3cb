"""Proves that a task of inspect-ai runs as a suite: its solver, tools and scorer, our engine.

inspect-ai is the real one, in .venv-inspect ('make inspect-test'). The engine is a table of
answers, so that what reaches it and what comes back can be told exactly.
"""

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from promotion.evaluate import Sampling, run_suites
from promotion.suites.external.inspect_tasks import TaskNotFound, inspect_suite, inspect_version
from promotion.suites.external.worker import WorkerFailed
from promotion.suites.suite import Played, Suite
from serving.engine import ChatRequest, ChatResult, OnDelta
from serving.errors import EngineUnavailable
from serving.records import Message, ToolCall
from serving.slots import load_profile

pytestmark = pytest.mark.inspect

VENV = Path(".venv-inspect")
LIMIT_S = 180.0
PROFILE = load_profile()
TASKS = '''
import asyncio
import os
import random
import subprocess
import time
from pathlib import Path

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import Score, accuracy, exact, includes, model_graded_fact, scorer
from inspect_ai.solver import generate, system_message, use_tools
from inspect_ai.tool import tool


@tool
def add():
    async def execute(a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: One.
            b: The other.
        """
        return str(a + b)

    return execute


children = []


def samples(count=4):
    return [Sample(input=f"What is {n} plus {n}?", target=str(2 * n)) for n in range(1, count + 1)]


@task
def sums():
    return Task(
        dataset=MemoryDataset(samples()),
        solver=[system_message("Use the tool."), use_tools(add()), generate()],
        scorer=includes(),
    )


@task
def plain():
    return Task(dataset=MemoryDataset(samples()), solver=generate(), scorer=exact(),
                config=GenerateConfig(max_tokens=7, stop_seqs=["!"], temperature=0.9))


@scorer(metrics=[accuracy()])
def length():
    async def score(state, target):
        return Score(value=len(state.output.completion) / 10)

    return score


@task
def lengths():
    return Task(dataset=MemoryDataset(samples()), solver=generate(), scorer=length())


@task
def judged():
    return Task(dataset=MemoryDataset(samples(1)), solver=generate(), scorer=model_graded_fact())


@task
def unseeded():
    noise = random.SystemRandom().random()
    return Task(dataset=[Sample(input=f"{noise}", target="x")], solver=generate(), scorer=exact())


@task
def unconfined():
    return Task(dataset=MemoryDataset(samples(1)), solver=generate(), scorer=exact(),
                sandbox="local")


@task
def endless():
    return Task(dataset=MemoryDataset(samples(1)), solver=[use_tools(add()), generate()],
                scorer=exact())


@scorer(metrics=[accuracy()])
def breaking(how):
    async def score(state, target):
        if target.text == "4":
            children.append(subprocess.Popen(["sleep", "600"]))
            Path(os.environ["MOL_NOTES"]).write_text(f"{children[-1].pid}")
            await how()
        return Score(value=1.0)

    return score


async def stop():
    time.sleep(600)


async def leave():
    os._exit(3)


@scorer(metrics=[accuracy()])
def loud():
    async def score(state, target):
        os.write(1, b"what C code prints")
        subprocess.run(["echo", "what a subprocess prints"])
        print("what Python prints", flush=True)
        return Score(value=1.0)

    return score


@task
def printing():
    return Task(dataset=MemoryDataset(samples()), solver=generate(), scorer=loud())


@task
def stopping():
    return Task(dataset=MemoryDataset(samples()), solver=generate(), scorer=breaking(stop))


@task
def waiting():
    return Task(dataset=MemoryDataset(samples()), solver=generate(),
                scorer=breaking(lambda: asyncio.sleep(600)))


@task
def leaving():
    return Task(dataset=MemoryDataset(samples()), solver=generate(), scorer=breaking(leave))
'''


@dataclass
class Answers:
    """An engine that answers by a function of the request, and keeps what it was asked."""

    answer: Callable[[ChatRequest], Message | str]
    asked: list[ChatRequest] = field(default_factory=list)

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        self.asked.append(request)
        answer = self.answer(request)
        if isinstance(answer, str):
            answer = Message(role="assistant", content=answer)
        return ChatResult(f"r{len(self.asked)}", request.model, answer, "stop", 3, 2)


def by_tool(request: ChatRequest) -> Message | str:
    """Call the tool, then say what it gave."""
    last = request.messages[-1]
    if last.role == "tool":
        return f"It is {last.content}."
    number = last.content.split()[2]
    arguments = f'{{"a": {number}, "b": {number}}}'
    return Message(
        role="assistant", tool_calls=(ToolCall(id="c1", name="add", arguments=arguments),)
    )


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "arithmetic.py"
    path.write_text(TASKS)
    return path


@functools.cache  # a process each
def suite_of(tasks: Path, name: str, slot: str = "L0") -> Suite:
    return inspect_suite(PROFILE, slot, f"{tasks}@{name}", VENV, LIMIT_S)


def play(suite: Suite, engine: Answers, temperature: float = 0.0) -> list[Played]:
    async def run() -> list[Played]:
        items = suite.items
        return await asyncio.gather(
            *(item.run(engine, "L0@0", temperature, n) for n, item in enumerate(items))
        )

    return asyncio.run(run())


def test_solver_tools_and_scorer_are_the_tasks_own(tasks: Path) -> None:
    engine = Answers(by_tool)
    played = play(suite_of(tasks, "sums"), engine)

    assert [one.check.value for one in played] == [1.0] * 4
    assert [[m.content for m in one.answers] for one in played] == [
        ["", f"It is {2 * n}."] for n in (1, 2, 3, 4)
    ]
    assert {one.answers[0].tool_calls[0].name for one in played} == {"add"}
    assert [one.completion_tokens for one in played] == [4] * 4
    assert {request.tools[0]["function"]["name"] for request in engine.asked} == {"add"}


def test_a_wrong_answer_is_scored_wrong_and_each_sample_for_itself(tasks: Path) -> None:
    played = play(suite_of(tasks, "plain"), Answers(lambda request: "4"))

    assert [one.check.value for one in played] == [0.0, 1.0, 0.0, 0.0]
    assert [one.check.passed for one in played] == [False, True, False, False]


def test_the_engine_is_asked_as_the_slot_with_the_gates_sampling(tasks: Path) -> None:
    engine = Answers(by_tool)
    play(suite_of(tasks, "sums", "L1"), engine, temperature=0.5)
    first = [request for request in engine.asked if request.messages[-1].role == "user"]

    own = PROFILE.slot("L1").system
    assert {request.messages[0].content for request in first} == {f"{own}\n\nUse the tool."}
    assert {request.model for request in engine.asked} == {"L0@0"}
    assert {request.temperature for request in engine.asked} == {0.5}
    # Each sample has its own seed, whatever the order in which they come.
    seeds = {request.messages[1].content: request.seed for request in engine.asked}
    assert seeds == {f"What is {n + 1} plus {n + 1}?": n for n in range(4)}


def test_limits_of_the_task_hold_and_its_temperature_does_not(tasks: Path) -> None:
    engine = Answers(lambda request: "4")
    play(suite_of(tasks, "plain"), engine)

    assert {request.max_tokens for request in engine.asked} == {7}
    assert {request.temperature for request in engine.asked} == {0.0}
    assert [request.options for request in engine.asked] == [{"stop": ["!"]}] * 4


def test_grades_are_kept_and_what_is_no_grade_is_not(tasks: Path) -> None:
    suite = suite_of(tasks, "lengths")

    half = play(suite, Answers(lambda request: "x" * 5))
    assert [one.check.value for one in half] == [0.5] * 4
    double = play(suite, Answers(lambda request: "x" * 20))
    assert [one.check.value for one in double] == [None] * 4
    assert "no score from 0 to 1" in double[0].check.detail


def test_what_a_task_prints_is_no_reply(tasks: Path) -> None:
    played = play(suite_of(tasks, "printing"), Answers(lambda request: "4"))

    assert [one.check.value for one in played] == [1.0] * 4


def test_a_model_may_not_judge_itself(tasks: Path) -> None:
    (played,) = play(suite_of(tasks, "judged"), Answers(lambda request: "GRADE: C"))

    assert played.check.value is None
    assert "a model to judge" in played.check.detail


def test_a_model_that_only_calls_tools_comes_to_an_end(tasks: Path) -> None:
    arguments = '{"a": 1, "b": 1}'
    call = Message(
        role="assistant", tool_calls=(ToolCall(id="c", name="add", arguments=arguments),)
    )
    engine = Answers(lambda request: call)
    (played,) = play(suite_of(tasks, "endless"), engine)

    assert played.check.value == 0.0
    assert 10 < len(engine.asked) <= 40


def test_an_engine_that_fails_is_nobodys_failure(tasks: Path) -> None:
    def fail(request: ChatRequest) -> str:
        raise EngineUnavailable("The engine is away.")

    played = play(suite_of(tasks, "plain"), Answers(fail))
    assert [one.check.value for one in played] == [None] * 4
    assert "The engine is away." in played[0].check.detail


def test_the_gate_runs_it_as_any_suite_once_a_sample(tasks: Path, tmp_path: Path) -> None:
    engine = Answers(lambda request: "4" if (request.seed or 0) % 2 else "2")
    suite = suite_of(tasks, "plain")
    sampling = Sampling("L0", 0.7, (11, 12, 13))
    runs = asyncio.run(
        run_suites(tmp_path, engine, [suite], {"L0": "L0@0"}, "e", sampling=sampling)
    )

    assert len(engine.asked) == 12
    assert len({request.seed for request in engine.asked}) == 12
    one, two, *others = runs["arithmetic@plain"].scores
    assert one is not None
    assert two is not None
    assert round(3 * one) == 3 * one
    assert others == [0.0, 0.0]


def test_the_digest_covers_samples_and_code(tasks: Path, tmp_path: Path) -> None:
    suite = suite_of(tasks, "plain")
    other = tmp_path / "arithmetic.py"
    other.write_text(TASKS.replace("scorer=exact()", "scorer=includes()"))

    assert inspect_suite(PROFILE, "L0", f"{tasks}@plain", VENV, LIMIT_S).digest == suite.digest
    assert suite_of(other, "plain").digest != suite.digest
    assert [item.text for item in suite.items][:2] == ["What is 1 plus 1?", "What is 2 plus 2?"]
    assert len({item.cluster for item in suite.items}) == 4


def test_samples_that_change_between_two_loadings_are_refused(tasks: Path) -> None:
    suite = suite_of(tasks, "unseeded")

    with pytest.raises(WorkerFailed, match="give it a fixed seed"):
        play(suite, Answers(lambda request: "x"))


@pytest.mark.parametrize(
    ("name", "why", "limit_s"),
    [("stopping", "said nothing for 3 s", 3.0), ("waiting", "said nothing for 3 s", 3.0),
     ("leaving", "ended", LIMIT_S)],
)  # fmt: skip
def test_only_the_sample_that_breaks_its_process_is_not_judged(
    tasks: Path, tmp_path: Path, name: str, why: str, limit_s: float
) -> None:
    notes = tmp_path / "child"
    file = tmp_path / "arithmetic.py"
    file.write_text(tasks.read_text().replace('os.environ["MOL_NOTES"]', repr(str(notes))))
    suite = inspect_suite(PROFILE, "L0", f"{file}@{name}", VENV, limit_s)

    played = play(suite, Answers(lambda request: "x"))

    assert [one.check.value for one in played] == [1.0, None, 1.0, 1.0]
    assert why in played[1].check.detail
    # What it started is ended too: gone, or dead and not yet collected by the machine's init.
    stat = Path("/proc", notes.read_text(), "stat")
    assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_a_task_that_cannot_be_used_is_refused_with_the_reason(tasks: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("from inspect_ai import task\n\n\n@task\ndef t():\n    return 1 / 0\n")

    with pytest.raises(WorkerFailed, match="ZeroDivisionError: division by zero"):
        suite_of(broken, "t")
    with pytest.raises(WorkerFailed, match="unconfined"):
        suite_of(tasks, "unconfined")
    with pytest.raises(WorkerFailed, match="cannot load"):
        suite_of(tasks, "no_such_task")
    for wrong in (f"{tasks}", "no_such_file.py@sums", "@sums"):
        with pytest.raises(TaskNotFound, match="Name a file and a function in it"):
            inspect_suite(PROFILE, "L0", wrong, VENV, LIMIT_S)


def test_the_version_of_what_runs_tasks_is_named() -> None:
    name, version = inspect_version(VENV).split()
    assert name == "inspect-ai"
    assert version[0].isdigit()
