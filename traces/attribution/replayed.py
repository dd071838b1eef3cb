"""Replays as they are stored, and the blame that follows from them.

Pure: a blame, the rows of its turn's replay and what is known of the turn in; the blame with the
verdict out. It is asked again at every attribution, so that late evidence counts.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import AwareDatetime, Field

from serving.records import (
    BASE_SLOT,
    Decision,
    Hop,
    Message,
    Record,
    Turn,
    canonical_json,
    content_id,
)
from serving.slots import Profile
from traces.attribution.blame import Blame
from traces.attribution.gap import Arm, Finding, judge, judge_alike, material_gap, sureness
from traces.attribution.outcomes import Outcome

CODE_VERSION = "replay-1"
"""Of the rows: how views are made, samples drawn and judged."""
REPLAYED_CLASSES = frozenset({"router", "adapter", "summary", "unknown"})
"""What a replay can speak to; a tool, an engine or a refused request has no other answer."""
SHOWN_IN_THE_ANSWER = frozenset({"broken_call", "malformed", "altered"})
"""Rules whose evidence is the answer itself: that no other slot does better does not excuse it."""
STOCHASTIC_CONFIDENCE = 0.5
"""A failure by chance is its adapter's, but nothing to learn by heart."""

UNSOLVED = 0.5
"""How sure an adapter's blame is at most where no slot solves its turn."""


class ArmConfig(Record):
    """How an arm was asked; the `config` of its row."""

    reference: str
    """`content_id` of what the answers were checked against."""
    version: Literal["served", "champion"]
    """Whether this version served when the turn failed, or does now."""
    view: Literal["recorded", "rebuilt", "borrowed"]
    """Exactly what the hop saw; what this slot would have seen; or what the slot that answered
    saw, under this slot's own system prompt, where the conversation could not be rebuilt."""
    tools: Literal["recorded", "slot", "none"]
    """Tools offered: the turn's own, those the slot was last offered elsewhere, or none."""
    temperature: float
    max_tokens: int | None = None
    """Token limit of an answer; None in rows that do not tell."""
    asked: int
    """Samples drawn, those among them that could not be judged too."""
    left_out: dict[str, int] = Field(default_factory=dict)
    """Samples that say nothing, by reason."""
    calls: int = 0
    """Engine calls made."""


class Replay(Record):
    """One arm: fresh answers of one version to one turn, and how many succeeded."""

    turn_id: str
    slot: str
    digest: str | None
    """12 hex digits; None for the bare base model."""
    samples: int
    """Those that were judged."""
    successes: int
    config: str
    """JSON text of an `ArmConfig`."""
    code_version: str = CODE_VERSION
    created_at: AwareDatetime

    @property
    def arm(self) -> Arm:
        """Its counts."""
        return Arm(self.slot, self.samples, self.successes)

    @property
    def is_told(self) -> bool:
        """Whether half of its answers or more could be judged.

        Which answers those are may depend on how good they are: long ones are cut, others ask
        tools what nobody had asked.
        """
        return 2 * self.samples >= self.how.asked

    @property
    def how(self) -> ArmConfig:
        """How it was asked."""
        return ArmConfig.model_validate_json(self.config)


class Preference(Record):
    """A better and a worse answer of one adapter to what one hop saw."""

    pair_id: str
    turn_id: str
    slot: str
    digest: str | None
    hop_id: str
    """Its view is the prompt."""
    chosen: Message
    rejected: Message
    source: str
    created_at: AwareDatetime

    @classmethod
    def make(
        cls, turn: Turn, hop: Hop, digest: str | None, chosen: Message, rejected: Message,
        source: str, at: AwareDatetime,
    ) -> "Preference":  # fmt: skip
        """Return the pair, named by its content; ids that engines give to calls do not count."""
        said = [turn.turn_id, hop.slot, digest, hop.hop_id, source]
        pair_id = content_id([*said, meaning(chosen), meaning(rejected)])
        return cls(
            pair_id=pair_id, turn_id=turn.turn_id, slot=hop.slot, digest=digest,
            hop_id=hop.hop_id, chosen=chosen, rejected=rejected, source=source, created_at=at,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Similar:
    """Replays of other turns alike: same cluster, same slot that answered."""

    slot: str
    rows: Sequence[Replay]


def meaning(message: Message) -> list[Any]:
    """Return what a message says, without ids and without the way arguments are written."""
    calls = [[call.name, arguments_of(call.arguments)] for call in message.tool_calls]
    return [message.content.strip(), calls]


def arguments_of(text: str) -> Any:
    """Return a call's arguments as a value; text that is no JSON, or has no id, as it is."""
    try:
        value = json.loads(text)
        canonical_json(value).encode()  # half of a surrogate pair has no bytes
        return value
    except (ValueError, RecursionError):
        return text


def current(rows: Iterable[Replay], reference: str) -> dict[str, Replay]:
    """Return the newest row of each slot that was checked against this reference."""
    found: dict[str, Replay] = {}
    for row in sorted(rows, key=lambda row: row.created_at):
        if row.how.reference == reference:
            found[row.slot] = row
    return found


def from_replay(
    blame: Blame,
    rows: Sequence[Replay],
    turn: Turn,
    hops: Sequence[Hop],
    outcome: Outcome,
    profile: Profile,
    false_router: float,
    *,
    similar: Sequence[Similar] = (),
) -> Blame:
    """Return the blame with what the replay of its turn says.

    `rows` are those that were checked against what the turn is checked against now (`current`).
    `similar` are replays of similar turns; they are added to the turn's own where these alone do
    not show a gap. They make no surer than the turn's own: they were chosen because the same slot
    failed, and each slot may have a chance of its own at each request.

    What the log shows is evidence too: where the replay says something else it decides only if
    it weighs more.
    """
    arms = {row.slot: row for row in rows}
    if blame.klass not in REPLAYED_CLASSES or turn.slot not in arms:
        return blame
    solvable = outcome.correction is not None or (
        blame.klass == "adapter" and (blame.method == "pooled" or blame.rule in SHOWN_IN_THE_ANSWER)
    )
    own = _arms(turn.slot, rows)
    alike = [_arms(turn.slot, s.rows) for s in similar if s.slot == turn.slot]
    # Two looks at the same null share what it may be wrong in.
    level = false_router / 2 if alike else false_router
    if not arms[str(turn.slot)].is_told:
        return blame
    found = judge(*own, level, solvable=solvable)
    if found is None:
        return blame
    pooled = None
    if found.verdict in ("adapter", "unsolvable") and alike:
        pooled = judge_alike([own, *alike], level)
    best = next((a for a in own[1] if pooled is not None and a.slot == pooled.right_slot), None)
    if pooled is not None and best is not None and best.share > own[0].share:
        words = f"over {1 + len(alike)} similar turns, {pooled.words}"
        before = blame.confidence if blame.klass == "router" else 0.0
        sure = min(pooled.confidence, max(before, sureness(found.p_value)))
        found = Finding("router", pooled.right_slot, sure, words, pooled.p_value)
    little = {row.slot for row in rows if not row.is_told}
    if little and (found.verdict in ("adapter", "unsolvable") or found.right_slot in little):
        return blame  # nobody knows what the slot of which too little was judged does
    kept = _kept(blame, found, arms, str(turn.slot))
    if kept is not None:
        words = f"{blame.evidence}; {found.words}; what the log shows weighs more"
        changes = {"confidence": kept, "evidence": words, "verdict": found.verdict}
        return blame.model_copy(update=changes)
    weak = any(row.how.view == "borrowed" for row in arms.values())
    return _blamed(blame, found, turn, hops, profile, arms[turn.slot], weak)


def _kept(blame: Blame, found: Finding, arms: dict[str, Replay], slot: str) -> float | None:
    """Return how sure the blame of the log stays; None where the replay decides.

    A router that the log blames is cleared where the counts make it the less likely cause; a slot
    that usually succeeds was wrong only if the right one is materially better. Where nobody solves
    the turn that may be the adapter's failure as well, so that the surer of the two stands.
    """
    if found.verdict == "router" or not 0 < blame.confidence < 1:
        return None
    if blame.klass == "router":
        factor = _for_router(blame.right_slot, arms, slot)
        odds = blame.confidence / (1 - blame.confidence) * factor
        at_least = 1.0 if found.verdict == "stochastic" else 0.0
        return round(odds / (1 + odds), 3) if odds >= 1 and factor >= at_least else None
    if blame.klass == "adapter" and found.verdict == "unsolvable":
        return min(blame.confidence, UNSOLVED) if blame.confidence > found.confidence else None
    return None


def _for_router(right: str | None, arms: dict[str, Replay], slot: str) -> float:
    """Return what the counts make of the odds that the right slot would have done better."""
    counts = {name: row.arm for name, row in arms.items()}
    if right is not None:
        return material_gap(counts[slot], counts.get(right, Arm(right, 0, 0)))
    # Nobody was named: the best of several looks better than it is.
    others = [arm for name, arm in counts.items() if name != slot]
    return min(1.0, max((material_gap(counts[slot], arm) for arm in others), default=1.0))


def _arms(slot: str, rows: Sequence[Replay]) -> tuple[Arm, list[Arm]]:
    """Return the arm that answered and the others."""
    arms = {row.slot: row.arm for row in rows}
    return arms[slot], [arm for name, arm in sorted(arms.items()) if name != slot]


def _blamed(
    blame: Blame, found: Finding, turn: Turn, hops: Sequence[Hop], profile: Profile, own: Replay,
    weak: bool,
) -> Blame:  # fmt: skip
    evidence = f"{blame.evidence}; {found.words}"
    if turn.digest is None and turn.slot != BASE_SLOT:
        evidence += "; which version had answered is not known, the one that serves was asked"
    elif own.how.version == "champion" and own.digest != turn.digest:
        evidence += "; the version that had answered is gone, its successor was asked"
    if weak:
        evidence += "; other slots were asked with the view of the one that answered"
    changes: dict[str, Any] = {
        "evidence": evidence, "method": "replay", "verdict": found.verdict,
        "confidence": found.confidence, "right_slot": None,
    }  # fmt: skip
    match found.verdict:
        case "router":
            changes |= _routed(blame, found, turn.decision, hops, profile)
        case "stochastic":
            changes |= {"klass": "adapter", "slot": turn.slot, "hop_id": _hop(hops, "answer")}
            changes["confidence"] = min(found.confidence, STOCHASTIC_CONFIDENCE)
        case "adapter":
            changes |= _of_adapter(blame, found, turn, hops, own)
        case "unsolvable":
            changes |= {"klass": "unknown", "slot": None, "hop_id": None, "confidence": 0.0}
    if blame.klass == "summary" and found.verdict != "stochastic":
        # All slots fail, or one does well that saw more: what a lost summary looks like.
        changes |= {"klass": "summary", "slot": blame.slot, "hop_id": blame.hop_id}
        changes |= {"confidence": blame.confidence, "right_slot": blame.right_slot}
    if turn.slot == BASE_SLOT and changes["klass"] == "adapter":
        changes |= {"klass": "fallback", "slot": None}
    return blame.model_copy(update=changes)


def _routed(
    blame: Blame, found: Finding, decision: Decision, hops: Sequence[Hop], profile: Profile
) -> dict[str, Any]:
    """Whose doing a wrong route is depends on who chose it."""
    changes: dict[str, Any] = {
        "klass": "router", "slot": profile.router, "right_slot": found.right_slot,
        "hop_id": _hop(hops, "route"),
    }  # fmt: skip
    who = {"explored": "exploration drew", "rule": "a rule chose", "direct": "the client chose"}
    if decision in who:
        changes["evidence"] = f"{who[decision]} the slot: {blame.evidence}; {found.words}"
        changes["slot"] = None
    if decision in ("explored", "fallback", "unsure"):
        changes |= {"klass": "fallback", "slot": None}
    return changes


def _of_adapter(
    blame: Blame, found: Finding, turn: Turn, hops: Sequence[Hop], own: Replay
) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "klass": "adapter", "slot": turn.slot, "hop_id": _hop(hops, "answer"),
    }  # fmt: skip
    if not own.successes:
        # Nothing but failures does not tell the adapter from a check that is too narrow.
        before = blame.confidence if blame.klass == "adapter" else STOCHASTIC_CONFIDENCE
        changes["confidence"] = min(found.confidence, before)
    return changes


def _hop(hops: Sequence[Hop], role: str) -> str | None:
    """Return the first call of a role that was answered; it made the turn what it was."""
    return next((h.hop_id for h in hops if h.role == role and h.status == "ok"), None)
