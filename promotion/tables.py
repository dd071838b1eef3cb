"""The registry's tables and the connection to them; SQLite by default, any SQLAlchemy URL.

Writers are serialised: on SQLite by BEGIN IMMEDIATE, elsewhere by a lock on the
row that holds the schema version. Database errors leave here as known errors.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy import exc
from sqlalchemy.schema import CreateColumn

from promotion.sqlite_waits import BUSY_TIMEOUT_S, prepare_sqlite
from serving.addresses import shown_address
from serving.disk import DiskFull
from serving.errors import MolError
from serving.records import SCHEMA_VERSION, Record

R = TypeVar("R", bound=Record)


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

_BYTEWISE = sa.String().with_variant(sa.String(collation="C"), "postgresql")

versions_table = sa.Table(
    "versions",
    metadata,
    # Looked up by its beginning, which must sort bytewise in every database.
    sa.Column("digest", _BYTEWISE, primary_key=True),
    sa.Column("slot", sa.String, sa.ForeignKey("slots.slot"), nullable=False),
    sa.Column("base_digest", sa.String, nullable=False),
    sa.Column("manifest_digest", sa.String),
    sa.Column("run_key", sa.String),
    sa.Column("metrics", sa.JSON, nullable=False),
    sa.Column("path", sa.String, nullable=False),
    # UTC as fixed-width ISO text, which sorts as time does in every database.
    sa.Column("created_at", sa.String, nullable=False),
    # Fingerprint of the key that signed it; NULL where it was registered before there were any.
    sa.Column("signer", sa.String),
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
    # The champion in the payload's state, so that a version's times of service are found.
    sa.Column("champion", sa.String),
    sa.Index("events_by_slot", "slot", "seq"),
    sa.Index("events_by_kind", "slot", "kind", "seq"),
    sa.Index("events_by_champion", "champion", "kind", "seq"),
)

signers_table = sa.Table(
    "signers",
    metadata,
    sa.Column("fingerprint", sa.String, primary_key=True),
    sa.Column("public_key", sa.String, nullable=False),  # PEM
    sa.Column("at", sa.String, nullable=False),
    # When a person took it back; NULL while its signatures are accepted.
    sa.Column("removed_at", sa.String),
)

gate_attempts_table = sa.Table(
    "gate_attempts",
    metadata,
    sa.Column("sealed_set", sa.String, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("slot", sa.String, nullable=False),
    sa.Column("champion", sa.String),  # NULL for the bare base model
    sa.Column("challenger", sa.String, nullable=False),
    sa.Column("alpha", sa.Float, nullable=False),
    sa.Column("report_key", sa.String),  # NULL until the report is written
    sa.Column("at", sa.String, nullable=False),
    sa.Column("question", sa.String, nullable=False),  # digest of all that decides the answer
    # These came later. The order of attempts, which no two machines' clocks tell:
    sa.Column("seq", sa.Integer),
    sa.Column("after_event", sa.Integer),  # the newest event then
    sa.Column("verdict", sa.String),  # NULL without a report, or by earlier code
    sa.Column("asked", sa.String),  # JSON: digests of what the primary suite's items asked
    sa.UniqueConstraint("sealed_set", "question"),
    sa.Index("gate_attempts_by_report", "report_key"),
)

overrides_table = sa.Table(
    "overrides",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("report_key", sa.String, nullable=False),
    sa.Column("slot", sa.String, nullable=False),
    sa.Column("challenger", sa.String, nullable=False),
    sa.Column("by", sa.String, nullable=False),
    sa.Column("reason", sa.String, nullable=False),
    sa.Column("expires_at", sa.String, nullable=False),
    sa.Column("at", sa.String, nullable=False),
    sa.Index("overrides_by_report", "report_key"),
)

_LATER_TABLES = (signers_table, gate_attempts_table, overrides_table)
"""Files of earlier code have none of these, and they are made when one is opened."""
_LATER_COLUMNS = {
    slots_table: frozenset({"canary_percent", *TRAITS}),
    versions_table: frozenset({"signer"}),
    signers_table: frozenset({"removed_at"}),
    events_table: frozenset({"champion"}),
    gate_attempts_table: frozenset({"seq", "after_event", "verdict", "asked"}),
}
"""The same of columns; each may be NULL."""


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
            self.label = shown_address(where)
            with _known_errors(self.label):
                url = _url(where)
        with _known_errors(self.label):
            self.engine = sa.create_engine(url)
        if self.engine.dialect.name == "sqlite":
            prepare_sqlite(self.engine)
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
    def snapshot(self) -> Iterator[sa.Connection]:
        """One read transaction in which all queries see the same state; writers go on."""
        engine = self.engine
        if engine.dialect.name != "sqlite":  # whose transactions are that anyway
            engine = engine.execution_options(isolation_level="REPEATABLE READ")
        with _known_errors(self.label), engine.begin() as connection:
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
                    if connection.dialect.name == "postgresql":
                        # What SQLite's transaction does by itself: one process makes it.
                        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MAKING)))
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
            self._add_what_is_missing()

    def _add_what_is_missing(self) -> None:
        """Give a registry made by earlier code the tables and columns that it lacks."""
        with self.engine.begin() as connection:
            if not _missing_tables(connection) and not _missing_columns(connection):
                return
        with self.writing() as connection:
            metadata.create_all(connection, tables=_missing_tables(connection))
            for column in _missing_columns(connection):
                said = CreateColumn(column).compile(self.engine)
                connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {said}")
                if column is events_table.c.champion:
                    _fill_champions(connection)
                if column is gate_attempts_table.c.after_event:
                    _fill_order(connection)
            for table in _LATER_COLUMNS:
                for index in table.indexes:
                    index.create(connection, checkfirst=True)


def _fill_champions(connection: sa.Connection) -> None:
    """Read every event's champion from its payload, once."""
    columns = events_table.c
    rows = connection.execute(sa.select(columns.seq, columns.payload)).all()
    states = [(row.seq, json.loads(row.payload)["state"]) for row in rows]
    values = [{"number": seq, "champion": state["champion"]} for seq, state in states]
    if values:
        this = events_table.update().where(columns.seq == sa.bindparam("number"))
        connection.execute(this, values)


def _fill_order(connection: sa.Connection) -> None:
    """Number the attempts, and say after which event each came, by their times, once."""
    events, columns = events_table.c, gate_attempts_table.c
    newest = sa.select(sa.func.coalesce(sa.func.max(events.seq), 0)).where(events.at < columns.at)
    others = gate_attempts_table.alias()
    place = sa.select(sa.func.count()).where(others.c.at <= columns.at)
    values = {"seq": place.scalar_subquery(), "after_event": newest.scalar_subquery()}
    connection.execute(gate_attempts_table.update().values(values))


def _missing_tables(connection: sa.Connection) -> list[sa.Table]:
    there = set(sa.inspect(connection).get_table_names())
    return [table for table in _LATER_TABLES if table.name not in there]


def _missing_columns(connection: sa.Connection) -> list[sa.Column[Any]]:
    inspector = sa.inspect(connection)
    missing: list[sa.Column[Any]] = []
    for table, later in _LATER_COLUMNS.items():
        there = {column["name"] for column in inspector.get_columns(table.name)}
        required = {column.name for column in table.columns} - later
        if required <= there:  # else it is somebody else's table; reading it says so
            missing += [c for c in table.columns if c.name in later - there]
    return missing


def _url(text: str) -> sa.URL:
    try:
        return sa.make_url(text)
    except ValueError as error:
        raise exc.ArgumentError("its port is no number") from error


_MAKING = 0x6D6F6C726567
"""`molreg`: the advisory lock of a registry that is made in PostgreSQL."""
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


def record_in(record: type[R], fields: Mapping[str, Any], which: object) -> R:
    """Return what a row holds as a record; `which` names the row.

    Raises:
        CorruptRegistry: naming the field that nothing of this code wrote.
    """
    try:
        return record(**fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise CorruptRegistry(
            f"The registry was altered: {record.__name__} {which!r}: "
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r:.80}. "
            "Restore the registry from a copy, and compare with 'flows adapters verify'."
        ) from error


def utc_text(moment: datetime) -> str:
    """Return a time as the tables keep it."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


@contextlib.contextmanager
def _known_errors(label: str) -> Iterator[None]:
    """Turn database errors into one line that says what to do."""
    try:
        yield
    except MolError:
        raise
    except exc.DBAPIError as error:
        raise _translated(label, error) from error
    except json.JSONDecodeError as error:
        raise CorruptRegistry(
            f"Registry {label!r} was altered: {error.doc!r:.80} is no JSON. Restore it from a copy."
        ) from error
    except (exc.ArgumentError, ModuleNotFoundError, OSError) as error:
        raise RegistryUnavailable(
            f"Cannot open registry {label!r}: {error}. Give a folder as --home or a database URL "
            "such as 'sqlite:///registry.sqlite' or 'postgresql+psycopg://host/name'."
        ) from error


def _translated(label: str, error: exc.DBAPIError) -> MolError:
    detail = " ".join(str(error.orig or error).split())
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
