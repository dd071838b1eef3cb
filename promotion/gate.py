"""The gate: may this challenger replace the champion of its slot?

In: scores of both arms on the same items, one suite decided beforehand as
primary, the others as guards. Out: a `GateReport` with PASS, FAIL or
INCONCLUSIVE and the reasons in words, kept as `gates/<key>.json`.

`judge` is a pure function: same scores, same report, same key. The primary
suite must show a gain (superiority), every guard must exclude a loss of
`margin` (non-inferiority) or be proved untouched. Each test is at level alpha;
as all must pass, no correction across them is needed (intersection-union test).
Whatever is not shown is INCONCLUSIVE, and then the champion stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from promotion.config import GateConfig
from promotion.paired import (
    InsufficientData,
    InvalidScores,
    PairedComparison,
    compare,
    minimum_detectable_effect,
)
from serving.disk import write_atomic
from serving.errors import MolError
from serving.records import SCHEMA_VERSION, Record, canonical_json, content_id, short_digest

Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE"]
Status = Literal["ok", "worse", "moved", "undecided", "insufficient"]
"""`ok` lets pass, `worse` and `moved` fail, the others leave it open."""

_VERDICTS: dict[Status, Verdict] = {
    "ok": "PASS",
    "worse": "FAIL",
    "moved": "FAIL",
    "undecided": "INCONCLUSIVE",
    "insufficient": "INCONCLUSIVE",
}


class UnknownReport(MolError, LookupError):
    """No gate report is kept under this key."""


class CorruptReport(MolError, ValueError):
    """A gate report on disk is not what its key says."""


@dataclass(frozen=True, slots=True)
class SuiteScores:
    """Scores of both arms on one suite, item by item."""

    suite: str
    slot: str
    item_ids: tuple[str, ...]
    clusters: tuple[str, ...]
    """What makes items alike (template, user, conversation), one label an item."""
    champion: tuple[float, ...]
    """Scores in [0, 1]."""
    challenger: tuple[float, ...]
    identical: bool
    """Both arms gave byte-equal answers to every item."""
    unchanged: bool
    """The same artifact answers this suite in both arms."""

    def __post_init__(self) -> None:
        """Refuse scores that do not belong to these items."""
        if len(self.item_ids) != len(self.clusters) or len(set(self.item_ids)) != len(
            self.item_ids
        ):
            raise InvalidScores(
                f"Suite {self.suite!r} has {len(self.item_ids)!r} item ids "
                f"({len(set(self.item_ids))!r} different) and {len(self.clusters)!r} clusters; "
                "each item needs an id of its own and one cluster. "
                "Correct the suite and run 'flows run gate' again."
            )


class GateIdentity(Record):
    """What was compared, so that the report cannot speak for anything else."""

    slot: str
    champion_digest: str | None
    """None if the slot serves the bare base model."""
    challenger_digest: str
    base_digest: str
    suites_digest: str
    seed: int
    manifest_digest: str | None = None
    """Dataset the challenger learned from."""
    code_version: str


class SuiteResult(Record):
    """What one suite says."""

    suite: str
    slot: str
    status: Status
    reason: str
    n: int
    identical: bool
    unchanged: bool
    comparison: PairedComparison | None
    """None if there was too little to compare."""
    minimum_detectable_effect: float | None


class GateReport(GateIdentity):
    """The verdict with everything it rests on."""

    schema_version: int = SCHEMA_VERSION
    verdict: Verdict
    reasons: tuple[str, ...]
    """A sentence a suite, those that decided first."""
    primary: SuiteResult
    guards: tuple[SuiteResult, ...]
    alpha: float
    margin: float
    min_items: int
    power: float

    @property
    def key(self) -> str:
        """64 hex digits over the whole report; its file name."""
        return content_id(self.model_dump(mode="json")).removeprefix("sha256:")

    @property
    def n(self) -> int:
        """Items of the primary suite."""
        return self.primary.n


def judge(
    primary: SuiteScores,
    guards: Sequence[SuiteScores],
    config: GateConfig,
    identity: GateIdentity,
) -> GateReport:
    """Decide between champion and challenger.

    Raises:
        InvalidScores: if scores are no scores in [0, 1] of the same items, a suite
            is named twice, or the primary suite is not of the challenged slot.
    """
    same = identity.champion_digest == identity.challenger_digest
    _check_suites(primary, guards, identity, same)
    first = _judge_primary(primary, config)
    others = tuple(_judge_guard(scores, config) for scores in guards)
    found = {_VERDICTS[result.status] for result in (first, *others)}
    verdict: Verdict
    if same:
        verdict = "INCONCLUSIVE"
    else:
        verdict = next(v for v in ("FAIL", "INCONCLUSIVE", "PASS") if v in found)
    deciding_first = sorted((first, *others), key=lambda r: _VERDICTS[r.status] != verdict)
    reasons = [result.reason for result in deciding_first]
    if not guards:
        reasons.append("No guard suite was run: nothing is known about what else may have moved.")
    if same:
        reasons.insert(
            0,
            f"Nothing to compare: champion and challenger are both "
            f"{short_digest(identity.challenger_digest)!r}.",
        )
    return GateReport(
        **identity.model_dump(),
        verdict=verdict,
        reasons=tuple(reasons),
        primary=first,
        guards=others,
        alpha=config.alpha,
        margin=config.margin,
        min_items=config.min_items,
        power=config.power,
    )


def save_report(home: Path, report: GateReport) -> Path:
    """Keep a report under its key; saving it again changes nothing."""
    path = _folder(home) / f"{report.key}.json"
    write_atomic(path, (canonical_json(report.model_dump(mode="json")) + "\n").encode())
    return path


def load_report(home: Path, key: str) -> GateReport:
    """Return the report whose key starts with `key` (at least 4 digits).

    Raises:
        UnknownReport: if there is none, or more than one.
        CorruptReport: if its bytes are not what the key says.
    """
    known = sorted(path.stem for path in _folder(home).glob("*.json"))
    matches = [name for name in known if len(key) >= 4 and name.startswith(key)]
    if len(matches) != 1:
        listed = ", ".join(repr(name[:12]) for name in known[:5]) or "none"
        raise UnknownReport(
            f"{'No' if not matches else 'More than one'} gate report has the key {key!r} "
            f"(there are {len(known)}: {listed}{', ...' if len(known) > 5 else ''}). "
            "Run 'flows run gate' to make one."
        )
    return _read(_folder(home) / f"{matches[0]}.json")


def list_reports(home: Path, slot: str | None = None) -> tuple[GateReport, ...]:
    """Return the reports kept, oldest file first.

    Raises:
        CorruptReport: if one of them is damaged.
    """
    paths = sorted(_folder(home).glob("*.json"), key=lambda p: (p.stat().st_mtime_ns, p.name))
    reports = (_read(path) for path in paths)
    return tuple(report for report in reports if slot is None or report.slot == slot)


def _check_suites(
    primary: SuiteScores, guards: Sequence[SuiteScores], identity: GateIdentity, same: bool
) -> None:
    names = [primary.suite, *(scores.suite for scores in guards)]
    twice = sorted({name for name in names if names.count(name) > 1})
    problem = ""
    if twice:
        problem = f"Suite {twice[0]!r} is given twice; each suite is judged once"
    elif primary.slot != identity.slot:
        problem = (
            f"The primary suite {primary.suite!r} is of slot {primary.slot!r}, "
            f"but slot {identity.slot!r} is challenged"
        )
    elif primary.unchanged and not same:
        problem = (
            f"The primary suite {primary.suite!r} was answered by one artifact in both arms, "
            "but champion and challenger differ; score the challenger with its own adapter"
        )
    if problem:
        raise InvalidScores(f"{problem}. Correct it and run 'flows run gate' again.")


def _judge_primary(scores: SuiteScores, config: GateConfig) -> SuiteResult:
    comparison, reason = _compare(scores, config)
    if comparison is None:
        return _result(scores, "insufficient", reason, None, config)
    seen = _in_words(scores, comparison)
    if comparison.better:
        return _result(scores, "ok", f"{seen}: shown to be better.", comparison, config)
    if comparison.worse:
        return _result(scores, "worse", f"{seen}: shown to be worse.", comparison, config)
    detectable = minimum_detectable_effect(comparison, config.power)
    return _result(
        scores,
        "undecided",
        f"{seen}: not shown to be better. These items find a gain of "
        f"{100 * detectable:.1f} points or more with probability {config.power:.0%}.",
        comparison,
        config,
    )


def _judge_guard(scores: SuiteScores, config: GateConfig) -> SuiteResult:
    comparison, reason = _compare(scores, config)
    untouched = scores.unchanged and scores.identical and len(scores.item_ids) > 0
    if scores.unchanged and not scores.identical:
        return _result(
            scores,
            "moved",
            f"{scores.suite} ({scores.slot}): answers changed although the same artifact "
            "answers in both arms; a bystander moved.",
            comparison,
            config,
        )
    if untouched:
        words = f"{scores.suite} ({scores.slot}): untouched, {len(scores.item_ids)} equal answers."
        return _result(scores, "ok", words, comparison, config)
    if comparison is None:
        return _result(scores, "insufficient", reason, None, config)
    seen, margin = _in_words(scores, comparison), f"{100 * config.margin:.1f} points"
    if comparison.lower > -config.margin:
        words = f"{seen}: a loss of {margin} is excluded."
        return _result(scores, "ok", words, comparison, config)
    if comparison.upper < -config.margin:
        words = f"{seen}: shown to lose more than {margin}."
        return _result(scores, "worse", words, comparison, config)
    words = f"{seen}: a loss of {margin} is not excluded."
    return _result(scores, "undecided", words, comparison, config)


def _compare(scores: SuiteScores, config: GateConfig) -> tuple[PairedComparison | None, str]:
    """Return the comparison and, if there is too little for one, why."""
    try:
        comparison = compare(scores.champion, scores.challenger, scores.clusters, config.alpha)
    except InsufficientData as error:
        return None, f"{scores.suite} ({scores.slot}): {error}"
    if comparison.n < config.min_items:
        return None, (
            f"{scores.suite} ({scores.slot}): {comparison.n} items are too few; "
            f"at least {config.min_items} are needed."
        )
    return comparison, ""


def _result(
    scores: SuiteScores,
    status: Status,
    reason: str,
    comparison: PairedComparison | None,
    config: GateConfig,
) -> SuiteResult:
    return SuiteResult(
        suite=scores.suite,
        slot=scores.slot,
        status=status,
        reason=reason,
        n=len(scores.item_ids),
        identical=scores.identical,
        unchanged=scores.unchanged,
        comparison=comparison,
        minimum_detectable_effect=(
            None if comparison is None else minimum_detectable_effect(comparison, config.power)
        ),
    )


def _in_words(scores: SuiteScores, comparison: PairedComparison) -> str:
    low, high = 100 * comparison.lower, 100 * comparison.upper
    return (
        f"{scores.suite} ({scores.slot}): {100 * comparison.mean_champion:.1f} -> "
        f"{100 * comparison.mean_challenger:.1f} of 100 on {comparison.n} items in "
        f"{comparison.clusters} clusters, {100 * comparison.effect:+.1f} points "
        f"[{low:+.1f}, {high:+.1f}]"
    )


def _folder(home: Path) -> Path:
    return home / "gates"


def _read(path: Path) -> GateReport:
    try:
        report = GateReport.model_validate_json(path.read_bytes())
    except ValidationError as error:
        detail = error.errors()[0]["msg"]
    else:
        if report.key == path.stem:
            return report
        detail = f"its content has the key {report.key[:12]!r}"
    raise CorruptReport(
        f"Gate report {str(path)!r} is damaged or altered: {detail}. "
        "Delete it and run 'flows run gate' again."
    )
