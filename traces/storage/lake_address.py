"""Where a home's lake lies: catalog in SQLite or PostgreSQL, files in a folder or in S3.

The address is a property of the home, kept in `<home>/lake/address.json` by the first
command that is given one; a home without that file has its lake beside it. No secret is
part of an address: passwords and keys are read from the environment when the lake is
attached. In: settings and a home. Out: an `Address`, or an attached DuckDB connection.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from serving.disk import write_atomic
from serving.errors import MolError
from traces.config import LakeConfig
from traces.storage.connections import remember

if TYPE_CHECKING:
    import duckdb

FILE = "address.json"
MEMORY_LIMIT = "1GB"
BUSY_MS = 30_000
"""How long SQLite waits for another process's commit."""


class LakeAddressRefused(MolError, ValueError):
    """The settings name no usable address, or another one than the home's."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where catalog and files are; None means in the home."""

    catalog: str | None = None
    """libpq connection string without a password."""
    data: str | None = None
    """`s3://bucket/prefix`, without a slash at the end."""

    def describe(self, home: Path) -> str:
        """Return the address as a person reads it."""
        catalog = self.catalog or str(home / "lake" / "catalog.sqlite")
        return f"catalog {catalog!r}, files in {self.data or str(home / 'lake' / 'data')!r}"


def address_of(home: Path, config: LakeConfig) -> Address:
    """Return where the home's lake is, or where the settings would put its first one.

    Settings that name no address mean whatever the home has.

    Raises:
        LakeAddressRefused: if they name another one than the home's, or one that cannot be used.
    """
    wanted = _parse(config)
    settled = read_address(home)
    if wanted in (Address(), settled):
        return settled
    if settled == Address() and not (home / "lake" / "catalog.sqlite").exists():
        return wanted
    raise LakeAddressRefused(
        f"The lake of {str(home)!r} has its {settled.describe(home)}; the settings want "
        f"{wanted.describe(home)}. A lake does not move: use the settings it was made with, "
        "or ingest the traces into another '--home'."
    )


def settle_address(home: Path, config: LakeConfig) -> Address:
    """Return the home's address; the settings' one is the home's from now on if it had none.

    Raises:
        LakeAddressRefused: as `address_of` does; nothing is written then.
    """
    address = address_of(home, config)
    if address != read_address(home):
        text = json.dumps(asdict(address), indent=1)
        write_atomic(home / "lake" / FILE, text.encode() + b"\n")
    return address


def read_address(home: Path) -> Address:
    """Return the home's address.

    Raises:
        LakeAddressRefused: if its file is damaged.
    """
    path = home / "lake" / FILE
    try:
        return Address(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return Address()
    except (OSError, ValueError, TypeError) as error:
        raise LakeAddressRefused(
            f"{str(path)!r} cannot be read as a lake's address. It holds 'catalog' and 'data' as "
            "in the settings; restore it, or remove it if the lake lies in the home."
        ) from error


def attach(
    root: Path, address: Address, *, read_only: bool = False, create: bool = False
) -> "duckdb.DuckDBPyConnection":
    """Return a new DuckDB connection with the lake as its default schema.

    `create` makes the lake; only one process may at a time.

    Raises:
        LakeAddressRefused: if a package or a key is missing, or another lake's files are in the
            way of a new one.
        duckdb.Error: if the lake cannot be attached; `is_missing` tells whether there is none.
    """
    import duckdb

    _load_extensions(address)
    # No secrets but those of this process's environment.
    secrets = str(root / "tmp" / "secrets")
    connection = remember(
        duckdb.connect(config={"memory_limit": MEMORY_LIMIT, "secret_directory": secrets})
    )
    try:
        connection.execute(f"SET temp_directory = {quoted(str(root / 'tmp'))}")
        connection.execute("SET TimeZone = 'UTC'")
        # DuckDB draws a bar on stdout, which is for data, when a query takes long.
        connection.execute("SET enable_progress_bar = false")
        # A commit on top of another's is to fail, not to be tried again by DuckLake: rows that
        # are new to a snapshot may be known in the next. `Lake.commit` asks again and tries.
        connection.execute("LOAD ducklake")
        connection.execute("SET ducklake_max_retry_count = 0")
        # Rows kept in the catalog make old snapshots wrong once they are written to files
        # (seen with 1.5.5), so only tables that nobody reads as they were have some.
        connection.execute("SET ducklake_default_data_inlining_row_limit = 0")
        if address.data is not None:
            connection.execute("LOAD httpfs")
            # It copies the environment's keys into settings, which any query could read.
            for name in ("s3_access_key_id", "s3_secret_access_key", "s3_session_token"):
                connection.execute(f"SET {name} = ''")
            connection.execute(_secret(os.environ))
        connection.execute(f"LOAD {_catalog_extension(address)}")
        if create and address.data is not None:
            _refuse_used_prefix(connection, address.data)
        connection.execute(_attach_statement(root, address, read_only, create))
        connection.execute("USE lake")
    except BaseException:
        connection.close()
        raise
    return connection


def quoted(text: str) -> str:
    """Render a SQL string."""
    return "'" + text.replace("'", "''") + "'"


def is_missing(error: Exception) -> bool:
    """Return whether `attach` failed because there is no lake yet."""
    return "creating a new DuckLake is explicitly disabled" in str(error)


def _refuse_used_prefix(connection: "duckdb.DuckDBPyConnection", data: str) -> None:
    """Refuse a prefix with files in it: upkeep removes files that its own lake does not know."""
    files = connection.execute(f"FROM glob({quoted(data + '/**')}) LIMIT 1").fetchone()
    if files is not None:
        raise LakeAddressRefused(
            f"Setting 'lake.data' is {data!r}, where there is {files[0]!r} already, and the "
            "catalog has no lake. Choose an empty prefix, or the catalog that these files are of."
        )


def _attach_statement(root: Path, address: Address, read_only: bool, create: bool) -> str:
    data = f"{address.data}/" if address.data else f"{root / 'data'}/"
    options = [f"DATA_PATH {quoted(data)}", f"CREATE_IF_NOT_EXISTS {str(create).lower()}"]
    if address.catalog is None:
        target = f"ducklake:sqlite:{root / 'catalog.sqlite'}"
        options.append(f"META_BUSY_TIMEOUT {BUSY_MS}")
        # The home may have been moved; a catalog that others share has one place for its files.
        options.append("OVERRIDE_DATA_PATH true")
        if not read_only:
            # With a write-ahead log a long query does not hold up a commit.
            options.append("META_JOURNAL_MODE 'WAL'")
    else:
        target = f"ducklake:postgres:{address.catalog}"
    if read_only:
        options.append("READ_ONLY")
    return f"ATTACH {quoted(target)} AS lake ({', '.join(options)})"


def _catalog_extension(address: Address) -> str:
    return "sqlite_scanner" if address.catalog is None else "postgres_scanner"


def _load_extensions(address: Address) -> None:
    # Loaded here: `flows --help` imports this package and must stay fast.
    from duckdb_extensions import import_extension

    names = ["ducklake", _catalog_extension(address)]
    if address.data is not None:
        names.append("httpfs")
    for name in names:
        try:
            import_extension(name)
        except ImportError as error:
            raise _missing(f"duckdb-extension-{name.replace('_', '-')}") from error


def _missing(package: str) -> LakeAddressRefused:
    return LakeAddressRefused(
        f"A lake on PostgreSQL or S3 needs the package {package!r}, which is not installed. "
        "Install it with \"pip install 'mol-loop[cluster]'\"."
    )


def _secret(environment: Mapping[str, str]) -> str:
    """Render the DuckDB secret of the object storage; DuckDB never shows its key again."""
    try:
        values = {
            "KEY_ID": environment["AWS_ACCESS_KEY_ID"],
            "SECRET": environment["AWS_SECRET_ACCESS_KEY"],
        }
    except KeyError as error:
        raise LakeAddressRefused(
            f"The lake's files are in S3, and {error.args[0]} is not in the environment. Set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        ) from None
    values["REGION"] = environment.get("AWS_REGION") or "us-east-1"
    if token := environment.get("AWS_SESSION_TOKEN"):
        values["SESSION_TOKEN"] = token
    options = [f"{name} {quoted(value)}" for name, value in values.items()]
    if endpoint := environment.get("AWS_ENDPOINT_URL"):
        url = urlsplit(endpoint)
        options += [
            f"ENDPOINT {quoted(url.netloc + url.path.rstrip('/'))}",
            f"USE_SSL {'false' if url.scheme == 'http' else 'true'}",
            "URL_STYLE 'path'",
        ]
    return f"CREATE SECRET lake_files (TYPE s3, {', '.join(options)})"


def _parse(config: LakeConfig) -> Address:
    """Check the settings' address; what may hold a password is never repeated."""
    return Address(_catalog(config.catalog), _data(config.data))


def _catalog(text: str | None) -> str | None:
    if text is None:
        return None
    libpq = text.removeprefix("postgres:")
    if libpq == text and not text.startswith("postgresql://"):
        raise LakeAddressRefused(
            "Setting 'lake.catalog' is neither 'postgres:dbname=lake host=db' nor "
            "'postgresql://user@db/lake'. Leave it out for a SQLite file in the home."
        )
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict, make_conninfo
    except ImportError as error:
        raise _missing("psycopg") from error
    if libpq.startswith("//"):
        libpq = f"postgresql:{libpq}"
    try:
        parts = conninfo_to_dict(libpq)
    except ProgrammingError:
        raise LakeAddressRefused(
            "Setting 'lake.catalog' is no connection string of PostgreSQL. Give words such as "
            "'postgres:dbname=lake host=db', or 'postgresql://user@db/lake'."
        ) from None
    if parts.pop("password", None) is not None:
        raise LakeAddressRefused(
            "Setting 'lake.catalog' holds a password, which would be written to disk. Take it "
            "out, and give it in the environment as PGPASSWORD."
        )
    ordered: dict[str, Any] = {key: parts[key] for key in sorted(parts)}
    return make_conninfo("", **ordered)


def _data(text: str | None) -> str | None:
    if text is None:
        return None
    if not re.fullmatch(r"s3://[^/@\s]+(/[^\s?#]*)?", text):
        shown = "holds an '@'" if "@" in text else f"is {text!r}"
        raise LakeAddressRefused(
            f"Setting 'lake.data' {shown}, and must be like 's3://bucket/prefix', without keys. "
            "Leave it out for a folder in the home."
        )
    return text.rstrip("/")
