"""What a view and a macro of the lake are: a name, one line that says what it gives, and SQL.

Both are stored in the lake's catalog, so that any DuckDB that attaches it has them.
"""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class View:
    """A named query with one line that says what a row is."""

    name: str
    doc: str
    sql: str

    @property
    def comment(self) -> str:
        """Text stored with the view; it changes with the SQL, so that old lakes are updated."""
        return f"{self.doc} [{hashlib.sha256(self.sql.encode()).hexdigest()[:8]}]"


@dataclass(frozen=True, slots=True)
class Macro:
    """A named expression. DuckLake keeps no comments of macros: one never changes its meaning."""

    name: str
    doc: str
    sql: str
    """Parameters and body, as `CREATE MACRO name` wants them."""
