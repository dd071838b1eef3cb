"""What is told while work goes on; the clock is the test's own."""

import pytest

from flows.console import progress


def test_the_time_left_is_estimated_without_what_came_before_the_first_call(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seconds = iter((0.0, 50.0, 60.0, 69.9, 90.0))

    with progress("answering", clock=lambda: next(seconds)) as show:
        show(100, 200)  # all kept from before, found once the model was loaded
        show(110, 200)
        show(120, 200)  # too soon after the last line
        show(140, 200, 0.5)

    assert capsys.readouterr().err.splitlines() == [
        "  answering: 100 of 200, 50 s",
        "  answering: 110 of 200, 60 s, about 90 s left",
        "  answering: 140 of 200, 90 s, about 60 s left, loss 0.500",
    ]
