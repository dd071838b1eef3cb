"""Proves that the measure of promotion and rollback runs through the real server, both ways.

A tiny base on the embedded engine behind `flows serve`; how long it takes is not asserted.
"""

import pytest

from benchmarks import gate_serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing"),
]


def test_a_promotion_and_a_rollback_are_measured_to_their_first_answers() -> None:
    found = gate_serving.measure(quick=True)
    assert found["engine"] == "embedded"
    assert 0 < found["promote_flip_s"] <= found["promote_s"]
    assert 0 < found["rollback_flip_s"] < found["rollback_s"] <= found["rollback_command_s"]
