"""The gate's verdicts and its reports on disk.

Scores are made up here, item by item; statistics, judge and files are the real ones.
"""

import math
import random
from pathlib import Path

import pytest
from pydantic import ValidationError

from promotion.config import GateConfig
from promotion.gate import (
    CorruptReport,
    GateIdentity,
    GateReport,
    SuiteScores,
    UnknownReport,
    judge,
    list_reports,
    load_report,
    save_report,
)
from promotion.paired import InvalidScores

OLD, NEW, BASE = ("sha256:" + digit * 64 for digit in "abc")
CONFIG = GateConfig()


def _identity(champion: str | None = OLD, challenger: str = NEW) -> GateIdentity:
    return GateIdentity(
        slot="L2",
        champion_digest=champion,
        challenger_digest=challenger,
        base_digest=BASE,
        suites_digest="sha256:" + "d" * 64,
        seed=7,
        manifest_digest="sha256:" + "e" * 64,
        code_version="1",
    )


def _scores(
    suite: str = "functions",
    slot: str = "L2",
    n: int = 120,
    gains: int = 0,
    losses: int = 0,
    identical: bool = False,
    unchanged: bool = False,
) -> SuiteScores:
    """Half the items right in both arms, the others but for gains and losses wrong in both."""
    both = (n - gains - losses) // 2
    champion = [1.0] * losses + [0.0] * gains + [1.0] * both
    challenger = [0.0] * losses + [1.0] * gains + [1.0] * both
    rest = [0.0] * (n - len(champion))
    return SuiteScores(
        suite=suite,
        slot=slot,
        item_ids=tuple(f"{suite}-{i}" for i in range(n)),
        clusters=tuple(str(i) for i in range(n)),
        champion=tuple(champion + rest),
        challenger=tuple(challenger + rest),
        identical=identical,
        unchanged=unchanged,
    )


BETTER = _scores(gains=20, losses=2)
UNTOUCHED = _scores("household", "L1", n=20, identical=True, unchanged=True)


def _judge(
    primary: SuiteScores = BETTER, *guards: SuiteScores, config: GateConfig = CONFIG
) -> GateReport:
    return judge(primary, guards or (UNTOUCHED,), config, _identity())


def test_a_shown_gain_with_untouched_guards_passes() -> None:
    report = _judge()
    assert report.verdict == "PASS"
    assert report.reasons[0].startswith("functions (L2): 42.5 -> 57.5 of 100 on 120 items")
    assert report.reasons[1] == "household (L1): untouched, 20 equal answers."


def test_no_shown_gain_is_inconclusive_and_says_what_could_have_been_seen() -> None:
    report = _judge(_scores(gains=6, losses=4))
    assert report.verdict == "INCONCLUSIVE"
    assert "not shown to be better" in report.reasons[0]
    detectable = report.primary.minimum_detectable_effect
    assert detectable is not None
    assert f"a gain of {100 * detectable:.1f} points" in report.reasons[0]


def test_a_shown_loss_fails() -> None:
    report = _judge(_scores(gains=2, losses=20))
    assert report.verdict == "FAIL"
    assert "shown to be worse" in report.reasons[0]


@pytest.mark.parametrize("n", [0, 1, 29])
def test_too_few_items_never_pass_however_good(n: int) -> None:
    report = _judge(_scores(n=n, gains=n))
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
    report = _judge(scores)
    assert report.verdict == "INCONCLUSIVE"
    assert "one cluster" in report.reasons[0]


def test_a_guard_proved_worse_fails() -> None:
    report = _judge(BETTER, _scores("chat", "L0", losses=25))
    assert report.verdict == "FAIL"
    assert report.guards[0].status == "worse"
    assert "shown to lose more than 5.0 points" in report.reasons[0]


def test_a_guard_that_straddles_the_margin_is_inconclusive() -> None:
    report = _judge(BETTER, _scores("chat", "L0", gains=1, losses=5))
    assert report.verdict == "INCONCLUSIVE"
    assert report.guards[0].status == "undecided"


def test_a_guard_that_excludes_the_margin_lets_pass() -> None:
    report = _judge(BETTER, _scores("chat", "L0", n=400, gains=4, losses=4))
    assert report.verdict == "PASS"


def test_a_loss_inside_the_margin_is_let_pass_even_if_shown() -> None:
    guard = _scores("chat", "L0", n=2000, losses=20)
    report = _judge(BETTER, guard)
    comparison = report.guards[0].comparison
    assert comparison is not None
    assert comparison.worse
    assert report.verdict == "PASS"


def test_an_underpowered_guard_of_equal_scores_is_inconclusive() -> None:
    """Equal scores of a changed artifact on few items exclude nothing."""
    report = _judge(BETTER, _scores("chat", "L0", n=40))
    assert report.verdict == "INCONCLUSIVE"


def test_a_bystander_that_moved_fails_even_if_scores_are_equal() -> None:
    report = _judge(BETTER, _scores("household", "L1", n=20, unchanged=True))
    assert report.verdict == "FAIL"
    assert report.guards[0].status == "moved"
    assert "a bystander moved" in report.reasons[0]


def test_an_empty_guard_is_not_proof_of_being_untouched() -> None:
    report = _judge(BETTER, _scores("household", "L1", n=0, identical=True, unchanged=True))
    assert report.verdict == "INCONCLUSIVE"


def test_failing_outweighs_inconclusive() -> None:
    report = _judge(_scores(gains=6, losses=4), _scores("chat", "L0", losses=25))
    assert report.verdict == "FAIL"


def test_the_same_digest_twice_is_nothing_to_compare() -> None:
    primary = _scores(identical=True, unchanged=True)
    report = judge(primary, [UNTOUCHED], CONFIG, _identity(champion=NEW))
    assert report.verdict == "INCONCLUSIVE"
    assert report.reasons[0].startswith("Nothing to compare")


def test_a_base_champion_has_no_digest() -> None:
    report = judge(BETTER, [UNTOUCHED], CONFIG, _identity(champion=None))
    assert report.verdict == "PASS"
    assert report.champion_digest is None


def test_no_guard_is_said_aloud() -> None:
    report = judge(BETTER, [], CONFIG, _identity())
    assert "No guard suite was run" in report.reasons[-1]


def test_a_stricter_alpha_withholds_the_verdict() -> None:
    primary = _scores(gains=9, losses=2)
    assert _judge(primary).verdict == "PASS"
    assert _judge(primary, config=GateConfig(alpha=0.005)).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("primary", "guards", "text"),
    [
        (BETTER, [BETTER], "'functions' is given twice"),
        (_scores(slot="L1", gains=20), [UNTOUCHED], "is of slot 'L1'"),
        (_scores(unchanged=True, identical=True), [UNTOUCHED], "one artifact in both arms"),
    ],
)
def test_suites_that_do_not_fit_are_refused(
    primary: SuiteScores, guards: list[SuiteScores], text: str
) -> None:
    with pytest.raises(InvalidScores, match=text):
        judge(primary, guards, CONFIG, _identity())


def test_items_must_be_told_apart() -> None:
    with pytest.raises(InvalidScores, match="2 item ids"):
        SuiteScores("s", "L2", ("a", "a"), ("x", "y"), (0, 1), (1, 1), False, False)


def test_a_score_that_is_not_a_number_is_an_error_not_a_verdict() -> None:
    scores = SuiteScores("s", "L2", ("a", "b"), ("x", "y"), (0, 1), (1, math.nan), False, False)
    with pytest.raises(InvalidScores, match="not in"):
        _judge(scores)


def test_shuffled_outcomes_pass_at_most_about_alpha() -> None:
    draw = random.Random(4)
    passed = 0
    for _ in range(400):
        gains = sum(draw.random() < 0.5 for _ in range(24))
        passed += _judge(_scores(gains=gains, losses=24 - gains)).verdict == "PASS"
    assert passed / 400 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_the_same_scores_give_the_same_key() -> None:
    assert _judge().key == _judge().key
    assert _judge().key != _judge(_scores(gains=21, losses=2)).key


def test_a_report_comes_back_from_disk_whole(tmp_path: Path) -> None:
    report = _judge()
    save_report(tmp_path, report)
    save_report(tmp_path, report)
    assert load_report(tmp_path, report.key) == report
    assert load_report(tmp_path, report.key[:8]) == report
    assert list_reports(tmp_path) == (report,)
    assert list_reports(tmp_path, slot="L1") == ()


@pytest.mark.parametrize("key", ["", "zzzz", "0" * 64])
def test_an_unknown_report_names_those_there_are(tmp_path: Path, key: str) -> None:
    report = _judge()
    save_report(tmp_path, report)
    with pytest.raises(UnknownReport, match=report.key[:12]):
        load_report(tmp_path, key)


def test_no_reports_is_an_empty_list(tmp_path: Path) -> None:
    assert list_reports(tmp_path) == ()


def test_an_edited_report_is_refused(tmp_path: Path) -> None:
    report = _judge(_scores(gains=6, losses=4))
    path = save_report(tmp_path, report)
    path.write_text(path.read_text().replace("INCONCLUSIVE", "PASS"))
    with pytest.raises(CorruptReport, match="damaged or altered"):
        load_report(tmp_path, report.key)


@pytest.mark.parametrize("damage", [b"", b"{", b"\x00\xff", b"[]"])
def test_a_damaged_report_is_refused(tmp_path: Path, damage: bytes) -> None:
    report = _judge()
    save_report(tmp_path, report).write_bytes(damage)
    with pytest.raises(CorruptReport, match="Delete it"):
        load_report(tmp_path, report.key)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="alhpa"):
        GateConfig.model_validate({"alhpa": 0.1})
