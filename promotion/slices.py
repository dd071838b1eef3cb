"""What one suite says about a challenger: the primary one a gain, each guard that nothing is lost.

In: both arms' scores on the same items and the gate's rules. Out: a `SuiteResult` with a status,
a reason in words, the comparison, and how many items it would have taken.

A guard passes if the limit of the difference excludes a loss of its margin (non-inferiority). One
that does not is `undecided`, and `insufficient` where its items are too few to exclude the margin
with the stated power: neither ever passes. What is shown must hold also if each answer of the
challenger that could not be judged were wrong, or crashing the scorer would be a way to pass. A
margin of 0 makes a must-pass list of a suite: one failed item fails. A suite of an unchanged
artifact is proved by equal answers, byte for byte.
"""

import math
from dataclasses import dataclass
from typing import Literal

from promotion.config import GateConfig
from promotion.paired import (
    InsufficientData,
    InvalidScores,
    PairedComparison,
    compare,
    share_at_most,
)
from promotion.power import items_to_exclude, minimum_detectable_effect
from promotion.suites.suite import Kind
from serving.records import Record

Status = Literal["ok", "worse", "moved", "undecided", "insufficient"]
"""`ok` lets pass, `worse` and `moved` fail, the others leave it open."""


@dataclass(frozen=True, slots=True)
class SuiteScores:
    """Scores of both arms on one suite, item by item."""

    suite: str
    slot: str
    item_ids: tuple[str, ...]
    clusters: tuple[str, ...]
    """What makes items alike (template, user, conversation), one label an item."""
    champion: tuple[float, ...]
    """Scores in [0, 1]; with several samples their means."""
    challenger: tuple[float, ...]
    identical: bool
    """Both arms gave byte-equal answers to every item."""
    unchanged: bool
    """The same artifact answers this suite in both arms."""
    kind: Kind = "skill"
    unjudged: int = 0
    """Items left out because the scorer could not judge an answer to them."""
    unjudged_challenger: tuple[tuple[str, float], ...] = ()
    """Of those, cluster and champion's score where the challenger's answer alone was the reason."""

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

    @property
    def label(self) -> str:
        """The suite with its slot, as sentences name it."""
        return f"{self.suite} ({self.slot})"


class SuiteResult(Record):
    """What one suite says."""

    suite: str
    slot: str
    kind: Kind
    status: Status
    reason: str
    n: int
    unjudged: int
    """Items left out because the scorer could not judge an answer to them."""
    identical: bool
    unchanged: bool
    margin: float | None
    """Largest loss that may stay hidden; None for the primary suite, which must show a gain."""
    comparison: PairedComparison | None
    """None if there was too little to compare."""
    minimum_detectable_effect: float | None
    """Smallest true gain that these items would show with the stated power."""
    items_needed: int | None
    """Items like these that exclude the margin with the stated power; None where it is 0."""


def judge_primary(scores: SuiteScores, alpha: float, config: GateConfig) -> SuiteResult:
    """Say whether the challenger is shown to be better."""
    comparison, reason = _compare(scores, alpha, config)
    if comparison is None:
        return _result(scores, "insufficient", reason, None, None, config)
    seen = _in_words(scores, comparison)
    if comparison.better and not _holds_at_worst(scores, alpha, 0.0):
        words = f"{seen}: shown to be better {_on_what_was_judged(scores)}"
        return _result(scores, "undecided", words, comparison, None, config)
    if comparison.better:
        return _result(scores, "ok", f"{seen}: shown to be better.", comparison, None, config)
    if comparison.worse:
        return _result(scores, "worse", f"{seen}: shown to be worse.", comparison, None, config)
    detectable = minimum_detectable_effect(comparison, config.power)
    words = (
        f"{seen}: not shown to be better. These items find a gain of "
        f"{100 * detectable:.1f} points or more with probability {config.power:.0%}."
    )
    return _result(scores, "undecided", words, comparison, None, config)


def judge_guard(scores: SuiteScores, alpha: float, config: GateConfig) -> SuiteResult:
    """Say whether a loss of more than the suite's margin is excluded."""
    margin = config.margin(scores.suite, scores.kind)
    if scores.unchanged and scores.item_ids:
        return _judge_bystander(scores, margin, alpha, config)
    if margin == 0:
        return _judge_must_pass(scores, alpha, config)
    comparison, reason = _compare(scores, alpha, config)
    if comparison is None:
        return _result(scores, "insufficient", reason, None, margin, config)
    seen, points = _in_words(scores, comparison), f"{100 * margin:.1f} points"
    if comparison.lower > -margin and not _holds_at_worst(scores, alpha, -margin):
        words = f"{seen}: a loss of {points} is excluded {_on_what_was_judged(scores)}"
        return _result(scores, "undecided", words, comparison, margin, config)
    if comparison.lower > -margin:
        words = f"{seen}: a loss of {points} is excluded."
        return _result(scores, "ok", words, comparison, margin, config)
    if comparison.upper < -margin:
        words = f"{seen}: shown to lose more than {points}."
        return _result(scores, "worse", words, comparison, margin, config)
    needed = items_to_exclude(comparison, margin, config.power)
    words = f"{seen}: a loss of {points} is not excluded"
    if comparison.n >= needed:
        return _result(scores, "undecided", f"{words}.", comparison, margin, config)
    words += (
        f"; that takes about {needed} items like these (power {config.power:.0%}), "
        "so the suite is underpowered"
    )
    clusters = math.floor(comparison.effective_clusters + 1e-9)
    why = why_not_excluded(scores.suite, clusters, margin, alpha)
    words += f"; {why}." if why else "."
    return _result(scores, "insufficient", words, comparison, margin, config)


def least_margin(clusters: float, alpha: float) -> float:
    """Return the loss that so many clusters cannot exclude where hardly an item differs.

    The exact binomial bound on the share of clusters like these of which none was seen.
    """
    return share_at_most(0, clusters, alpha) if clusters else 1.0


def why_not_excluded(suite: str, clusters: int, margin: float, alpha: float) -> str:
    """Say why so many clusters cannot exclude a margin, and what would do; "" where they can."""
    least = least_margin(clusters, alpha)
    if least < margin:
        return ""
    enough = math.ceil(math.log(alpha) / math.log1p(-margin))
    setting = f'"{suite}" = {math.floor(100 * least + 1) / 100:.2f}'
    return (
        f"where hardly an item differs, {clusters} clusters exclude no loss of less than "
        f"{100 * least:.1f} points. Ask {enough} clusters, of a suite of your own or an external "
        f"one, or accept a larger loss, as in {setting!r} under [gate.margins]"
    )


def _judge_bystander(
    scores: SuiteScores, margin: float, alpha: float, config: GateConfig
) -> SuiteResult:
    comparison, _ = _compare(scores, alpha, config)
    if scores.identical:
        words = f"{scores.label}: untouched, {len(scores.item_ids)} equal answers."
        return _result(scores, "ok", words, comparison, margin, config)
    words = (
        f"{scores.label}: answers changed although the same artifact answers in both arms; "
        "a bystander moved."
    )
    return _result(scores, "moved", words, comparison, margin, config)


def _judge_must_pass(scores: SuiteScores, alpha: float, config: GateConfig) -> SuiteResult:
    comparison, _ = _compare(scores, alpha, config)
    arms = list(zip(scores.champion, scores.challenger, strict=True))
    failed = sum(new < 1 for _, new in arms)
    newly = sum(new < 1 <= old for old, new in arms)
    n, label = len(arms), scores.label
    if failed:
        words = (
            f"{label}: the challenger fails {failed} of {n} items that must pass, {newly} of "
            "which the champion passes; none may fail."
        )
        return _result(scores, "worse", words, comparison, 0.0, config)
    if scores.unjudged or not n:
        words = f"{label}: {scores.unjudged} of {n + scores.unjudged} items that must pass could "
        words += "not be judged." if n or scores.unjudged else "not be judged; there are none."
        return _result(scores, "insufficient", words, comparison, 0.0, config)
    words = f"{label}: all {n} items that must pass do."
    return _result(scores, "ok", words, comparison, 0.0, config)


def _compare(
    scores: SuiteScores, alpha: float, config: GateConfig
) -> tuple[PairedComparison | None, str]:
    """Return the comparison and, if there is too little for one, why."""
    try:
        comparison = compare(scores.champion, scores.challenger, scores.clusters, alpha)
    except InsufficientData as error:
        return None, f"{scores.label}: {error}"
    if comparison.n < config.min_items:
        return None, (
            f"{scores.label}: {comparison.n} items are too few; "
            f"at least {config.min_items} are needed."
        )
    return comparison, ""


def _holds_at_worst(scores: SuiteScores, alpha: float, limit: float) -> bool:
    """Whether the difference is above a limit also if what could not be judged were wrong."""
    if not scores.unjudged_challenger:
        return True
    clusters, champion = zip(*scores.unjudged_challenger, strict=True)
    wrong = (0.0,) * len(champion)
    worst = compare(
        scores.champion + champion, scores.challenger + wrong, scores.clusters + clusters, alpha
    )
    return worst.lower > limit


def _on_what_was_judged(scores: SuiteScores) -> str:
    return (
        f"only on what could be judged: the challenger's answers to "
        f"{len(scores.unjudged_challenger)} more items could not, and not if they are wrong."
    )


def _result(
    scores: SuiteScores,
    status: Status,
    reason: str,
    comparison: PairedComparison | None,
    margin: float | None,
    config: GateConfig,
) -> SuiteResult:
    if comparison is None:
        detectable, needed = None, None
    else:
        detectable = minimum_detectable_effect(comparison, config.power)
        needed = items_to_exclude(comparison, margin, config.power) if margin else None
    return SuiteResult(
        suite=scores.suite,
        slot=scores.slot,
        kind=scores.kind,
        status=status,
        reason=reason,
        n=len(scores.item_ids),
        unjudged=scores.unjudged,
        identical=scores.identical,
        unchanged=scores.unchanged,
        margin=margin,
        comparison=comparison,
        minimum_detectable_effect=detectable,
        items_needed=needed,
    )


def _in_words(scores: SuiteScores, comparison: PairedComparison) -> str:
    low, high = 100 * comparison.lower, 100 * comparison.upper
    return (
        f"{scores.label}: {100 * comparison.mean_champion:.1f} -> "
        f"{100 * comparison.mean_challenger:.1f} of 100 on {comparison.n} items in "
        f"{comparison.clusters} clusters, {100 * comparison.effect:+.1f} points "
        f"[{low:+.1f}, {high:+.1f}]"
    )
