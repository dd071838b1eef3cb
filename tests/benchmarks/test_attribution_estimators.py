"""The benchmark of off-policy estimates: its world is what it says, its quick form meets the goal.

Proved: the true values that coverage is counted against are those of the logs, found here by
playing the policies out. Nothing is faked.
"""

import numpy as np
import pytest

from benchmarks.attribution_estimators import LABELS, World, measure


def test_the_true_value_is_what_a_policy_earns_when_it_is_played() -> None:
    rng = np.random.default_rng(0)
    world = World.drawn(rng)
    played, _ = world.log(200_000, 0.0, rng)
    assert world.truth(world.policies()["no exploration"]) == pytest.approx(
        played.reward_N.mean(), abs=0.01
    )
    random, topic_N = world.log(200_000, 0.8, rng)
    for k in range(len(LABELS)):
        taken = random.action_N == k
        assert random.propensity_N[taken].min() == pytest.approx(0.2)
        by_topic = [random.reward_N[taken & (topic_N == t)].mean() for t in range(12)]
        assert np.allclose(by_topic, world.chance_T_K[:, k], atol=0.05)


@pytest.mark.slow
def test_the_quick_form_covers_as_it_should_and_refuses_what_it_must() -> None:
    found = measure(quick=True)
    assert all(0.93 <= share <= 0.97 for share in found["coverage"].values())
    assert found["ope_coverage"] == found["coverage"]["dr"]
    assert found["refused_below_ess"] == found["refused_without_propensities"] == 1
    assert found["rmse_dr_over_ips"] < 0.95
    assert abs(found["bias"]["dr"]) < 0.005
    assert abs(found["wrong_model"]["bias"]) < 0.01
