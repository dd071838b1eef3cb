"""Importer of Eval Protocol's rows: a rollout's messages with the score of an evaluation.

Three shapes are about: rows of a rollout alone, rows whose evaluation is waiting or was stopped,
and evaluated rows. Ids stand in the row or, in newer versions, in `execution_metadata`;
`rollout_status` is `{status, ...}` or, in newer versions, `{code, message, details}`. Source: the
`EvaluationRow` of eval-protocol 0.2 and 0.3.
"""

from collections.abc import Iterator
from typing import Any

from serving.records import UNDATED, canonical_json, content_id
from traces.importers.cells import mapping
from traces.importers.messages import read_answer, read_messages, read_tools, read_usage
from traces.importers.rows import LineRefused, Row, refused
from traces.importers.trajectory import (
    AGENT,
    Fields,
    Status,
    Trajectory,
    comment,
    exchanges,
    objects,
    rows,
    utc,
    verdict,
)

NAME = "eval-protocol"

_OURS = ("rollout_status", "eval_metadata", "evaluation_result", "execution_metadata")
_IDS = ("run_id", "invocation_id", "experiment_id", "cohort_id")
_CODES: dict[Any, Status] = {
    "finished": "ok", 100: "ok", 0: "ok",
    "error": "failed", 13: "failed",
    "stopped": "abandoned", "running": "abandoned", 101: "abandoned", 1: "abandoned",
    10: "abandoned",
}  # fmt: skip
"""A rollout's status by its word, or by its code of google.rpc and two of Eval Protocol's own."""


def recognises(value: Any) -> bool:
    """Return whether an item is a row: messages with what Eval Protocol says of them."""
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        return False
    about = value.get("input_metadata")
    return isinstance(about, dict) and any(name in value for name in _OURS)


def parse(value: Any) -> Iterator[Row]:
    """Yield the hops, the turns and the score of one row.

    Raises:
        LineRefused: if it is none.
    """
    if not isinstance(value, dict) or "messages" not in value:
        raise LineRefused("unknown_kind", "no row of Eval Protocol: it has no messages")
    raws = objects(value["messages"], "messages")
    messages = read_messages(raws)
    if len(messages) != len(raws):
        raise LineRefused("bad_record", "a message holds more than one")
    about = mapping(value.get("input_metadata"))
    asked = mapping(about.get("completion_params"))
    executed = mapping(value.get("execution_metadata"))
    ids = {**executed, **value}
    evaluation = mapping(value.get("eval_metadata"))
    calls = _calls(raws, value.get("usage") or executed.get("usage"))
    status, error = _status(value, bool(calls))
    params = {k: v for k, v in asked.items() if k != "model"}
    metadata = {name: str(ids[name]) for name in _IDS if ids.get(name)}
    trajectory = Trajectory(
        source=NAME,
        conversation_id=str(ids.get("rollout_id") or content_id([about, value["messages"]])),
        messages=messages,
        exchanges=exchanges(messages, calls, status=status, error=error),
        model=str(asked.get("model") or AGENT),
        task=f"{NAME}:{about['row_id']}" if about.get("row_id") else None,
        workload=str(evaluation["name"]) if evaluation.get("name") else None,
        tools=read_tools(value.get("tools")),
        params=canonical_json({**params, "metadata": metadata} if metadata else params),
        started_at=utc(value["created_at"]) if value.get("created_at") else UNDATED,
    )
    yield from rows(trajectory)
    yield from _evaluated(trajectory, value, evaluation, metadata)


def _calls(raws: list[dict[str, Any]], usage: Any) -> dict[int, Fields]:
    """Return the engine calls; token counts are the rollout's, so only of a single call."""
    calls: dict[int, Fields] = {
        n: {"reasoning": read_answer(raw).reasoning}
        for n, raw in enumerate(raws)
        if raw.get("role") == "assistant"
    }
    if len(calls) == 1:
        counted = read_usage(usage)
        ((place, fields),) = calls.items()
        calls[place] = {
            **fields,
            "prompt_tokens": counted.prompt_tokens,
            "completion_tokens": counted.completion_tokens,
            "cached_tokens": counted.cached_tokens,
        }
    return calls


def _status(value: dict[str, Any], answered: bool) -> tuple[Status | None, str | None]:
    """Return the rollout's status; None where it does not tell.

    A rollout is also called finished where the evaluation was stopped before it began.
    """
    said = mapping(value.get("rollout_status"))
    word = said.get("code") if said.get("status") is None else said.get("status")
    status = _CODES.get(word) if isinstance(word, int | str) else None
    if status is None and isinstance(word, int):
        status = "failed"  # any other code of google.rpc is an error
    if status == "ok" and not answered and value.get("evaluation_result") is None:
        return "abandoned", "no answer"
    if status in (None, "ok"):
        return status, None
    told = (said.get(name) for name in ("message", "error_message", "termination_reason"))
    return status, next((str(text) for text in told if text), str(word))


def _evaluated(
    trajectory: Trajectory,
    value: dict[str, Any],
    evaluation: dict[str, Any],
    metadata: dict[str, str],
) -> Iterator[Row]:
    result = value.get("evaluation_result")
    if result is None:
        return
    name = str(evaluation.get("name") or "evaluation")
    found = mapping(result)
    kept = {k: v for k, v in found.items() if k != "score" and v not in (None, {}, [])}
    detail = {**metadata, **kept, "ground_truth": value.get("ground_truth")}
    text = canonical_json({k: v for k, v in detail.items() if v is not None})
    judged = "score" in found and found["score"] is not None
    if found.get("is_score_valid") is False or found.get("error") or not judged:
        yield comment(trajectory, name, text)
        return
    try:
        yield verdict(trajectory, name, found.get("score"), text=text)
    except LineRefused as refusal:
        yield refused(refusal.reason, str(refusal), value)
