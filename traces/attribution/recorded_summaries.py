"""What the summary hops of turns said, in the order in which the turns are blamed.

In: `judged.picked`, the lake at a snapshot. Out: for each turn, asked in that order, the id of
its last summary hop and what it said. One row is held at a time.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections.abc import Iterator

import duckdb

_FETCH_ROWS = 1000


class RecordedSummaries:
    """A reader that goes along with the stream of turns."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, at: str) -> None:
        """Begin at the first turn of `judged.picked`; `at` is a DuckLake `AT (...)` clause."""
        self._rows = _rows(connection, at)
        self._next = next(self._rows, None)

    def of(self, turn_id: str) -> tuple[str, str] | None:
        """Return hop id and text of the turn's summary; turns are asked for in order, each once."""
        found = None
        while self._next is not None and self._next[0] == turn_id:
            found = self._next[1:]
            self._next = next(self._rows, None)
        return found


def _rows(connection: duckdb.DuckDBPyConnection, at: str) -> Iterator[tuple[str, str, str]]:
    reader = connection.cursor()
    reader.execute("USE lake")
    reader.execute(
        "SELECT p.turn_id, h.hop_id, h.completion ->> 'content' FROM judged.picked p"
        " JOIN (SELECT turn_id, unnest(hop_ids) AS hop_id, generate_subscripts(hop_ids, 1) AS place"
        f" FROM turns {at}) t USING (turn_id)"
        f" JOIN (SELECT hop_id, completion FROM hops {at} WHERE role = 'summary' AND status = 'ok')"
        " h USING (hop_id) WHERE h.completion IS NOT NULL ORDER BY p.key, t.place"
    )
    while fetched := reader.fetchmany(_FETCH_ROWS):
        yield from fetched
