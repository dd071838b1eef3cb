"""Importer of this project's spool: JSON lines, one record a line.

    {"kind": "hop", ...}       {"kind": "turn", ...}      fields of serving.records
    {"kind": "thumb", "target_kind": ...}                 a Feedback: it has a kind of its own
    {"kind": "feedback", "record": {...}}                 the same, wrapped; allowed for all three

The fields are as `model_dump(mode="json")` writes them.
"""

from typing import Any, get_args

from serving.records import Feedback, FeedbackKind, Hop, Turn
from traces.importers.rows import LineRefused, Row, feedback_row, hop_row, turn_row

NAME = "native"
_SIGNALS = get_args(FeedbackKind)


def recognises(record: dict[str, Any]) -> bool:
    """Return whether a line looks like one of the spool's."""
    fields = _fields(record)
    return "source" in fields and _kind(record) in ("hop", "turn", "feedback")


def parse(record: dict[str, Any]) -> Row:
    """Turn a decoded line into a row.

    Raises:
        LineRefused: if `kind` is none of ours.
        ValueError: if the fields are not those of the record.
    """
    fields = _fields(record)
    match _kind(record):
        case "hop":
            return hop_row(Hop.model_validate(fields))
        case "turn":
            return turn_row(Turn.model_validate(fields), "recorded")
        case "feedback":
            return feedback_row(Feedback.model_validate(fields))
        case other:
            raise LineRefused("unknown_kind", f"kind {other!r} is not hop, turn or feedback")


def _kind(record: dict[str, Any]) -> Any:
    kind = record.get("kind")
    return "feedback" if kind in _SIGNALS and "target_kind" in record else kind


def _fields(record: dict[str, Any]) -> dict[str, Any]:
    wrapped = record.get("record")
    if isinstance(wrapped, dict):
        return wrapped
    fields = dict(record)
    if record.get("kind") in ("hop", "turn"):
        del fields["kind"]
    return fields
