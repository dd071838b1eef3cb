"""What fresh answers to a failed turn are checked against.

In: an outcome. Out: the references of the verifiers that failed its turn, all of which a fresh
answer has to pass, else what the user wanted instead. Who counts is what `settle` hears: a
deployment's own checks, never a model's, and of edits the outcome's correction alone.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.records import Feedback, Message, canonical_json, content_id
from traces.attribution.outcomes import Outcome, tier_of, verifier_failed, verifier_passed
from traces.verifiers.check import Check
from traces.verifiers.registry import Checker, TurnCheck, expected, read_reference, turn_check

Reference = Mapping[str, Any]
_OF_ANY_TURN = "safety"
"""Verifier that judges texts and calls alike."""


@dataclass(frozen=True, slots=True)
class References:
    """What an answer has to pass to be right; at least one that describes a check."""

    parts: tuple[Reference, ...]

    @property
    def name(self) -> str:
        """`content_id` of what answers are checked against."""
        return content_id(self.parts[0] if len(self.parts) == 1 else list(self.parts))

    def check(self, tools: Sequence[Mapping[str, Any]]) -> TurnCheck:
        """Return the check of all; `tools` are those that were offered, in OpenAI form."""
        found = (turn_check(part, tools) for part in self.parts)
        checks = [check for check in found if check is not None]
        calls = any(check.judges_calls for check in checks)
        amid = _all([c.amid for c in checks if c.judges_calls or not calls])
        forbidden = _all([c.amid for c in checks if calls and not c.judges_calls])

        def either(answer: Message) -> Check:
            # What judges texts has no verdict on a call, unless it fails whatever follows.
            gone = forbidden(answer)
            return gone if gone.passed is False else amid(answer)

        return TurnCheck(_all([c.last for c in checks]), either, calls)


def references_of(outcome: Outcome) -> References | None:
    """Return what a fresh answer to a failed turn is checked against; None if nothing is known.

    Of each verifier the latest reference that can be used counts, one that failed the turn before
    one without a score. Verifiers that passed are asked too where they judge the same, for a fresh
    answer must not be right in one thing by being wrong in another; alone they do not say why the
    turn failed. Where a call failed it is what is checked, the latest if several did: nobody knows
    what would have followed the right one.
    """
    kept = _by_verifier(f for f in signals_of(outcome.signals) if tier_of(f) == "A")
    failed = [ref for signal, ref in kept if verifier_failed(signal)]
    why = failed or [ref for signal, ref in kept if not verifier_passed(signal)]
    if not why:
        wanted = None if outcome.correction is None else expected(outcome.correction)
        return None if wanted is None else References((wanted,))
    calls = any(map(_judges_calls, why))
    call = next((ref for ref in reversed(why) if ref["verifier"] == "tool_call"), None)
    told = [*why, *(ref for signal, ref in kept if verifier_passed(signal))]
    asked = [
        ref
        for ref in told
        if ref["verifier"] == _OF_ANY_TURN or (_judges_calls(ref) == calls and _is(ref, call))
    ]
    alike = {canonical_json(ref): ref for ref in asked}
    return References(tuple(alike[text] for text in sorted(alike)))


def signals_of(text: str) -> list[Feedback]:
    """Return the signals that an outcome keeps."""
    return [Feedback.model_validate(raw) for raw in json.loads(text)]


def _by_verifier(signals: Iterable[Feedback]) -> list[tuple[Feedback, Reference]]:
    """Return of each verifier the signal that counts most, with its reference; later ones last."""

    def weight(signal: Feedback) -> tuple[Any, ...]:
        rank = 2 if verifier_failed(signal) else 0 if verifier_passed(signal) else 1
        return rank, signal.created_at, signal.feedback_id

    found: dict[str, tuple[Feedback, Reference]] = {}
    for signal in sorted((f for f in signals if f.kind == "verifier"), key=weight):
        reference = None if signal.reference is None else read_reference(signal.reference)
        if reference is not None and turn_check(reference) is not None:
            found.pop(signal.name, None)
            found[signal.name] = signal, reference
    return list(found.values())


def _judges_calls(reference: Reference) -> bool:
    check = turn_check(reference)
    return check is not None and check.judges_calls


def _is(reference: Reference, call: Reference | None) -> bool:
    """Whether a reference is the expected call, or describes none."""
    return reference["verifier"] != "tool_call" or reference == call


def _all(checks: Sequence[Checker]) -> Checker:
    """Return the check that all of these pass; one that fails decides, whatever others find."""

    def check(answer: Message) -> Check:
        found = [each(answer) for each in checks]
        order: tuple[bool | None, ...] = (False, None, True)
        nothing = Check(None, "nothing is checked")
        return min(found, key=lambda each: order.index(each.passed), default=nothing)

    return check
