"""Importer of this project's spool: JSON lines, one record a line.

    {"kind": "hop" | "turn" | "feedback", "record": {...}}

The record is as `model_dump(mode="json")` of `serving.records` writes it.
"""

from typing import Any

from serving.records import Feedback, Hop, Turn
from traces.importers.rows import LineRefused, Row, feedback_row, hop_row, turn_row

NAME = "native"


def recognises(line: dict[str, Any]) -> bool:
    """Return whether a line looks like one of the spool's."""
    return isinstance(line.get("record"), dict) and isinstance(line.get("kind"), str)


def parse(line: dict[str, Any]) -> Row:
    """Turn a decoded line into a row.

    Raises:
        LineRefused: if `kind` is none of ours.
        ValueError: if the fields are not those of the record.
    """
    record = line.get("record")
    match line.get("kind"):
        case "hop":
            return hop_row(Hop.model_validate(record))
        case "turn":
            return turn_row(Turn.model_validate(record), "recorded")
        case "feedback":
            return feedback_row(Feedback.model_validate(record))
        case other:
            raise LineRefused("unknown_kind", f"kind {other!r} is not hop, turn or feedback")
