"""Fresh answers of one arm to a turn: asked of the engine, tools from the log, checked.

In: an engine, what the arm sees, what the turn's tools had answered, and a check. Out: samples.
Nothing is executed: a call gets the result that the log has for the same name and arguments.
How a sample ends, in this order:

- the engine refused this call, took too long, or cut the answer at its token limit: not judged;
- where a tool call is checked: the first answer decides; in a turn of several calls any of them
  may be the right one;
- a call that fails the check whatever follows, such as one that safety forbids: failed;
- a call that no tool could have taken (unknown name, arguments against the schema): failed;
- a call that the log has no result for, or more calls than the turn made: not judged, for
  nobody knows where it would have led;
- a text: what the check says, not judged where the check itself could not.
"""

import asyncio
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.engine import ChatRequest, Engine
from serving.errors import EngineRefused, EngineUnavailable
from serving.records import Hop, Message, ToolCall, canonical_json
from traces.attribution.arm_views import ArmView, answer_hops, exchanged_in
from traces.attribution.replayed import arguments_of, meaning
from traces.bundles import TurnBundle
from traces.verifiers.registry import TurnCheck
from traces.verifiers.tool_call import call_problem

TRUNCATED = "cut at its token limit"
REFUSED = "refused by the engine"
TOO_SLOW = "not answered in time"
NOT_LOGGED = "called a tool in a way that the log has no result for"
TOO_LONG = "made more calls than the turn"
NOT_CHECKED = "the check could not judge it"

DEFAULT_TOKENS = 1024
"""Limit of an answer where the log has none, or twice what the turn's answers took."""
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_SAMPLING = frozenset({"top_k", "top_p", "min_p"})
_OURS = frozenset({*_LIMITS, "temperature", "choices", "seed", "n", "stream", "stream_options"})
_NEVER_DRAWN = 0.05
"""A temperature or `top_p` up to this leaves one answer, as a `min_p` that far below 1 does."""
_ABOUT_TOOLS = frozenset({"tool_choice", "parallel_tool_calls"})


@dataclass(frozen=True, slots=True)
class Sample:
    """One fresh answer."""

    passed: bool | None
    """None where it says nothing."""
    left_out: str | None
    """Why it says nothing."""
    said: tuple[Message, ...]
    """The arm's own messages, in order."""
    calls: int
    """Engine calls made."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked of every arm of one turn."""

    log: Mapping[str, Sequence[str]]
    """By call (name and arguments), what its tool had answered."""
    judges_calls: bool
    """Whether a tool call is what is checked."""
    max_calls: int
    """Engine calls that one sample may take."""
    max_tokens: int
    temperature: float
    options: Mapping[str, Any]


def task_of(bundle: TurnBundle, judges_calls: bool, temperature: float) -> Task:
    """Return the task of a turn; `temperature` is for one that was answered greedily."""
    hops = answer_hops(bundle)
    params = _params(hops[0])
    recorded = _number(params, "temperature")
    if _is_greedy(params):
        params = {key: value for key, value in params.items() if key not in _SAMPLING}
    elif recorded is not None:
        temperature = recorded
    log = logged_results(bundle)
    callers = sum(1 for hop in hops if hop.completion is not None and hop.completion.tool_calls)
    most = callers if judges_calls else callers + 1 if log else len(hops)
    limits = (_number(params, name) for name in _LIMITS)
    taken = 2 * max(hop.completion_tokens or 0 for hop in hops)
    limit = next((n for n in limits if n and n > 0), max(DEFAULT_TOKENS, taken))
    return Task(
        log=log,
        judges_calls=judges_calls,
        max_calls=max(1, most),
        max_tokens=int(limit),
        temperature=temperature,
        options={key: value for key, value in params.items() if key not in _OURS},
    )


def _is_greedy(params: Mapping[str, Any]) -> bool:
    """Whether every sample of a version would be the one that failed, again."""
    temperature, top_k = _number(params, "temperature"), _number(params, "top_k")
    top_p, min_p = _number(params, "top_p"), _number(params, "min_p")
    return (
        (temperature is not None and temperature <= _NEVER_DRAWN)
        or top_k == 1
        or (top_p is not None and top_p <= _NEVER_DRAWN)
        or (min_p is not None and min_p >= 1 - _NEVER_DRAWN)
    )


def _number(params: Mapping[str, Any], name: str) -> float | None:
    """Return a number of a log; None where there is none."""
    value = params.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < math.inf else None


def logged_results(bundle: TurnBundle) -> dict[str, list[str]]:
    """Return what tools answered in a turn, by call; the same call may have several results."""
    made: dict[str, ToolCall] = {}
    found: dict[str, list[str]] = defaultdict(list)
    for message in exchanged_in(bundle):
        made |= {call.id: call for call in message.tool_calls}
        if message.role == "tool" and message.tool_call_id in made:
            found[_key(made[message.tool_call_id])].append(message.content)
    return dict(found)


async def draw(
    engine: Engine, name: str, view: ArmView, task: Task, check: TurnCheck, seed: int
) -> Sample:
    """Return one fresh answer.

    Raises:
        EngineUnavailable: if the engine is gone.
        EngineRefused: if it refuses whatever is asked: it does not know the adapter, or is broken.
    """
    said: list[Message] = []
    exchanged: list[Message] = []
    used: dict[str, int] = defaultdict(int)
    for calls in range(1, task.max_calls + 1):
        request = _request(name, view, task, exchanged, seed)
        try:
            result = await engine.chat(request)
        except EngineRefused as refusal:
            if not refusal.of_the_request:
                raise
            return Sample(None, REFUSED, tuple(said), calls)
        except EngineUnavailable as problem:
            if not problem.timed_out:
                raise
            return Sample(None, TOO_SLOW, tuple(said), calls)
        answer = result.message
        said.append(answer)
        if result.finish_reason == "length":
            return Sample(None, TRUNCATED, tuple(said), calls)
        judge = check.amid if answer.tool_calls else check.last
        passed = (await asyncio.to_thread(judge, answer)).passed
        # A call that fails whatever follows is the end, unless another one may be the right one.
        decided = not answer.tool_calls or (passed is False and not task.judges_calls)
        if task.judges_calls or decided:
            if passed is None:
                return Sample(None, NOT_CHECKED, tuple(said), calls)
            if passed or decided or calls == task.max_calls:
                return Sample(passed, None, tuple(said), calls)
        results = [_result(task.log, call, used) for call in answer.tool_calls]
        if None in results:
            # Without a result to go on with; one that no tool could have taken is the arm's own.
            wrong = view.tools and any(call_problem(c, view.tools) for c in answer.tool_calls)
            if wrong or task.judges_calls:
                return Sample(False, None, tuple(said), calls)
            return Sample(None, NOT_LOGGED, tuple(said), calls)
        exchanged += [answer, *(result for result in results if result is not None)]
    return Sample(None, TOO_LONG, tuple(said), task.max_calls)


def pair_of(
    hops: Sequence[Hop], samples: Sequence[Sample], *, same_version: bool
) -> tuple[Hop, Message, Message] | None:
    """Return the hop at which a success parts from a failure of its adapter, and both answers.

    The failure is the recorded one; where another version answered, a fresh one. None where no
    success parts from a failure at a hop that was recorded.
    """
    recorded = tuple(hop.completion for hop in hops if hop.completion is not None)
    failures = [s.said for s in samples if s.passed is False]
    failures = [recorded] if same_version else failures
    for success in (sample.said for sample in samples if sample.passed):
        for failure in failures:
            place = _parting(success, failure)
            known = place is not None and place < len(hops)
            if known and _parting(success[:place], recorded[:place]) is None:
                assert place is not None
                return hops[place], success[place], failure[place]
    return None


def _parting(left: Sequence[Message], right: Sequence[Message]) -> int | None:
    """Return the first place at which two runs of answers differ in meaning."""
    pairs = zip(left, right, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if meaning(a) != meaning(b)), None)


def _request(
    name: str, view: ArmView, task: Task, exchanged: Sequence[Message], seed: int
) -> ChatRequest:
    options = dict(task.options)
    if not view.tools:
        options = {key: value for key, value in options.items() if key not in _ABOUT_TOOLS}
    return ChatRequest(
        model=name,
        messages=(*view.messages, *exchanged),
        tools=view.tools,
        max_tokens=task.max_tokens,
        temperature=task.temperature,
        seed=seed,
        options=options,
    )


def _result(
    log: Mapping[str, Sequence[str]], call: ToolCall, used: dict[str, int]
) -> Message | None:
    """Return the logged result of a call; a call made again gets the next one, or the last."""
    key = _key(call)
    results = log.get(key)
    if not results:
        return None
    content = results[min(used[key], len(results) - 1)]
    used[key] += 1
    return Message(role="tool", content=content, tool_call_id=call.id)


def _key(call: ToolCall) -> str:
    return canonical_json([call.name, arguments_of(call.arguments)])


def _params(hop: Hop) -> dict[str, Any]:
    try:
        params = json.loads(hop.params)
    except (ValueError, RecursionError):
        return {}
    return params if isinstance(params, dict) else {}
