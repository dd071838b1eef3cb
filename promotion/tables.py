"""The registry's tables and the connection to them; SQLite by default, any SQLAlchemy URL.

Writers are serialised: on SQLite by BEGIN IMMEDIATE, elsewhere by a lock on the
row that holds the schema version. Database errors leave here as known errors.
"""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.schema import CreateColumn

from serving.disk import DiskFull
from serving.errors import MolError
from serving.records import SCHEMA_VERSION

BUSY_TIMEOUT_S = 30


class CorruptRegistry(MolError, RuntimeError):
    """The registry is not a registry, or its parts contradict each other."""


class RegistryUnavailable(MolError, ConnectionError):
    """The registry's database cannot be reached."""


class RegistryBusy(MolError, TimeoutError):
    """Another process held the registry for too long."""


metadata = sa.MetaData()

meta_table = sa.Table(
    "registry_meta",
    metadata,
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("value", sa.String, nullable=False),
)

slots_table = sa.Table(
    "slots",
    metadata,
    sa.Column("slot", sa.String, primary_key=True),
    sa.Column("base_digest", sa.String),
    sa.Column("champion", sa.String),
    sa.Column("previous", sa.String),
    sa.Column("canary", sa.String),
    sa.Column("generation", sa.Integer, nullable=False),
    # From here on NULL where nobody said it yet: these came later, and old files get them.
    sa.Column("canary_percent", sa.Float),
    sa.Column("role", sa.String),
    sa.Column("description", sa.String),
    sa.Column("routing_rule", sa.String),
    sa.Column("tier", sa.String),
    sa.Column("system", sa.String),
    sa.Column("offers_tools", sa.Boolean),
)

TRAITS = ("role", "description", "routing_rule", "tier", "system", "offers_tools")
"""Columns of what a slot is for."""
_LATER_COLUMNS = frozenset({"canary_percent", *TRAITS})

versions_table = sa.Table(
    "versions",
    metadata,
    sa.Column("digest", sa.String, primary_key=True),
    sa.Column("slot", sa.String, sa.ForeignKey("slots.slot"), nullable=False),
    sa.Column("base_digest", sa.String, nullable=False),
    sa.Column("manifest_digest", sa.String),
    sa.Column("run_key", sa.String),
    sa.Column("metrics", sa.JSON, nullable=False),
    sa.Column("path", sa.String, nullable=False),
    # UTC as fixed-width ISO text, which sorts as time does in every database.
    sa.Column("created_at", sa.String, nullable=False),
    sa.Index("versions_by_slot", "slot", "created_at", "digest"),
    sa.Index("versions_by_age", "created_at", "digest"),
)

events_table = sa.Table(
    "events",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.String, nullable=False),
    sa.Column("slot", sa.String, sa.ForeignKey("slots.slot"), nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("payload", sa.String, nullable=False),
    # A report promotes once: what was rolled back does not return by an old report.
    sa.Column("report_key", sa.String, unique=True),
    sa.Column("previous_hash", sa.String, nullable=False, unique=True),
    sa.Column("hash", sa.String, nullable=False),
    sa.Index("events_by_slot", "slot", "seq"),
)


class Database:
    """An engine with the registry's tables in it."""

    def __init__(self, where: Path | str) -> None:
        """Open `registry.sqlite` in a home folder, or any database by URL.

        Raises:
            CorruptRegistry: if there is something else in its place.
            RegistryUnavailable: if it cannot be reached or created.
        """
        if isinstance(where, Path):
            with _known_errors(str(where)):
                where.mkdir(parents=True, exist_ok=True)
            file = where / "registry.sqlite"
            self.label = str(file)
            url = sa.URL.create("sqlite", database=str(file))
        else:
            self.label = where.rsplit("@", 1)[-1]  # without user and password
            with _known_errors(self.label):
                url = sa.make_url(where)
        with _known_errors(self.label):
            self.engine = sa.create_engine(url)
        if self.engine.dialect.name == "sqlite":
            _prepare_sqlite(self.engine)
        self._immediate = self.engine.execution_options(immediate=True)
        try:
            self._create()
        except BaseException:
            self.engine.dispose()
            raise

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """One read transaction."""
        with _known_errors(self.label), self.engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """One write transaction; no other writer runs meanwhile, and an exception undoes it."""
        with _known_errors(self.label), self._immediate.begin() as connection:
            connection.execute(_SCHEMA_ROW.with_for_update())
            yield connection

    def _create(self) -> None:
        with _known_errors(self.label):
            with self.engine.begin() as connection:
                complete = sa.inspect(connection).has_table(events_table.name)
            if not complete:
                with self._immediate.begin() as connection:
                    metadata.create_all(connection)
                    if connection.scalar(_SCHEMA_ROW) is None:
                        row = {"key": "schema_version", "value": str(SCHEMA_VERSION)}
                        connection.execute(meta_table.insert().values(row))
            with self.engine.begin() as connection:
                found = connection.scalar(_SCHEMA_ROW)
        if found != str(SCHEMA_VERSION):
            raise CorruptRegistry(
                f"Registry {self.label!r} has schema version {found!r}; this code reads "
                f"{SCHEMA_VERSION!r}. Use the version of the code that wrote it, or another --home."
            )
        with _known_errors(self.label):
            self._add_later_columns()

    def _add_later_columns(self) -> None:
        """Give a registry made by earlier code the columns that it lacks."""
        with self.engine.begin() as connection:
            if not _missing_columns(connection):
                return
        with self.writing() as connection:
            for column in _missing_columns(connection):
                said = CreateColumn(column).compile(self.engine)
                connection.exec_driver_sql(f"ALTER TABLE {slots_table.name} ADD COLUMN {said}")


def _missing_columns(connection: sa.Connection) -> list[sa.Column[Any]]:
    there = {column["name"] for column in sa.inspect(connection).get_columns(slots_table.name)}
    if "generation" not in there:  # somebody else's table; reading it says so
        return []
    return [c for c in slots_table.columns if c.name in _LATER_COLUMNS - there]


_SCHEMA_ROW = sa.select(meta_table.c.value).where(meta_table.c.key == "schema_version")


def versions_query(slot: str | None, limit: int, offset: int) -> sa.Select[Any]:
    """Newest versions first; answered from an index, whatever their number."""
    columns = versions_table.c
    query = sa.select(versions_table).order_by(columns.created_at.desc(), columns.digest.desc())
    if slot is not None:
        query = query.where(columns.slot == slot)
    return query.limit(limit).offset(offset)


def prefix_query(prefix: str) -> sa.Select[Any]:
    """Versions whose digest starts with these hex digits; a range, so that the key serves it."""
    digest = versions_table.c.digest
    low, high = f"sha256:{prefix}", f"sha256:{prefix}g"
    return sa.select(versions_table).where(digest >= low, digest < high).limit(5)


def utc_text(moment: datetime) -> str:
    """Return a time as the tables keep it."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _prepare_sqlite(engine: sa.Engine) -> None:
    """Let SQLAlchemy's transactions be SQLite's: the driver's own come too late for a CAS."""

    def connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000}")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=FULL")
        _use_wal(connection)

    def begun(connection: sa.Connection) -> None:
        immediate = connection.get_execution_options().get("immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    sa.event.listen(engine, "connect", connected)
    sa.event.listen(engine, "begin", begun)


def _use_wal(connection: Any) -> None:
    """Switch to write-ahead logging, which stays on; SQLite does not wait for locks here."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextlib.contextmanager
def _known_errors(label: str) -> Iterator[None]:
    """Turn database errors into one line that says what to do."""
    try:
        yield
    except MolError:
        raise
    except exc.DBAPIError as error:
        raise _translated(label, error) from error
    except (exc.ArgumentError, ModuleNotFoundError, OSError) as error:
        raise RegistryUnavailable(
            f"Cannot open registry {label!r}: {error}. Give a folder as --home or a database URL "
            "such as 'sqlite:///registry.sqlite' or 'postgresql+psycopg://host/name'."
        ) from error


def _translated(label: str, error: exc.DBAPIError) -> MolError:
    detail = str(error.orig or error)
    if "locked" in detail:
        return RegistryBusy(
            f"Registry {label!r} was held by another process for {BUSY_TIMEOUT_S} s. "
            "Nothing was changed; run it again when the other one is done."
        )
    if "disk" in detail and ("full" in detail or "I/O" in detail):
        return DiskFull(
            f"Cannot write registry {label!r}: {detail}. Nothing was changed; free some space "
            "and run it again."
        )
    if isinstance(error, exc.OperationalError) and "no such" not in detail:
        return RegistryUnavailable(
            f"Cannot use registry {label!r}: {detail}. Check that it exists and may be written."
        )
    return CorruptRegistry(
        f"Registry {label!r} is damaged or is something else: {detail}. "
        "Restore it from a copy, or move it away and run 'flows adapters list' to start a new one."
    )
