"""Outcomes: what the signals about a turn add up to.

Pure: a turn and its feedback in, one `Outcome` out.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
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

DERIVED = "derived"
"""`Feedback.source` of what attribution derives itself; it is stored only in outcomes."""
ENGINE = "engine"
"""The rule of a turn that failed because an engine call did."""
CHECKED = "checked"
"""The rule of a turn whose answer shows by itself that it failed. It has no counterpart for
successes, so that no share of successes counts it."""
DIVIDED = "divided"
"""The rule of a turn that some voices' thumbs are for and others' against, or one voice's both."""
UNVERIFIED = "unverified"
"""The rule of a turn whose verifiers all crashed, hung or could not judge."""


class Ended(Protocol):
    """A turn, as far as settling it goes."""

    @property
    def turn_id(self) -> str:
        """Its id."""

    @property
    def status(self) -> str:
        """As in `Turn`."""

    @property
    def user(self) -> str | None:
        """As in `Turn`: who asked."""


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
    """JSON text: every signal, in order of time; of floods those that tell, and how many more."""
    correction: Message | None = None
    """The answer the user wanted, from the latest edit; None where the latest disagree."""
    truncated: bool = False
    """An answer of the turn was cut at its token limit."""


def tier_of(signal: Feedback) -> Tier | None:
    """Return a signal's tier: A verified, B explicit, C implicit; None for a plain comment.

    What a model judged is implicit: it may be wrong in ways that repeat.
    """
    return "C" if signal.annotator == "model" else _TIERS.get(signal.kind)


def verifier_failed(signal: Feedback) -> bool:
    """Whether a verifier's score is a failure: anything below 1.

    No score, or one that is no number, is neither: the verifier crashed or could not judge.
    """
    return signal.value is not None and signal.value < 1.0


def shows_itself(signal: Feedback) -> bool:
    """Whether a verdict is of what an answer shows by itself, held to no reference."""
    return signal.source == DERIVED and signal.reference is None


def verdicts(signals: Iterable[Feedback]) -> list[Feedback]:
    """Return the verifiers' scores that count: those that the deployment's own checks gave.

    Where they gave none, those of what the answer shows by itself.
    """
    scored = [
        f for f in signals if tier_of(f) == "A" and (verifier_failed(f) or verifier_passed(f))
    ]
    return [f for f in scored if not shows_itself(f)] or scored


def verifier_passed(signal: Feedback) -> bool:
    """Whether a verifier's score is a success."""
    return signal.value is not None and signal.value >= 1.0


def settle(
    turn: Ended,
    feedback: Sequence[Feedback],
    *,
    superseded: bool = False,
    truncated: bool = False,
    engine_failed: bool = False,
    strangers: Collection[str] = (),
) -> Outcome:
    """Settle a turn's signals by one rule.

    0. A turn that was asked again has no outcome (`superseded`): the later one counts.
    1. A turn that gave no answer failed (`engine` where an engine call did, else
       `not_answered`); an abandoned one has no outcome (`abandoned`), whatever was said of it.
    2. A beats B beats C: the highest tier that spoke decides alone.
    3. Within A the deployment's own checks decide, made anew where they had crashed: any
       failed one fails the turn (`verified`). They know what came of the turn; what an answer
       shows by itself (a call that no tool takes) may have been mended or let pass. It fails
       the turn (`checked`) where they gave no score, and it never passes one. A verifier
       without a score has not spoken; where nobody has, the turn is `unverified`.
    4. Within B the user who asked, where it is known, decides alone if it spoke. An edit
       fails the turn (`edited`): the answer was not what was wanted. Otherwise each voice's
       thumb counts and one that points down fails it (`thumbed`; `divided` where another
       voice's points up). A user is one voice with the latest thumb, however often it spoke;
       thumbs of one moment that point both ways say nothing (`divided`, success None, where
       nobody else spoke). All thumbs that are anonymous, and all `strangers` who never asked
       anything, are one voice together: that of most of them, down if equal.
    5. C alone decides nothing: the turn is suspect (`suspect`), success None.
    6. Without signals success is None (`unjudged`).

    The latest edit of those that count in 4 is the correction; edits of one moment that want
    different things are none. `truncated` and
    `engine_failed` say what became of the turn's calls.
    """
    signals = list(feedback)
    if len(signals) > 1:
        signals.sort(key=lambda f: (f.created_at, f.feedback_id))
    explicit = _heard([f for f in signals if tier_of(f) == "B"], turn.user)
    success, tier, rule = (
        (None, None, SUPERSEDED)
        if superseded
        else _verdict(turn, signals, explicit, engine_failed, strangers)
    )
    return Outcome(
        turn_id=turn.turn_id,
        success=success,
        tier=tier,
        rule=rule,
        signals=canonical_json([f.model_dump(mode="json") for f in signals]),
        correction=_correction(explicit),
        truncated=truncated,
    )


def _heard(explicit: list[Feedback], asked_by: str | None) -> list[Feedback]:
    """Return the explicit signals that count: those of the user who asked, if there are any."""
    own = [f for f in explicit if asked_by is not None and f.user == asked_by]
    return own or explicit


def _verdict(
    turn: Ended,
    signals: Sequence[Feedback],
    explicit: Sequence[Feedback],
    engine_failed: bool,
    strangers: Collection[str],
) -> tuple[bool | None, Tier | None, str]:
    if turn.status == "abandoned":
        return None, None, "abandoned"
    if turn.status == "failed":
        return False, None, ENGINE if engine_failed else "not_answered"
    scores = verdicts(signals)
    if scores:
        rule = CHECKED if shows_itself(scores[0]) else "verified"
        return not any(map(verifier_failed, scores)), "A", rule
    if any(f.kind == "edit" for f in explicit):
        return False, "B", "edited"
    thumbs = thumbs_by_voice(explicit, strangers)
    if thumbs:
        rule = DIVIDED if len(set(thumbs.values())) > 1 else "thumbed"
        return all(thumbs.values()), "B", rule
    if any(tier_of(f) == "C" and _doubts(f) for f in signals):
        return None, "C", "suspect"
    checks = any(tier_of(f) == "A" for f in signals)
    if checks:
        return None, None, UNVERIFIED
    return None, None, DIVIDED if _thumbs(explicit) else "unjudged"


def thumbs_by_voice(
    signals: Sequence[Feedback], strangers: Collection[str] = ()
) -> dict[str | None, bool]:
    """Return whether each voice's thumb is up; None is that of all whom nobody knows.

    A user whose latest thumbs are of one moment and point both ways has said nothing.
    """
    latest: dict[str, tuple[datetime, set[bool]]] = {}
    # Anonymous thumbs cannot be told apart: each is as one more stranger's.
    unknown: list[bool] = []
    for thumb in _thumbs(signals):
        up = (thumb.value or 0.0) > 0
        if thumb.user is None:
            unknown.append(up)
            continue
        known = latest.get(thumb.user)
        if known is None or known[0] < thumb.created_at:
            latest[thumb.user] = thumb.created_at, {up}
        elif known[0] == thumb.created_at:
            known[1].add(up)
    spoken = {user: up for user, (_, ups) in latest.items() if len(ups) == 1 for up in ups}
    unknown += [up for user, up in spoken.items() if user in strangers]
    voices: dict[str | None, bool] = {u: up for u, up in spoken.items() if u not in strangers}
    return voices | ({None: sum(unknown) * 2 > len(unknown)} if unknown else {})


def _thumbs(signals: Iterable[Feedback]) -> list[Feedback]:
    """Return the thumbs that point somewhere."""
    return [f for f in signals if f.kind == "thumb" and f.value is not None and abs(f.value) > 0]


def _correction(edits: Sequence[Feedback]) -> Message | None:
    """Return what the latest edit wanted; None where those of that moment disagree."""
    told = [f for f in edits if f.kind == "edit" and f.correction is not None]
    latest = max((f.created_at for f in told), default=None)
    wanted = [f.correction for f in told if f.created_at == latest]
    return wanted[0] if wanted and all(each == wanted[0] for each in wanted) else None


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
