"""Versions in the registry's tables: add one, find one.

All functions work inside the caller's transaction. Each look-up is answered from an index,
however many versions there are.
"""

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from promotion.state import RegisteredVersion
from promotion.tables import (
    prefix_query,
    record_in,
    utc_text,
    versions_query,
    versions_table,
)
from serving.errors import MolError
from serving.records import parse_adapter_name


class UnknownAdapter(MolError, LookupError):
    """No version, or more than one, answers to this name."""


class VersionConflict(MolError, ValueError):
    """A digest is registered already with other content."""


_ORIGIN = ("slot", "base_digest", "manifest_digest", "run_key", "path")
"""What two registrations of one digest must agree on."""


def version_of(connection: sa.Connection, digest: str) -> RegisteredVersion | None:
    """Return a version by its digest, None if there is none."""
    query = sa.select(versions_table).where(versions_table.c.digest == digest)
    row = connection.execute(query).one_or_none()
    return None if row is None else version_in(row)


def version_in(row: sa.Row[Any]) -> RegisteredVersion:
    """Return a row as a version."""
    return record_in(RegisteredVersion, dict(row._mapping), row.digest)


def version_row(version: RegisteredVersion) -> dict[str, Any]:
    """Return a version as its row."""
    return version.model_dump() | {"created_at": utc_text(version.created_at)}


def add_version(connection: sa.Connection, version: RegisteredVersion) -> RegisteredVersion:
    """Add a version; a second time returns the first, with its metrics and time.

    Raises:
        VersionConflict: if its digest has another slot, origin or path.
    """
    known = version_of(connection, version.digest)
    if known is None:
        connection.execute(versions_table.insert().values(version_row(version)))
        return version
    for field in _ORIGIN:
        if getattr(known, field) != getattr(version, field):
            raise VersionConflict(
                f"Adapter {known.name!r} is registered with {field} {getattr(known, field)!r}, "
                f"not {getattr(version, field)!r}; a version never changes. "
                f"Run 'flows adapters show {known.name}'."
            )
    return known


def list_versions(
    connection: sa.Connection, slot: str | None, limit: int, offset: int
) -> tuple[RegisteredVersion, ...]:
    """Return versions, newest first, of one slot or of all."""
    return tuple(map(version_in, connection.execute(versions_query(slot, limit, offset))))


def made_since(
    connection: sa.Connection, moment: datetime | None
) -> tuple[int, tuple[RegisteredVersion, ...]]:
    """Return how many versions there are, and those made at a moment or later; None: all."""
    count = connection.scalar(sa.select(sa.func.count()).select_from(versions_table))
    query = sa.select(versions_table).order_by(versions_table.c.created_at)
    if moment is not None:
        query = query.where(versions_table.c.created_at >= utc_text(moment))
    return count or 0, tuple(map(version_in, connection.execute(query)))


def unsigned_versions(connection: sa.Connection) -> tuple[RegisteredVersion, ...]:
    """Return the versions that no key has signed, oldest first."""
    query = sa.select(versions_table).where(versions_table.c.signer.is_(None))
    rows = connection.execute(query.order_by(versions_table.c.created_at))
    return tuple(map(version_in, rows))


def find_version(connection: sa.Connection, reference: str) -> RegisteredVersion:
    """Return the version called `L2@3fa9c1d2e4b5`, or whose digest starts so (4 digits on).

    Raises:
        UnknownAdapter: if there is none or more than one, naming some.
        InvalidAdapterName: if it has an `@` but is no adapter name.
    """
    slot, prefix = parse_adapter_name(reference) if "@" in reference else (None, reference)
    prefix = prefix.removeprefix("sha256:")
    found: list[RegisteredVersion] = []
    if len(prefix) >= 4 and set(prefix) <= set("0123456789abcdef"):
        found = list(map(version_in, connection.execute(prefix_query(prefix))))
    matches = [v for v in found if slot in (None, v.slot)]
    if len(matches) == 1:
        return matches[0]
    known = [version.name for version in list_versions(connection, slot, 5, 0)]
    listed = ", ".join(repr(v.name) for v in matches) or ", ".join(map(repr, known)) or "none"
    raise UnknownAdapter(
        f"{'More than one' if matches else 'No'} adapter {reference!r} in the registry "
        f"(there {'are' if matches else 'are, newest first,'} {listed}). "
        "Run 'flows adapters list'."
    )
