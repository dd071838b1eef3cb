"""Implicit signals: what the course of a conversation tells of an answer, without anybody judging.

The next request repeats this one (`retry`), says it in other words (`rephrase`), contradicts the
answer (`correction`) or thanks for it (`thanks`); or there is no next request although the last
answer was missing or doubted (`abandonment`). In: the turns of one conversation, in order. Out:
feedback of tier C, derived anew at every attribution and stored nowhere but in the outcome.
Pure and quick; how far each signal is to be trusted is measured: `v_signal_quality`.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import NamedTuple

from serving.records import NO_KEY, UNDATED, Feedback, FeedbackKind
from traces.attribution.outcomes import DERIVED
from traces.attribution.phrases import Phrases, phrase_file, plain, said
from traces.attribution.similarity import normalised, repeatable, rephrased
from traces.ending import ended_at

AGAIN_WITHIN = timedelta(hours=1)
"""A request that comes back later than this is a new one."""
QUIET = timedelta(minutes=30)
"""A conversation has ended when nothing came for so long and the lake knows of later things."""
DATED = UNDATED + timedelta(days=366)
"""Records before it have no time, but places that count as microseconds."""
_TAIL_CHARS = 200


class Exchange(NamedTuple):
    """What the signals need of a turn."""

    turn_id: str
    conversation_id: str
    user: str | None
    request: str
    answer: str | None
    """Its text or, where it has none, the names of its tool calls; None if there was no answer."""
    status: str
    started_at: datetime
    duration_s: float = 0.0
    supersedes: str | None = None

    @property
    def answered(self) -> bool:
        """Whether an answer with something in it came."""
        return self.status == "ok" and bool(self.answer and self.answer.strip())

    @property
    def asked(self) -> bool:
        """Whether the answer ends with a question, which the next request may answer."""
        tail = (self.answer or "")[-_TAIL_CHARS:]
        return "?" in tail or "？" in tail


def implied(
    turns: Sequence[Exchange], index: int, known_until: datetime | None = None
) -> list[Feedback]:
    """Return the implicit signals about the turn at `index` of a conversation.

    `known_until` is the latest time in the lake; without it nothing is called abandoned.
    Turns without a conversation, or of two users, say nothing of each other.
    """
    turn = turns[index]
    if turn.conversation_id == NO_KEY:
        return []
    if index + 1 < len(turns):
        return [*_said_next(turn, turns[index + 1])]
    before = turns[index - 1] if index else None
    return _abandoned(turn, before, known_until)


# Of the last two turns it is asked twice in a row: what ends a conversation may be doubted, too.
@lru_cache(maxsize=1)
def _said_next(turn: Exchange, after: Exchange) -> tuple[Feedback, ...]:
    if None not in (turn.user, after.user) and turn.user != after.user:
        return ()
    if after.supersedes == turn.turn_id:
        return (_signal(turn, after, "retry", "asked_again", "the client asked again"),)
    signals: list[Feedback] = []
    again = _again(turn, after)
    if again is not None:
        signals.append(again)
    if not turn.answered:
        return tuple(signals)
    text, asked = said(after.request), turn.asked
    phrase = _phrases("correction").find(text, asked=asked)
    if phrase is not None:
        evidence = f"the next request says {phrase!r}"
        signals.append(_signal(turn, after, "correction", "correction_phrase", evidence))
    elif again is None:
        phrase = _phrases("thanks").find(text)
        if phrase is not None:
            evidence = f"the next request says {phrase!r}"
            signals.append(_signal(turn, after, "thanks", "thanks_phrase", evidence))
    return tuple(signals)


def _again(turn: Exchange, after: Exchange) -> Feedback | None:
    """Return the signal that a request came twice, the same or in other words."""
    if abs(after.started_at - turn.started_at) > AGAIN_WITHIN:
        return None
    old, new = normalised(turn.request), normalised(after.request)
    if not new or repeatable(new):
        return None
    if old == new:
        return _signal(turn, after, "retry", "same_request", "the next request is the same")
    if not turn.answered or f"{new} ".startswith(_follow_up()[0]) or (
        not new.isascii() and new.startswith(_follow_up()[1])
    ):  # fmt: skip
        return None
    alike = rephrased(old, new, asked=turn.asked)
    if alike is None:
        return None
    evidence = f"the next request says the same in other words ({alike:.2f} alike)"
    return _signal(turn, after, "rephrase", "similar_request", evidence)


def _abandoned(
    turn: Exchange, before: Exchange | None, known_until: datetime | None
) -> list[Feedback]:
    """Return the signal that a user left after a missing or doubted answer."""
    ended = ended_at(turn.started_at, turn.duration_s)
    # Recordings without times do not tell how long nothing came.
    if known_until is None or turn.started_at < DATED:
        return []
    if known_until - ended < QUIET:
        return []
    if not turn.answered:
        why = "the conversation ends without an answer"
    elif before is not None and any(s.value == -1.0 for s in _said_next(before, turn)):
        why = "the conversation ends with the answer to a doubt about the one before"
    else:
        return []
    return [_signal(turn, turn, "abandonment", "conversation_ended", why, ended + QUIET)]


def _signal(
    turn: Exchange,
    by: Exchange,
    kind: FeedbackKind,
    name: str,
    detail: str,
    created_at: datetime | None = None,
) -> Feedback:
    return Feedback(
        source=DERIVED,
        target_kind="turn",
        target_id=turn.turn_id,
        kind=kind,
        name=name,
        value=1.0 if kind == "thanks" else -1.0,
        detail=detail,
        user=by.user,
        created_at=created_at or by.started_at,
        annotator="code",
    )


@cache
def _phrases(name: str) -> Phrases:
    return Phrases(name)


@cache
def _follow_up() -> tuple[tuple[str, ...], tuple[str, ...]]:
    file = phrase_file()["follow_up"]
    return tuple(f"{plain(phrase)} " for phrase in file["en"]), tuple(file["zh"])
