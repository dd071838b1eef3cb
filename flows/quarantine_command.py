"""The commands `flows quarantine list|show|fix|replay`: records that were set aside."""

import base64
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows import console
from flows.config import load_settings
from flows.console import print_json, print_table, say, tell
from flows.options import Config, Home, Json, Limit
from serving.errors import MolError

if TYPE_CHECKING:
    from traces.quarantine import Chosen, ReplayReport

quarantine_app = typer.Typer(no_args_is_help=True, help="Records that could not be read.")

Reason = Annotated[str | None, typer.Option(help="Only records of this reason.")]
Source = Annotated[str | None, typer.Option(help="Only records of this file.")]
Format = Annotated[str | None, typer.Option(help="Only records of this format.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The record's id or its beginning.")]


class FixUnreadable(MolError, OSError):
    """The file with the mended record cannot be read."""


@quarantine_app.command("list")
def list_records(
    reason: Reason = None,
    source: Source = None,
    format: Format = None,
    limit: Limit = 20,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Count the records by source, reason and format, and list them without their contents."""
    from traces.quarantine import count, listed, short

    folder = load_settings(config, overrides={"home": home}).home
    chosen = _chosen(reason, source, format)
    counts, rows = count(folder, chosen), listed(folder, chosen, limit)
    if as_json:
        print_json({"counts": counts, "records": rows})
        return
    print_table(counts, "Nothing is in quarantine.")
    if rows:
        print_table([{"id": short(r.pop("quarantine_id")), **r} for r in rows], "")
    total = sum(row["records"] for row in counts)
    if total > len(rows):
        say(f"Only the first {len(rows):,} of {total:,} records are shown; see '--limit'.")


@quarantine_app.command("show")
def show_record(id: Id, config: Config = None, home: Home = None, as_json: Json = False) -> None:
    """Print a record's bytes as they are, and on stderr why they were refused."""
    from traces.quarantine import find

    record = find(load_settings(config, overrides={"home": home}).home, id)
    if as_json:
        print_json(asdict(record) | {"raw": _text(record.raw)})
        return
    console.say(f"{record.source} at {record.position} ({record.format or 'unknown format'})")
    console.say(f"{record.reason}: {_printable(record.detail)}")
    if sys.stdout.isatty():
        print(_printable(record.raw.decode("utf-8", "backslashreplace")))
    else:
        sys.stdout.buffer.write(record.raw)
        sys.stdout.buffer.flush()


@quarantine_app.command("fix")
def fix_record(
    id: Id,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="File with the mended record; else stdin.")
    ] = None,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Read a mended record in the place of one in quarantine."""
    from traces.quarantine import fix

    settings = load_settings(config, overrides={"home": home})
    _tell(fix(settings.home, id, _mended(file)), as_json)


@quarantine_app.command("replay")
def replay_records(
    reason: Reason = None,
    source: Source = None,
    format: Format = None,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Read records again, as after an upgrade; what is refused again stays."""
    from traces.quarantine import replay

    settings = load_settings(config, overrides={"home": home})
    _tell(replay(settings.home, _chosen(reason, source, format)), as_json)


def _chosen(reason: str | None, source: str | None, format: str | None) -> "Chosen":
    from traces.quarantine import Chosen

    return Chosen(reason, source, format)


def _mended(file: Path | None) -> bytes:
    if file is None:
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise FixUnreadable(
            f"Cannot read the mended record in {str(file)!r}: {error.strerror}. Name a file with "
            "one record, or give it on stdin."
        ) from error


def _tell(report: "ReplayReport", as_json: bool) -> None:
    if as_json:
        print_json(report.model_dump(mode="json"))
        return
    added = ", ".join(f"{n} {table}" for table, n in report.added.items()) or "nothing new"
    tell(f"REPLAY    {report.read} records read: {report.moved} left quarantine ({added})")
    if report.left:
        tell("          still set aside: " + ", ".join(f"{n} {r}" for r, n in report.left.items()))


def _text(raw: bytes) -> Any:
    """Return bytes for JSON: text where they are text, else base64."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def _printable(text: str) -> str:
    """Return text that cannot steer a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
