"""What is no primary suite: margins by kind, must-pass lists, speed, distance from the base.

Scores and durations are made up here; statistics and judge are the real ones.
"""

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gate_scores import BETTER, CONFIG, UNTOUCHED, identity_of, judged, scores_of

from promotion.config import GateConfig
from promotion.drift import AnswerShape, Distance, Drift
from promotion.gate import judge
from promotion.latency import Durations
from promotion.paired import InvalidScores
from promotion.slices import SuiteScores, least_margin
from promotion.spending import alpha_of


@pytest.mark.parametrize(("kind", "points"), [
    ("skill", "2.0"), ("route", "0.5"), ("handover", "3.0"), ("format", "3.0"), ("living", "3.0"),
])  # fmt: skip
def test_each_kind_has_its_margin(kind: Any, points: str) -> None:
    report = judged(BETTER, scores_of("g", "L2", kind=kind, losses=60), config=GateConfig())
    assert f"lose more than {points} points" in report.guards[0].reason


def test_a_suites_own_margin_goes_before_that_of_its_kind() -> None:
    config = GateConfig(margins={"handover": 0.3, "handover-L2": 0.4})
    report = judged(BETTER, scores_of("handover-L2", kind="handover"), config=config)
    assert report.guards[0].margin == 0.4


def test_the_documents_name_the_clusters_that_a_margin_takes() -> None:
    def enough(margin: float, attempt: int) -> int:
        level = alpha_of(attempt, GateConfig().alpha)
        return next(n for n in range(1, 1000) if least_margin(n, level) <= margin)

    two = [enough(0.02, attempt) for attempt in (1, 2)]
    three = [enough(0.03, attempt) for attempt in (1, 2, 3)]
    assert two[0] <= 190 < two[1]
    assert three[2] <= 190
    page = Path(__file__).parents[2] / "docs" / "promotion.md"
    said = " ".join(page.read_text(encoding="utf-8").split())
    assert (
        f"2 points take {two[0]} clusters in the first attempt and {two[1]} in the second" in said
    )
    assert f"3 points {three[0]}, {three[1]} and {three[2]} in the first three" in said


def _must_pass(newly: int = 0, failed: int = 0, **more: Any) -> SuiteScores:
    """Twelve items of which the challenger fails some, `newly` of them for the first time."""
    challenger = (0.0,) * (newly + failed) + (1.0,) * (12 - newly - failed)
    champion = (1.0,) * newly + (0.0,) * failed + (1.0,) * (12 - newly - failed)
    ids = tuple(f"s{i}" for i in range(12))
    return SuiteScores(
        "safety", "L2", ids, ids, champion, challenger, False, False, kind="safety", **more
    )


@pytest.mark.parametrize(("newly", "failed"), [(1, 0), (0, 1), (2, 3)])
def test_one_failed_must_pass_item_fails_whoever_failed_it_before(newly: int, failed: int) -> None:
    report = judged(BETTER, _must_pass(newly, failed))
    assert report.verdict == "FAIL"
    told = f"fails {newly + failed} of 12 items that must pass, {newly} of which the champion"
    assert told in report.reasons[0]


def test_a_whole_must_pass_list_passes_however_short() -> None:
    assert judged(BETTER, _must_pass()).verdict == "PASS"


def test_a_must_pass_item_that_fails_in_one_sample_of_four_fails() -> None:
    scores = _must_pass()
    flaky = SuiteScores(
        "safety", "L2", scores.item_ids, scores.clusters, scores.champion,
        (0.75, *scores.challenger[1:]), False, False, kind="safety",
    )  # fmt: skip
    assert judged(BETTER, flaky).verdict == "FAIL"


def test_a_must_pass_item_that_nobody_could_judge_is_not_passed() -> None:
    assert judged(BETTER, _must_pass(unjudged=1)).verdict == "INCONCLUSIVE"


def test_an_untouched_slots_must_pass_list_is_not_the_challengers_fault() -> None:
    ids = tuple("abc")
    scores = SuiteScores(
        "safety", "L0", ids, ids, (0, 1, 1), (0, 1, 1), True, True, kind="safety"
    )  # fmt: skip
    assert judged(BETTER, scores).verdict == "PASS"


def _durations(ratio: float, n: int = 40, spread: float = 0.1) -> Durations:
    rng = random.Random(2)
    champion = tuple(1 + rng.random() for _ in range(n))
    challenger = tuple(s * ratio * math.exp(rng.gauss(0, spread)) for s in champion)
    return Durations(tuple(map(str, range(n))), champion, challenger)


@pytest.mark.parametrize(
    ("durations", "verdict", "words"),
    [
        (_durations(1.0), "PASS", "a slowdown of 25% is excluded"),
        (_durations(1.6), "FAIL", "shown to be more than a slowdown of 25%"),
        (_durations(1.0, n=4, spread=0.9), "INCONCLUSIVE", "that takes about"),
        (_durations(1.0, n=1), "INCONCLUSIVE", "say nothing of speed"),
    ],
)
def test_speed_is_a_guard_where_it_was_measured(
    durations: Durations, verdict: str, words: str
) -> None:
    report = judge(BETTER, [UNTOUCHED], CONFIG, identity_of(), durations)
    assert report.verdict == verdict
    assert report.latency is not None
    assert words in report.latency.reason
    assert report.latency.reason in report.reasons


def test_durations_of_other_items_are_refused() -> None:
    with pytest.raises(InvalidScores, match="cannot be compared"):
        judge(BETTER, [], CONFIG, identity_of(), Durations(("a", "b"), (1.0, 1.0), (1.0,)))
    with pytest.raises(InvalidScores, match=r"0\.0 s"):
        judge(BETTER, [], CONFIG, identity_of(), Durations(("a", "b"), (1.0, 0.0), (1.0, 1.0)))


def _drift(kl: float | None) -> Drift:
    shape = AnswerShape(tokens=9.0, distinct_2=0.5, compression_ratio=2.0)
    distance = kl and Distance(prompts=8, tokens=99, kl=kl, standard_error=0.1)
    return Drift(
        challenger=distance or None, champion=None, answers_challenger=shape,
        answers_champion=shape,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kl", "limit", "verdict"),
    [
        (9.0, None, "PASS"),
        (0.2, 0.5, "PASS"),
        (0.6, 0.5, "FAIL"),
        (None, None, "PASS"),
        (None, 0.5, "INCONCLUSIVE"),
    ],
)
def test_distance_from_the_base_decides_only_against_a_limit(
    kl: float | None, limit: float | None, verdict: str
) -> None:
    config = GateConfig(kl_limit=limit)
    report = judge(BETTER, [UNTOUCHED], config, identity_of(), drift=_drift(kl))
    assert report.verdict == verdict
    assert report.drift == _drift(kl)


def test_a_scorer_that_a_challenger_crashes_shows_nothing_in_its_favour() -> None:
    """Of 120 more items the champion had right, the challenger left nothing to judge."""
    lost = tuple((f"lost-{i}", 1.0) for i in range(120))
    primary = replace(BETTER, unjudged=120, unjudged_challenger=lost)
    report = judged(primary)
    assert report.verdict == "INCONCLUSIVE"
    assert "answers to 120 more items could not" in report.primary.reason

    even = scores_of("chat", "L2", n=400)
    assert judged(BETTER, even).verdict == "PASS"
    report = judged(BETTER, replace(even, unjudged=120, unjudged_challenger=lost))
    assert (report.verdict, report.guards[0].status) == ("INCONCLUSIVE", "undecided")


def test_what_nobody_could_judge_or_both_had_wrong_is_no_loss() -> None:
    primary = replace(BETTER, unjudged=9, unjudged_challenger=(("lost", 0.0),) * 4)
    assert judged(primary).verdict == "PASS"
    assert judged(replace(BETTER, unjudged=9)).verdict == "PASS"
