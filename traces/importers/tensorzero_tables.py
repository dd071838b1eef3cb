"""Importer of TensorZero's tables: inferences, feedback and dataset rows.

    ChatInference, JsonInference (as stored, or as the gateway's API lists them)  -> a hop
    ChatInferenceDatapoint, JsonInferenceDatapoint with an output                 -> a hop
    BooleanMetricFeedback, FloatMetricFeedback, CommentFeedback, DemonstrationFeedback -> feedback
    everything else, a ModelInference row among them                -> skipped, with the reason

An episode is a turn: the calls of one piece of work, with one outcome. The function is the name
asked for, the variant the adapter that answered. A `ModelInference` row tells of the same call
as its inference's row, and one line cannot know of the other; so it is never a hop. The input is
kept as the caller gave it: where a variant's template wrote the prompt, its name and arguments
stand in the message. Source: TensorZero docs, "Data Model"; client 2026.6, `generated_types.py`.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from serving.records import UNDATED, Feedback, Hop, TargetKind, canonical_json
from traces.importers.cells import items, mapping, micros, moment, number, required, text_cell
from traces.importers.messages import decoded, read_answer, read_messages, read_tools
from traces.importers.parts import json_text
from traces.importers.rows import LineRefused, Row, feedback_row, hop_row
from traces.importers.signals import edit, signal

NAME = "tensorzero"

_SKIPPED = (
    ("model_inference", ("inference_id", "raw_response")),
    ("model_inference", ("inference_id", "model_provider_name")),
    ("model_inference_cache", ("long_cache_key",)),
    ("batch_request", ("batch_id", "batch_params")),
    ("batch_model_inference", ("batch_id", "inference_id")),
    ("dynamic_in_context_learning_example", ("namespace", "embedding")),
)
_AGENTS = ("tensorzero::evaluator_inference_id", "tensorzero::evaluator_name")
_HUMAN = "tensorzero::human_feedback"


def recognises(value: Any) -> bool:
    """Return whether an item is a row of one of TensorZero's tables."""
    return isinstance(value, dict) and _table(value) is not None


def parse(value: Any) -> Iterable[Row]:
    """Turn a row into rows of ours.

    Raises:
        LineRefused: if it is a row of none of the tables, or lacks what its table requires.
    """
    match _table(value):
        case "inference":
            yield from _inference(value)
        case "datapoint":
            yield _datapoint(value)
        case "metric" | "comment" | "demonstration" as table:
            yield feedback_row(_feedback(value, table))
        case None:
            raise LineRefused("unknown_kind", f"a row of none of TensorZero's tables: {[*value]}")
        case other:
            yield Row("skipped", {"reason": other})


def _table(row: dict[str, Any]) -> str | None:
    """Return which table a row is of, told by its columns."""

    def has(*names: str) -> bool:
        return all(name in row for name in names)

    for name, columns in _SKIPPED:
        if has(*columns):
            return name
    if has("function_name", "variant_name", "input"):
        return "inference"
    if has("function_name", "dataset_name", "input"):
        return "datapoint"
    if has("id", "target_id", "metric_name", "value"):
        return "metric"
    if has("target_id", "target_type", "value"):
        return "comment"
    if has("id", "inference_id", "value"):
        return "demonstration"
    return None


def _inference(row: dict[str, Any]) -> Iterable[Row]:
    """Yield the hop of an inference, and the answer that was preferred to its own, if any."""
    inference_id = required(row, "inference_id" if "inference_id" in row else "id")
    own, better = row.get("output"), None
    rejected = items(row.get("dispreferred_outputs"))
    if rejected:
        # The API lists the demonstration as the output, and what was answered as dispreferred.
        own, better = rejected[0], own
    served = required(row, "variant_name")
    hop = _hop(row, inference_id, served=served, output=own)
    yield hop_row(hop)
    if better is not None:
        preferred = _answer(better).message
        target: tuple[TargetKind, str] = ("response", inference_id)
        at, user = hop.started_at, _user(row)
        yield feedback_row(edit(NAME, target, "demonstration", preferred, user=user, at=at))


def _datapoint(row: dict[str, Any]) -> Row:
    """Return the hop of a dataset row: an answer to learn from, by nobody that is known."""
    if _true(row.get("is_deleted")):
        return Row("skipped", {"reason": "datapoint_deleted"})
    if row.get("staled_at"):
        return Row("skipped", {"reason": "datapoint_replaced"})
    if decoded(row.get("output")) in (None, "", [], {}):
        return Row("skipped", {"reason": "datapoint_without_output"})
    return hop_row(_hop(row, required(row, "id"), served=None, output=row["output"]))


def _hop(row: dict[str, Any], call_id: str, *, served: str | None, output: Any) -> Hop:
    started_at = _time_of_id(call_id) or moment(row.get("timestamp") or row.get("updated_at"))
    started_at = started_at or UNDATED
    answer = _answer(output)
    episode = text_cell(row, "episode_id") or call_id
    duration_ms, ttft_ms = number(row.get("processing_time_ms")), number(row.get("ttft_ms"))
    return Hop(
        source=NAME,
        conversation_id=episode,
        turn_id=f"{NAME}:{episode}",
        user=_user(row),
        seq=micros(started_at),
        role="answer",
        model=required(row, "function_name"),
        served_name=served,
        messages=read_messages(_input(row["input"])),
        tools=_tools(row),
        params=canonical_json(_params(row)),
        completion=answer.message,
        reasoning=answer.reasoning,
        finish_reason=answer.finish_reason,
        response_id=call_id,
        span_id=call_id,
        status="ok",
        started_at=started_at,
        duration_s=(duration_ms or 0.0) / 1000,
        ttft_s=None if ttft_ms is None else ttft_ms / 1000,
        workload=text_cell(row, "function_name"),
    )


def _feedback(row: dict[str, Any], table: str) -> Feedback:
    target_id = required(row, "inference_id" if table == "demonstration" else "target_id")
    at = _time_of_id(row.get("id")) or moment(row.get("timestamp")) or UNDATED
    tags = mapping(row.get("tags"))
    user = text_cell(tags, "author", "user_id", "user")
    # A metric's row does not tell its level; an episode's id is its conversation's.
    episode = row.get("target_type") == "episode"
    target: tuple[TargetKind, str] = ("conversation" if episode else "response", target_id)
    if table == "demonstration":
        answer = _answer(row["value"]).message
        return edit(NAME, target, "demonstration", answer, user=user, at=at)
    if table == "comment":
        text = str(row["value"])
        return signal(NAME, target, "comment", text=text, annotator="human", user=user, at=at)
    value = row["value"]
    score = number(value)
    if score is None:
        raise LineRefused("bad_record", f"the metric's value {value!r} is no number")
    automatic = any(name in tags for name in _AGENTS)
    return signal(
        NAME,
        target,
        required(row, "metric_name"),
        score=score,
        annotator="model" if automatic else "human" if _HUMAN in tags else None,
        user=user,
        at=at,
    )


def _input(value: Any) -> list[Any]:
    """Return the input's messages; the system prompt is a text or a template's arguments."""
    given = decoded(value)
    if not isinstance(given, dict):
        raise LineRefused("bad_record", f"the input is a {type(given).__name__}, not an object")
    system = given.get("system")
    head = [{"role": "system", "content": json_text(system)}] if system else []
    return head + [_message(raw) for raw in items(given.get("messages"))]


def _message(raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    content = raw.get("content")
    # Before content blocks there were plain texts and template arguments.
    blocks = content if isinstance(content, list) else [content]
    return {**raw, "content": [_block(block) for block in blocks]}


def _block(block: Any) -> Any:
    """Return a content block with TensorZero's own kinds in terms that are read elsewhere."""
    if not isinstance(block, dict):
        return block
    match block.get("type"):
        case "text" if "text" not in block:
            told = block.get("value", block.get("arguments"))
            return told if isinstance(told, str) else _template({"arguments": told})
        case "raw_text":
            return str(block.get("value") or "")
        case "template":
            return _template(block)
        case "thought":
            return {"type": "reasoning", "text": block.get("text") or block.get("summary")}
        case "tool_call":
            name = block.get("name") or block.get("raw_name")
            given = block.get("arguments")
            given = block.get("raw_arguments") if given is None else given
            return {**block, "name": name, "arguments": given}
        case None:
            return _template({"arguments": block})
        case _:
            return block


def _template(block: dict[str, Any]) -> str:
    words = ["template", block.get("name"), canonical_json(block.get("arguments"))]
    return f"[{' '.join(str(word) for word in words if word)}]"


def _answer(output: Any) -> Any:
    """Read an output: content blocks, a JSON function's raw and parsed, or plain text."""
    output = decoded(output)
    if isinstance(output, dict) and ("raw" in output or "parsed" in output):
        raw, parsed = output.get("raw"), output.get("parsed")
        output = raw if isinstance(raw, str) or parsed is None else json_text(parsed)
    elif isinstance(output, dict) and "type" not in output:
        output = canonical_json(output)
    if isinstance(output, list):
        output = [_block(block) for block in output]
    return read_answer(output)


def _tools(row: dict[str, Any]) -> str:
    legacy = mapping(row.get("tool_params"))
    names = ("dynamic_tools", "additional_tools")
    tools = [tool for name in names for tool in items(row.get(name))]
    tools += items(legacy.get("tools_available"))
    return read_tools(tools)


def _params(row: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters of the variant's kind, and what shapes the output."""
    params: dict[str, Any] = {}
    for kind, told in mapping(row.get("inference_params")).items():
        params |= told if isinstance(told, dict) else {kind: told}
    legacy = mapping(row.get("tool_params"))
    for name in ("tool_choice", "parallel_tool_calls", "allowed_tools", "output_schema"):
        told = decoded(row.get(name) if row.get(name) is not None else legacy.get(name))
        if told not in (None, "", [], {}):
            params[name] = told
    if row.get("dataset_name"):
        params["dataset_name"] = row["dataset_name"]
    return params


def _user(row: dict[str, Any]) -> str | None:
    return text_cell(mapping(row.get("tags")), "user_id", "user")


def _true(value: Any) -> bool:
    return number(value) == 1.0


def _time_of_id(value: Any) -> datetime | None:
    """Return the time that a UUID of version 7 carries in its first 48 bits (RFC 9562, 5.7)."""
    try:
        known = UUID(str(value))
    except ValueError:
        return None
    return UNDATED + timedelta(milliseconds=known.int >> 80) if known.version == 7 else None
