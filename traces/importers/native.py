"""Importer of this project's spool: JSON lines, one record a line.

    {"kind": "hop" | "turn" | "feedback", "record": {...}}

The record is as `model_dump(mode="json")` of `serving.records` writes it.
"""

from collections.abc import Iterator
from typing import Any

from serving.records import Feedback, Hop, Turn
from traces.importers.rows import LineRefused, Row, feedback_row, hop_row, turn_row

NAME = "native"


def recognises(value: Any) -> bool:
    """Return whether an item looks like one of the spool's lines."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("record"), dict)
        and isinstance(value.get("kind"), str)
    )


def parse(value: Any) -> Iterator[Row]:
    """Turn a decoded line into a row.

    Raises:
        LineRefused: if `kind` is none of ours.
        ValueError: if the fields are not those of the record.
    """
    record = value.get("record")
    match value.get("kind"):
        case "hop":
            yield hop_row(Hop.model_validate(record))
        case "turn":
            yield turn_row(Turn.model_validate(record), "recorded")
        case "feedback":
            yield feedback_row(Feedback.model_validate(record))
        case other:
            raise LineRefused("unknown_kind", f"kind {other!r} is not hop, turn or feedback")
