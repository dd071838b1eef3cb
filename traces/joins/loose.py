"""Hops that name no turn: one source's are joined into turns, all at once.

    for every source: number its hops by key and time, read from them what the join needs,
    join (see `traces.joins.join`), and write down which hops and requests are which turn's.

Out: rows of `join_places` and `join_asked`, from which `traces.joins.turn_rows` makes the turns.
What is only passed on stays in DuckDB, which keeps it on disk where memory is short.
"""

# Names come from our own declarations; values are bound.
# ruff: noqa: S608

from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from sys import intern
from typing import Any

import duckdb
import pyarrow as pa

from serving.records import NO_KEY
from traces.importers.mindlab_requests import read_request
from traces.joins.histories import NO_NODE, Histories, label_sql, text_hash_sql
from traces.joins.join import Groups, HopFacts, RequestFacts, Unit, group, join
from traces.joins.route_prompts import strip_prompts, tell_texts
from traces.joins.turn_rows import days_of

_ROLES = "ENUM('system', 'user', 'assistant', 'tool')"
_ROLE = "json_extract_string(completion, '$.role')"
_FETCH_ROWS = 2000
_CHUNK_MESSAGES = 1_000_000
_BATCH_ROWS = 20_000


def join_loose(connection: duckdb.DuckDBPyConnection, source: str) -> None:
    """Add the turns of one source's hops without a turn id, and of its client requests."""
    _number_hops(connection, source)
    days = days_of(connection, "join_loose")
    _label_messages(connection, days)
    _write_units(connection, source, days)
    _add_turns(connection, source)


def _write_units(connection: duckdb.DuckDBPyConnection, source: str, days: str) -> None:
    """Join, and write down what is whose; here most of the memory is Python's."""
    histories = Histories()
    requests = _requests(connection, source, histories)
    grouped = group(_facts(connection, histories), texts=bool(requests))
    histories.freeze()
    _write(connection, "join_groups", _GROUPS, _group_rows(grouped, _count(connection)))
    strip_prompts(connection, days)
    if requests:
        tell_texts(connection, grouped.groups)
    units, heads = join(grouped, requests, histories)
    _write(connection, "join_units", _UNITS, _unit_rows(units, heads))
    _write(connection, "join_unit_groups", _PARTS, _unit_groups(units))
    _write(connection, "join_unit_requests", _PARTS, _unit_requests(units))


def _number_hops(connection: duckdb.DuckDBPyConnection, source: str) -> None:
    """Give each hop its place by key and time, from 1."""
    calls = "list_filter(json_extract_string(completion, '$.tool_calls[*].id'), lambda c: c <> '')"
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE join_loose AS
        -- Many logs tell no time, or whole seconds: what saw less of a history came first.
        SELECT row_number() OVER () AS n, * FROM (
            SELECT hop_id, day, conversation_id,
                   CASE WHEN conversation_id <> '{NO_KEY}'
                        THEN {text_hash_sql("conversation_id")} END AS key,
                   "user", role, status = 'ok' AS ok, seq, started_at, message_ids,
                   len(message_ids) AS saw,
                   CASE WHEN completion IS NOT NULL
                        THEN {label_sql("completion", _ROLE)} END AS said,
                   list_transform({calls}, lambda c: md5_number_lower(c)) AS calls
            FROM hops
            WHERE source = $source AND turn_id IS NULL AND hop_id NOT IN
                (SELECT unnest(hop_ids) FROM turns WHERE origin = 'recorded' AND source = $source)
            ORDER BY key, started_at, seq, saw, hop_id
        )
        """,
        {"source": source},
    )


def _label_messages(connection: duckdb.DuckDBPyConnection, days: str) -> None:
    """Read each message once, whatever many hops saw it."""
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE join_labels AS
        SELECT day, message_id, role::{_ROLES} AS role, {label_sql("body", "role")} AS label,
               {text_hash_sql("json_extract_string(body, '$.content')")} AS text,
               CASE WHEN role = 'tool' THEN md5_number_lower(
                   nullif(json_extract_string(body, '$.tool_call_id'), '')) END AS call
        FROM (SELECT * FROM messages WHERE {days})
        SEMI JOIN (SELECT DISTINCT day, unnest(message_ids) AS message_id FROM join_loose)
            USING (day, message_id)
        """
    )


def _facts(connection: duckdb.DuckDBPyConnection, histories: Histories) -> Iterator[HopFacts]:
    """Yield the hops by key and time, a chunk of them at a time."""
    for low, high in _chunks(connection):
        cursor = connection.execute(_FACTS, {"low": low, "high": high})
        while rows := cursor.fetchmany(_FETCH_ROWS):
            for key, user, role, ok, started, text, results, calls, said, labels in rows:
                prior, whole = NO_NODE, NO_NODE
                if role == "answer":
                    prior, whole = histories.add(labels, said)
                yield HopFacts(
                    key, user and intern(user), role, ok, started, text,
                    tuple(results), tuple(calls or ()), prior, whole,
                )  # fmt: skip


_FACTS = f"""
    WITH part AS (SELECT * FROM join_loose WHERE n BETWEEN $low AND $high),
    seen AS MATERIALIZED (
        SELECT p.n, p.place, l.role, l.label, l.text, l.call
        FROM (SELECT n, day, unnest(message_ids) AS message_id,
                     generate_subscripts(message_ids, 1) AS place FROM part) p
        JOIN join_labels l USING (day, message_id)),
    ends AS (
        SELECT n, list({{'place': place, 'label': label}}) FILTER (role <> 'system') AS labels,
               arg_max(text, place) FILTER (role = 'user') AS text,
               coalesce(max(place) FILTER (role <> 'tool'), 0) AS last_other
        FROM seen GROUP BY n),
    results AS (
        SELECT n, list(call) AS calls
        FROM seen JOIN ends USING (n) WHERE place > last_other AND call IS NOT NULL GROUP BY n)
    SELECT p.key, p."user", p.role, p.ok, epoch_us(p.started_at),
           coalesce(e.text, {text_hash_sql("NULL")}), coalesce(r.calls, []), p.calls, p.said,
           coalesce(list_transform(list_sort(e.labels), lambda m: m.label), [])
    FROM part p LEFT JOIN ends e USING (n) LEFT JOIN results r USING (n)
    ORDER BY n
"""


def _chunks(connection: duckdb.DuckDBPyConnection) -> list[tuple[int, int]]:
    """Cut the hops into ranges of about as many messages."""
    return connection.execute(
        "SELECT min(n), max(n) FROM (SELECT n,"
        " sum(len(message_ids) + 1) OVER (ORDER BY n) // $size AS chunk FROM join_loose)"
        " GROUP BY chunk ORDER BY chunk",
        {"size": _CHUNK_MESSAGES},
    ).fetchall()


def _count(connection: duckdb.DuckDBPyConnection) -> int:
    return int(connection.execute("SELECT count(*) FROM join_loose").fetchall()[0][0])


def _requests(
    connection: duckdb.DuckDBPyConnection, source: str, histories: Histories
) -> list[RequestFacts]:
    """Read the client requests; what the join does not need of them goes to `join_requests`."""
    connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE join_bodies AS
        SELECT row_number() OVER (ORDER BY started_at, request_id) AS number, request_id, body
        FROM requests WHERE source = $source ORDER BY number
        """,
        {"source": source},
    )
    _create(connection, "join_requests", _REQUESTS)
    facts: list[RequestFacts] = []
    while rows := connection.execute(
        "SELECT number, request_id, body FROM join_bodies WHERE number BETWEEN $low AND $high",
        {"low": len(facts) + 1, "high": len(facts) + _FETCH_ROWS},
    ).fetchall():
        read = [read_request(number, body, histories) for number, _, body in rows]
        facts += [one.facts for one in read]
        values = [
            (number, key, one.text, one.answer and one.answer.model_dump_json(), one.response_id)
            for (number, key, _), one in zip(rows, read, strict=True)
        ]
        _append(connection, "join_requests", _REQUESTS, values)
    return facts


_REQUESTS = pa.schema(
    [
        ("number", pa.int64()),
        ("request_id", pa.string()),
        ("request", pa.string()),
        ("answer", pa.string()),
        ("response_id", pa.string()),
    ]
)
_GROUPS = pa.schema([("number", pa.int64()), ("first_n", pa.int64()), ("last_n", pa.int64())])
_UNITS = pa.schema(
    [
        ("unit", pa.int64()),
        ("head", pa.int64()),
        ("user", pa.string()),
        ("started_us", pa.int64()),
        ("ended_us", pa.int64()),
        ("conversation", pa.string()),
        ("first_request", pa.int64()),
        ("last_request", pa.int64()),
        ("bare", pa.bool_()),
        ("decision", pa.string()),
        ("abandoned", pa.bool_()),
        ("error", pa.string()),
    ]
)
_PARTS = pa.schema([("unit", pa.int64()), ("rank", pa.int64()), ("number", pa.int64())])


def _group_rows(grouped: Groups, hops: int) -> Iterator[tuple[Any, ...]]:
    ends = [*grouped.starts[1:], hops]
    for number, (first, end) in enumerate(zip(grouped.starts, ends, strict=False)):
        yield number, first + 1, end


def _unit_rows(units: list[Unit], heads: "array[int]") -> Iterator[tuple[Any, ...]]:
    for number, unit in enumerate(units):
        asked = unit.requests
        named = next((r.conversation for r in asked if r.conversation), None)
        said = next((r.decision for r in asked if r.decision), None)
        ended = max((r.ended_us for r in asked if not r.bare), default=None)
        client: tuple[Any, ...] = (None,) * 6
        if asked:
            first, last = asked[0], asked[-1]
            client = (first.number, last.number, first.bare, said, last.abandoned, last.error)
        yield number, heads[number], unit.user, unit.started_us, ended, named, *client


def _unit_groups(units: list[Unit]) -> Iterator[tuple[int, int, int]]:
    for number, unit in enumerate(units):
        for rank, one in enumerate(unit.groups):
            yield number, rank, one.number


def _unit_requests(units: list[Unit]) -> Iterator[tuple[int, int, int]]:
    for number, unit in enumerate(units):
        for rank, request in enumerate(unit.requests):
            yield number, rank, request.number


def _create(connection: duckdb.DuckDBPyConnection, table: str, schema: pa.Schema) -> None:
    connection.register("join_incoming", schema.empty_table())
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {table} AS SELECT * FROM join_incoming")
    connection.unregister("join_incoming")


def _write(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    schema: pa.Schema,
    rows: Iterable[tuple[Any, ...]],
) -> None:
    """Make a temporary table of rows, a batch at a time."""
    _create(connection, table, schema)
    rows = iter(rows)
    while batch := list(islice(rows, _BATCH_ROWS)):
        _append(connection, table, schema, batch)


def _append(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    schema: pa.Schema,
    rows: list[tuple[Any, ...]],
) -> None:
    columns = [
        pa.array(list(c), f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    connection.register("join_incoming", pa.Table.from_arrays(columns, schema=schema))
    connection.execute(f"INSERT INTO {table} SELECT * FROM join_incoming")
    connection.unregister("join_incoming")


def _add_turns(connection: duckdb.DuckDBPyConnection, source: str) -> None:
    connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE join_unit_hops AS
        SELECT p.unit, l.hop_id, l.conversation_id, l.started_at,
               row_number() OVER (PARTITION BY p.unit ORDER BY p.rank, l.n) AS place
        FROM (SELECT u.unit, u.rank, unnest(range(g.first_n, g.last_n + 1)) AS n
              FROM join_unit_groups u JOIN join_groups g USING (number)) p
        JOIN join_loose l USING (n)
        """
    )
    connection.execute(_NAMES)
    connection.execute(
        "INSERT INTO join_places BY NAME SELECT i.turn_id, h.hop_id, h.place, h.started_at"
        " FROM join_unit_hops h JOIN join_unit_ids i USING (unit)"
    )
    connection.execute(_ASKED, {"source": source})


# A turn is known by its first hop, or by its first request if no hop is known, and so is a
# conversation of callers that named none.
_NAMES = f"""
    CREATE OR REPLACE TEMP TABLE join_unit_ids AS
    WITH firsts AS (
        SELECT u.unit, u.head, u.conversation, h.hop_id, r.request_id,
               nullif(h.conversation_id, '{NO_KEY}') AS key
        FROM join_units u
        LEFT JOIN (SELECT * FROM join_unit_hops WHERE place = 1) h USING (unit)
        LEFT JOIN join_requests r ON r.number = u.first_request)
    SELECT f.unit, 'sha256:' || sha256('["turn","' || coalesce(f.hop_id, f.request_id) || '"]')
               AS turn_id,
           coalesce(c.conversation, c.key,
                    'sha256:' || sha256('["conversation","' || c.hop_id || '"]'), c.request_id)
               AS conversation_id
    FROM firsts f JOIN firsts c ON c.unit = f.head
"""

_ASKED = """
    INSERT INTO join_asked BY NAME
    SELECT i.turn_id, $source AS source, i.conversation_id, u."user", u.started_us, u.ended_us,
           CASE WHEN NOT u.bare THEN first.request END AS request, t.text AS routed_request,
           last.answer, ids.response_ids, u.decision, u.abandoned, u.error
    FROM join_units u JOIN join_unit_ids i USING (unit)
    LEFT JOIN join_requests first ON first.number = u.first_request
    LEFT JOIN join_requests last ON last.number = u.last_request
    LEFT JOIN (SELECT p.unit, list(r.response_id ORDER BY p.rank) AS response_ids
               FROM join_unit_requests p JOIN join_requests r USING (number) GROUP BY p.unit) ids
           USING (unit)
    LEFT JOIN (SELECT p.unit, t.text FROM join_unit_groups p JOIN join_routed t USING (number)
               WHERE p.rank = 0) t USING (unit)
"""
