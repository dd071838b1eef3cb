"""Rows of `span_events`: what else is to be known of spans than the calls among them.

Log records that hold what was said in a call of another line: OpenTelemetry's own
instrumentations put prompts and answers into those, so that they travel apart from their span.
And spans of agents, because feedback may name one: it is about the turn of its trace.
In: an `Event`, a `Span`. Out: a row, and the event again.
"""

import json
from collections.abc import Mapping
from typing import Any

from serving.records import canonical_json, content_id
from traces.importers.rows import Row
from traces.importers.spans import Event, Span, at_ns

AGENT = "span_agent"
"""`name` of a row that stands for an agent's span."""


def span_event_row(source: str, event: Event) -> Row:
    """Return the row of an event."""
    body = {"attributes": event.attributes, "body": event.body}
    return _row(source, (event.trace_id, event.span_id), event.name, event.time_ns, body)


def agent_row(source: str, span: Span) -> Row:
    """Return the row of a span that is an agent's, a chain's or a workflow's."""
    return _row(source, (span.trace_id, span.span_id), AGENT, span.start_ns // 1000 * 1000, {})


def _row(source: str, ids: tuple[str, str], name: str, time_ns: int, body: dict[str, Any]) -> Row:
    occurred_at = at_ns(time_ns)
    values = {
        "event_id": content_id([source, *ids, name, time_ns, body]),
        "source": source,
        "trace_id": ids[0],
        "span_id": ids[1],
        "name": name,
        "seq": time_ns,
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
