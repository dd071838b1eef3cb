"""Importer of Langfuse: observations and scores, as exports and the API give them.

    an observation of type GENERATION   -> a hop
    a score                             -> feedback
    a trace with its observations and scores, or a page of the API ({"data": [...]})  -> their rows
    other observations, traces alone, datasets' scores  -> skipped, with the reason

Exports to blob storage write snake case (`observations_v2/`, `scores/`), the API and exports of
the web page camel case; cells hold JSON text, and an empty text stands for null. A late update
makes another hop of the same `span_id`: its `updated_at` is among the parameters, and the join
keeps the latest. A score of an observation is about its trace's turn, because the observation may
be one of those that are no call.
Source: Langfuse docs, "Blob storage export field reference"; langfuse 5.0, `api/commons`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from serving.records import UNDATED, Hop, TargetKind, canonical_json
from traces.importers.cells import (
    cell,
    items,
    mapping,
    micros,
    moment,
    number,
    required,
    seconds_between,
    text_cell,
)  # fmt: skip
from traces.importers.conversations import read_input, read_output
from traces.importers.messages import Usage, decoded, read_answer, read_tools, read_usage
from traces.importers.rows import LineRefused, Row, feedback_row, hop_row, whole_or_refused
from traces.importers.signals import annotator_of, edit, signal

NAME = "langfuse"

_TYPES = frozenset({
    "GENERATION", "SPAN", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR",
    "EMBEDDING", "GUARDRAIL",
})  # fmt: skip
_SCORES = frozenset({"NUMERIC", "BOOLEAN", "CATEGORICAL", "TEXT", "CORRECTION"})
_SCORED = (
    "trace_id", "observation_id", "session_id", "dataset_run_id",
    "traceId", "observationId", "sessionId", "datasetRunId",
)  # fmt: skip


def recognises(value: Any) -> bool:
    """Return whether an item is an observation, a score, a trace or a page of them."""
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("data"), list) and "meta" in value:
        return any(_kind(element) for element in value["data"])
    return _kind(value) is not None


def parse(value: Any) -> Iterable[Row]:
    """Turn an item into rows.

    Raises:
        LineRefused: if it is none of Langfuse's, or lacks what its kind requires.
    """
    if not isinstance(value, dict):
        raise LineRefused("not_an_object", f"a JSON {type(value).__name__}, not an object")
    if isinstance(value.get("data"), list) and "meta" in value:
        for element in value["data"]:
            part = {"data": [element], "meta": {}}
            yield from whole_or_refused(partial(parse, element), part)
        return
    match _kind(value):
        case "observation":
            yield _observation(value)
        case "score":
            yield _score(value)
        case "trace":
            yield from _trace(value)
        case _:
            raise LineRefused("unknown_kind", "neither an observation, a score nor a trace")


def _kind(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None

    def has(*names: str) -> bool:
        return any(name in value for name in names)

    if value.get("type") in _TYPES and ("startTime" in value or "start_time" in value):
        return "observation"
    typed = str(cell(value, "data_type", "dataType")) in _SCORES or "value" in value
    if typed and "name" in value and "source" in value and has(*_SCORED):
        return "score"
    if "timestamp" in value and "id" in value and has("project_id", "projectId", "htmlPath"):
        return "trace"
    return None


def _trace(value: dict[str, Any]) -> Iterator[Row]:
    """Yield what a trace holds; its own fields say whose call each was."""
    context = {
        name: text_cell(value, *names)
        for name, names in (
            ("session_id", ("session_id", "sessionId")),
            ("user_id", ("user_id", "userId")),
            ("trace_name", ("name",)),
        )
    }
    inner = [(name, part) for name in ("observations", "scores") for part in items(value.get(name))]
    # The API's list of traces names its observations only by their ids.
    inner = [(name, part) for name, part in inner if not isinstance(part, str)]
    if not inner:
        yield Row("skipped", {"reason": "trace"})
    head = {k: v for k, v in value.items() if k not in ("observations", "scores")}
    for name, part in inner:
        whole = {**context, **_known(part)} if isinstance(part, dict) else part
        yield from whole_or_refused(partial(parse, whole), {**head, name: [part]})


def _known(part: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in part.items() if v not in (None, "")}


def _observation(row: dict[str, Any]) -> Row:
    if row["type"] != "GENERATION":
        return Row("skipped", {"reason": f"observation_{row['type'].lower()}"})
    model = text_cell(row, "provided_model_name", "providedModelName", "model")
    if model is None:
        raise LineRefused("no_model", "the generation names no model (export field group 'model')")
    started_at = moment(cell(row, "start_time", "startTime"))
    if started_at is None:
        raise LineRefused("no_time", "start_time is empty")
    observation_id = required(row, "id")
    trace_id = text_cell(row, "trace_id", "traceId") or observation_id
    ended_at = moment(cell(row, "end_time", "endTime"))
    first_at = moment(cell(row, "completion_start_time", "completionStartTime"))
    given = read_input(cell(row, "input"))
    known = _answered(row, ended_at is None)
    return hop_row(
        Hop(
            source=NAME,
            conversation_id=text_cell(row, "session_id", "sessionId") or trace_id,
            turn_id=f"{NAME}:{trace_id}",
            user=text_cell(row, "user_id", "userId"),
            seq=micros(started_at),
            role="answer",
            model=model,
            messages=given.messages,
            tools=_tools(row, given.tools),
            params=canonical_json({**given.params, **_params(row)}),
            started_at=started_at,
            duration_s=seconds_between(started_at, ended_at) or 0.0,
            ttft_s=seconds_between(started_at, first_at),
            span_id=observation_id,
            workload=text_cell(row, "trace_name", "traceName"),
            **known,
        )
    )


def _answered(row: dict[str, Any], running: bool) -> dict[str, Any]:
    """Return the fields of a hop that the answer fills."""
    answered = read_output(cell(row, "output"))
    said = answered.completion
    calls = items(cell(row, "tool_calls", "toolCalls"))
    if calls and (said is None or not said.tool_calls):
        raw = {"role": "assistant", "content": said.content if said else "", "tool_calls": calls}
        answered = replace(answered, completion=read_answer(raw).message)
    if row.get("level") == "ERROR":
        error = text_cell(row, "status_message", "statusMessage") or "ERROR"
        answered = replace(answered, status="engine_error", error=error)
    elif running and answered.completion is None:
        answered = replace(answered, status="abandoned")
    told = read_usage(_usage(row))
    return replace(answered, usage=told if told != Usage() else answered.usage).fields()


def _usage(row: dict[str, Any]) -> dict[str, Any]:
    details = mapping(cell(row, "usage_details", "usageDetails"))
    counts = ("promptTokens", "completionTokens", "inputUsage", "outputUsage")
    flat = dict(zip(("input", "output") * 2, (row.get(name) for name in counts), strict=True))
    return details or mapping(row.get("usage")) or flat


def _tools(row: dict[str, Any], given: str) -> str:
    told = mapping(cell(row, "tool_definitions", "toolDefinitions"))
    return read_tools({name: decoded(tool) for name, tool in told.items()}) if told else given


def _params(row: dict[str, Any]) -> dict[str, Any]:
    """Return the model's parameters, and under Langfuse's name what else it tells of the call."""
    names = (("prompt_name", "promptName"), ("name",), ("environment",), ("release",))
    told: dict[str, Any] = {n[0]: found for n in names if (found := text_cell(row, *n))}
    version = number(cell(row, "prompt_version", "promptVersion"))
    if version is not None:
        told["prompt_version"] = int(version)
    updated_at = moment(cell(row, "updated_at", "updatedAt"))
    if updated_at is not None:
        told["updated_at"] = updated_at.isoformat(timespec="microseconds")
    cost = number(cell(row, "total_cost", "totalCost", "calculatedTotalCost"))
    if cost is not None:
        told["total_cost"] = cost
    params = mapping(cell(row, "model_parameters", "modelParameters"))
    return {**params, "langfuse": told} if told else params


def _score(row: dict[str, Any]) -> Row:
    target = _target(row)
    if target is None:
        return Row("skipped", {"reason": "score_of_no_call"})
    kind = str(cell(row, "data_type", "dataType"))
    text = text_cell(row, "string_value", "stringValue")
    score = number(row.get("value"))
    at = moment(cell(row, "timestamp", "created_at", "createdAt")) or UNDATED
    comment = text_cell(row, "comment")
    user = text_cell(row, "author_user_id", "authorUserId", "user_id", "userId")
    judge = annotator_of(row.get("source"))
    if kind == "CORRECTION":
        answer, name = read_output(text).completion, text_cell(row, "name") or "correction"
        made = edit(NAME, target, name, answer, text=comment, annotator=judge, user=user, at=at)
        return feedback_row(made)
    label = None
    if kind == "TEXT":
        score, comment = None, "\n".join(part for part in (text, comment) if part)
    elif kind == "CATEGORICAL":
        # The number is the place of the category among the others.
        score, label = None, text if text is not None else text_cell(row, "value")
    elif kind == "BOOLEAN":
        score = number(text) if score is None else score
    if score is None and label is None and not comment:
        raise LineRefused("bad_record", f"the score has no value: {row.get('value')!r}")
    return feedback_row(
        signal(
            NAME,
            target,
            required(row, "name"),
            score=score,
            label=label,
            text=comment,
            annotator=judge,
            user=user,
            at=at,
        )
    )


def _target(row: dict[str, Any]) -> tuple[TargetKind, str] | None:
    trace_id = text_cell(row, "trace_id", "traceId")
    if trace_id is not None:
        return "turn", f"{NAME}:{trace_id}"
    observation_id = text_cell(row, "observation_id", "observationId")
    if observation_id is not None:
        return "response", observation_id
    session_id = text_cell(row, "session_id", "sessionId")
    return None if session_id is None else ("conversation", session_id)
