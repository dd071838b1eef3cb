"""Proves that the table of blame is held up by every rule: broken in turn, a row fails.

Rules run in-process; a mutant is the same tuple of rules with one that says nothing, or one
that claims every turn. Nothing is faked but the broken rule.
"""

import pytest
from blame_cases import CASES, BlameCase
from pooled_cases import POOLED_CASES, PooledCase

from traces.attribution.case import Case, Claim
from traces.attribution.pooled_rules import POOLED, Kin
from traces.attribution.structure import RULES

NAMES = [name for name, _ in RULES]
ELSEWHERE = {"several_agents"}
"""Held up by the tests of runs of several agents."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_failed_turn_is_blamed_as_the_table_says(case: BlameCase) -> None:
    assert case.found() == case.expected


@pytest.mark.parametrize("case", POOLED_CASES, ids=lambda case: case.name)
def test_similar_turns_change_a_verdict_as_the_table_says(case: PooledCase) -> None:
    assert case.found() == case.expected


def test_every_rule_has_a_row() -> None:
    assert {case.expected[2] for case in CASES} - {"no_rule"} == set(NAMES) - ELSEWHERE
    assert {case.rule for case in POOLED_CASES if case.rule} == {name for name, _ in POOLED}


def silent(_: Case) -> Claim | None:
    return None


def loud(_: Case) -> Claim | None:
    return Claim("user", "everything is the user's")


@pytest.mark.parametrize("broken", [silent, loud], ids=["says nothing", "claims all"])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ELSEWHERE])
def test_a_broken_rule_is_noticed(name: str, broken: object) -> None:
    mutant = tuple((each, broken if each == name else rule) for each, rule in RULES)

    assert any(case.found(mutant) != case.expected for case in CASES)


@pytest.mark.parametrize("name", [name for name, _ in POOLED])
def test_a_broken_pooled_rule_is_noticed(name: str) -> None:
    def lowers(kin: Kin) -> object:
        return kin.blame.model_copy(update={"confidence": 0.123})

    for broken in (lambda kin: None, lowers):
        mutant = tuple((each, broken if each == name else rule) for each, rule in POOLED)

        assert any(case.found(mutant) != case.expected for case in POOLED_CASES)
