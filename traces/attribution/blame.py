"""Structural blame: who is responsible for a failed turn, from what the turn shows.

Pure and cheap: no model is asked. The first of these that holds decides:

1. `user`: the request was refused before any engine call.
2. `unknown`: the client left before the answer.
3. `fallback`: an engine call failed, a stream broke, the pool chose the slot, or the
   base model answered because the router was not sure.
4. `unknown`: the record is inconsistent (hops missing, two answers, time backwards).
5. `tool`: a tool result of this turn reports an error.
6. `router`: the evidence belongs to another slot than the one that answered. Where a
   rule chose it, no adapter is to blame; where exploration drew it, it is a `fallback`.
7. `summary:Lx`: the right answer needs a word that an earlier turn had and the
   summary of it, which is what the answering slot saw, had not.
8. `adapter:Lx`: verified or explicit failure, and nothing speaks against the route.

Where the evidence contradicts itself or there is none the answer is `unknown`.
Attempts that a later one supersedes are no evidence.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from serving.records import BASE_SLOT, Feedback, Hop, Record, Turn
from serving.slots import Profile
from traces.attribution.literals import literals_of, occurs
from traces.attribution.outcomes import Ended, Outcome, verifier_failed
from traces.joins.standing import SUPERSEDED, standing
from traces.verifiers.tool_call import call_problem

CODE_VERSION = "structural-3"

Klass = Literal["router", "adapter", "summary", "tool", "fallback", "user", "unknown"]
Method = Literal["structure", "pooled", "replay", "steps"]
Verdict = Literal["adapter", "router", "stochastic", "unsolvable"]

_CONFIDENCE = {"A": 0.9, "B": 0.7, "C": 0.4, None: 0.5}
"""By the tier of the outcome: verified, explicit, implicit."""


class Blame(Record):
    """Who is responsible for one failed turn, or that it cannot be said."""

    turn_id: str
    klass: Klass
    slot: str | None
    """The slot to blame; None for classes that are no slot's fault."""
    confidence: float
    """In [0, 1]; 0 where nothing is claimed."""
    evidence: str
    right_slot: str | None = None
    """For `router` and a wrong explored slot: the slot that should have answered, if known."""
    code_version: str = CODE_VERSION
    hop_id: str | None = None
    """The decisive engine call, where one is."""
    method: Method = "structure"
    """What decided: the turn itself, similar turns, a replay, or the steps of several agents."""
    verdict: Verdict | None = None
    """What a counterfactual replay found."""

    @property
    def label(self) -> str:
        """Class and slot, `adapter:L2`."""
        return f"{self.klass}:{self.slot}" if self.slot else self.klass


@dataclass(frozen=True, slots=True)
class Context:
    """The other turns of the conversation, in order, with what became of them."""

    earlier: Sequence[Turn] = ()
    later: Sequence[tuple[Turn, Outcome]] = ()
    """The next one is enough."""


@dataclass(frozen=True, slots=True)
class _Case:
    turn: Turn
    hops: tuple[Hop, ...]
    """Those that stand."""
    missing: int
    """Hops of the turn that the lake does not have."""
    outcome: Outcome
    signals: tuple[Feedback, ...]
    context: Context
    profile: Profile

    @property
    def answers(self) -> tuple[Hop, ...]:
        return tuple(h for h in self.hops if h.role == "answer")


def blame(
    turn: Turn, hops: Sequence[Hop], outcome: Outcome, context: Context, profile: Profile
) -> Blame | None:
    """Return who is responsible, or None for a turn that is not known to have failed.

    An implicit signal alone (tier C) gives a row of low confidence, a pointer for
    people, never one to train on.
    """
    if not may_blame(turn, outcome):
        return None
    signals = tuple(Feedback.model_validate(s) for s in json.loads(outcome.signals))
    missing = len(set(turn.hop_ids)) - len(hops)
    case = _Case(turn, standing(hops), missing, outcome, signals, context, profile)
    for test in (_user, _abandoned, _fallback, _inconsistent, _tool, _router, _summary, _adapter):
        verdict = test(case)
        if verdict is not None:
            return verdict
    return _unknown(case, "no signal says what was wrong")


def may_blame(turn: Ended, outcome: Outcome) -> bool:
    """Whether a turn is one that `blame` has something to say about."""
    if outcome.rule == SUPERSEDED:
        return False
    return outcome.success is False or turn.status != "ok" or outcome.tier == "C"


def _verdict(
    case: _Case,
    klass: Klass,
    evidence: str,
    *,
    slot: str | None = None,
    right_slot: str | None = None,
    confidence: float | None = None,
) -> Blame:
    sure = _CONFIDENCE[case.outcome.tier] if confidence is None else confidence
    if case.answers and case.answers[-1].finish_reason == "length":
        evidence += "; the answer was cut at its token limit"
    return Blame(
        turn_id=case.turn.turn_id,
        klass=klass,
        slot=slot,
        confidence=round(max(0.0, min(1.0, sure)), 3),
        evidence=evidence,
        right_slot=right_slot,
    )


def _unknown(case: _Case, reason: str) -> Blame:
    return _verdict(case, "unknown", reason, confidence=0.0)


def _user(case: _Case) -> Blame | None:
    error = case.turn.error or ""
    refused = case.turn.status == "failed" and not case.turn.hop_ids
    if refused and error.startswith("request refused: 4"):
        return _verdict(case, "user", error, confidence=0.9)
    return None


def _abandoned(case: _Case) -> Blame | None:
    left = case.turn.status == "abandoned" or any(h.status == "abandoned" for h in case.hops)
    return _unknown(case, "the client left before the answer was complete") if left else None


def _fallback(case: _Case) -> Blame | None:
    for hop in case.hops:
        if hop.status in ("engine_error", "broken_stream"):
            what = "engine call failed" if hop.status == "engine_error" else "stream broke"
            evidence = f"the {hop.role} {what}: {hop.error or 'no reason given'}"
            return _verdict(case, "fallback", evidence, confidence=0.95)
    if case.turn.decision == "fallback":
        evidence = "the slot was chosen by an engine or pool fallback, not by the router"
        return _verdict(case, "fallback", evidence, confidence=0.9)
    if case.turn.slot == BASE_SLOT:
        why = ", for the router was not sure enough" if case.turn.decision == "unsure" else ""
        return _verdict(case, "fallback", f"the base model answered{why}", confidence=0.9)
    if case.turn.status == "failed" and case.turn.hop_ids and case.outcome.tier is None:
        evidence = f"the turn failed: {case.turn.error or 'no reason given'}"
        return _verdict(case, "fallback", evidence, confidence=0.7)
    return None


def _inconsistent(case: _Case) -> Blame | None:
    if case.missing or not case.answers:
        return _unknown(
            case, f"{case.missing} hops are missing" if case.missing else "no answer hop"
        )
    for before, after in zip(case.hops, case.hops[1:], strict=False):
        if after.started_at < before.started_at:
            return _unknown(case, "the hops' clocks run backwards")
    for hop in case.answers[1:]:
        if hop.slot != case.answers[0].slot or not hop.messages or hop.messages[-1].role != "tool":
            return _unknown(case, "two answers compete for the turn")
    return None


def _tool(case: _Case) -> Blame | None:
    """A tool is at fault only for a call that it offers; a wrong call is its writer's fault."""
    made = {
        call.id: (call, hop)
        for hop in case.answers
        if hop.completion
        for call in hop.completion.tool_calls
    }
    for message in (message for hop in case.hops for message in hop.messages):
        error = tool_error(message.content) if message.role == "tool" else None
        if error is None or message.tool_call_id not in made:
            continue
        call, hop = made[message.tool_call_id]
        offered = _tools(hop)
        if not (offered and call_problem(call, offered)):
            return _verdict(case, "tool", f"a tool result reports an error: {error}")
    return None


def _tools(hop: Hop) -> list[Any]:
    """Return the tools a hop offered; none where the log does not say."""
    try:
        tools = json.loads(hop.tools)
    except ValueError:
        return []
    return tools if isinstance(tools, list) else []


def tool_error(content: str) -> str | None:
    """Return what a tool result says went wrong: `Error...`, `{"error": ...}` or `"ok": false`.

    `traces.analytics.tool_views` has the same rule in SQL.
    """
    if content.startswith("Error"):
        return content[:200]
    try:
        value = json.loads(content)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    if value.get("error"):
        return str(value["error"])[:200]
    return "ok is false" if value.get("ok") is False else None


def _router(case: _Case) -> Blame | None:
    found = _foreign_verifier(case) or _tools_not_offered(case) or _retried_elsewhere(case)
    if found is None:
        return None
    evidence, right_slot = found
    klass: Klass = "router"
    slot: str | None = case.profile.router
    if case.turn.decision == "explored":
        klass, slot, evidence = "fallback", None, f"exploration drew the slot: {evidence}"
    elif case.turn.decision == "rule":
        slot, evidence = None, f"a rule chose the slot: {evidence}"
    return _verdict(
        case, klass, evidence, slot=slot, right_slot=right_slot,
        confidence=_CONFIDENCE[case.outcome.tier] - (0.0 if right_slot else 0.1),
    )  # fmt: skip


def _owners(profile: Profile, verifier: str) -> list[str]:
    return [slot.name for slot in profile.slots if verifier in slot.verifiers]


def _foreign_verifier(case: _Case) -> tuple[str, str | None] | None:
    """The verifiers that failed the turn all belong to slots that did not answer it."""
    failed = [f.name for f in case.signals if f.kind == "verifier" and verifier_failed(f)]
    owners = [_owners(case.profile, name) for name in failed]
    if not failed or any(not slots or case.turn.slot in slots for slots in owners):
        return None
    right = {slot for slots in owners for slot in slots}
    names = ", ".join(sorted(set(failed)))
    evidence = (
        f"verifier {names} belongs to {' and '.join(sorted(right))}, but {case.turn.slot} answered"
    )
    return evidence, right.pop() if len(right) == 1 else None


def _tools_not_offered(case: _Case) -> tuple[str, str | None] | None:
    correction = case.outcome.correction
    offering = [slot.name for slot in case.profile.slots if slot.offers_tools]
    if correction is None or not correction.tool_calls or case.turn.slot in offering:
        return None
    if case.turn.slot not in case.profile.labels:
        return None
    evidence = f"the right answer calls a tool, and {case.turn.slot} is offered none"
    return evidence, offering[0] if len(offering) == 1 else None


def _retried_elsewhere(case: _Case) -> tuple[str, str | None] | None:
    if not case.context.later:
        return None
    following, outcome = case.context.later[0]
    said = any(f.kind == "retry" for f in case.signals)
    if not said and _normal(following.request) != _normal(case.turn.request):
        return None
    if outcome.success is not True or following.slot in (None, case.turn.slot):
        return None
    return f"the same request, asked again, was answered well by {following.slot}", following.slot


def _normal(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".!? ")


def _summary(case: _Case) -> Blame | None:
    """A literal of the right answer stood in an earlier turn and not in what the slot saw."""
    if case.outcome.correction is None:
        return None
    seen = "\n".join(_seen(hop) for hop in case.answers)
    for literal in literals_of(case.outcome.correction):
        if occurs(literal.text, seen):
            continue
        for turn in reversed(case.context.earlier):
            if turn.slot in (None, case.turn.slot) or not occurs(literal.text, _said(turn)):
                continue
            evidence = (
                f"{literal.text!r} of the right answer stood in turn {turn.position} with "
                f"{turn.slot}, and its summary did not hand it over to {case.turn.slot}"
            )
            sure = _CONFIDENCE[case.outcome.tier] - (0.0 if literal.strong else 0.2)
            # Nobody trains the base model, whose summaries these are.
            slot = None if turn.slot == BASE_SLOT else turn.slot
            return _verdict(case, "summary", evidence, slot=slot, confidence=sure)
    return None


def _seen(hop: Hop) -> str:
    return "\n".join([hop.tools, *(_text(m.content, m.tool_calls) for m in hop.messages)])


def _said(turn: Turn) -> str:
    answer = turn.answer
    return turn.request + "\n" + (_text(answer.content, answer.tool_calls) if answer else "")


def _text(content: str, calls: Sequence[Any]) -> str:
    return "\n".join([content, *(call.arguments for call in calls)])


def _adapter(case: _Case) -> Blame | None:
    tier = case.outcome.tier
    if case.outcome.success is not False or tier not in ("A", "B") or case.turn.slot is None:
        return None
    if tier == "B":
        what = "the user edited the answer" if case.outcome.correction else "the user's thumb"
        return _verdict(case, "adapter", f"{what}; the route is undisputed", slot=case.turn.slot)
    failed = {f.name for f in case.signals if f.kind == "verifier" and verifier_failed(f)}
    passed = {f.name for f in case.signals if f.kind == "verifier" and not verifier_failed(f)}
    if failed & passed:
        flaky = ", ".join(sorted(failed & passed))
        return _unknown(case, f"verifier {flaky} both passed and failed this turn")
    own = [name for name in failed if case.turn.slot in _owners(case.profile, name)]
    elsewhere = [name for name in failed if _owners(case.profile, name) and name not in own]
    if own and elsewhere:
        names = ", ".join(sorted(failed))
        return _unknown(case, f"failed verifiers of several slots contradict: {names}")
    liked = any(f.kind == "thumb" and (f.value or 0) > 0 for f in case.signals)
    sure = _CONFIDENCE["A"] - (0.0 if own else 0.1) - (0.2 if liked else 0.0)
    evidence = f"verifier {', '.join(sorted(failed))} failed {case.turn.slot}'s answer"
    evidence += "; the user's thumb was up" if liked else ""
    return _verdict(case, "adapter", evidence, slot=case.turn.slot, confidence=sure)
