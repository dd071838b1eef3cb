"""A version as a person wants to read it: what it is, where it came from, what came of it.

In: what `flows.adapters.details` says. Out: lines of plain text.
"""

from collections.abc import Iterator
from typing import Any

from flows.console import cell, short_id

_LABEL = 10


def adapter_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of one version, or of a slot that serves the bare base."""
    if "name" not in found:
        yield f"slot {found['slot']} serves the base (generation {found['generation']})"
        return
    serves = found["serves"] or ("served before" if found["served"] else "never served")
    gone = found["rolled_back"]
    yield _line("adapter", f"{found['name']}, {serves}{', rolled back' if gone else ''}")
    if gone:
        by = f" by {gone['by']}" if gone["by"] else ""
        why = f"{', for harm' if gone['harm'] else ''}: {gone['reason']}"
        yield _line("", f"rolled back {gone['at'][:16].replace('T', ' ')}{by}{why}")
    yield _line("made", f"{found['created_at'][:16].replace('T', ' ')}, {_origin(found)}")
    yield _line("base", short_id(found["base_digest"]))
    yield from _data(found["lineage"])
    signer = f"by key {found['signer'][:12]}: " if found["signer"] else ""
    yield _line("signed", signer + found["signature"])
    for number, report in enumerate(found["gate"]):
        yield _line("" if number else "gate", f"{report['verdict']} in report {report['key'][:12]}")
        for reason in report["reasons"]:
            yield _line("", f"- {reason}")
    if not found["gate"]:
        yield _line("gate", "not asked")
    for number, tenure in enumerate(found["served"]):
        until = tenure["until"][:16].replace("T", " ") if tenure["until"] else "now"
        since = tenure["since"][:16].replace("T", " ")
        words = f"{since} to {until} by {tenure['by']}, generation {tenure['generation']}"
        yield _line("" if number else "served", words)
    if found["metrics"]:
        figures = (f"{name} {cell(value)}" for name, value in found["metrics"].items())
        yield _line("metrics", ", ".join(figures))
    yield _line("folder", found["path"])


def short(value: Any) -> str:
    """Return a value with the digests in it cut short, as a table shows it."""
    return short_id(cell(value))


def _origin(found: dict[str, Any]) -> str:
    return f"run {short_id(found['run_key'])}" if found["run_key"] else "imported"


def _data(lineage: dict[str, Any] | None) -> Iterator[str]:
    if lineage is None:
        yield _line("data", "what it learned from is not known")
        return
    dataset = f"dataset {short_id(lineage['dataset'])}"
    if lineage["rows"] is None:
        yield _line("data", f"{dataset}, which is not in this home")
        return
    splits = ", ".join(f"{n} {split}" for split, n in lineage["splits"].items())
    yield _line("data", f"{dataset}: {lineage['rows']} rows ({splits}) of {lineage['turns']} turns")
    mix = ", ".join(f"{n} {what}" for what, n in lineage["trains_on"].items())
    yield _line("", f"trains on {mix}")
    yield _line("", "turns " + " ".join(map(short_id, lineage["some_turns"])) + " ...")


def _line(label: str, text: str) -> str:
    return f"{label.ljust(_LABEL)}{text}"
