"""Attribution against failures of known cause: the recorded set, blamed from scratch.

    python -m benchmarks.faults [--quick]

Ingests `examples/faults` into an empty home, settles and blames all turns with the real pipeline,
and compares with the labels: once from what the log shows, once with the recorded replays. A blame
counts as right where class and, for an adapter or a summary, slot agree. Coverage is the share of
labelled failures that got a blame of at least some confidence; the curve has precision at each.
"""

import argparse
import gzip
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.attribution_calibration import Claimed, Fit, fits, is_tuned_on
from serving.slots import load_profile
from traces.attribute import attribute
from traces.attribution import intervals
from traces.ingest import ingest
from traces.storage.connections import interrupt_on_signals
from traces.storage.lake import Lake
from traces.storage.tables import TABLES, arrow_table

ROOT = Path(__file__).parents[1]
FAULTS = ROOT / "examples" / "faults"
CLASSES = ("router", "adapter", "summary", "tool", "fallback", "user")
COVERAGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
GOAL_COVERAGE = 0.5


@dataclass(frozen=True, slots=True)
class Case:
    """A labelled failure and what attribution says of it."""

    turn_id: str
    klass: str
    slot: str | None
    hop_id: str | None
    kind: str
    said: str
    """Class of the blame; `unknown` where there is none."""
    said_slot: str | None
    said_hop_id: str | None
    confidence: float
    rule: str
    """Which rule found it."""

    @property
    def is_claimed(self) -> bool:
        """Whether attribution says anything."""
        return self.said != "unknown"

    @property
    def is_right(self) -> bool:
        """Whether class, and the slot where one is to blame, agree."""
        by_slot = self.klass in ("adapter", "summary")
        return self.said == self.klass and (not by_slot or self.said_slot == self.slot)


def measure(quick: bool = False, folder: Path = FAULTS) -> dict[str, Any]:
    """Blame the set of `folder` from scratch and return how right that was.

    `quick` leaves the replays out.
    """
    labels = read_lines(folder / "labels.jsonl.gz")
    cases = blamed(folder / "spool", folder / "profile.toml", labels)
    report = scores(cases)
    # Confidences are fitted to the other half: this is what they have not seen.
    held_out = scores([case for case in cases if not is_tuned_on(case.turn_id)])
    report["held_out"] = {
        name: held_out[name] for name in ("n", "precision", "interval", "macro_f1")
    }
    # A pool miss is written on the turn: what is left when that is known.
    hidden = scores([case for case in cases if case.klass != "fallback"])
    report["without_fallback"] = {name: hidden[name] for name in ("n", "precision", "interval")}
    claims = [Claimed(c.turn_id, c.rule, c.confidence, c.is_right) for c in cases if c.is_claimed]
    report["rules"] = [fit_row(fit) for fit in fits(claims)]
    replays = read_lines(folder / "replays.jsonl.gz")
    report["with_replays"] = None
    if replays and not quick:
        known = {row["turn_id"] for row in replays}
        told = blamed(folder / "spool", folder / "profile.toml", labels, replays)
        report["with_replays"] = scores(told) | {
            "replayed": scores([case for case in told if case.turn_id in known]),
            "replayed_before": scores([case for case in cases if case.turn_id in known]),
        }
    report["equal_arms"] = equal_arms(folder / "equal")
    report["equal_arms_false_router"] = (report["equal_arms"] or {}).get("false_router")
    return report


def fit_row(fit: Fit) -> dict[str, Any]:
    """Return what a rule claimed and how often it was right, over both halves."""
    turns = fit.tuned.turns + fit.reported.turns
    right = fit.tuned.successes + fit.reported.successes
    return {"rule": fit.rule, "claimed": round(fit.claimed, 3), "n": turns, "right": right}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of compressed JSON lines; none where there is no file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def conversations(spool: Path) -> dict[str, str]:
    """Return the conversation of every turn of a spool."""
    lines = [line for file in sorted(spool.glob("*.gz")) for line in read_lines(file)]
    turns = [line["record"] for line in lines if line["kind"] == "turn"]
    return {turn["turn_id"]: turn["conversation_id"] for turn in turns}


def blamed(
    spool: Path, profile: Path, labels: Sequence[Mapping[str, Any]],
    replays: Sequence[Mapping[str, Any]] = (),
) -> list[Case]:  # fmt: skip
    """Return every labelled turn with its blame, from an empty home."""
    rows = {row["turn_id"]: row for row in attributed(spool, profile, replays)}
    nothing = dict.fromkeys(("slot", "hop_id", "rule")) | {"klass": "unknown", "confidence": 0.0}
    cases = []
    for label in labels:
        row = rows.get(label["turn_id"], nothing)
        cases.append(
            Case(
                turn_id=label["turn_id"], klass=label["class"], slot=label["slot"],
                hop_id=label["hop_id"], kind=label["kind"], said=row["klass"],
                said_slot=row["slot"], said_hop_id=row["hop_id"], confidence=row["confidence"],
                rule=row["rule"] or "",
            )
        )  # fmt: skip
    return cases


def attributed(
    spool: Path, profile: Path, replays: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Return the blame of all failed turns of a spool."""
    with tempfile.TemporaryDirectory(prefix="mol-faults-") as folder:
        home = Path(folder, "home")
        ingest(home, spool)
        if replays:
            with Lake.open(home) as lake:
                rows = arrow_table("replays", [dict(row) for row in replays])
                lake.commit(lambda connection: _insert(connection, rows))
        attribute(home, load_profile(profile))
        with Lake.open(home, read_only=True) as lake:
            names = [column.name for column in TABLES["blame"]]
            found = lake.connection.table("blame").select(*names).fetchall()
            return [dict(zip(names, row, strict=True)) for row in found]


def _insert(connection: Any, rows: Any) -> int:
    connection.register("given_replays", rows)
    connection.execute("INSERT INTO replays BY NAME SELECT * FROM given_replays")
    connection.unregister("given_replays")
    return int(rows.num_rows)


def scores(cases: Sequence[Case]) -> dict[str, Any]:
    """Return precision and recall by class, the curve and who was taken for whom."""
    claimed = [case for case in cases if case.is_claimed]
    per_class = {klass: _class_scores(klass, cases) for klass in CLASSES}
    present = [each["f1"] for each in per_class.values() if each["n"]]
    confusion = {
        klass: dict(Counter(case.said for case in cases if case.klass == klass).most_common())
        for klass in CLASSES
    }
    located = [case for case in cases if case.is_right and case.hop_id and case.said_hop_id]
    return {
        "n": len(cases),
        "precision": precision_at(cases, GOAL_COVERAGE),
        "coverage": GOAL_COVERAGE if _coverage(cases) >= GOAL_COVERAGE else _coverage(cases),
        "interval": wilson(*_right_at(cases, GOAL_COVERAGE)),
        "claimed": _coverage(cases),
        "precision_of_claimed": _share(sum(case.is_right for case in claimed), len(claimed)),
        "macro_f1": round(sum(present) / len(present), 4) if present else None,
        "classes": per_class,
        "curve": {f"{c:.1f}": precision_at(cases, c) for c in COVERAGES if c <= _coverage(cases)},
        "confusion": confusion,
        "kinds": _by_kind(cases),
        "hop": _share(sum(case.hop_id == case.said_hop_id for case in located), len(located)),
    }


def _class_scores(klass: str, cases: Sequence[Case]) -> dict[str, Any]:
    truly = [case for case in cases if case.klass == klass]
    said = [case for case in cases if case.said == klass]
    right = sum(case.is_right for case in truly)
    precision, recall = _share(right, len(said)), _share(right, len(truly))
    both = (precision or 0.0) + (recall or 0.0)
    return {
        "n": len(truly),
        "precision": precision,
        "precision_interval": wilson(right, len(said)),
        "recall": recall,
        "recall_interval": wilson(right, len(truly)),
        "f1": round(2 * (precision or 0.0) * (recall or 0.0) / both, 4) if both else 0.0,
    }


def _by_kind(cases: Sequence[Case]) -> dict[str, float | None]:
    kinds = sorted({(case.klass, case.kind) for case in cases})
    return {
        f"{klass}/{kind}": _share(
            sum(c.is_right for c in cases if (c.klass, c.kind) == (klass, kind)),
            sum((c.klass, c.kind) == (klass, kind) for c in cases),
        )
        for klass, kind in kinds
    }


def precision_at(cases: Sequence[Case], coverage: float) -> float | None:
    """Return the precision of the surest claims that make up this share of all failures.

    Claims of equal confidence at the edge count by their mean: no order among them is better.
    """
    right, taken = _right_at(cases, coverage)
    return _share(right, taken)


def _right_at(cases: Sequence[Case], coverage: float) -> tuple[float, int]:
    ordered = sorted((c for c in cases if c.is_claimed), key=lambda c: -c.confidence)
    wanted = min(round(coverage * len(cases)), len(ordered))
    if not wanted:
        return 0.0, 0
    edge = ordered[wanted - 1].confidence
    above = [case for case in ordered if case.confidence > edge]
    at_edge = [case for case in ordered if case.confidence == edge]
    share = sum(case.is_right for case in at_edge) / len(at_edge)
    return sum(case.is_right for case in above) + share * (wanted - len(above)), wanted


def _coverage(cases: Sequence[Case]) -> float:
    return round(sum(case.is_claimed for case in cases) / len(cases), 4) if cases else 0.0


def _share(right: float, of: int) -> float | None:
    return round(right / of, 4) if of else None


def wilson(right: float, of: int) -> list[float] | None:
    """Return the 95 % Wilson interval of a share."""
    if not of:
        return None
    return [round(end, 4) for end in intervals.wilson(right, of)]


def equal_arms(folder: Path) -> dict[str, Any] | None:
    """Return how often the router is blamed where every slot is equally good; None without data."""
    failing = {row["turn_id"] for row in read_lines(folder / "failing.jsonl.gz")}
    if not failing:
        return None
    found: dict[str, Any] = {"n": len(failing)}
    replays = read_lines(folder / "replays.jsonl.gz")
    for name, given in (("from_the_log", ()), ("with_replays", replays)):
        rows = attributed(folder / "spool", folder / "profile.toml", given)
        wrong = sum(row["klass"] == "router" for row in rows if row["turn_id"] in failing)
        found[name] = {"share": wrong / len(failing), "interval": wilson(wrong, len(failing))}
    found["false_router"] = max(found[name]["share"] for name in ("from_the_log", "with_replays"))
    return found


def main() -> None:
    """Measure and print."""
    interrupt_on_signals()
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="without the recorded replays")
    parser.add_argument("--folder", type=Path, default=FAULTS, help="another set of this form")
    given = parser.parse_args()
    print(json.dumps(measure(given.quick, given.folder)))


if __name__ == "__main__":
    main()
