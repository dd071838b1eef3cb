"""A real PostgreSQL on a loopback port, with a password, gone when the block ends.

with postgres_server() as server:
    url = server.make_database("lake")      # without the password: that is in PGPASSWORD
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
from server_process import LIMIT_S, as_user, server_process

from serving.child import HOST, free_port

PASSWORD = "a pass'word"


def postgres_folder() -> Path | None:
    """Return the folder of PostgreSQL's programs, None if it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if found:
        return found[-1].parent
    program = shutil.which("postgres")
    return Path(program).resolve().parent if program else None


@dataclass(frozen=True)
class PostgresServer:
    """A running server."""

    port: int

    def url(self, database: str) -> str:
        """Return the address of a database, without the password."""
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    def execute(self, database: str, sql: str) -> list[tuple[object, ...]]:
        """Run one statement outside a transaction and return its rows, if it gives any."""
        with psycopg.connect(self.url(database), password=PASSWORD, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def make_database(self, name: str) -> str:
        """Make an empty database and return its address."""
        self.execute("postgres", f"CREATE DATABASE {name}")
        return self.url(name)


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a new server; PostgreSQL refuses to run as root, so it is another user then."""
    programs = postgres_folder()
    assert programs is not None
    user = _other_user() if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="postgres-") as name:
        folder = Path(name)
        secret = folder / "password"
        secret.write_text(PASSWORD)
        if user:
            shutil.chown(folder, user)
            shutil.chown(secret, user)
        subprocess.run(
            ["setpriv", *as_user(user), programs / "initdb", "--pgdata", folder / "data",
             "--username", "postgres", "--auth", "scram-sha-256", "--pwfile", secret, "--no-sync",
             "--encoding", "UTF8", "--locale", "C"],
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
        port = free_port()
        options = {
            "listen_addresses": HOST,
            "port": str(port),
            "unix_socket_directories": "",
            "fsync": "off",
        }
        settings = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        command = [str(programs / "postgres"), "-D", str(folder / "data"), *settings]
        server = PostgresServer(port)
        # SIGINT: clients that are still there are not waited for.
        with server_process(command, port, folder / "log", user, stop=signal.SIGINT):
            _wait(server)
            yield server


def _wait(server: PostgresServer) -> None:
    """Wait until it answers queries: it takes connections a little earlier."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            server.execute("postgres", "SELECT 1")
            return
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, "PostgreSQL does not answer"
            time.sleep(0.02)


def _other_user() -> str:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise AssertionError("no user to run PostgreSQL as")
