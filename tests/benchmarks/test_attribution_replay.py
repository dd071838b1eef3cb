"""The benchmark of the gap rule: what it reports is what the rule does.

Nothing is faked; the goal is the issue's, the notes' figures are typed in `test_gap`.
"""

from benchmarks.attribution_replay import exact_false_router, measure
from traces.attribution.gap import Arm, judge


def test_the_quick_benchmark_meets_the_goal() -> None:
    found = measure(quick=True)
    assert 0 < found["equal_arms_false_router"] <= 0.05
    assert found["monte_carlo"] <= 0.05 + 3 * found["monte_carlo_se"]
    for row in found["power"].values():
        assert row["ours"] >= row["notes_p.5"] - 0.03


def test_the_enumeration_is_the_rules_own() -> None:
    """Two samples an arm: the router is blamed where the rule says so, counted one by one."""
    p, rate = 0.4, 0.0
    chance = [0.36, 0.48, 0.16]
    for a in range(3):
        for b in range(3):
            for c in range(3):
                for d in range(3):
                    arms = [Arm(str(n), 2, hits) for n, hits in enumerate((b, c, d))]
                    if judge(Arm("own", 2, a), arms, 0.05).verdict == "router":
                        rate += chance[a] * chance[b] * chance[c] * chance[d]
    assert abs(exact_false_router(2, [p])[0] - rate) < 1e-12
