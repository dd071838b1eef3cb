"""Which slot a request belongs to: the rows that a router head learns and is judged on.

In: turns with outcome and blame. Out: `Routes`, one row a turn whose right slot the evidence
tells, dealt to train, validation and holdout by user and conversation, and the reasons for
the turns left out. Three kinds of turn tell the right slot:

- one that succeeded, verified or by an explicit word: the slot that answered;
- one whose failure is the router's, where the right slot is known: that slot;
- one whose answer failed by a verifier that is the answering slot's own business: the slot
  answered badly, but the request was its to answer.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from curation import reasons
from curation.config import CurationConfig
from curation.examples import normalise
from curation.harvest import Distrust, untrusted
from curation.split import Groups
from serving.records import Feedback, content_id
from serving.slots import Profile
from traces.attribution.outcomes import ENGINE, verifier_failed

if TYPE_CHECKING:
    from traces.read import TurnBundle

VALIDATION_PERCENT = 15
"""Percent of users whose turns stop the training early and set the temperature."""

RouteSplit = Literal["train", "validation", "holdout"]


@dataclass(frozen=True, slots=True)
class RouteRow:
    """One request with the slot that it belongs to."""

    turn_id: str
    text: str
    """The user's text, as the router saw it."""
    slot: str
    """The right one."""
    served: str
    """The slot that answered."""
    routed: bool
    """A router chose `served`: not a rule, a draw, the client, or a pending tool call."""
    user: str | None
    conversation_id: str
    split: RouteSplit = "train"

    @property
    def cluster(self) -> str:
        """Rows of one cluster are not independent."""
        return self.user or self.conversation_id


@dataclass(frozen=True, slots=True)
class Routes:
    """The rows of a lake, in order of turn id."""

    rows: tuple[RouteRow, ...]
    turns: int
    dropped: dict[str, int]
    """Turns left out, by reason."""

    def of(self, split: RouteSplit) -> tuple[RouteRow, ...]:
        """Return the rows of one side."""
        return tuple(row for row in self.rows if row.split == split)

    @property
    def digest(self) -> str:
        """Content id of everything that is learnt from and judged on."""
        return content_id([[r.turn_id, r.text, r.slot, r.split] for r in self.rows])


def harvest_routes(
    bundles: "Iterable[TurnBundle]",
    profile: Profile,
    config: CurationConfig,
    withdrawn: frozenset[str] = frozenset(),
) -> Routes:
    """Return the rows of turns, which may come in any order.

    `withdrawn` are the versions that were rolled back, by 12 hex digits.

    Sides are those of adapter training (`curation.split`): what is held out of one is held
    out of the other. A request that is asked word for word on a side that learns is left out
    of the sides that judge.
    """
    groups = Groups()
    distrust = Distrust(withdrawn)
    yielded: list[tuple[datetime, RouteRow]] = []
    dropped: Counter[str] = Counter()
    superseded: set[str] = set()
    turns = 0
    for bundle in bundles:
        turns += 1
        groups.add(bundle.turn.user, bundle.turn.conversation_id)
        distrust.add(bundle)
        if bundle.turn.supersedes is not None:
            superseded.add(bundle.turn.supersedes)
        row = route_row(bundle, profile, config, withdrawn)
        if isinstance(row, str):
            dropped[row] += 1
        else:
            yielded.append((bundle.turn.started_at, row))
    found: list[RouteRow] = []
    for started_at, row in yielded:
        reason = distrust.reason(row.conversation_id, started_at)
        if reason is not None:
            dropped[reason] += 1
        else:
            found.append(row)
    current = [row for row in found if row.turn_id not in superseded]
    dropped[reasons.SUPERSEDED] += len(found) - len(current)
    rows = _dealt(current, groups, config.holdout_percent)
    fresh = _unseen(rows)
    dropped[reasons.ALSO_IN_TRAIN] += len(rows) - len(fresh)
    return Routes(
        rows=tuple(sorted(fresh, key=lambda row: row.turn_id)),
        turns=turns,
        dropped={reason: n for reason, n in sorted(dropped.items()) if n},
    )


def route_row(
    bundle: "TurnBundle",
    profile: Profile,
    config: CurationConfig,
    withdrawn: frozenset[str] = frozenset(),
) -> RouteRow | str:
    """Return a turn's row, or the reason why its right slot is not known."""
    turn, blame = bundle.turn, bundle.blame
    refused = _refusal(bundle, profile, withdrawn)
    if refused is not None:
        return refused
    assert turn.slot is not None
    right = turn.slot
    if not bundle.outcome.success:
        if blame is None or blame.klass == "unknown":
            return reasons.BLAME_UNKNOWN
        if blame.confidence < config.min_confidence:
            return reasons.LOW_CONFIDENCE
        if blame.klass == "router":
            if blame.right_slot not in profile.labels or blame.right_slot == turn.slot:
                return reasons.RIGHT_SLOT_UNKNOWN
            right = str(blame.right_slot)
        elif bundle.outcome.truncated:
            return reasons.TRUNCATED
        elif blame.klass != "adapter" or not _failed_its_own_business(bundle, profile):
            return reasons.BLAMED_ON[blame.klass]
    return RouteRow(
        turn_id=turn.turn_id,
        text=turn.request,
        slot=right,
        served=turn.slot,
        routed=turn.decision == "routed",
        user=turn.user,
        conversation_id=turn.conversation_id,
    )


def _refusal(bundle: "TurnBundle", profile: Profile, withdrawn: frozenset[str]) -> str | None:
    turn, outcome = bundle.turn, bundle.outcome
    if outcome.rule == ENGINE:
        return reasons.ENGINE_FAILED
    if turn.status != "ok" or turn.slot is None or not turn.request.strip():
        return reasons.TURN_FAILED
    distrusted = untrusted(bundle, withdrawn)
    if distrusted is not None:
        return distrusted
    if turn.slot not in profile.labels:
        # The base model answered because the router was not sure, or the slot is gone.
        return reasons.OTHER_SLOT
    if outcome.tier == "C":
        return reasons.IMPLICIT_ONLY
    if outcome.success is None or outcome.tier is None:
        return reasons.NO_OUTCOME
    if turn.decision in ("fallback", "unsure"):
        return reasons.NOT_CHOSEN
    if turn.decision == "explored" and not outcome.success:
        return reasons.EXPLORED
    return None


def _failed_its_own_business(bundle: "TurnBundle", profile: Profile) -> bool:
    """Say whether a verifier of the answering slot failed its answer."""
    assert bundle.turn.slot is not None
    own = profile.slot(bundle.turn.slot).verifiers
    signals = [Feedback.model_validate(raw) for raw in json.loads(bundle.outcome.signals)]
    return any(s.kind == "verifier" and s.name in own and verifier_failed(s) for s in signals)


def _dealt(rows: Iterable[RouteRow], groups: Groups, holdout_percent: int) -> list[RouteRow]:
    """Deal the rows to their sides.

    Votes are nested: who is held out at one share is so at every larger one. So validation
    is what the larger share adds, and like the holdout it only ever loses groups to train.
    """
    held = groups.sides(holdout_percent)
    judging = groups.sides(holdout_percent + VALIDATION_PERCENT)

    def side(row: RouteRow) -> RouteSplit:
        if held[row.conversation_id] == "holdout":
            return "holdout"
        return "validation" if judging[row.conversation_id] == "holdout" else "train"

    return [replace(row, split=side(row)) for row in rows]


def _unseen(rows: list[RouteRow]) -> list[RouteRow]:
    """Leave out of validation what train asks, and out of the holdout what either asks."""
    trained = {normalise(row.text) for row in rows if row.split == "train"}
    validated = {normalise(row.text) for row in rows if row.split == "validation"}
    seen = {"train": set(), "validation": trained, "holdout": trained | validated}
    return [row for row in rows if normalise(row.text) not in seen[row.split]]
