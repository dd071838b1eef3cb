"""Rules about the route: what shows that another slot should have answered.

Who is to blame for a wrong slot depends on who chose it: the router, a rule, the client, an
exploring draw; where a pending tool call did, nobody chose in this turn.
"""

from collections.abc import Iterable

from traces.attribution.case import Case, Claim
from traces.attribution.right_answer import FORM_OF_VERIFIER, Form


def foreign_verifier(case: Case) -> Claim | None:
    """The verifiers that failed the turn all belong to slots that did not answer it.

    What a slot says of a tool's result is text, which is no other slot's business for that.
    """
    owners = [case.owners(name) for name in case.failed]
    if not owners or any(not slots or case.turn.slot in slots for slots in owners):
        return None
    if _narrated(case) and all(FORM_OF_VERIFIER.get(name) == "text" for name in case.failed):
        return None
    right = {slot for slots in owners for slot in slots}
    names = ", ".join(case.failed)
    evidence = (
        f"verifier {names} belongs to {' and '.join(sorted(right))}, but {case.turn.slot} answered"
    )
    return _wrong_slot(case, evidence, right)


def tools_not_offered(case: Case) -> Claim | None:
    """The right answer calls a tool, and the slot is offered none."""
    if case.right is None or case.right.form != "call" or _own_business(case):
        return None
    offering = [slot.name for slot in case.profile.slots if slot.offers_tools]
    if case.turn.slot in offering or case.turn.slot not in case.profile.labels:
        return None
    evidence = f"the right answer calls a tool, and {case.turn.slot} is offered none"
    return _wrong_slot(case, evidence, offering)


def foreign_form(case: Case) -> Claim | None:
    """The right answer is a call, code or JSON, and this slot is there for something else."""
    return None if _form(case) == "text" else _foreign_form(case)


def foreign_text(case: Case) -> Claim | None:
    """The right answer is in words, and this slot is there for calls, code or JSON.

    Any slot may have to say something in words, so this is asked after what was lost on the way.
    """
    if case.exchanges or (case.answer is not None and case.answer.tool_calls):
        return None
    return _foreign_form(case) if _form(case) == "text" else None


def _form(case: Case) -> Form | None:
    return case.right.form if case.right is not None else None


def _foreign_form(case: Case) -> Claim | None:
    form, own = _form(case), case.forms(case.turn.slot)
    if form is None or not own or form in own or _own_business(case):
        return None
    fitting = [slot.name for slot in case.profile.slots if form in case.forms(slot.name)]
    if not fitting:
        return None
    looks = {"call": "a tool call", "code": "code", "json": "JSON", "text": "plain text"}[form]
    evidence = f"the right answer is {looks}, which is not what {case.turn.slot} is there for"
    return _wrong_slot(case, evidence, fitting)


def retried_elsewhere(case: Case) -> Claim | None:
    """The same request, asked again, was answered well by another slot.

    Any failure may pass when tried again: alone this is a hint.
    """
    if not case.later:
        return None
    following, outcome = case.later[0]
    said = any(f.kind == "retry" for f in case.signals)
    if not said and _normal(following.request) != _normal(case.turn.request):
        return None
    if outcome.success is not True or following.slot in (None, case.turn.slot):
        return None
    evidence = f"the same request, asked again, was answered well by {following.slot}"
    return _wrong_slot(case, evidence, [str(following.slot)])


def _narrated(case: Case) -> bool:
    """Whether the slot made a call that a tool takes, and put the result in words."""
    return case.call_fault is None and any(each.seen is not None for each in case.exchanges)


def _own_business(case: Case) -> bool:
    """Whether a verifier of the slot itself failed the turn."""
    return any(case.turn.slot in case.owners(name) for name in case.failed)


def _wrong_slot(
    case: Case, evidence: str, right: Iterable[str], *, factor: float = 1.0
) -> Claim | None:
    fitting = sorted(set(right))
    right_slot = fitting[0] if len(fitting) == 1 else None
    if right_slot is None:
        factor *= 0.9
    match case.turn.decision:
        case "explored":
            return Claim(
                "fallback", f"exploration drew the slot: {evidence}", None, right_slot, None, factor
            )
        case "rule":
            return Claim(
                "router", f"a rule chose the slot: {evidence}", None, right_slot, None, factor
            )
        case "direct":
            return Claim("user", f"the client named the slot: {evidence}", None, right_slot)
        case "sticky":
            return case.abstain(f"a pending tool call chose the slot, no router did: {evidence}")
        case _:
            hop = case.id_of(case.route) if case.route is not None else None
            return Claim("router", evidence, case.profile.router, right_slot, hop, factor)


def _normal(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".!?。！？ ")
