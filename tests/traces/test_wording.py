"""Proves when the words of others show that a request left something open.

Pure; the requests are made up.
"""

from traces.attribution.wording import Wordings

MINUTES = [(f"Count down {n} minutes.", f"timer({n})") for n in range(1, 401)]


def test_each_way_of_filling_a_blank_counts_once_and_only_with_an_answer_of_its_own() -> None:
    assert Wordings.of(MINUTES[:3]).blanks("Count down minutes!", alone=True) == 3
    assert Wordings.of([*MINUTES[:2], *MINUTES[:2]]).blanks("Count down minutes", alone=True) == 2
    same = [(request, "timer(5)") for request, _ in MINUTES[:3]]
    assert Wordings.of(same).blanks("Count down minutes", alone=True) == 1


def test_what_was_answered_well_as_it_is_leaves_nothing_open_however_many_said_more() -> None:
    told = Wordings.of([*MINUTES, ("Count down minutes.", "timer(10)")])

    assert told.blanks("count down minutes", alone=True) == 0


def test_what_may_point_back_or_is_too_short_or_unlike_is_not_compared() -> None:
    told = Wordings.of([("Count it down now.", "a"), ("Count it down later.", "b")])

    assert told.blanks("Count it down.", alone=True) == 2
    assert told.blanks("Count it down.", alone=False) == 0
    assert told.blanks("Count.", alone=True) == 0
    assert told.blanks("Count down hours.", alone=True) == 0
