"""Importer of SWE-agent's and mini-SWE-agent's `.traj` files: a coding agent's run at one issue.

A run is one turn: the issue, and every step the agent took. `history` is what the agent and its
environment said, demonstrations among it (`is_demo`), which were seen but are no steps of this
run. From SWE-agent 1.1 on each step of `trajectory` also has the exact `query` it answered; then
that is what the hop saw, and steps that were asked again after a format error are hops too. A run
of several attempts has each of them in `attempts`. mini-SWE-agent has `messages` alone, from
version 2 on with the API's response in the `extra` of an answer. Source: `sweagent/types.py` and
`agent/agents.py` of SWE-agent 0.7 to 1.1; `agents/default.py` of mini-SWE-agent 1.0 to 2.3.

The run failed if it ended with an exit other than a submission (`exit_cost`, `exit_context`, ...);
one that submitted what it had by then (`submitted (exit_cost)`) answered. Whether the patch
resolves the issue is a verdict only where the file says so (`info.resolved`, `info.report`).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from serving.records import UNDATED, Message, canonical_json, content_id
from traces.importers.cells import mapping, moment, seconds_between
from traces.importers.chat_bodies import read_response
from traces.importers.messages import read_answer, read_messages
from traces.importers.rows import LineRefused, Row, refused, whole_or_refused
from traces.importers.trajectory import (
    AGENT,
    Call,
    Exchange,
    Fields,
    Status,
    Trajectory,
    comment,
    objects,
    rows,
    verdict,
)

NAME = "swe-agent"

_SAMPLING = ("temperature", "top_p")
_ABOUT_RUN = ("exit_status", "submission", "model_stats", "swe_agent_version", "mini_version")


def recognises(value: Any) -> bool:
    """Return whether an item is a `.traj` file, of one attempt or several."""
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("attempts"), list) and _is_run(value["attempts"][:1]):
        return True
    return _is_run([value]) or _is_mini(value)


def _is_run(values: list[Any]) -> bool:
    if not values or not isinstance(values[0], dict):
        return False
    history = values[0].get("history")
    if not isinstance(history, list) or "question" in values[0]:
        return False
    if isinstance(values[0].get("trajectory"), list):
        return True
    # A demonstration is a history alone.
    return bool(history) and all(
        isinstance(one, dict) and one.keys() >= {"agent", "role"} for one in history
    )


def _is_mini(value: dict[str, Any]) -> bool:
    info = value.get("info")
    return isinstance(info, dict) and "mini_version" in info and "messages" in value


def parse(value: Any) -> Iterator[Row]:
    """Yield the rows of one run, or of each of its attempts.

    Raises:
        LineRefused: if it is none.
    """
    if not isinstance(value, dict):
        raise LineRefused("unknown_kind", f"a {type(value).__name__} is no trajectory")
    if _is_mini(value):
        yield from _run(_of_mini(value), value)
        return
    attempts = value.get("attempts")
    if not isinstance(attempts, list) or not attempts:
        yield from _run(value, value)
        return
    settings = {k: v for k, v in value.items() if k in ("environment", "replay_config")}
    for attempt in attempts:
        part = {**settings, "attempts": [attempt]}
        yield from whole_or_refused(partial(_attempt, settings, attempt, part), part)


def _of_mini(value: dict[str, Any]) -> dict[str, Any]:
    """Return a run of mini-SWE-agent in the form of SWE-agent's."""
    said = objects(value["messages"], "messages")
    model = mapping(mapping(value["info"].get("config")).get("model"))
    named = {**mapping(model.get("model_kwargs")), "name": model.get("model_name")}
    return {
        # An entry of the role `exit` is the program's own note on how it ended.
        "history": [entry for entry in said if entry.get("role") != "exit"],
        "info": value["info"],
        "replay_config": {
            "agent": {"model": named},
            "problem_statement": {"id": value.get("instance_id")},
        },
    }


def _attempt(settings: dict[str, Any], attempt: Any, part: Any) -> Iterator[Row]:
    if not isinstance(attempt, dict):
        raise LineRefused("bad_record", "an attempt is no object")
    yield from _run({**settings, **attempt}, part)


def _run(value: dict[str, Any], part: Any) -> Iterator[Row]:
    history = objects(value.get("history"), "history")
    messages = read_messages([_raw(entry) for entry in history])
    if len(messages) != len(history):
        raise LineRefused("bad_record", "an entry of the history holds more than one message")
    info = mapping(value.get("info"))
    steps = value.get("trajectory")
    steps = objects(steps, "trajectory") if steps else []
    config = mapping(value.get("replay_config"))
    model = mapping(mapping(config.get("agent")).get("model"))
    status, error = _status(info.get("exit_status"))
    spoken = _spoken(history, info)
    calls = _queried(history, messages, steps, spoken) or [
        Call(place, messages[place], _fields(history[place])) for place in spoken
    ]
    last = spoken[-1] if spoken else -1
    asked = _issue(history)
    trajectory = Trajectory(
        source=NAME,
        conversation_id=_conversation(value, history, steps),
        messages=messages,
        exchanges=[
            Exchange(
                asked,
                messages[asked].content if messages else "",
                calls,
                messages[last + 1 :],
                status=status,
                error=error,
            )
        ],
        model=str(model.get("name") or AGENT),
        task=_task(config),
        params=canonical_json({k: model[k] for k in _SAMPLING if model.get(k) is not None}),
        started_at=next((told for c in calls if (told := c.fields.get("started_at"))), UNDATED),
    )
    yield from rows(trajectory)
    yield from _judged(trajectory, value, info, part)


def _raw(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry as a chat message; the agents make one tool call a step."""
    ids = entry.get("tool_call_ids")
    names = ("role", "content", "tool_calls", "tool_call_id")
    kept = {k: entry[k] for k in names if entry.get(k) is not None}
    if "role" not in kept:
        raise LineRefused("bad_record", "an entry of the history has no role")
    return {**kept, "tool_call_id": ids[0]} if isinstance(ids, list) and ids else kept


def _spoken(history: list[dict[str, Any]], info: dict[str, Any]) -> list[int]:
    """Return the places of the agent's own steps."""
    places = [
        n
        for n, entry in enumerate(history)
        if entry["role"] == "assistant" and not entry.get("is_demo")
    ]
    if places and "exit_" in str(info.get("exit_status")):
        last = history[places[-1]]
        # The program's own note on why it stopped, such as "Exit due to cost limit".
        if not last.get("action") and str(last.get("content")).startswith("Exit"):
            del places[-1]
    return places


def _issue(history: list[dict[str, Any]]) -> int:
    """Return the place of the message that sets the task."""
    asked = (n for n, e in enumerate(history) if e["role"] == "user" and not e.get("is_demo"))
    return next(asked, 0)


def _queried(
    history: list[dict[str, Any]],
    messages: Sequence[Message],
    steps: list[dict[str, Any]],
    spoken: list[int],
) -> list[Call]:
    """Return the calls as the steps' queries have them; empty where they do not tell them all."""
    waiting = list(spoken)
    first = _issue(history) + 1
    calls: list[Call] = []
    for n, step in enumerate(steps):
        query = step.get("query")
        if not isinstance(query, list) or not any(query):
            continue  # A step that the program added without asking the model.
        seen = read_messages([_raw(entry) for entry in objects(query, "query")])
        place = waiting[0] if waiting and _is_step(history[waiting[0]], step) else None
        if place is None:
            said = Message(role="assistant", content=str(step.get("response") or ""))
            calls.append(Call(first + n, said, seen=seen))
        else:
            del waiting[0]
            calls.append(Call(first + n, messages[place], _fields(history[place]), seen))
    return [] if waiting else calls


def _is_step(entry: dict[str, Any], step: dict[str, Any]) -> bool:
    same_text = (entry.get("content") or "") == (step.get("response") or "")
    return same_text and (entry.get("action") or "") == (step.get("action") or "")


def _fields(entry: dict[str, Any]) -> Fields:
    blocks = entry.get("thinking_blocks")
    thought = read_answer(blocks).reasoning if isinstance(blocks, list) else None
    extra = mapping(entry.get("extra"))
    response = mapping(extra.get("response"))
    if not response:
        return {"reasoning": thought}
    told = read_response(response)
    began, ended = moment(told.created), moment(extra.get("timestamp"))
    return {
        "reasoning": thought or told.reasoning,
        "finish_reason": told.finish_reason,
        "response_id": told.response_id,
        "served_name": told.model,
        "prompt_tokens": told.usage.prompt_tokens,
        "completion_tokens": told.usage.completion_tokens,
        "cached_tokens": told.usage.cached_tokens,
        "duration_s": seconds_between(began, ended) or 0.0,
        **({"started_at": began} if began else {}),
    }


def _status(exit_status: Any) -> tuple[Status | None, str | None]:
    """Return the turn's status and why; None leaves it to the calls."""
    text = str(exit_status or "")
    if not text or text.lower().startswith("submitted"):
        return None, None
    return "failed", text


def _conversation(
    value: dict[str, Any], history: list[dict[str, Any]], steps: list[dict[str, Any]]
) -> str:
    """Return an id that a run keeps while its file is still growing.

    Its first step tells it from other runs, by the time that took to the last digit, or in
    mini-SWE-agent the time of the first answer; files of before have no times and count as a whole.
    """
    timed = [step for step in steps[:1] if isinstance(step.get("execution_time"), float)]
    timed += [entry for entry in history if mapping(entry.get("extra")).get("timestamp")]
    return content_id([value.get("environment"), timed[0] if timed else history])


def _task(config: dict[str, Any]) -> str | None:
    problem = mapping(config.get("problem_statement")).get("id")
    return str(problem) if problem else None


def _judged(
    trajectory: Trajectory, value: dict[str, Any], info: dict[str, Any], part: Any
) -> Iterator[Row]:
    about = {name: info[name] for name in _ABOUT_RUN if info.get(name) is not None}
    if about:
        yield comment(trajectory, "swe_agent", canonical_json(about))
    resolved = next(
        (
            found["resolved"]
            for found in (info, mapping(info.get("report")), value, mapping(value.get("report")))
            if found.get("resolved") is not None
        ),
        None,
    )
    if isinstance(resolved, bool):
        yield verdict(trajectory, "resolved", resolved)
    elif resolved is not None:
        yield refused("bad_score", f"resolved {resolved!r} is neither true nor false", part)
