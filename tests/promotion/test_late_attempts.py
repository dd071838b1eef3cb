"""A late attempt is tested far out in the tails: what few clusters give there is a report still."""

from promotion.config import GateConfig
from promotion.latency import Durations, judge_latency
from promotion.spending import alpha_of


def test_two_clusters_at_a_late_attempts_level_say_nothing_of_speed_and_end_nothing() -> None:
    two = Durations(champion_s=(1.0, 1.0), challenger_s=(1.0, 1.5), clusters=("a", "b"))
    found = judge_latency(two, alpha_of(26, 0.05), GateConfig())
    assert found.status == "insufficient"
    assert found.upper is not None
    assert found.upper > 1e300
