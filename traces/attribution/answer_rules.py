"""Rules about the answer: nothing speaks against the route or the input, so its writer failed.

Ordered from what shows in the answer itself to what only a signal says.
"""

from collections.abc import Callable
from dataclasses import replace

from serving.records import Hop
from traces.attribution.case import Case, Claim, text_of
from traces.attribution.form_checks import tools_in
from traces.attribution.literals import folded, in_substance, stands_in
from traces.attribution.outcomes import CHECKED
from traces.attribution.right_answer import form_of
from traces.verifiers.tool_call import call_problem

_ROUTE_OPEN = 0.85
"""How sure the adapter's fault is where nobody said what would have been right."""

Rule = Callable[[Case], Claim | None]


def _failure(rule: Rule) -> Rule:
    """Ask a rule only where someone said that the answer was wrong: nothing else is a fault."""

    def asked(case: Case) -> Claim | None:
        told = case.outcome.success is False and case.outcome.tier in ("A", "B")
        return rule(case) if told and case.turn.slot is not None else None

    asked.__name__, asked.__doc__ = rule.__name__, rule.__doc__
    return asked


@_failure
def broken_call(case: Case) -> Claim | None:
    """The slot wrote a tool call that no tool takes, at first or at last."""
    answers = [hop for hop in case.answers if hop.completion is not None]
    for hop in answers[:1] + answers[1:][-1:]:
        tools = tools_in(hop.tools)
        for call in hop.completion.tool_calls if hop.completion and tools else ():
            problem = call_problem(call, tools)
            if problem:
                evidence = f"{case.turn.slot} wrote a tool call that is none: {problem}"
                return _adapter(case, evidence, hop)
    return None


@_failure
def malformed(case: Case) -> Claim | None:
    """The answer does not even look like what the slot is there to write."""
    own = case.forms(case.turn.slot)
    if case.answer is None or not own or "text" in own or not _own_verdict(case):
        return None
    form = form_of(case.answer)
    if form in own:
        return None
    wanted = " or ".join(sorted(own))
    return _adapter(case, f"{case.turn.slot} should write {wanted}, and its answer is {form}")


@_failure
def altered(case: Case) -> Claim | None:
    """A literal that the right answer takes from what was given is not in the answer."""
    if case.right is None or case.answer is None:
        return None
    answer = folded(text_of(case.answer))
    for each in case.right.copied:
        word = folded(each.text)
        if stands_in(word, case.given) and not in_substance(word, answer):
            return _adapter(case, f"{case.turn.slot} was given {each.text!r} and did not use it")
    return None


@_failure
def own_verifier(case: Case) -> Claim | None:
    """The slot's own verifier failed its answer."""
    own = [name for name in case.failed if case.turn.slot in case.owners(name)]
    if case.outcome.tier != "A" or not own:
        return None
    return _adapter(case, f"verifier {', '.join(own)} failed {case.turn.slot}'s answer")


@_failure
def other_verifier(case: Case) -> Claim | None:
    """A verifier failed the answer that is no slot's business in particular."""
    if case.outcome.tier != "A":
        return None
    claim = _adapter(case, f"verifier {', '.join(case.failed)} failed {case.turn.slot}'s answer")
    # What shows in an answer does not tell whether this slot should have given it.
    shown = case.outcome.rule == CHECKED
    return replace(claim, factor=_ROUTE_OPEN * claim.factor) if shown else claim


@_failure
def edited(case: Case) -> Claim | None:
    """The user edited the answer, and the edit is of the slot's own kind."""
    if case.outcome.correction is None:
        return None
    return _adapter(case, "the user edited the answer; the route is undisputed")


@_failure
def disliked(case: Case) -> Claim | None:
    """The user's thumb was down."""
    return _adapter(case, "the user's thumb; the route is undisputed")


def _own_verdict(case: Case) -> bool:
    """Whether who or what failed the turn speaks of this slot's business."""
    if case.outcome.tier == "A":
        return any(case.turn.slot in case.owners(name) for name in case.failed)
    return case.right is not None and case.right.form in case.forms(case.turn.slot)


def _adapter(case: Case, evidence: str, hop: Hop | None = None) -> Claim:
    liked = any(f.kind == "thumb" and (f.value or 0) > 0 for f in case.signals)
    if liked:
        evidence += "; the user's thumb was up"
    hop = hop or case.answers[-1 if case.called_as_expected else 0]
    factor = 0.75 if liked else 1.0
    return Claim("adapter", evidence, case.turn.slot, hop=case.id_of(hop), factor=factor)
