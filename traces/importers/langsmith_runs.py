"""Importer of LangSmith: runs, as the bulk export (Parquet) and the API give them, and feedback.

    a run of type llm       -> a hop, and a signal for each of its `feedback_stats`
    any other run           -> skipped, but the signals about it are about its trace's turn
    a feedback of the API   -> a signal
    a run with `child_runs`, or a page of the API ({"runs": [...]})  -> the rows of all of them

`inputs` and `outputs` have the shape of whatever was traced, see `traces.importers.conversations`.
`feedback_stats` are averages: the number of votes is kept in the detail, the voters are not told.
`session_id` of a run is its project; a conversation is what the metadata call so.
Source: LangSmith docs, "Run data format", "Bulk export"; langsmith 0.15, `schemas.py`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from serving.records import UNDATED, Annotator, Feedback, Hop, TargetKind, canonical_json
from traces.importers.cells import (
    cell,
    items,
    mapping,
    micros,
    moment,
    number,
    seconds_between,
    text_cell,
)  # fmt: skip
from traces.importers.chat_bodies import Answered
from traces.importers.conversations import read_input, read_output
from traces.importers.messages import Usage, decoded, read_tools, read_usage
from traces.importers.rows import LineRefused, Row, feedback_row, hop_row, whole_or_refused
from traces.importers.signals import edit, signal

NAME = "langsmith"

_SESSION = ("session_id", "conversation_id", "thread_id")
_APART = ("model", "model_name", "messages", "tools", "functions", "_type")
_SOURCES: dict[str, Annotator] = {
    "app": "human", "model": "model", "auto_eval": "model", "evaluator": "model",
}  # fmt: skip


def recognises(value: Any) -> bool:
    """Return whether an item is a run or a feedback."""
    if not isinstance(value, dict):
        return False
    if _is_page(value):
        return any(isinstance(run, dict) and _is_run(run) for run in value["runs"])
    return _is_run(value) or _is_feedback(value)


def parse(value: Any) -> Iterable[Row]:
    """Turn a run or a feedback into rows.

    Raises:
        LineRefused: if it is neither, or lacks what a call needs.
    """
    if not isinstance(value, dict):
        raise LineRefused("not_an_object", f"a JSON {type(value).__name__}, not an object")
    if _is_page(value):
        yield from _parts(value["runs"])
    elif _is_run(value):
        children = items(value.get("child_runs"))
        run = {k: v for k, v in value.items() if k != "child_runs"}
        yield from _parts([run]) if children else _run(run)
        yield from _parts(children)
    elif _is_feedback(value):
        yield _feedback(value)
    else:
        raise LineRefused("unknown_kind", "neither a run nor a feedback of LangSmith")


def _parts(runs: list[Any]) -> Iterator[Row]:
    """Yield the rows of several runs; what is wrong with one leaves the others alone."""
    for run in runs:
        yield from whole_or_refused(partial(parse, run), {"runs": [run]})


def _is_page(value: dict[str, Any]) -> bool:
    return isinstance(value.get("runs"), list)


def _is_run(value: dict[str, Any]) -> bool:
    return "run_type" in value and ("inputs" in value or "dotted_order" in value)


def _is_feedback(value: dict[str, Any]) -> bool:
    return value.keys() >= {"run_id", "key", "feedback_source"}


def _run(row: dict[str, Any]) -> Iterator[Row]:
    run_id = text_cell(row, "id")
    if run_id is None:
        raise LineRefused("bad_record", "id is empty")
    started_at = moment(cell(row, "start_time")) or _time_of_order(row)
    if started_at is None:
        raise LineRefused("no_time", "start_time is empty")
    turn_id = f"{NAME}:{_trace_id(row, run_id)}"
    target: tuple[TargetKind, str] = ("turn", turn_id)
    if str(row["run_type"]).lower() == "llm":
        yield hop_row(_hop(row, run_id, turn_id, started_at))
        target = ("response", run_id)
    else:
        yield Row("skipped", {"reason": f"run_{row['run_type']}"})
    at = moment(cell(row, "end_time")) or started_at
    for name, told in mapping(row.get("feedback_stats")).items():
        stats = mapping(told)
        if stats:
            yield feedback_row(_stats(target, name, stats, at))


def _hop(row: dict[str, Any], run_id: str, turn_id: str, started_at: datetime) -> Hop:
    extra = mapping(row.get("extra"))
    metadata = mapping(extra.get("metadata"))
    invoked = mapping(extra.get("invocation_params"))
    asked = read_input(row.get("inputs"))
    answered = _answered(row)
    model = (
        text_cell(metadata, "ls_model_name")
        or text_cell(invoked, "model", "model_name")
        or asked.model
        or answered.model
    )
    if model is None:
        raise LineRefused("no_model", "neither ls_model_name, the parameters nor the answer tell")
    sampling = {
        name.removeprefix("ls_"): metadata[name]
        for name in ("ls_temperature", "ls_max_tokens", "ls_stop")
        if metadata.get(name) is not None
    }
    told = {name: v for name, v in invoked.items() if name not in _APART and v is not None}
    tools = read_tools(invoked.get("tools") or invoked.get("functions"))
    return Hop(
        source=NAME,
        conversation_id=text_cell(metadata, *_SESSION) or turn_id.removeprefix(f"{NAME}:"),
        turn_id=turn_id,
        user=text_cell(metadata, "user_id", "user"),
        seq=micros(started_at),
        role="answer",
        model=model,
        messages=asked.messages,
        tools=tools if tools != "[]" else asked.tools,
        params=canonical_json({**asked.params, **sampling, **told, **_facts(row)}),
        started_at=started_at,
        duration_s=seconds_between(started_at, moment(cell(row, "end_time"))) or 0.0,
        ttft_s=seconds_between(started_at, _first_token_at(row)),
        span_id=run_id,
        workload=text_cell(metadata, "langgraph_node"),
        **answered.fields(),
    )


def _answered(row: dict[str, Any]) -> Answered:
    outputs = decoded(row.get("outputs"))
    answered = read_output(outputs)
    # After the error itself comes its traceback, without a space between.
    error = (text_cell(row, "error") or "").partition("Traceback (most recent")[0].strip() or None
    if cell(row, "error") is not None or row.get("status") == "error":
        answered = replace(answered, status="engine_error", error=error or "error")
    elif row.get("status") == "pending" or (not cell(row, "end_time") and not outputs):
        answered = replace(answered, status="abandoned", error="the run did not end")
    counted = read_usage({k: row.get(k) for k in ("prompt_tokens", "completion_tokens")})
    beside = read_usage(mapping(outputs).get("usage_metadata"))
    usage = next((u for u in (beside, answered.usage, counted) if u != Usage()), Usage())
    details = mapping(row.get("prompt_token_details"))
    if usage.cached_tokens is None and details:
        usage = replace(usage, cached_tokens=read_usage(details).cached_tokens)
    return replace(answered, usage=usage)


def _first_token_at(row: dict[str, Any]) -> datetime | None:
    told = moment(cell(row, "first_token_time"))
    events = (event for event in items(row.get("events")) if isinstance(event, dict))
    tokens = (moment(event.get("time")) for event in events if event.get("name") == "new_token")
    return told or next(tokens, None)


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    """Return what LangSmith tells beside the parameters, under its name."""
    told: dict[str, Any] = {}
    cost = number(row.get("total_cost"))
    if cost is not None:
        told["total_cost"] = cost
    tags = items(row.get("tags"))
    if tags:
        told["tags"] = tags
    if text_cell(row, "name"):
        told["name"] = row["name"]
    return {"langsmith": told} if told else {}


def _trace_id(row: dict[str, Any], run_id: str) -> str:
    """Return the trace's id, which is the id of its root run."""
    told = text_cell(row, "trace_id")
    order = (text_cell(row, "dotted_order") or "").split(".", 1)[0]
    return told or order.partition("Z")[2] or run_id


def _time_of_order(row: dict[str, Any]) -> datetime | None:
    """Return the run's own time from its place in the trace, `20251129T160000000000Z<id>`."""
    order = (text_cell(row, "dotted_order") or "").rsplit(".", 1)[-1].partition("Z")[0]
    if len(order) != 21:
        return None
    return moment(datetime.strptime(order, "%Y%m%dT%H%M%S%f"))


def _stats(
    target: tuple[TargetKind, str], name: str, stats: dict[str, Any], at: datetime
) -> Feedback:
    """Return the average of one name's votes; of votes without a number, the commonest label."""
    labels = {k: number(v) or 0 for k, v in mapping(stats.get("values")).items()}
    score = number(stats.get("avg"))
    label = max(labels, key=lambda k: (labels[k], k)) if labels and score is None else None
    count = number(stats.get("n"))
    told: dict[str, Any] = {"n": int(count or 0)}
    comments = items(stats.get("comments"))
    if labels:
        told["values"] = labels
    if comments:
        told["comments"] = comments
    return signal(
        NAME,
        target,
        name,
        score=score,
        label=label,
        text=canonical_json(told),
        annotator=_annotator(items(stats.get("sources"))),
        at=at,
    )


def _annotator(sources: list[Any]) -> Annotator | None:
    """Return who voted, if all votes came from one kind of source that tells."""
    kinds = {str(s.get("type") if isinstance(s, dict) else s) for s in sources}
    return _SOURCES.get(kinds.pop()) if len(kinds) == 1 else None


def _feedback(row: dict[str, Any]) -> Row:
    target = _target(row)
    if target is None:
        return Row("skipped", {"reason": "feedback_of_no_run"})
    name, text = str(row["key"]), text_cell(row, "comment")
    source = mapping(row.get("feedback_source"))
    annotator = _annotator([source] if source else [])
    user = text_cell(source, "user_id", "user_name")
    at = moment(cell(row, "modified_at", "created_at")) or UNDATED
    correction = decoded(row.get("correction"))
    if correction not in (None, "", {}, []):
        answer = read_output(correction).completion
        made = edit(NAME, target, name, answer, text=text, annotator=annotator, user=user, at=at)
        return feedback_row(made)
    value = row.get("value")
    label = value if isinstance(value, str) and value else None
    score = number(row.get("score"))
    if score is None and label is None and text is None:
        raise LineRefused("bad_record", "the feedback has neither score, value nor comment")
    made = signal(
        NAME, target, name,
        score=score, label=label, text=text, annotator=annotator, user=user, at=at,
    )  # fmt: skip
    return feedback_row(made)


def _target(row: dict[str, Any]) -> tuple[TargetKind, str] | None:
    """Return what a feedback is about: its run may be one that is no call, so rather the turn."""
    trace_id, run_id = text_cell(row, "trace_id"), text_cell(row, "run_id")
    if trace_id is not None:
        return "turn", f"{NAME}:{trace_id}"
    return None if run_id is None else ("response", run_id)
