"""The gate's verdicts and its reports on disk.

Scores are made up here, item by item; statistics, judge and files are the real ones.
"""

import math
import random
from pathlib import Path

import pytest
from gate_scores import BETTER, CONFIG, NEW, UNTOUCHED, identity_of, judged, scores_of
from pydantic import ValidationError

from promotion.config import GateConfig
from promotion.gate import (
    CorruptReport,
    UnknownReport,
    judge,
    list_reports,
    load_report,
    save_report,
)
from promotion.paired import InvalidScores
from promotion.slices import SuiteScores
from promotion.spending import alpha_of


def test_a_shown_gain_with_untouched_guards_passes() -> None:
    report = judged()
    assert report.verdict == "PASS"
    assert report.reasons[0].startswith("functions (L2): 42.5 -> 57.5 of 100 on 120 items")
    assert report.reasons[1] == "household (L1): untouched, 20 equal answers."


def test_no_shown_gain_is_inconclusive_and_says_what_could_have_been_seen() -> None:
    report = judged(scores_of(gains=6, losses=4))
    assert report.verdict == "INCONCLUSIVE"
    assert "not shown to be better" in report.reasons[0]
    detectable = report.primary.minimum_detectable_effect
    assert detectable is not None
    assert f"a gain of {100 * detectable:.1f} points" in report.reasons[0]


def test_a_shown_loss_fails() -> None:
    report = judged(scores_of(gains=2, losses=20))
    assert report.verdict == "FAIL"
    assert "shown to be worse" in report.reasons[0]


@pytest.mark.parametrize("n", [0, 1, 29])
def test_too_few_items_never_pass_however_good(n: int) -> None:
    report = judged(scores_of(n=n, gains=n))
    assert report.verdict == "INCONCLUSIVE"
    assert report.primary.status == "insufficient"


def test_one_cluster_never_passes() -> None:
    scores = SuiteScores(
        suite="functions",
        slot="L2",
        item_ids=tuple(str(i) for i in range(50)),
        clusters=("all",) * 50,
        champion=(0.0,) * 50,
        challenger=(1.0,) * 50,
        identical=False,
        unchanged=False,
    )
    report = judged(scores)
    assert report.verdict == "INCONCLUSIVE"
    assert "one cluster" in report.reasons[0]


def test_a_guard_proved_worse_fails() -> None:
    report = judged(BETTER, scores_of("chat", "L0", losses=25))
    assert report.verdict == "FAIL"
    assert report.guards[0].status == "worse"
    assert "shown to lose more than 5.0 points" in report.reasons[0]


def test_a_guard_that_straddles_the_margin_is_inconclusive() -> None:
    report = judged(BETTER, scores_of("chat", "L0", gains=1, losses=5))
    assert report.verdict == "INCONCLUSIVE"
    assert report.guards[0].status == "insufficient"


def test_a_guard_with_enough_items_that_still_straddles_is_undecided() -> None:
    """At 2,000 items with 10% discordance 5 points could have been excluded."""
    report = judged(BETTER, scores_of("chat", "L0", n=2000, gains=60, losses=142))
    guard = report.guards[0]
    assert (report.verdict, guard.status) == ("INCONCLUSIVE", "undecided")
    assert guard.items_needed is not None
    assert guard.items_needed <= 2000


def test_a_guard_that_excludes_the_margin_lets_pass() -> None:
    report = judged(BETTER, scores_of("chat", "L0", n=400, gains=4, losses=4))
    assert report.verdict == "PASS"


def test_a_loss_inside_the_margin_is_let_pass_even_if_shown() -> None:
    guard = scores_of("chat", "L0", n=2000, losses=20)
    report = judged(BETTER, guard)
    comparison = report.guards[0].comparison
    assert comparison is not None
    assert comparison.worse
    assert report.verdict == "PASS"


def test_an_underpowered_guard_of_equal_scores_is_inconclusive() -> None:
    """Equal scores of a changed artifact on few items exclude nothing."""
    report = judged(BETTER, scores_of("chat", "L0", n=40))
    assert report.verdict == "INCONCLUSIVE"
    guard = report.guards[0]
    needed = math.ceil(math.log(alpha_of(1, 0.05)) / math.log(0.95))
    assert (guard.status, guard.items_needed) == ("insufficient", needed)
    assert f"takes about {needed} items" in guard.reason
    assert f"Ask {needed} clusters" in guard.reason
    assert "'\"chat\" = 0.09' under [gate.margins]" in guard.reason  # 1 - 0.0304^(1/40) = 0.0836
    wider = GateConfig(margins={"chat": 0.09})
    assert judged(BETTER, scores_of("chat", "L0", n=40), config=wider).verdict == "PASS"
    assert judged(BETTER, scores_of("chat", "L0", n=needed)).verdict == "PASS"


def test_a_bystander_that_moved_fails_even_if_scores_are_equal() -> None:
    report = judged(BETTER, scores_of("household", "L1", n=20, unchanged=True))
    assert report.verdict == "FAIL"
    assert report.guards[0].status == "moved"
    assert "a bystander moved" in report.reasons[0]


def test_an_empty_guard_is_not_proof_of_being_untouched() -> None:
    report = judged(BETTER, scores_of("household", "L1", n=0, identical=True, unchanged=True))
    assert report.verdict == "INCONCLUSIVE"


def test_failing_outweighs_inconclusive() -> None:
    report = judged(scores_of(gains=6, losses=4), scores_of("chat", "L0", losses=25))
    assert report.verdict == "FAIL"


def test_the_same_digest_twice_is_nothing_to_compare() -> None:
    primary = scores_of(identical=True, unchanged=True)
    report = judge(primary, [UNTOUCHED], CONFIG, identity_of(champion=NEW))
    assert report.verdict == "INCONCLUSIVE"
    assert report.reasons[0].startswith("Nothing to compare")


def test_a_base_champion_has_no_digest() -> None:
    report = judge(BETTER, [UNTOUCHED], CONFIG, identity_of(champion=None))
    assert report.verdict == "PASS"
    assert report.champion_digest is None


def test_no_guard_is_said_aloud() -> None:
    report = judge(BETTER, [], CONFIG, identity_of())
    assert "No guard suite was run" in report.reasons[-1]


def test_a_stricter_alpha_withholds_the_verdict() -> None:
    primary = scores_of(gains=10, losses=2)
    assert judged(primary).verdict == "PASS"
    assert judged(primary, config=GateConfig(alpha=0.005)).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("primary", "guards", "text"),
    [
        (BETTER, [BETTER], "'functions' is given twice"),
        (scores_of(slot="L1", gains=20), [UNTOUCHED], "is of slot 'L1'"),
        (scores_of("code", gains=20), [UNTOUCHED], "'functions' was named before"),
        (scores_of(unchanged=True, identical=True), [UNTOUCHED], "one artifact in both arms"),
    ],
)
def test_suites_that_do_not_fit_are_refused(
    primary: SuiteScores, guards: list[SuiteScores], text: str
) -> None:
    with pytest.raises(InvalidScores, match=text):
        judge(primary, guards, CONFIG, identity_of())


def test_items_must_be_told_apart() -> None:
    with pytest.raises(InvalidScores, match="2 item ids"):
        SuiteScores("s", "L2", ("a", "a"), ("x", "y"), (0, 1), (1, 1), False, False)


def test_a_score_that_is_not_a_number_is_an_error_not_a_verdict() -> None:
    arms = ((0, 1), (1, math.nan))
    scores = SuiteScores("functions", "L2", ("a", "b"), ("x", "y"), *arms, False, False)
    with pytest.raises(InvalidScores, match="not in"):
        judged(scores)


def test_shuffled_outcomes_pass_at_most_about_alpha() -> None:
    draw = random.Random(4)
    passed = 0
    for _ in range(400):
        gains = sum(draw.random() < 0.5 for _ in range(24))
        passed += judged(scores_of(gains=gains, losses=24 - gains)).verdict == "PASS"
    assert passed / 400 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_later_attempts_need_more_evidence() -> None:
    primary = scores_of(gains=12, losses=2)
    verdicts = [
        judge(primary, [UNTOUCHED], CONFIG, identity_of(attempt=k)).verdict for k in (1, 2, 5)
    ]
    assert verdicts == ["PASS", "PASS", "INCONCLUSIVE"]
    report = judge(primary, [UNTOUCHED], CONFIG, identity_of(attempt=5))
    assert report.alpha == 0.05
    assert report.alpha_k == pytest.approx(0.05 * 6 / (math.pi**2 * 25))
    assert report.primary.comparison is not None
    assert report.primary.comparison.alpha == report.alpha_k


def test_the_same_scores_give_the_same_key() -> None:
    assert judged().key == judged().key
    assert judged().key != judged(scores_of(gains=21, losses=2)).key


def test_a_report_comes_back_from_disk_whole(tmp_path: Path) -> None:
    report = judged()
    save_report(tmp_path, report)
    save_report(tmp_path, report)
    assert load_report(tmp_path, report.key) == report
    assert load_report(tmp_path, report.key[:8]) == report
    assert list_reports(tmp_path) == (report,)
    assert list_reports(tmp_path, slot="L1") == ()


@pytest.mark.parametrize("key", ["", "zzzz", "0" * 64])
def test_an_unknown_report_names_those_there_are(tmp_path: Path, key: str) -> None:
    report = judged()
    save_report(tmp_path, report)
    with pytest.raises(UnknownReport, match=report.key[:12]):
        load_report(tmp_path, key)


def test_no_reports_is_an_empty_list(tmp_path: Path) -> None:
    assert list_reports(tmp_path) == ()


def test_an_edited_report_is_refused(tmp_path: Path) -> None:
    report = judged(scores_of(gains=6, losses=4))
    path = save_report(tmp_path, report)
    path.write_text(path.read_text().replace("INCONCLUSIVE", "PASS"))
    with pytest.raises(CorruptReport, match="damaged or altered"):
        load_report(tmp_path, report.key)


@pytest.mark.parametrize("damage", [b"", b"{", b"\x00\xff", b"[]"])
def test_a_damaged_report_is_refused(tmp_path: Path, damage: bytes) -> None:
    report = judged()
    save_report(tmp_path, report).write_bytes(damage)
    with pytest.raises(CorruptReport, match="Delete it"):
        load_report(tmp_path, report.key)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="alhpa"):
        GateConfig.model_validate({"alhpa": 0.1})


@pytest.mark.parametrize("margins", [{"skill": 1.0}, {"skill": -0.1}])
def test_a_margin_that_is_no_share_is_refused(margins: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="margins must be"):
        GateConfig(margins=margins)


def test_a_report_of_an_earlier_schema_is_left_out(tmp_path: Path) -> None:
    path = save_report(tmp_path, judged())
    (path.parent / ("0" * 64 + ".json")).write_text('{"schema_version": 1, "verdict": "PASS"}')
    assert list_reports(tmp_path) == (judged(),)
    with pytest.raises(UnknownReport):
        load_report(tmp_path, "0" * 64)
