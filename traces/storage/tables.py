"""The lake's tables, declared once: DDL and Arrow schemas are rendered from here.

Nested values (tools, answers, signals) are JSON text: Arrow structs would
invent null keys in tool arguments. Lists of ids are real lists, so that SQL can
unnest them. The messages of a hop are rows of their own, see `traces.storage.bodies`.
In: records as rows (dicts). Out: Arrow tables; `traces.storage.row_records` has the way back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from serving.records import canonical_json

Kind = Literal[
    "text", "json", "texts", "int", "float", "bool", "time", "date", "bytes", "id", "ids"
]

_SQL: dict[Kind, str] = {
    "text": "VARCHAR",
    "json": "VARCHAR",
    "texts": "VARCHAR[]",
    "int": "BIGINT",
    "float": "DOUBLE",
    "bool": "BOOLEAN",
    "time": "TIMESTAMP WITH TIME ZONE",
    "date": "DATE",
    "bytes": "BLOB",
    "id": "UUID",
    "ids": "UUID[]",
}
_ARROW: dict[Kind, pa.DataType] = {
    "text": pa.string(),
    "json": pa.string(),
    "texts": pa.list_(pa.string()),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "time": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "bytes": pa.binary(),
    "id": pa.uuid(),
    "ids": pa.list_(pa.uuid()),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `kind` fixes its SQL and its Arrow type."""

    name: str
    kind: Kind
    required: bool = True


def _optional(name: str, kind: Kind) -> Column:
    return Column(name, kind, required=False)


# The UTC date of the record's time; DuckLake keeps each day's rows in files of their own.
_DAY = Column("day", "date")

TABLES: dict[str, tuple[Column, ...]] = {
    "hops": (
        Column("hop_id", "text"),
        Column("schema_version", "int"),
        Column("source", "text"),
        Column("conversation_id", "text"),
        _optional("turn_id", "text"),
        _optional("user", "text"),
        Column("seq", "int"),
        Column("role", "text"),
        Column("model", "text"),
        _optional("served_name", "text"),
        Column("message_ids", "ids"),
        Column("tools", "json"),
        Column("params", "json"),
        _optional("completion", "json"),
        _optional("response_id", "text"),
        _optional("finish_reason", "text"),
        Column("status", "text"),
        _optional("error", "text"),
        _optional("propensity", "float"),
        _optional("confidence", "float"),
        _optional("prompt_tokens", "int"),
        _optional("completion_tokens", "int"),
        _optional("cached_tokens", "int"),
        _optional("prompt_token_ids", "json"),
        _optional("completion_token_ids", "json"),
        Column("started_at", "time"),
        Column("duration_s", "float"),
        _optional("ttft_s", "float"),
        _optional("harness_digest", "text"),
        Column("canary", "bool"),
        _optional("reasoning", "text"),
        _optional("supersedes", "text"),
        _optional("harness_version", "text"),
        _optional("span_id", "text"),
        _optional("workload", "text"),
        _optional("task", "text"),
        _DAY,
    ),
    # Each distinct message once a day; `message_id` is 128 bits of the body's SHA-256.
    "messages": (
        _DAY,
        Column("message_id", "id"),
        Column("role", "text"),
        Column("body", "json"),
    ),
    "turns": (
        Column("turn_id", "text"),
        Column("schema_version", "int"),
        Column("source", "text"),
        Column("conversation_id", "text"),
        _optional("user", "text"),
        Column("position", "int"),
        Column("request", "text"),
        _optional("answer", "json"),
        _optional("slot", "text"),
        _optional("digest", "text"),
        Column("decision", "text"),
        Column("status", "text"),
        _optional("error", "text"),
        Column("hop_ids", "texts"),
        Column("response_ids", "texts"),
        Column("started_at", "time"),
        Column("duration_s", "float"),
        Column("canary", "bool"),
        _optional("supersedes", "text"),
        Column("origin", "text"),
        _optional("workload", "text"),
        _optional("task", "text"),
        _optional("tail", "json"),
        _DAY,
    ),
    "feedback": (
        Column("feedback_id", "text"),
        Column("schema_version", "int"),
        Column("source", "text"),
        Column("target_kind", "text"),
        Column("target_id", "text"),
        Column("kind", "text"),
        Column("name", "text"),
        _optional("value", "float"),
        _optional("correction", "json"),
        _optional("detail", "text"),
        _optional("user", "text"),
        Column("created_at", "time"),
        _optional("annotator", "text"),
        _optional("reference", "json"),
        _DAY,
    ),
    # What a client sent and got, as its capture has it; the hop join reads it.
    "requests": (
        Column("request_id", "text"),
        Column("source", "text"),
        Column("started_at", "time"),
        Column("body", "json"),
    ),
    # What else is to be known of spans than the calls among them, see `traces.joins.span_events`:
    # content that came apart from its span, and agents' spans. `seq` is a time in nanoseconds.
    "span_events": (
        Column("event_id", "text"),
        Column("source", "text"),
        Column("trace_id", "text"),
        Column("span_id", "text"),
        Column("name", "text"),
        Column("seq", "int"),
        Column("occurred_at", "time"),
        Column("body", "json"),
        _DAY,
    ),
    "outcomes": (
        Column("turn_id", "text"),
        _optional("success", "bool"),
        _optional("tier", "text"),
        Column("rule", "text"),
        Column("signals", "json"),
        _optional("correction", "json"),
        _optional("truncated", "bool"),
    ),
    "blame": (
        Column("turn_id", "text"),
        Column("klass", "text"),
        _optional("slot", "text"),
        Column("confidence", "float"),
        Column("evidence", "text"),
        _optional("right_slot", "text"),
        Column("code_version", "text"),
        _optional("hop_id", "text"),
        _optional("method", "text"),
        _optional("verdict", "text"),
        _optional("rule", "text"),
    ),
    # One arm of a counterfactual replay: fresh answers of one version to one turn, and how many
    # of them succeeded. No digest: the bare base model.
    "replays": (
        Column("turn_id", "text"),
        Column("slot", "text"),
        _optional("digest", "text"),
        Column("samples", "int"),
        Column("successes", "int"),
        Column("config", "json"),
        Column("code_version", "text"),
        Column("created_at", "time"),
    ),
    # A better and a worse answer to the same prompt, which is what the hop saw.
    "preferences": (
        Column("pair_id", "text"),
        Column("turn_id", "text"),
        Column("slot", "text"),
        _optional("digest", "text"),
        Column("hop_id", "text"),
        Column("chosen", "json"),
        Column("rejected", "json"),
        Column("source", "text"),
        Column("created_at", "time"),
    ),
    "quarantine": (
        Column("quarantine_id", "text"),
        Column("source", "text"),
        Column("position", "int"),
        Column("reason", "text"),
        Column("detail", "text"),
        Column("raw", "bytes"),
        _optional("format", "text"),
    ),
    # Copies of what the registry and the datasets say, see `traces.provenance`. `version` is
    # the 12 hex digits of `digest` that `turns.digest` and served names bear.
    "adapters": (
        Column("digest", "text"),
        Column("slot", "text"),
        Column("version", "text"),
        Column("base_digest", "text"),
        _optional("manifest_digest", "text"),
        _optional("run_key", "text"),
        Column("created_at", "time"),
        _optional("gate_verdict", "text"),
        _optional("gate_report", "text"),
        _optional("judged_against", "text"),
    ),
    # No digest: the bare base model. `traffic` is the part of the slot's traffic, 1 for all.
    "tenures": (
        Column("tenure_id", "text"),
        Column("slot", "text"),
        _optional("digest", "text"),
        _optional("version", "text"),
        Column("kind", "text"),
        Column("traffic", "float"),
        Column("since", "time"),
        _optional("until", "time"),
        Column("began_by", "text"),
        Column("generation", "int"),
        _optional("gate_report", "text"),
    ),
    "lessons": (
        Column("lesson_id", "text"),
        Column("manifest_digest", "text"),
        Column("slot", "text"),
        Column("example_id", "text"),
        Column("turn_id", "text"),
        Column("hop_id", "text"),
        Column("split", "text"),
        Column("duty", "text"),
        Column("source", "text"),
        Column("weight", "float"),
    ),
    # `source_id` is the hash of a file's first line, or `join:<source>`.
    "offsets": (
        Column("source_id", "text"),
        Column("name", "text"),
        Column("consumed_bytes", "int"),
        Column("consumed_digest", "text"),
        Column("format", "text"),
    ),
    # One row; see `traces.storage.migrations`.
    "lake_version": (Column("version", "int"),),
    # Where the lake was when upkeep had changed it: how old rows without a time are at least,
    # and the day before which records were deleted and are not taken in again.
    "upkeep": (
        Column("day", "date"),
        Column("snapshot_id", "int"),
        _optional("kept_since", "date"),
    ),
}
"""Table name to columns, in order."""

PARTITIONED = frozenset({"hops", "messages", "turns", "feedback", "span_events"})
"""Tables whose files hold one `day` each."""

IN_CATALOG = ("offsets", "lake_version", "upkeep")
"""Tables whose few changes are kept in the catalog, where a commit costs no file."""

_V_HOPS = tuple(
    Column("messages", "json") if c.name == "message_ids" else c for c in TABLES["hops"]
)


def readable(name: str) -> tuple[Column, ...]:
    """Return the columns of a table, or of `v_hops`: hops with their messages."""
    return _V_HOPS if name == "v_hops" else TABLES[name]


class Quick(NamedTuple):
    """Rows that are Arrow tables already; the hops' sources tell of a call once and whole."""

    hops: pa.Table
    messages: pa.Table
    turns: pa.Table


def ddl(table: str) -> str:
    """Render `CREATE TABLE` of one table."""
    lines = (
        f'  "{c.name}" {_SQL[c.kind]}{" NOT NULL" if c.required else ""}' for c in TABLES[table]
    )
    return f"CREATE TABLE {table} (\n" + ",\n".join(lines) + "\n)"


def partition(table: str) -> str:
    """Render the statement that keeps a table's days apart."""
    return f"ALTER TABLE {table} SET PARTITIONED BY (day)"


def add_column(table: str, name: str) -> str:
    """Render `ALTER TABLE` for a column that a lake made by an older version lacks."""
    column = next(c for c in TABLES[table] if c.name == name)
    return f'ALTER TABLE {table} ADD COLUMN "{name}" {_SQL[column.kind]}'


def arrow_schema(table: str) -> pa.Schema:
    """Render the Arrow schema of one table."""
    return pa.schema(
        [pa.field(c.name, _ARROW[c.kind], nullable=not c.required) for c in TABLES[table]]
    )


def arrow_table(table: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Turn rows into an Arrow table of the declared schema.

    Absent keys are null; `json` values are rendered to canonical text here.
    """
    names = [column.name for column in TABLES[table]]
    # Row by row first: to go through all rows for each column would read memory again and again.
    values = zip(*[tuple(map(row.get, names)) for row in rows], strict=True) if rows else ()
    columns = [
        arrow_array(column.kind, list(each))
        for column, each in zip(TABLES[table], values or [()] * len(names), strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=arrow_schema(table))


def arrow_array(kind: Kind, values: list[Any]) -> pa.Array:
    """Turn the values of one column into an Arrow array; ids are 16 bytes each."""
    if kind == "json":
        values = [v if v is None or isinstance(v, str) else canonical_json(v) for v in values]
    elif kind == "time":
        values = [_utc(v) for v in values]
    elif kind == "id":
        return _ids(pa.array(values, pa.binary(16)))
    elif kind == "ids":
        lists = pa.array(values, pa.list_(pa.binary(16)))
        return pa.ListArray.from_arrays(lists.offsets, _ids(lists.values))
    return pa.array(values, _ARROW[kind])


def id_lists(joined: list[bytes]) -> pa.Array:
    """Turn lists of ids, each list its ids one after the other, into an Arrow array."""
    data = b"".join(joined)
    ids = pa.Array.from_buffers(pa.binary(16), len(data) // 16, [None, pa.py_buffer(data)])
    offsets = pa.array([0, *accumulate(len(part) // 16 for part in joined)], pa.int32())
    return pa.ListArray.from_arrays(offsets, _ids(ids))


def utc_times(texts: Sequence[str]) -> pa.Array:
    """Turn times such as `2026-11-01T00:00:00Z` into an Arrow array."""
    return pa.array(texts, pa.string()).cast(_ARROW["time"])


def _ids(storage: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.uuid(), storage)


def _utc(value: Any) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    return datetime.fromisoformat(value).astimezone(UTC)


def day_of(time: datetime) -> date:
    """Return the day a record of this time is kept under."""
    return time.astimezone(UTC).date()
