"""What gate reports say of versions, whatever schema they were written in.

A report is read in full only by the code that wrote it (`promotion.gate`). What it judged, and
how, is in reports of every schema, and who looks back needs no more.
"""

import json
from pathlib import Path

from pydantic import ValidationError

from promotion.gate import REPORT_VERSION, CorruptReport
from serving.records import Record, content_id

_FIELDS = ("schema_version", "slot", "verdict", "challenger_digest", "champion_digest", "reasons")


class Judgement(Record):
    """The verdict of one report."""

    key: str
    schema_version: int
    slot: str
    verdict: str
    challenger_digest: str
    champion_digest: str | None
    """None if the slot served the bare base model."""
    reasons: tuple[str, ...]

    @property
    def knows_attempts(self) -> bool:
        """Whether its schema is one of which each report is what an attempt ended in."""
        return self.schema_version >= REPORT_VERSION


def list_judgements(home: Path, slot: str | None = None) -> tuple[Judgement, ...]:
    """Return the judgements kept, oldest file first.

    Raises:
        CorruptReport: if a report is not what its key says.
    """
    files = (home / "gates").glob("*.json")
    paths = sorted(files, key=lambda path: (path.stat().st_mtime_ns, path.name))
    found = map(_read, paths)
    return tuple(judgement for judgement in found if slot is None or judgement.slot == slot)


def _read(path: Path) -> Judgement:
    try:
        raw = json.loads(path.read_bytes())
        if content_id(raw) != f"sha256:{path.stem}":
            raise ValueError("its content has another key")
        return Judgement(key=path.stem, **{field: raw[field] for field in _FIELDS})
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        detail = " ".join(str(error).split())[:200]
        raise CorruptReport(
            f"Gate report {str(path)!r} is damaged or altered: {detail}. "
            "Delete it and run the command again."
        ) from error
