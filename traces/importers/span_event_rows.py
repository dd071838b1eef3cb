"""Rows of `span_events`: log records that hold what was said in a call of another line.

OpenTelemetry's own instrumentations put prompts and answers into log records that name the span,
so that they travel apart from it. In: an `Event`. Out: a row, and the event again.
"""

import json
from collections.abc import Mapping
from typing import Any

from serving.records import canonical_json, content_id
from traces.importers.rows import Row
from traces.importers.spans import Event, at_ns


def span_event_row(source: str, event: Event) -> Row:
    """Return the row of an event."""
    body = {"attributes": event.attributes, "body": event.body}
    occurred_at = at_ns(event.time_ns)
    identity = [source, event.trace_id, event.span_id, event.name, event.time_ns, body]
    values = {
        "event_id": content_id(identity),
        "source": source,
        "trace_id": event.trace_id,
        "span_id": event.span_id,
        "name": event.name,
        "seq": event.time_ns,
        "occurred_at": occurred_at,
        "body": canonical_json(body),
        "day": occurred_at.date(),
    }
    return Row("span_events", values)


def event_of(row: Mapping[str, Any]) -> Event:
    """Return the event that a row holds."""
    told = json.loads(row["body"])
    return Event(
        name=row["name"],
        time_ns=row["seq"],
        attributes=told["attributes"],
        body=told["body"],
        trace_id=row["trace_id"],
        span_id=row["span_id"],
    )
