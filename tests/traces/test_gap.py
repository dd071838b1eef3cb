"""The gap rule: the notes' table, its error rate by enumeration, and what must hold for any counts.

Nothing is faked. Known figures are those of the notes (1.4), typed here; probabilities are
counted again by brute force.
"""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.attribution.gap import (
    Arm,
    false_blame,
    gap_needed,
    judge,
    judge_alike,
    p_value,
    power,
)

ALPHA = 0.05
OTHERS = ("L0", "L2", "L3")


def arms(own: int, *others: int, samples: int = 8) -> tuple[Arm, list[Arm]]:
    named = zip(OTHERS, others, strict=False)
    return Arm("L1", samples, own), [Arm(slot, samples, n) for slot, n in named]


def verdict(own: int, *others: int, samples: int = 8, solvable: bool = False) -> str | None:
    answered, rest = arms(own, *others, samples=samples)
    found = judge(answered, rest, ALPHA, solvable=solvable)
    return found and found.verdict


# m: g at p=.2 and .5, false router blame there in percent, and power in percent with either g
# for the best arm at .9 against .1, .7 against .2 and .6 against .3.
NOTES = {
    4: ((3, 4), (3.4, 1.1), ((81, 43), (37, 10), (19, 3))),
    8: ((4, 5), (3.8, 2.8), ((98, 93), (63, 41), (31, 14))),
    16: ((6, 7), (2.1, 2.7), ((100, 100), (85, 74), (41, 27))),
    32: ((8, 9), (2.6, 4.2), ((100, 100), (99, 98), (71, 62))),
}


@pytest.mark.parametrize("samples", NOTES)
def test_the_notes_table_is_repeated(samples: int) -> None:
    gaps, false, powers = NOTES[samples]
    assert (gap_needed(samples, 4, p=0.2), gap_needed(samples, 4, p=0.5)) == gaps
    for gap, p, percent in zip(gaps, (0.2, 0.5), false, strict=True):
        assert round(100 * false_blame(samples, 4, gap, [p])[0], 1) == percent
    for (low, high), percents in zip(((0.1, 0.9), (0.2, 0.7), (0.3, 0.6)), powers, strict=True):
        for gap, percent in zip(gaps, percents, strict=True):
            assert 100 * power(samples, gap, low, (high, low, low)) == pytest.approx(percent, abs=1)


def test_one_sample_an_arm_never_blames_the_router() -> None:
    assert gap_needed(1, 4) is None
    assert verdict(0, 1, 1, 1, samples=1) != "router"


def test_the_p_value_counts_the_ways_to_share_the_successes() -> None:
    answered, others = Arm("L1", 3, 1), [Arm("L0", 4, 4), Arm("L2", 2, 0)]
    ways = {True: 0, False: 0}
    for a, b, c in itertools.product(range(4), range(5), range(3)):
        if a + b + c == 5:
            gap = max(b / 4, c / 2) - a / 3
            ways[gap >= 1 - 1 / 3 - 1e-12] += math.comb(3, a) * math.comb(4, b) * math.comb(2, c)
    assert p_value(answered, others) == pytest.approx(ways[True] / sum(ways.values()))


@pytest.mark.parametrize("samples", [2, 4, 8])
def test_equally_good_arms_blame_the_router_at_most_as_configured(samples: int) -> None:
    blamed = {
        counts: verdict(*counts, samples=samples) == "router"
        for counts in itertools.product(range(samples + 1), repeat=4)
    }
    for p in (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98):
        chance = [math.comb(samples, n) * p**n * (1 - p) ** (samples - n) for n in range(9)]
        rate = sum(math.prod(chance[n] for n in counts) for counts, yes in blamed.items() if yes)
        assert rate <= ALPHA


def test_the_rule_that_knows_no_p_finds_no_less_than_the_gap_for_every_p() -> None:
    needed = gap_needed(8, 4)
    assert needed is not None
    for counts in itertools.product(range(9), repeat=4):
        if max(counts[1:]) - counts[0] >= needed:
            assert verdict(*counts) == "router"


@pytest.mark.parametrize(
    ("own", "others", "solvable", "expected"),
    [
        (0, (8, 0, 1), False, "router"),
        (7, (8, 8, 8), False, "stochastic"),
        (2, (3, 0, 0), False, "adapter"),
        (0, (0, 0, 0), True, "adapter"),
        (0, (0, 0, 0), False, "unsolvable"),
        (0, (), False, "unsolvable"),
    ],
)
def test_the_four_verdicts(own, others, solvable, expected) -> None:
    assert verdict(own, *others, solvable=solvable) == expected


def test_the_right_slot_is_named_where_one_is_best() -> None:
    answered, others = arms(0, 8, 1, 0)
    assert judge(answered, others, ALPHA).right_slot == "L0"
    answered, others = arms(0, 8, 8, 0)
    found = judge(answered, others, ALPHA)
    assert (found.verdict, found.right_slot) == ("router", None)


def test_a_rate_of_one_half_is_claimed_by_nobody_with_confidence() -> None:
    answered, others = arms(4, 4, 4, 4)
    assert judge(answered, others, ALPHA).confidence <= 0.5


def counted_pairs(pairs: list[tuple[tuple[int, int], tuple[int, int]]]) -> float:
    """Return the p-value of two slots over turns, counted way by way."""
    ways: dict[int, int] = {0: 1}
    for (samples, successes), (other, more) in pairs:
        total = successes + more
        after: dict[int, int] = {}
        for n in range(max(0, total - samples), min(other, total) + 1):
            share = math.comb(other, n) * math.comb(samples, total - n)
            for seen, count in ways.items():
                after[seen + n] = after.get(seen + n, 0) + count * share
        ways = after
    observed = sum(more for _, (_, more) in pairs)
    return sum(c for n, c in ways.items() if n >= observed) / sum(ways.values())


@pytest.mark.parametrize(
    "pairs",
    [
        [((8, 1), (8, 4)), ((8, 1), (8, 5))],
        [((8, 0), (3, 2)), ((5, 4), (8, 8)), ((8, 2), (1, 1)), ((4, 1), (8, 6))],
    ],
)
def test_over_turns_the_chance_is_counted_turn_by_turn(pairs) -> None:
    turns = [(Arm("L1", *own), [Arm("L0", *other)]) for own, other in pairs]
    expected = counted_pairs(pairs)
    assert judge_alike(turns, 1.0).p_value == pytest.approx(expected)
    three = [(own, [*others, Arm("L2", 8, 0), Arm("L3", 8, 0)]) for own, others in turns]
    found = judge_alike(three, 1.0)
    assert (found.p_value, found.right_slot) == (pytest.approx(min(1.0, 3 * expected)), "L0")
    assert judge_alike(three, expected) is None


def drawn_turns(
    rng: random.Random, turns: int, judged: dict[str, int], gap: float = 0.0
) -> list[tuple[Arm, list[Arm]]]:
    """Return turns half of which are hard, where of some slots fewer samples are judged."""
    drawn = []
    for number in range(turns):
        hard = number % 2 == 0
        chance = 0.1 if hard else 0.6

        def arm(slot: str, p: float = chance, few: bool = hard) -> Arm:
            samples = judged.get(slot, 8) if few else 8
            return Arm(slot, samples, sum(rng.random() < p for _ in range(samples)))

        drawn.append((arm("L1"), [arm("L0", chance + gap), arm("L2"), arm("L3")]))
    return drawn


@pytest.mark.parametrize("judged", [{}, {"L0": 2, "L2": 2, "L3": 2}, {"L1": 2}, {"L0": 4}])
@pytest.mark.parametrize("turns", [4, 20])
def test_equally_good_slots_blame_no_router_whatever_was_judged_of_each(judged, turns) -> None:
    rng = random.Random(f"{sorted(judged.items())} {turns}")
    found = [judge_alike(drawn_turns(rng, turns, judged), ALPHA) for _ in range(1000)]
    assert sum(each is not None for each in found) / 1000 <= 0.05


def test_a_slot_better_by_a_third_shows_over_eight_turns() -> None:
    rng = random.Random(3)
    for judged, least in (({}, 95), ({"L0": 4, "L2": 4, "L3": 4}, 85)):
        found = [judge_alike(drawn_turns(rng, 8, judged, 0.3), ALPHA) for _ in range(100)]
        assert sum(each is not None and each.right_slot == "L0" for each in found) >= least


def test_without_judged_samples_of_the_answering_slot_nothing_is_said() -> None:
    assert judge(Arm("L1", 0, 0), [Arm("L0", 8, 8)], ALPHA) is None
    assert p_value(Arm("L1", 8, 0), [Arm("L0", 0, 0)]) == 1.0


counted = st.integers(1, 12).flatmap(
    lambda samples: st.tuples(st.just(samples), st.integers(0, samples))
)


@settings(max_examples=150, deadline=None)
@given(own=counted, others=st.lists(counted, max_size=4), solvable=st.booleans())
def test_any_counts_give_a_verdict_that_fits_them(own, others, solvable) -> None:
    answered = Arm("L1", *own)
    rest = [Arm(f"other{n}", *each) for n, each in enumerate(others)]
    found = judge(answered, rest, ALPHA, solvable=solvable)
    assert 0 <= found.confidence <= 0.99
    assert 0 < found.p_value <= 1
    assert (found.verdict == "router") == (found.p_value <= ALPHA)
    if found.verdict == "router":
        best = max(arm.share for arm in rest)
        assert best > answered.share
        assert found.right_slot in (None, *(arm.slot for arm in rest if arm.share == best))
    else:
        assert found.right_slot is None
        assert (found.verdict == "stochastic") == (answered.share > 0.5)
    if solvable:
        assert found.verdict != "unsolvable"


@settings(max_examples=100, deadline=None)
@given(own=counted, others=st.lists(counted, min_size=1, max_size=3), data=st.data())
def test_a_success_less_where_it_answered_never_speaks_for_it(own, others, data) -> None:
    samples, successes = own
    rest = [Arm(f"other{n}", *each) for n, each in enumerate(others)]
    fewer = data.draw(st.integers(0, successes))
    # With fewer successes in all, chance has fewer to share out unevenly.
    assert p_value(Arm("L1", samples, fewer), rest) <= p_value(Arm("L1", *own), rest) + 1e-12


@settings(max_examples=100, deadline=None)
@given(own=counted, others=st.lists(counted, min_size=1, max_size=4))
def test_the_order_of_the_arms_does_not_count(own, others) -> None:
    rest = [Arm(f"other{n}", *each) for n, each in enumerate(others)]
    forward = judge(Arm("L1", *own), rest, ALPHA)
    backward = judge(Arm("L1", *own), rest[::-1], ALPHA)
    assert (forward.verdict, forward.right_slot, forward.p_value) == (
        backward.verdict, backward.right_slot, backward.p_value,
    )  # fmt: skip
