"""Off-policy estimates: algebra that must hold, known truths, and what is refused.

Proved: identities of the three estimators, robustness of the interval to copies within a
conversation, the published cost of exploration (notes/numbers.md 1.5), that intervals hold the
truth, and every refusal. Nothing is faked; logs are drawn from policies that are known.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from traces.attribution.off_policy import (
    EstimateRefused,
    Logged,
    check_draws,
    effective_sample_size,
    estimate,
    interval,
)

LABELS = ("L0", "L1", "L2", "L3")
K = len(LABELS)


def drawn(n=4000, epsilon=0.2, seed=0, each=2, chance=(0.7, 0.4, 0.6, 0.2)):
    """Return a log over two topics, its topics, and the logging policy."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(0, 2, n)
    greedy = np.where(topic == 0, 0, 2)
    logging = np.full((n, K), epsilon / K)
    logging[np.arange(n), greedy] += 1 - epsilon
    action = np.where(rng.random(n) < epsilon, rng.integers(0, K, n), greedy)
    reward = (rng.random(n) < np.array(chance)[action] - 0.1 * topic).astype(float)
    log = Logged(LABELS, action, logging[np.arange(n), action], reward, np.arange(n) // each)
    return log, topic, logging


def always(slot, n):
    policy = np.zeros((n, K))
    policy[:, slot] = 1
    return policy


def test_the_logged_policy_itself_is_worth_the_mean_reward() -> None:
    log, _, logging = drawn()
    value = estimate(log, logging, np.full(logging.shape, 0.3))
    mean = log.reward_N.mean()
    for found in (value.logged, value.ips, value.snips, value.dr):
        assert found.estimate == pytest.approx(mean, abs=1e-12)
        assert (found.lower, found.upper) == pytest.approx(
            (value.logged.lower, value.logged.upper), abs=1e-12
        )
    assert value.ess == pytest.approx(value.n) == 4000
    assert value.matched == 4000
    assert (value.gain.estimate, value.gain.se) == pytest.approx((0, 0), abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(shift=st.floats(0, 0.5), scale=st.floats(0.05, 0.5))
def test_snips_moves_with_the_scale_of_rewards_and_ips_does_not(shift, scale) -> None:
    log, _, _ = drawn()
    other = replace(log, reward_N=shift + scale * log.reward_N)
    policy, none = always(0, 4000), np.zeros((4000, K))
    before, after = estimate(log, policy, none), estimate(other, policy, none)
    assert after.snips.estimate == pytest.approx(shift + scale * before.snips.estimate)
    assert after.snips.se == pytest.approx(scale * before.snips.se)
    weight = before.mean_weight
    assert after.ips.estimate == pytest.approx(shift * weight + scale * before.ips.estimate)


def test_without_a_model_doubly_robust_is_ips_and_with_the_truth_it_has_no_noise_of_weights() -> (
    None
):
    log, topic, _ = drawn()
    policy = always(0, 4000)
    bare = estimate(log, policy, np.zeros((4000, K)))
    assert bare.dr == bare.ips
    chance = np.array([0.7, 0.4, 0.6, 0.2])[None] - 0.1 * topic[:, None]
    sure = replace(log, reward_N=chance[np.arange(4000), log.action_N])
    known = estimate(sure, policy, chance)
    assert known.dr.estimate == pytest.approx(chance[:, 0].mean(), abs=1e-12)
    assert known.dr.se < bare.ips.se / 10


def test_an_order_of_turns_changes_nothing() -> None:
    log, _, _ = drawn()
    order = np.random.default_rng(1).permutation(4000)
    mixed = Logged(
        LABELS, log.action_N[order], log.propensity_N[order], log.reward_N[order],
        log.conversation_N[order],
    )  # fmt: skip
    q = np.full((4000, K), 0.4)
    one, other = estimate(log, always(2, 4000), q), estimate(mixed, always(2, 4000), q)
    assert one.model_dump() == {
        k: pytest.approx(v) if isinstance(v, float) else {f: pytest.approx(x) for f, x in v.items()}
        if isinstance(v, dict) else v for k, v in other.model_dump().items()
    }  # fmt: skip


def copied(log, *, apart: bool):
    twice = np.repeat(np.arange(len(log.action_N)), 2)
    conversation = np.arange(len(twice)) if apart else log.conversation_N[twice]
    return Logged(
        LABELS, log.action_N[twice], log.propensity_N[twice], log.reward_N[twice], conversation
    )


def test_copies_within_a_conversation_tell_nothing_new() -> None:
    log, _, _ = drawn(each=1)
    q = np.full((4000, K), 0.4)
    once = estimate(log, always(0, 4000), q)
    within = estimate(copied(log, apart=False), always(0, 8000), np.repeat(q, 2, axis=0))
    apart = estimate(copied(log, apart=True), always(0, 8000), np.repeat(q, 2, axis=0))
    assert (within.dr.lower, within.dr.upper) == pytest.approx((once.dr.lower, once.dr.upper))
    assert apart.dr.se == pytest.approx(once.dr.se / np.sqrt(2), rel=1e-3)


@pytest.mark.parametrize(
    ("turns", "samples", "error"), [(10_000, 125, 0.044), (100_000, 1250, 0.014)]
)
def test_exploration_of_five_percent_costs_what_the_notes_say(turns, samples, error) -> None:
    action = np.zeros(turns, dtype=np.int64)
    action[:samples] = 3
    reward = np.zeros(turns)
    reward[: samples * 6 // 10] = 1
    propensity = np.where(action == 3, 0.0125, 0.9625)
    log = Logged(LABELS, action, propensity, reward, np.arange(turns))
    value = estimate(log, always(3, turns), np.zeros((turns, K)))
    assert value.ess == pytest.approx(samples)
    assert value.snips.estimate == pytest.approx(0.6)
    assert value.snips.se == pytest.approx(error, abs=0.0005)


def test_ninety_five_percent_intervals_hold_the_truth_about_so_often() -> None:
    held = {"ips": 0, "snips": 0, "dr": 0, "gain": 0}
    truth, now = 0.35, 0.0
    for topic, greedy in ((0, 0), (1, 2)):
        for slot, chance in enumerate((0.7, 0.4, 0.6, 0.2)):
            now += 0.5 * (0.05 + 0.8 * (slot == greedy)) * (chance - 0.1 * topic)
    for seed in range(300):
        log, topic, _ = drawn(3000, seed=seed)
        q = np.array([0.6, 0.3, 0.5, 0.2])[None] - 0.1 * topic[:, None]
        value = estimate(log, always(1, 3000), q)
        for name in held:
            right = truth - now if name == "gain" else truth
            found = getattr(value, name)
            held[name] += found.lower <= right <= found.upper
    # 95% of 300, give or take three standard errors.
    assert all(274 <= count <= 296 for count in held.values()), held


def test_an_interval_of_symmetric_deviations_is_students() -> None:
    z = stats.norm.ppf((np.arange(1000) + 0.5) / 1000)
    lower, upper, se = interval(z)
    assert se == pytest.approx(z.std(ddof=1) / np.sqrt(1000))
    assert upper == pytest.approx(-lower)
    assert upper == pytest.approx(stats.norm.ppf(0.975) * se, rel=0.01)


def test_an_interval_of_rare_large_deviations_reaches_further_towards_them() -> None:
    events = np.zeros(1000)
    events[:20] = 1
    lower, upper, se = interval(events - events.mean())
    assert upper > 1.1 * 1.96 * se > 1.96 * se > -lower
    # About what a count of 20 leaves: Garwood's exact limits are 12.2 and 30.9.
    assert (1000 * (0.02 + lower), 1000 * (0.02 + upper)) == pytest.approx((12.2, 30.9), abs=1.0)
    assert interval(np.zeros(50)) == (0.0, 0.0, 0.0)


def test_equal_rewards_are_no_certainty() -> None:
    log, _, _ = drawn()
    log.reward_N[:] = 1
    value = estimate(log, always(1, 4000), np.ones((4000, K)))
    assert (value.dr.estimate, value.dr.upper) == (1.0, 1.0)
    assert value.dr.lower == pytest.approx(0.025 ** (1 / value.ess))
    log.reward_N[:] = 0
    none = estimate(log, always(1, 4000), np.zeros((4000, K)))
    assert none.ips.estimate == none.dr.estimate == 0
    assert none.ips.upper == pytest.approx(1 - 0.025 ** (1 / none.ess))


def without(log, keep):
    return Logged(
        LABELS, log.action_N[keep], log.propensity_N[keep], log.reward_N[keep],
        log.conversation_N[keep],
    )  # fmt: skip


def changed(**fields):
    log, _, _ = drawn()
    for name, (index, value) in fields.items():
        getattr(log, name)[index] = value
    return log


@pytest.mark.parametrize(
    ("log", "slot", "word"),
    [
        (changed(propensity_N=(3, np.nan)), 0, "1 of 4,000 routed turns have no logged propensity"),
        (changed(propensity_N=(3, 0.0)), 0, "propensity 0.0"),
        (changed(propensity_N=(3, 1.5)), 0, "propensity 1.5"),
        (changed(propensity_N=(0, 1e-4), action_N=(0, 0)), 0, "clipped"),
        (changed(reward_N=(3, 2.0)), 0, "reward"),
        (changed(reward_N=(3, np.nan)), 0, "reward"),
        (changed(action_N=(3, 4)), 0, "none of the 4 labels"),
        (changed(action_N=(slice(None), 0)), 1, "L1, which the router never took"),
        (drawn(1000)[0], 3, "worth 37 of"),
        (drawn(each=400)[0], 3, "10 conversations"),
        (changed(propensity_N=(slice(None), 0.5)), 0, "instead of 1"),
    ],
)
def test_what_cannot_be_told_is_refused_in_one_line(log, slot, word) -> None:
    n = len(log.action_N)
    with pytest.raises(EstimateRefused, match=word) as refused:
        estimate(log, always(slot, n), np.zeros((n, K)))
    assert "\n" not in str(refused.value)


def test_a_log_selected_by_what_was_done_is_refused() -> None:
    log, _, _ = drawn(12_000)
    kept = (log.action_N != 1) | (np.arange(12_000) % 3 == 0)
    fewer = without(log, kept)
    n = int(kept.sum())
    with pytest.raises(EstimateRefused, match=r"weights average 0\.\d\d instead of 1"):
        estimate(fewer, always(1, n), np.zeros((n, K)))


def test_a_policy_that_is_none_is_refused() -> None:
    log, _, _ = drawn()
    q = np.zeros((4000, K))
    for policy, word in (
        (always(0, 4000) * 0.5, "distribution"),
        (np.tile([2.0, -1.0, 0.0, 0.0], (4000, 1)), "distribution"),
        (always(0, 3999), "shapes"),
    ):
        with pytest.raises(EstimateRefused, match=word):
            estimate(log, policy, q)
    with pytest.raises(EstimateRefused, match="not finite"):
        estimate(log, always(0, 4000), q + np.nan)
    with pytest.raises(EstimateRefused, match="level"):
        estimate(log, always(0, 4000), q, level=95)


def test_the_least_effective_size_can_only_be_raised() -> None:
    log, _, _ = drawn(1000)
    q = np.zeros((1000, K))
    size = effective_sample_size((log.action_N == 3) / log.propensity_N)
    assert 20 < size < 100
    with pytest.raises(EstimateRefused, match="at least 100"):
        estimate(log, always(3, 1000), q, min_ess=10)
    log, _, _ = drawn(4000)
    assert 150 < estimate(log, always(3, 4000), np.zeros((4000, K))).ess < 400
    with pytest.raises(EstimateRefused, match="at least 400"):
        estimate(log, always(3, 4000), np.zeros((4000, K)), min_ess=400)


def test_hundreds_of_effective_turns_may_hang_on_ten_draws() -> None:
    n = 1000
    differs = np.arange(n) % 3 == 0
    policy = np.where(differs[:, None], always(1, n), always(0, n))
    action = np.zeros(n, dtype=np.int64)
    action[:36:3] = 1
    propensity = np.where(action == 1, 0.05, 0.85)
    weight = policy[np.arange(n), action] / propensity
    assert (weight == 20).sum() == 12
    assert effective_sample_size(weight) > 150
    log = Logged(LABELS, action, propensity, np.ones(n), np.arange(n))
    with pytest.raises(EstimateRefused, match="hangs on about 17 explored turns"):
        estimate(log, policy, np.zeros((n, K)))


def test_draws_are_as_frequent_as_the_log_says_or_it_is_refused() -> None:
    rng = np.random.default_rng(0)
    chance = np.full(5000, 0.15)
    check_draws(rng.random(5000) < 0.15, chance)
    check_draws(np.zeros(3, dtype=bool), chance[:3])
    with pytest.raises(EstimateRefused, match="say about 750"):
        check_draws(rng.random(5000) < 0.10, chance)
