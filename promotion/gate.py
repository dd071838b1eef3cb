"""The gate: may this challenger replace the champion of its slot?

In: scores of both arms on the same items, one suite named beforehand as primary, the others as
guards; durations and the distance from the base where they were measured. Out: a `GateReport`
with PASS, FAIL or INCONCLUSIVE and the reasons in words, kept as `gates/<key>.json`.

`judge` is a pure function: same inputs, same report, same key. The primary suite must show a
gain (superiority), every guard must exclude a loss of its margin (non-inferiority), pass whole
(a must-pass list) or be proved untouched. Each test is at level alpha_k of the attempt
(`promotion.spending`); as all must pass, no correction across them is needed (intersection-union
test, Berger 1982). Whatever is not shown is INCONCLUSIVE, and then the champion stays.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from promotion.config import GateConfig
from promotion.drift import Drift
from promotion.latency import Durations, LatencyResult, judge_latency
from promotion.paired import InvalidScores
from promotion.slices import Status, SuiteResult, SuiteScores, judge_guard, judge_primary
from promotion.spending import alpha_of
from serving.disk import write_atomic
from serving.errors import MolError
from serving.records import Record, canonical_json, content_id, short_digest

REPORT_VERSION = 2
"""Schema of reports. Those of version 1 knew no attempts, and promote nothing any more."""

Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE"]

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


class GateIdentity(Record):
    """What is compared and how, settled before anything is scored."""

    slot: str
    champion_digest: str | None
    """None if the slot serves the bare base model."""
    challenger_digest: str
    base_digest: str
    suites_digest: str
    primary_suite: str
    """The one suite whose mean score decides about a gain."""
    seed: int
    manifest_digest: str | None = None
    """Dataset the challenger learned from."""
    code_version: str
    question: str = ""
    """Digest of all that decides the answer, the gate's rules too; asked twice, answered once."""
    sealed_set: str | None = None
    """Where attempts are counted, `<slot>/<primary suite>` or, after n spent ones, with `/n`.

    None where none are.
    """
    attempt: int = 1
    """k: how many looks at the sealed set there were, this one included."""
    samples: int = 1
    """Answers to each item of the challenged slot from each arm."""
    temperature: float = 0.0
    sample_seeds: tuple[int, ...] = ()
    """Seeds of the samples, the same for both arms; none where answers are greedy."""


class GateReport(GateIdentity):
    """The verdict with everything it rests on."""

    schema_version: int = REPORT_VERSION
    verdict: Verdict
    reasons: tuple[str, ...]
    """A sentence a suite, those that decided first."""
    primary: SuiteResult
    guards: tuple[SuiteResult, ...]
    latency: LatencyResult | None
    """None where no durations were measured."""
    drift: Drift | None
    """None where it was not measured."""
    alpha: float
    """Level of all attempts on the sealed set together."""
    alpha_k: float
    """Level of every test of this attempt."""
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
    durations: Durations | None = None,
    drift: Drift | None = None,
) -> GateReport:
    """Decide between champion and challenger.

    Raises:
        InvalidScores: if scores are no scores in [0, 1] of the same items, a suite
            is named twice, or the primary suite is not the one named beforehand.
    """
    same = identity.champion_digest == identity.challenger_digest
    _check_suites(primary, guards, identity, same)
    alpha_k = alpha_of(identity.attempt, config.alpha)
    first = judge_primary(primary, alpha_k, config)
    others = tuple(judge_guard(scores, alpha_k, config) for scores in guards)
    speed = None if durations is None else judge_latency(durations, alpha_k, config)
    found: list[tuple[Verdict, str]] = [
        (_VERDICTS[result.status], result.reason)
        for result in (first, *others, *(() if speed is None else (speed,)))
    ]
    found += _drift_reasons(drift, config.kl_limit)
    verdict: Verdict = "INCONCLUSIVE"
    if not same:
        said = {v for v, _ in found}
        verdict = next(v for v in ("FAIL", "INCONCLUSIVE", "PASS") if v in said)
    reasons = [reason for _, reason in sorted(found, key=lambda pair: pair[0] != verdict)]
    if not guards:
        reasons.append("No guard suite was run: nothing is known about what else may have moved.")
    if same:
        digest = short_digest(identity.challenger_digest)
        reasons.insert(0, f"Nothing to compare: champion and challenger are both {digest!r}.")
    return GateReport(
        **identity.model_dump(),
        verdict=verdict,
        reasons=tuple(reasons),
        primary=first,
        guards=others,
        latency=speed,
        drift=drift,
        alpha=config.alpha,
        alpha_k=alpha_k,
        min_items=config.min_items,
        power=config.power,
    )


def _drift_reasons(drift: Drift | None, limit: float | None) -> list[tuple[Verdict, str]]:
    if limit is None:
        return []
    distance = None if drift is None else drift.challenger
    if distance is None:
        return [("INCONCLUSIVE", f"distance from the base: not measured, the limit is {limit:g}.")]
    words = f"distance from the base: {distance.kl:.3g} nats a token, the limit is {limit:g}."
    return [("FAIL" if distance.kl > limit else "PASS", words)]


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
    known = sorted(path.stem for path in _folder(home).glob("*.json") if _is_of_today(path))
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
    """Return the reports kept, oldest file first; those of earlier schemas are left out.

    Raises:
        CorruptReport: if one of them is damaged.
    """
    files = _folder(home).glob("*.json")
    by_age = sorted(files, key=lambda path: (path.stat().st_mtime_ns, path.name))
    return tuple(report for report in _read_all(by_age) if slot is None or report.slot == slot)


def read_reports(home: Path, keys: Iterable[str]) -> tuple[GateReport, ...]:
    """Return those of these reports that are kept, in this order; no other file is opened.

    Raises:
        CorruptReport: if one of them is damaged.
    """
    paths = (_folder(home) / f"{key}.json" for key in keys)
    return _read_all(path for path in paths if path.is_file())


def _check_suites(
    primary: SuiteScores, guards: Sequence[SuiteScores], identity: GateIdentity, same: bool
) -> None:
    names = [primary.suite, *(scores.suite for scores in guards)]
    twice = sorted({name for name in names if names.count(name) > 1})
    problem = ""
    if twice:
        problem = f"Suite {twice[0]!r} is given twice; each suite is judged once"
    elif primary.suite != identity.primary_suite:
        problem = (
            f"The primary suite is {primary.suite!r}, but {identity.primary_suite!r} was named "
            "before anything was scored"
        )
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


def _folder(home: Path) -> Path:
    return home / "gates"


def _is_of_today(path: Path) -> bool:
    """Whether a report is of this schema; one that cannot be read is not of another one."""
    try:
        version = json.loads(path.read_bytes())["schema_version"]
    except (ValueError, TypeError, KeyError):
        return True
    return bool(version == REPORT_VERSION)


def _read_all(paths: Iterable[Path]) -> tuple[GateReport, ...]:
    return tuple(_read(path) for path in paths if _is_of_today(path))


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
        "Delete it and run the command again."
    )
