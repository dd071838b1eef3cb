"""Scores, labels and comments of evaluation tools, as feedback.

Tools record a number on a scale that they do not name, a label, or both. Here a label that is a
verdict decides (`pass`, `down`); else the number, if it lies in [0, 1]; a number on another scale
cannot be judged and is kept as a comment. A human's verdict is a thumb, code's a verifier's
score. Who judged is often unsaid: a name such as `thumbs_up` or `user-feedback` tells it was a
user; else a clean verdict stands, but a grade between 0 and 1 counts as a model's, which decides
nothing alone.
"""

from datetime import datetime
from typing import Any

from serving.records import (
    Annotator,
    Feedback,
    FeedbackKind,
    Message,
    TargetKind,
    canonical_json,
)  # fmt: skip

_UP = frozenset({"up", "thumbs_up", "thumbs-up", "thumbsup", "like", "liked", "👍"})
_DOWN = frozenset({"down", "thumbs_down", "thumbs-down", "thumbsdown", "dislike", "disliked", "👎"})
_GOOD = _UP | {
    "pass", "passed", "true", "yes", "correct", "good", "positive", "success", "accepted",
}  # fmt: skip
_BAD = _DOWN | {
    "fail", "failed", "false", "no", "incorrect", "bad", "negative", "failure", "wrong", "rejected",
}  # fmt: skip
_THUMBS = _UP | _DOWN | {"thumb", "thumbs"}
_USERS = frozenset(
    f"{user}{sep}{word}"
    for user in ("user", "end_user")
    for sep in ("_", "-", " ")
    for word in ("feedback", "score", "rating", "vote", "thumb", "thumbs")
)
"""Names of scores that say a user gave them."""
_ANNOTATORS: dict[str, Annotator] = {
    "human": "human", "annotation": "human", "user": "human",
    "llm": "model", "model": "model", "llm_judge": "model", "ai_judge": "model", "eval": "model",
    "code": "code",
}  # fmt: skip


def annotator_of(value: Any) -> Annotator | None:
    """Return who judged, under any of the names in use; None where it is unsaid or unknown."""
    return _ANNOTATORS.get(str(value or "").lower())


def signal(
    source: str,
    target: tuple[TargetKind, str],
    name: str,
    *,
    score: Any = None,
    label: str | None = None,
    text: str | None = None,
    annotator: Annotator | None = None,
    user: str | None = None,
    at: datetime,
) -> Feedback:
    """Return one annotation, score or evaluation as feedback."""
    verdict = _verdict(score, label)
    word = (label or "").strip().lower()
    thumb = annotator == "human" or (
        annotator is None and {word, name.lower()} & (_THUMBS | _USERS)
    )
    kind: FeedbackKind
    value: float | None = None
    if verdict is None:
        kind = "comment"
    elif thumb:
        kind, value, annotator = "thumb", 1.0 if verdict >= 0.5 else -1.0, "human"
    else:
        kind, value = "verifier", verdict
        if annotator is None and 0.0 < verdict < 1.0:
            annotator = "model"
    return Feedback(
        source=source,
        target_kind=target[0],
        target_id=target[1],
        kind=kind,
        name=name,
        value=value,
        detail=_detail(score, label, text, value),
        user=user,
        created_at=at,
        annotator=annotator,
    )


def edit(
    source: str,
    target: tuple[TargetKind, str],
    name: str,
    answer: Message | None,
    *,
    text: str | None = None,
    annotator: Annotator | None = None,
    user: str | None = None,
    at: datetime,
) -> Feedback:
    """Return the answer that somebody, by default a person, wanted instead.

    Raises:
        ValueError: if it is empty.
    """
    if answer is None:
        raise ValueError(f"the correction {name!r} is empty")
    return Feedback(
        source=source,
        target_kind=target[0],
        target_id=target[1],
        kind="edit",
        name=name,
        correction=answer,
        detail=text,
        user=user,
        created_at=at,
        annotator=annotator or "human",
    )


def _verdict(score: Any, label: str | None) -> float | None:
    """Return a verdict in [0, 1], None if there is none."""
    word = (label or "").strip().lower()
    if word in _GOOD:
        return 1.0
    if word in _BAD:
        return 0.0
    if isinstance(score, bool):
        return float(score)
    if isinstance(score, int | float) and 0.0 <= score <= 1.0:
        return float(score)
    return None


def _detail(score: Any, label: str | None, text: str | None, value: float | None) -> str | None:
    """Return the explanation alone where it is all there is beside the value, else JSON text."""
    told: dict[str, Any] = {"label": label or None, "text": text or None}
    if isinstance(score, int | float) and not isinstance(score, bool) and score != value:
        told["score"] = score if score == score else str(score)
    elif isinstance(score, str):
        told["score"] = score
    told = {k: v for k, v in told.items() if v is not None}
    if not told:
        return None
    return str(text) if set(told) == {"text"} else canonical_json(told)
