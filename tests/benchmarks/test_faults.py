"""The benchmark over failures of known cause: its figures are counted right, its set is whole.

Figures are counted by hand in the tests. The shipped set is read, not recorded again.
"""

from pathlib import Path

import pytest

from benchmarks import attribution_speed
from benchmarks.attribution import measure as benchmark
from benchmarks.attribution import parse
from benchmarks.faults import (
    CLASSES,
    FAULTS,
    Case,
    conversations,
    equal_arms,
    measure,
    precision_at,
    read_lines,
    scores,
    wilson,
)

SHIPPED = FAULTS / "labels.jsonl.gz"


def _case(klass: str, said: str, confidence: float, said_slot: str | None = "L1") -> Case:
    return Case(
        turn_id=f"{klass}-{said}-{confidence}",
        klass=klass,
        slot="L1" if klass in ("adapter", "summary") else None,
        hop_id="hop",
        kind="some",
        said=said,
        said_slot=said_slot,
        said_hop_id="hop",
        confidence=confidence,
        rule="rule",
    )


CASES = [
    _case("adapter", "adapter", 0.9),
    _case("adapter", "adapter", 0.8, said_slot="L2"),
    _case("adapter", "unknown", 0.0),
    _case("tool", "tool", 0.95),
    _case("tool", "adapter", 0.5),
    _case("user", "unknown", 0.0),
    _case("router", "router", 0.5),
    _case("router", "adapter", 0.5),
]


def test_a_claim_is_right_where_class_and_slot_agree() -> None:
    assert [case.is_right for case in CASES] == [
        True,
        False,
        False,
        True,
        False,
        False,
        True,
        False,
    ]


def test_precision_goes_with_the_surest_claims_and_equal_ones_count_by_their_mean() -> None:
    assert precision_at(CASES, 0.25) == 1.0
    assert precision_at(CASES, 0.375) == pytest.approx(2 / 3, abs=1e-4)
    # Four of eight: 0.95, 0.9, 0.8, and one of three at 0.5, of which one is right.
    assert precision_at(CASES, 0.5) == pytest.approx((2 + 1 / 3) / 4, abs=1e-4)
    # No more than is claimed.
    assert precision_at(CASES, 1.0) == pytest.approx(3 / 6, abs=1e-4)
    assert precision_at([], 0.5) is None


def test_scores_of_a_class_are_counted_over_what_it_was_and_what_was_said() -> None:
    found = scores(CASES)
    adapter = found["classes"]["adapter"]
    assert (adapter["n"], adapter["precision"], adapter["recall"]) == (3, 0.25, round(1 / 3, 4))
    assert adapter["recall_interval"] == wilson(1, 3)
    assert found["classes"]["tool"]["f1"] == round(2 * 1.0 * 0.5 / 1.5, 4)
    assert found["confusion"]["router"] == {"router": 1, "adapter": 1}
    assert found["claimed"] == 0.75
    assert "0.7" in found["curve"]
    assert "0.8" not in found["curve"]
    f1 = [adapter["f1"], found["classes"]["tool"]["f1"], 0.6667, 0.0]
    assert found["macro_f1"] == pytest.approx(sum(f1) / 4, abs=1e-3)


def test_wilson_is_the_notes_interval() -> None:
    """The notes: 25.5 % of 126 is [18.7, 33.8], 69.1 % of 58 is [56.3, 79.5]."""
    assert wilson(32, 126) == pytest.approx([0.187, 0.338], abs=2e-3)
    assert wilson(40, 58) == pytest.approx([0.563, 0.795], abs=5e-3)
    assert wilson(0, 0) is None


def test_speed_is_measured_on_turns_that_call_tools_too() -> None:
    found = attribution_speed.measure(turns=200)

    assert found.keys() == {"plain", "calling"}
    assert all(rate > 0 for rate in found.values())


@pytest.mark.skipif(not SHIPPED.is_file(), reason="no set was recorded")
def test_the_shipped_set_has_each_class_and_is_known_whole() -> None:
    labels = read_lines(SHIPPED)
    counts = {klass: sum(label["class"] == klass for label in labels) for klass in CLASSES}
    assert all(count >= 200 for count in counts.values()), counts
    assert len({label["turn_id"] for label in labels}) == len(labels)
    assert len({label["kind"] for label in labels}) >= 15
    turns = conversations(FAULTS / "spool")
    assert {label["turn_id"] for label in labels} <= set(turns)
    # One fault a conversation, so that no label says anything of another.
    assert len({turns[label["turn_id"]] for label in labels}) == len(labels)


@pytest.mark.slow
def test_the_one_command_reports_every_area_and_says_what_has_no_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = str(tmp_path / "nowhere")
    words = ["--quick", "--turns", "200", "--who-and-when", nowhere, "--faults", nowhere]
    found = benchmark(parse(words))
    assert found["faults"] is None
    assert found["whoandwhen"] is None
    assert 0 < found["equal_arms_false_router"] <= 0.05
    assert 0.9 < found["ope_coverage"] < 1
    assert found["turns_per_s"] > 0
    assert found["calling_turns_per_s"] > 0
    assert set(found["signals"]["sources"]) == {"bundled"}
    said = capsys.readouterr().err
    assert "faults is not measured" in said
    assert "--who-and-when" in said


@pytest.mark.slow
@pytest.mark.skipif(not SHIPPED.is_file(), reason="no set was recorded")
def test_the_shipped_set_is_blamed_from_scratch() -> None:
    found = measure(quick=True)
    assert found["n"] == len(read_lines(SHIPPED))
    assert found["precision"] >= 0.9
    assert found["coverage"] == 0.5
    equal = equal_arms(FAULTS / "equal")
    assert equal is not None
    assert equal["n"] >= 60
