"""How sure each rule of blame is: one table, and what the tier of the outcome takes off.

Rules that claim ten failures or more of the half of the fault set that serves to tune have the
share that is right there, with four turns' weight for what had been set by judgement, at most
0.95: `benchmarks.attribution_calibration` has the shares of both halves. The others are judgement:
how directly a rule's evidence shows the cause. In the fault set an adapter is at fault in one
failure of six, by construction; `disliked` and `own_verifier`, which say no more than that the
answer failed, are right more often where adapters fail more often.
"""

from collections.abc import Mapping

TIER: Mapping[str | None, float] = {"A": 1.0, "B": 0.78, "C": 0.45, None: 1.0}
"""Verified, explicit, implicit; None: the turn gave no answer, which needs no judge."""

CONFIDENCE: Mapping[str, float] = {
    "refused": 0.9,
    "engine_failed": 0.95,
    "fallback_slot": 0.95,
    "base_answered": 0.9,
    "not_answered": 0.7,
    "several_agents": 1.0,  # its factor is the calibrated chance
    "foreign_verifier": 0.95,
    "tools_not_offered": 0.9,
    "foreign_form": 0.85,
    "foreign_text": 0.7,
    "tool_reported": 0.95,
    "tool_damaged": 0.95,
    "tool_mismatched": 0.95,
    "tool_contradicted": 0.8,
    "tool_disputed": 0.75,
    "tool_unlike": 0.8,
    "tool_untrue": 0.94,
    "tool_lacking": 0.6,
    "call_undone": 0.6,
    "summary_lost": 0.95,
    "summary_altered": 0.75,
    "summary_untrue": 0.8,
    "underspecified": 0.95,
    "unsaid": 0.85,
    "vague": 0.95,
    "retried_elsewhere": 0.55,  # a hint: any failure may pass when tried again
    "broken_call": 0.95,
    "malformed": 0.95,
    "altered": 0.92,
    "own_verifier": 0.87,
    "other_verifier": 0.8,
    "edited": 0.9,
    "disliked": 0.39,
}
"""By rule, for a verified outcome."""


def confidence(rule: str, tier: str | None, factor: float = 1.0) -> float:
    """Return how sure a claim of a rule is; 0 for a rule that abstains."""
    # Where a turn was judged and failed, how it was judged bounds how sure its cause can be.
    return round(CONFIDENCE.get(rule, 0.0) * TIER[tier] * factor, 2)
