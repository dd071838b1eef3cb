"""Structural blame: who is responsible for a failed turn, from what the turn itself shows.

Pure and cheap: no model is asked. The first rule of `RULES` that has something to say decides.
How sure each one is stands in `traces.attribution.confidence`.
"""

from collections.abc import Callable, Sequence

from traces.attribution import (
    answer_rules,
    context_rules,
    record_rules,
    route_rules,
    team_rules,
    tool_rules,
)
from traces.attribution.case import Case, Claim

Rule = Callable[[Case], Claim | None]

RULES: tuple[tuple[str, Rule], ...] = (
    # What never reached a model, or broke on the way.
    ("refused", record_rules.refused),
    ("abandoned", record_rules.abandoned),
    ("engine_failed", record_rules.engine_failed),
    ("fallback_slot", record_rules.fallback_slot),
    ("base_answered", record_rules.base_answered),
    ("not_answered", record_rules.not_answered),
    # Where several agents spoke, two answers do not compete.
    ("several_agents", team_rules.several_agents),
    ("inconsistent", record_rules.inconsistent),
    ("contradicted", record_rules.contradicted),
    ("strangers", record_rules.strangers),
    # No slot could know what the right answer needs.
    ("underspecified", context_rules.underspecified),
    # The wrong slot, shown by the right answer itself.
    ("foreign_verifier", route_rules.foreign_verifier),
    ("tools_not_offered", route_rules.tools_not_offered),
    ("foreign_form", route_rules.foreign_form),
    # The right slot with the wrong input.
    ("tool_reported", tool_rules.tool_reported),
    ("tool_damaged", tool_rules.tool_damaged),
    ("tool_mismatched", tool_rules.tool_mismatched),
    ("tool_contradicted", tool_rules.tool_contradicted),
    ("tool_disputed", tool_rules.tool_disputed),
    ("tool_unlike", tool_rules.tool_unlike),
    ("tool_untrue", tool_rules.tool_untrue),
    ("tool_lacking", tool_rules.tool_lacking),
    ("call_undone", tool_rules.call_undone),
    ("summary_lost", context_rules.summary_lost),
    ("summary_altered", context_rules.summary_altered),
    ("summary_untrue", context_rules.summary_untrue),
    ("unsaid", context_rules.unsaid),
    ("points_back", context_rules.points_back),
    ("vague", context_rules.vague),
    ("truncated", record_rules.truncated),
    # The answer, and what its writer can be held to.
    ("foreign_text", route_rules.foreign_text),
    ("retried_elsewhere", route_rules.retried_elsewhere),
    ("broken_call", answer_rules.broken_call),
    ("malformed", answer_rules.malformed),
    ("altered", answer_rules.altered),
    ("own_verifier", answer_rules.own_verifier),
    ("other_verifier", answer_rules.other_verifier),
    ("edited", answer_rules.edited),
    ("disliked", answer_rules.disliked),
)
"""Name and function, in the order in which they are asked."""


def first_claim(case: Case, rules: Sequence[tuple[str, Rule]] = RULES) -> tuple[str, Claim]:
    """Return the name and the claim of the first rule that has one; `no_rule` claims nothing."""
    for name, rule in rules:
        claim = rule(case)
        if claim is not None:
            return name, claim
    return "no_rule", case.abstain("no signal says what was wrong")
