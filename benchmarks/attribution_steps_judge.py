"""A language model as the judge of which agent's which step was decisive, where one is configured.

In: labelled runs and the address of any OpenAI-compatible server. Out: the agent and step its
model named, or None where its answer cannot be read, is refused, or finds no error. Two of the
published ways: all at once, where the model reads the whole log, and step by step, where it reads
each prefix and the first step that it calls an error counts. Source of the ways: Zhang et al.,
"Which Agent Causes Task Failures and When?", ICML 2025; the wording is ours. Without the right
answer unless `with_truth`.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence

from benchmarks.attribution_steps_baselines import Guess, Said, said_in
from benchmarks.attribution_steps_runs import Labelled
from flows.judging import judge_engine
from serving.engine import ChatRequest
from serving.errors import EngineRefused
from serving.records import Message

Ask = Callable[[str], Awaitable[str]]
Way = Callable[[Labelled, Ask, bool], Awaitable[Guess | None]]

_AT_ONCE = """\
Several agents worked on a task and failed. Name the decisive error: the earliest step without \
which the task would have succeeded, and the agent whose step it is. An agent that only executes \
code of others is not to blame for that code.

Task: {task}
{truth}
Log, each entry with its step number and agent:
{log}

Answer with one JSON object and nothing else: {{"agent": "<name>", "step": <number>}}"""

_STEP_BY_STEP = """\
Several agents work on a task, which they will fail. Here is the log up to step {step}. Is step \
{step}, of agent {agent}, an error that would make the task fail?

Task: {task}
{truth}
Log:
{log}

Answer with one JSON object and nothing else: {{"error": true}} or {{"error": false}}"""
_OBJECT = re.compile(r"\{[^{}]*\}")
_CONCURRENT = 8
"""Runs asked about at the same time."""
_MAX_TOKENS = 512


async def all_at_once(run: Labelled, ask: Ask, with_truth: bool) -> Guess | None:
    """Return what a model that reads the whole log names."""
    log = said_in(run)
    said = await ask(
        _AT_ONCE.format(task=run.turn.request, truth=_truth(run, with_truth), log=_text(log))
    )
    found = _object(said)
    agent, step = found.get("agent"), found.get("step")
    if isinstance(step, str) and step.strip().isdecimal():
        step = int(step)
    if not isinstance(agent, str) or not isinstance(step, int) or isinstance(step, bool):
        return None
    return agent.strip(), step


async def step_by_step(run: Labelled, ask: Ask, with_truth: bool) -> Guess | None:
    """Return the first step that a model which reads up to it calls an error."""
    log = said_in(run)
    for place, entry in enumerate(log):
        prompt = _STEP_BY_STEP.format(
            step=entry.step, agent=entry.name, task=run.turn.request,
            truth=_truth(run, with_truth), log=_text(log[: place + 1]),
        )  # fmt: skip
        if _object(await ask(prompt)).get("error") is True:
            return entry.name, entry.step
    return None


WAYS: dict[str, Way] = {"all_at_once": all_at_once, "step_by_step": step_by_step}


async def judged(
    runs: Sequence[Labelled], url: str, model: str | None = None, *, with_truth: bool = False
) -> dict[str, list[Guess | None]]:
    """Return for each way what the judge names, run by run.

    `model` None takes the first that the server lists.

    Raises:
        EngineUnavailable: if the server cannot be reached.
    """
    engine = judge_engine(url, _CONCURRENT)
    try:
        name = model or (await engine.models())[0]

        async def ask(prompt: str) -> str:
            messages = (Message(role="user", content=prompt),)
            try:
                result = await engine.chat(ChatRequest(name, messages, max_tokens=_MAX_TOKENS))
            except EngineRefused:
                return ""
            return result.message.content

        return {
            way: list(await asyncio.gather(*(judge(run, ask, with_truth) for run in runs)))
            for way, judge in WAYS.items()
        }
    finally:
        await engine.close()


def _truth(run: Labelled, with_truth: bool) -> str:
    return f"Right answer: {run.truth}\n" if with_truth and run.truth else ""


def _text(log: Sequence[Said]) -> str:
    return "\n\n".join(f"Step {entry.step}, {entry.name}:\n{entry.text}" for entry in log)


def _object(said: str) -> dict[str, object]:
    """Return the last JSON object in a model's answer, empty where there is none."""
    for text in reversed(_OBJECT.findall(said)):
        try:
            value = json.loads(text)
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return {}
