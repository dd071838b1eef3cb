"""Outcomes: what the signals about a turn add up to.

Pure: a turn and its feedback in, one `Outcome` out.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from serving.records import Feedback, Message, Record, canonical_json
from traces.joins.standing import SUPERSEDED

Tier = Literal["A", "B", "C"]

_TIERS: dict[str, Tier] = {
    "verifier": "A",
    "thumb": "B",
    "edit": "B",
    "retry": "C",
    "rephrase": "C",
    "correction": "C",
    "abandonment": "C",
    "thanks": "C",
}


class Ended(Protocol):
    """A turn, as far as settling it goes."""

    @property
    def turn_id(self) -> str:
        """Its id."""

    @property
    def status(self) -> str:
        """As in `Turn`."""


class Outcome(Record):
    """The settled outcome of one turn; all signals are kept with it."""

    turn_id: str
    success: bool | None
    """None: nobody judged, or only an implicit signal makes the turn suspect."""
    tier: Tier | None
    """Tier of the signals that decided."""
    rule: str
    """Which part of the rule decided, in one word."""
    signals: str = "[]"
    """JSON text: every signal, in order of time."""
    correction: Message | None = None
    """The answer the user wanted, from the latest edit."""
    truncated: bool = False
    """An answer of the turn was cut at its token limit."""


def tier_of(signal: Feedback) -> Tier | None:
    """Return a signal's tier: A verified, B explicit, C implicit; None for a plain comment.

    What a model judged is implicit: it may be wrong in ways that repeat.
    """
    return "C" if signal.annotator == "model" else _TIERS.get(signal.kind)


def verifier_failed(signal: Feedback) -> bool:
    """Whether a verifier's score is a failure: anything below 1, or no score at all."""
    return signal.value is None or signal.value < 1.0


def settle(turn: Ended, feedback: Sequence[Feedback], *, superseded: bool = False) -> Outcome:
    """Settle a turn's signals by one rule.

    0. A turn that was asked again has no outcome (`superseded`): the later one counts.
    1. A turn that gave no answer failed (`not_answered`); an abandoned one has no
       outcome (`abandoned`), whatever was said about it.
    2. A beats B beats C: the highest tier that spoke decides alone.
    3. Within A any failed verifier fails the turn (`verified`).
    4. Within B an edit fails it (`edited`): the answer was not what the user
       wanted. Otherwise each user's latest thumb counts and one that points down
       fails it (`thumbed`).
    5. C alone decides nothing: the turn is suspect (`suspect`), success None.
    6. Without signals success is None (`unjudged`).
    """
    signals = sorted(feedback, key=lambda f: (f.created_at, f.feedback_id))
    success, tier, rule = (None, None, SUPERSEDED) if superseded else _verdict(turn, signals)
    edits = [f.correction for f in signals if f.kind == "edit" and f.correction is not None]
    return Outcome(
        turn_id=turn.turn_id,
        success=success,
        tier=tier,
        rule=rule,
        signals=canonical_json([f.model_dump(mode="json") for f in signals]),
        correction=edits[-1] if edits else None,
    )


def _verdict(turn: Ended, signals: Sequence[Feedback]) -> tuple[bool | None, Tier | None, str]:
    if turn.status == "abandoned":
        return None, None, "abandoned"
    if turn.status == "failed":
        return False, None, "not_answered"
    verdicts = [verifier_failed(f) for f in signals if tier_of(f) == "A"]
    if verdicts:
        return not any(verdicts), "A", "verified"
    explicit = [f for f in signals if tier_of(f) == "B"]
    if any(f.kind == "edit" for f in explicit):
        return False, "B", "edited"
    thumbs = {f.user: f.value for f in explicit if f.kind == "thumb" and f.value}
    if thumbs:
        return all(value > 0 for value in thumbs.values()), "B", "thumbed"
    if any(tier_of(f) == "C" and _doubts(f) for f in signals):
        return None, "C", "suspect"
    return None, None, "unjudged"


def _doubts(signal: Feedback) -> bool:
    """Whether an implicit signal speaks against the turn: a model's praise does not."""
    match signal.kind:
        case "verifier":
            return verifier_failed(signal)
        case "thumb":
            return (signal.value or 0.0) < 0
        case "thanks":
            return False
        case _:
            return True
