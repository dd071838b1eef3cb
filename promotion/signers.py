"""The keys whose signatures a registry accepts.

The first key that ever signs is entered by itself; each further one by a person
(`flows adapters keys --add`), who can also take one back. One that was taken back stays known as
such, so that nothing enters it again but a person.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from promotion.signing import fingerprint_of
from promotion.tables import Database, signers_table, utc_text, versions_table
from serving.errors import MolError


class UnknownSigner(MolError, PermissionError):
    """A key that the registry does not know."""


class Signers:
    """The table of keys in a registry's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keys(self) -> dict[str, str]:
        """Return the public keys (PEM) by fingerprint, oldest first."""
        with self._database.reading() as connection:
            return _read(connection)

    def admit(self, public_key: str, *, further: bool = False) -> None:
        """Accept a key's signatures if it is the first one ever, or `further` ones are allowed.

        Raises:
            UnknownSigner: if the registry knows other keys, or this one was removed.
        """
        fingerprint = fingerprint_of(public_key)
        if fingerprint in self.keys():
            return
        this = signers_table.c.fingerprint == fingerprint
        with self._database.writing() as connection:
            there = connection.execute(sa.select(signers_table)).all()
            known = _read(connection)
            if fingerprint in known:
                return
            if there and not further:
                raise UnknownSigner(_unknown(fingerprint, there, known))
            row = {"public_key": public_key, "at": utc_text(datetime.now(UTC))}
            if any(one.fingerprint == fingerprint for one in there):
                back = signers_table.update().where(this)
                connection.execute(back.values(row | {"removed_at": None}))
            else:
                insert = signers_table.insert()
                connection.execute(insert.values(row | {"fingerprint": fingerprint}))

    def remove(self, prefix: str) -> str:
        """Accept a key's signatures no more; return its fingerprint.

        Raises:
            UnknownSigner: if no key, or more than one, has a fingerprint that starts so.
        """
        with self._database.writing() as connection:
            known = _read(connection)
            found = [key for key in known if prefix and key.startswith(prefix)]
            if len(found) != 1:
                raise UnknownSigner(
                    f"{'No' if not found else 'More than one'} key {prefix!r} in the registry "
                    f"(it knows {_listed(known)}). Run 'flows adapters keys'."
                )
            this = signers_table.c.fingerprint == found[0]
            removed = {"removed_at": utc_text(datetime.now(UTC))}
            connection.execute(signers_table.update().where(this).values(removed))
            return found[0]

    def signed(self, digest: str, fingerprint: str) -> None:
        """Note which key signed a version that was registered unsigned, or signed it anew."""
        this = versions_table.c.digest == digest
        with self._database.writing() as connection:
            connection.execute(versions_table.update().where(this).values(signer=fingerprint))


def _read(connection: sa.Connection) -> dict[str, str]:
    columns = signers_table.c
    accepted = sa.select(signers_table).where(columns.removed_at.is_(None))
    rows = connection.execute(accepted.order_by(columns.at))
    return {row.fingerprint: row.public_key for row in rows}


def _unknown(fingerprint: str, there: Sequence[sa.Row[Any]], known: dict[str, str]) -> str:
    """Say why a key is not accepted, and what to do."""
    removed = next((one.removed_at for one in there if one.fingerprint == fingerprint), None)
    if removed is None:
        return (
            f"The registry does not know the key {fingerprint[:12]!r} (it knows "
            f"{_listed(known)}). Sign with one of those ('[registry] key' names its "
            "file), or enter this one with 'flows adapters keys --add'."
        )
    return (
        f"The key {fingerprint[:12]!r} was removed from the registry at {removed[:16]} UTC and "
        f"signs no more (the registry knows {_listed(known)}). Name another one's file as 'key' "
        "under '[registry]', or move this one away for a new one to be made, and enter that with "
        "'flows adapters keys --add'."
    )


def _listed(known: dict[str, str]) -> str:
    return ", ".join(repr(key[:12]) for key in known) or "none"
