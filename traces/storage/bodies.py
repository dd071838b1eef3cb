"""The message store: a hop's messages, each distinct one kept once a day.

An agent's step repeats its whole history, so the prefix of a prompt is most of its
bytes. `hops.message_ids` lists what the call saw in order; `messages` holds the bodies.
Both lie under the hop's day, so that a day can be read and dropped alone.

In: hop rows, inside a commit. Out: hops with their messages again, as records or as
the view `v_hops`. No other module puts them together.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import duckdb
import orjson
import pyarrow as pa
from msgspec import Struct

from serving.records import Hop, Message
from traces.errors import LakeUnavailable
from traces.storage.additions import add_new
from traces.storage.connections import lake_cursor
from traces.storage.row_records import record_of
from traces.storage.tables import TABLES, arrow_array, arrow_schema

_FETCH_ROWS = 1000


class Body(Struct, frozen=True, gc=False):
    """One message as the store keeps it."""

    message_id: bytes
    """The first 128 bits of the SHA-256 of `text`."""
    role: str
    text: str
    """Canonical JSON of the message."""


def body_of(message: Mapping[str, Any]) -> Body:
    """Return the stored form of a message's `model_dump(mode="json")`."""
    # It holds nothing but text, which orjson writes as `canonical_json` does.
    return body_of_text(message["role"], orjson.dumps(message, option=orjson.OPT_SORT_KEYS))


def body_of_text(role: str, canonical: bytes) -> Body:
    """Return the stored form of a message whose canonical JSON is at hand."""
    return Body(hashlib.sha256(canonical).digest()[:16], role, canonical.decode())


def messages_table(bodies: Sequence[tuple[date, Body]]) -> pa.Table:
    """Return the `messages` rows of bodies with their days."""
    columns: dict[str, list[Any]] = {
        "day": [day for day, _ in bodies],
        "message_id": [body.message_id for _, body in bodies],
        "role": [body.role for _, body in bodies],
        "body": [body.text for _, body in bodies],
    }
    arrays = [arrow_array(column.kind, columns[column.name]) for column in TABLES["messages"]]
    return pa.Table.from_arrays(arrays, schema=arrow_schema("messages"))


def add_bodies(connection: duckdb.DuckDBPyConnection, rows: pa.Table) -> None:
    """Add the `messages` rows whose day and id are not there yet, inside a commit."""
    add_new(connection, "messages", rows)


def hops_sql(at: str = "") -> str:
    """Render the query for hops with `messages`; `at` is a DuckLake `AT (...)` clause."""
    return f"""
        SELECT * EXCLUDE (message_ids, bodies),
               CASE WHEN len(bodies) = len(message_ids)
                    THEN '[' || array_to_string(
                        list_transform(list_sort(bodies), lambda b: b.body), ',') || ']'
                    ELSE error('a message of hop ' || hop_id || ' is lost') END AS messages
        FROM (
            SELECT h.*, coalesce((
                SELECT list({{'place': u.place, 'body': m.body}})
                FROM (SELECT unnest(h.message_ids) AS message_id,
                             generate_subscripts(h.message_ids, 1) AS place) u
                JOIN (SELECT * FROM messages {at}) m
                  ON m.day = h.day AND m.message_id = u.message_id), []) AS bodies
            FROM (SELECT * FROM hops {at}) h
        )
    """


def hop_of(
    row: Mapping[str, Any], message_ids: Sequence[str], messages: Mapping[str, Message]
) -> Hop:
    """Return the hop of a row that names its messages, which are at hand.

    Raises:
        LakeUnavailable: if one of them is not.
    """
    lost = next((key for key in message_ids if key not in messages), None)
    if lost is not None:
        raise LakeUnavailable(
            f"Message {lost} of hop {row['hop_id']} is lost: the lake is not whole. Restore its "
            "files from a backup, or move the lake folder away and ingest the traces again."
        )
    bare = record_of(Hop, "v_hops", {**row, "messages": "[]"})
    return bare.model_copy(update={"messages": tuple(messages[key] for key in message_ids)})


def read_hops(
    connection: duckdb.DuckDBPyConnection, where_sql: str = "true", params: Any = None
) -> Iterator[Hop]:
    """Yield the hops that a condition on `hops` picks, with their messages."""
    for _, hop in read_hops_by_id(connection, where_sql, params):
        yield hop


def read_hops_by_id(
    connection: duckdb.DuckDBPyConnection, where_sql: str = "true", params: Any = None
) -> Iterator[tuple[str, Hop]]:
    """Yield hops as `read_hops` does, each with its id, which costs a hash to make anew."""
    cursor = lake_cursor(connection)
    cursor.execute(f"SELECT * FROM ({hops_sql()}) WHERE {where_sql}", params)
    names = [column[0] for column in cursor.description]
    while rows := cursor.fetchmany(_FETCH_ROWS):
        for row in rows:
            values = dict(zip(names, row, strict=True))
            yield values["hop_id"], record_of(Hop, "v_hops", values)
