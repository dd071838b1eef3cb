"""Rules about the record itself: what never reached a model, broke on the way, or contradicts.

Each takes a `Case` and answers with a `Claim`, or None where it has nothing to say.
"""

import zlib

from serving.records import BASE_SLOT
from traces.attribution.case import Case, Claim, text_of
from traces.attribution.outcomes import DIVIDED

_REPEATING = 0.25
"""A text that packs into less than this share of its length says the same again and again."""
_PACKED_CHARS = 80
_FITS = 0.5
"""A right answer of at most this share of the cut one's length would have fitted."""


def refused(case: Case) -> Claim | None:
    """The request was refused before any engine call: its sender's."""
    error = case.turn.error or ""
    unseen = case.turn.status == "failed" and not case.turn.hop_ids
    return Claim("user", error) if unseen and error.startswith("request refused: 4") else None


def abandoned(case: Case) -> Claim | None:
    """The client left before the answer was complete."""
    left = case.turn.status == "abandoned" or any(h.status == "abandoned" for h in case.hops)
    return case.abstain("the client left before the answer was complete") if left else None


def engine_failed(case: Case) -> Claim | None:
    """An engine call failed and the turn with it; a summary is written after the answer."""
    bad = [h for h in case.hops if h.status in ("engine_error", "broken_stream")]
    answered = bool(case.answers) and case.answers[-1].status == "ok"
    if case.turn.status == "ok" and answered:
        return None
    for hop in bad:
        what = "engine call failed" if hop.status == "engine_error" else "stream broke"
        evidence = f"the {hop.role} {what}: {hop.error or 'no reason given'}"
        return Claim("fallback", evidence, hop=case.id_of(hop))
    return None


def fallback_slot(case: Case) -> Claim | None:
    """Not the router but the pool chose the slot; surer where the evidence is another slot's."""
    if case.turn.decision != "fallback":
        return None
    own = [name for name in case.failed if case.turn.slot in case.owners(name)]
    evidence = "the slot was chosen by an engine or pool fallback, not by the router"
    hop = case.id_of(case.answers[0]) if case.answers else None
    if own:
        evidence += f"; verifier {', '.join(own)} is that slot's own business"
    return Claim("fallback", evidence, hop=hop, factor=0.6 if own else 1.0)


def base_answered(case: Case) -> Claim | None:
    """The base model answered, which nobody trains."""
    if case.turn.slot != BASE_SLOT:
        return None
    why = ", for the router was not sure enough" if case.turn.decision == "unsure" else ""
    hop = case.id_of(case.answers[0]) if case.answers else None
    return Claim("fallback", f"the base model answered{why}", hop=hop)


def not_answered(case: Case) -> Claim | None:
    """The turn failed with hops that all look well."""
    if case.turn.status == "failed" and case.turn.hop_ids and case.outcome.tier is None:
        return Claim("fallback", f"the turn failed: {case.turn.error or 'no reason given'}")
    return None


def inconsistent(case: Case) -> Claim | None:
    """Hops are missing, clocks run backwards, or two answers compete."""
    if case.missing or not case.answers:
        return case.abstain(f"{case.missing} hops are missing" if case.missing else "no answer hop")
    for before, after in zip(case.hops, case.hops[1:], strict=False):
        if after.started_at < before.started_at:
            return case.abstain("the hops' clocks run backwards")
    for hop in case.answers[1:]:
        if hop.slot != case.answers[0].slot or not hop.messages or hop.messages[-1].role != "tool":
            return case.abstain("two answers compete for the turn")
    return None


def contradicted(case: Case) -> Claim | None:
    """Verifiers or users contradict each other."""
    if flaky := _flaky(case):
        return case.abstain(f"verifier {flaky} both passed and failed this turn")
    own = [name for name in case.failed if case.turn.slot in case.owners(name)]
    elsewhere = [name for name in case.failed if case.owners(name) and name not in own]
    if own and elsewhere:
        names = ", ".join(case.failed)
        return case.abstain(f"failed verifiers of several slots contradict: {names}")
    if case.outcome.rule == DIVIDED:
        return case.abstain("users contradict each other about this turn")
    return None


def _flaky(case: Case) -> str:
    """Name the verifiers that both passed and failed the same thing."""
    verdicts = [f for f in case.signals if f.kind == "verifier"]
    both = set(case.failed) & set(case.passed)
    for name in sorted(both):
        told = [f for f in verdicts if f.name == name]
        targets = {f.target_id for f in told}
        # A verdict on each of several responses of a turn is no contradiction.
        if all(f.target_kind == "response" for f in told) and len(targets) == len(told):
            both.discard(name)
    return ", ".join(sorted(both))


def strangers(case: Case) -> Claim | None:
    """Only users who did not ask speak against the answer."""
    if case.outcome.tier != "B" or case.turn.user is None or case.outcome.correction is not None:
        return None
    against = {f.user for f in case.signals if f.kind == "thumb" and (f.value or 0) < 0}
    if not against or against & {None, case.turn.user}:
        return None
    return case.abstain(f"only {len(against)} others than the user who asked disliked the answer")


def truncated(case: Case) -> Claim | None:
    """The answer was cut at its token limit, and a right one might have been as well.

    An answer that repeats itself, or is far longer than the right one, is its writer's.
    """
    last = case.answers[-1]
    if last.finish_reason != "length" or last.completion is None:
        return None
    said = text_of(last.completion)
    known = case.right.chars if case.right is not None else None
    if known is not None and known <= _FITS * len(said):
        return None
    if len(said) >= _PACKED_CHARS:
        data = said.encode("utf-8", "replace")
        if len(zlib.compress(data)) < _REPEATING * len(data):
            return None
    return case.abstain("the answer was cut at its token limit")
