"""Importer of tau-bench trajectories and of tau2-bench simulations.

tau-bench writes an array of `{task_id, reward, info, traj, trial}`; tau2-bench a document
`{info, tasks, simulations: [{id, task_id, trial, messages, reward_info, ...}]}`, or in its folder
form one file a simulation. The reward is a verifier's verdict on the conversation. Source: the
`EnvRunResult` of sierra-research/tau-bench, `Results` and `SimulationRun` of tau2-bench.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from serving.records import UNDATED, Message, canonical_json, content_id
from traces.importers.cells import mapping
from traces.importers.messages import read_messages, read_tools, read_usage
from traces.importers.rows import LineRefused, Row, checked_duration, refused, whole_or_refused
from traces.importers.trajectory import (
    AGENT,
    Fields,
    Status,
    Trajectory,
    exchanges,
    objects,
    rows,
    utc,
    verdict,
)

NAME = "tau-bench"

_POLICY = re.compile(r"\A\s*#\s*(\w+)\s+agent\s+policy", re.IGNORECASE)
"""How the system message of either benchmark begins: `# Airline Agent Policy`."""
_OBSERVATION = "API output: "
"""How the text-only agents of tau-bench hand a tool's result to the model, as the user."""
_STOPPED: dict[str, Status] = {
    "max_steps": "failed", "timeout": "failed", "too_many_errors": "failed",
    "agent_error": "failed", "context_window_exceeded": "failed",
    "user_error": "abandoned", "infrastructure_error": "abandoned", "unexpected_error": "abandoned",
}  # fmt: skip
"""Ends of a simulation at which the agent gave no answer, by whether it was its own doing."""


def recognises(value: Any) -> bool:
    """Return whether an item is a trajectory, or holds or is a simulation."""
    if not isinstance(value, dict):
        return False
    return _is_trajectory(value) or _is_results(value) or _is_simulation(value)


def parse(value: Any) -> Iterator[Row]:
    """Yield the rows of one trajectory, one simulation, or a document of simulations.

    Raises:
        LineRefused: if it is none of them.
    """
    if isinstance(value, dict) and _is_trajectory(value):
        yield from _trajectory(value)
    elif isinstance(value, dict) and _is_results(value):
        if not value["simulations"]:
            yield Row("skipped", {"reason": "results_without_simulations"})
        for simulation in value["simulations"]:
            part = {"info": value["info"], "simulations": [simulation]}
            make = partial(_simulation, simulation, value["info"])
            yield from whole_or_refused(make, part)
    elif isinstance(value, dict) and _is_simulation(value):
        yield from _simulation(value, {})
    else:
        raise LineRefused("unknown_kind", "neither a trajectory nor a simulation of tau-bench")


def _is_trajectory(value: dict[str, Any]) -> bool:
    # Recordings of robots and games have a `traj` too, of states.
    first = value["traj"][:1] if isinstance(value.get("traj"), list) else []
    spoken = all(isinstance(one, dict) and "role" in one for one in first)
    return value.keys() >= {"task_id", "traj"} and spoken


def _is_results(value: dict[str, Any]) -> bool:
    return isinstance(value.get("simulations"), list) and isinstance(value.get("info"), dict)


def _is_simulation(value: dict[str, Any]) -> bool:
    return value.keys() >= {"task_id", "messages", "termination_reason"}


def _trajectory(value: dict[str, Any]) -> Iterator[Row]:
    messages = read_messages(objects(value["traj"], "traj"))
    info = mapping(value.get("info"))
    domain = _domain(messages)
    # An error that ended the run, before its first message or later.
    error = str(info["error"]) if info.get("error") else None
    answers = [
        n for n, m in enumerate(messages) if m.role == "user" and m.content.startswith(_OBSERVATION)
    ]
    trajectory = Trajectory(
        source=NAME,
        conversation_id=content_id([value["task_id"], value.get("trial"), value["traj"]]),
        messages=messages,
        exchanges=exchanges(
            messages, answers=answers, status="failed" if error else None, error=error
        ),
        task=_task(value["task_id"], domain),
        workload=domain,
    )
    yield from rows(trajectory)
    yield from _reward(trajectory, value.get("reward"), info.get("reward_info"), value)


def _simulation(value: Any, info: dict[str, Any]) -> Iterator[Row]:
    if not isinstance(value, dict) or not _is_simulation(value):
        raise LineRefused("bad_record", "a simulation has task_id, messages and termination_reason")
    environment, agent = mapping(info.get("environment_info")), mapping(info.get("agent_info"))
    policy = value.get("policy") or environment.get("policy")
    raws = [raw for raw in _flat(objects(value["messages"], "messages")) if _agent_saw(raw)]
    if policy and not any(raw.get("role") == "system" for raw in raws):
        raws.insert(0, {"role": "system", "content": str(policy)})
    messages = read_messages(raws)
    if len(messages) != len(raws):
        raise LineRefused("bad_record", "a message holds more than one")
    domain = str(environment.get("domain_name") or "") or _domain(messages)
    ended = str(value["termination_reason"])
    status = _STOPPED.get(ended)
    trajectory = Trajectory(
        source=NAME,
        conversation_id=str(value.get("id") or content_id([value["task_id"], value["messages"]])),
        messages=messages,
        exchanges=exchanges(messages, _calls(raws), status=status, error=ended if status else None),
        model=str(agent.get("llm") or AGENT),
        task=_task(value["task_id"], domain),
        workload=domain,
        tools=_tools(environment.get("tool_defs")),
        params=canonical_json(mapping(agent.get("llm_args"))),
        started_at=_time(value.get("start_time")) or UNDATED,
    )
    yield from rows(trajectory)
    reward = mapping(value.get("reward_info"))
    at = _time(value.get("end_time"))
    part = {"info": info, "simulations": [value]} if info else value
    detail = {**reward, "termination_reason": ended, "trial": value.get("trial")}
    yield from _reward(trajectory, reward.get("reward"), detail, part, at)


def _flat(raws: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield messages; results that came together are one object in the file."""
    for raw in raws:
        several = raw.get("tool_messages")
        if several is None:
            yield raw
        else:
            yield from objects(several, "tool_messages")


def _agent_saw(raw: dict[str, Any]) -> bool:
    """Leave out what the simulated user does with tools of its own: the agent never sees it."""
    if raw.get("role") == "tool":
        return raw.get("requestor") != "user"
    return not (raw.get("role") == "user" and raw.get("tool_calls"))


def _calls(raws: list[dict[str, Any]]) -> dict[int, Fields]:
    """Return the engine calls by place: all answers but a greeting that no model made."""
    found: dict[int, Fields] = {}
    asked = False
    for place, raw in enumerate(raws):
        asked = asked or raw.get("role") in ("user", "tool")
        if raw.get("role") == "assistant" and (asked or raw.get("usage") or raw.get("raw_data")):
            found[place] = _fields(raw)
    return found


def _fields(raw: dict[str, Any]) -> Fields:
    usage = read_usage(raw.get("usage"))
    fields: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
    }
    took = raw.get("generation_time_seconds")
    told = isinstance(took, int | float) and took > 0
    took_s = checked_duration("generation_time_seconds", took) if told else 0.0
    ended = _time(raw.get("timestamp"))
    if ended is not None:
        fields |= {"started_at": ended - timedelta(seconds=took_s), "duration_s": took_s}
    return fields


def _reward(
    trajectory: Trajectory, reward: Any, detail: Any, part: Any, at: datetime | None = None
) -> Iterator[Row]:
    """Yield the verdict; none where nobody judged. `part` is the item, should it be no number."""
    if reward is None:
        return
    try:
        text = canonical_json(detail) if detail else None
        yield verdict(trajectory, "reward", reward, text=text, at=at)
    except LineRefused as refusal:
        yield refused(refusal.reason, str(refusal), part)


def _task(task_id: Any, domain: str | None) -> str:
    if not isinstance(task_id, int | str) or isinstance(task_id, bool) or task_id == "":
        raise LineRefused("bad_record", f"task_id {task_id!r} is neither number nor text")
    return f"{NAME}:{domain}:{task_id}" if domain else f"{NAME}:{task_id}"


def _domain(messages: Sequence[Message]) -> str | None:
    """Return the domain that the agent's policy names, such as `airline`."""
    found = _POLICY.match(messages[0].content) if messages else None
    return found[1].lower() if found else None


def _tools(definitions: Any) -> str:
    return read_tools(
        [
            {"name": name, "description": tool.get("doc"), "parameters": tool.get("params")}
            for name, tool in sorted(mapping(definitions).items())
            if isinstance(tool, dict)
        ]
    )


def _time(value: Any) -> datetime | None:
    return utc(value) if value else None
