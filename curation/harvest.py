"""The rows that one turn offers to one slot.

In: a turn with its hops, outcome and blame. Out: candidates in the slot's own view (the
exact messages its hop saw), or the reason why the turn teaches this slot nothing.

Three kinds of answer are worth learning: the user's correction of a failure that is this
adapter's own, an answer that was verified, and (at less weight) one that only a thumb
vouches for. The router slot also learns routes. Summaries of verified turns are replayed as
they were: nobody judged them, but a slot that stops writing them harms the others.
"""

import json
import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from curation import reasons
from curation.config import CurationConfig
from curation.examples import (
    VIEW_ENDS,
    Duty,
    Example,
    Source,
    normalise,
    prompt_id,
    seen_key,
    view_end,
)
from serving.records import Hop, Message
from serving.slots import Profile
from traces.attribution.outcomes import ENGINE
from traces.joins.standing import SUPERSEDED, standing

if TYPE_CHECKING:
    from traces.attribution.blame import Blame
    from traces.read import TurnBundle

QUOTE_CHARS = 40
"""A tool result at least this long, repeated whole, makes a completion a quotation."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An example on its way through the filters."""

    example: Example
    order: tuple[datetime, str, int]
    """Start of the turn, turn id, hop number: first come, first kept."""
    prompt_key: str
    """Equal for rows that show a model the same messages and tools."""
    row_key: str
    """Equal for rows that also have the same completion."""
    prompt_ids: frozenset[str]
    """`prompt_id` of the user's text, as asked and as the hop carries it."""


@dataclass(frozen=True, slots=True)
class Harvest:
    """What one turn offers to a slot."""

    candidates: tuple[Candidate, ...]
    dropped_hops: tuple[str, ...]
    """Reasons for hops left out of a turn that is used."""
    reason: str | None
    """Why the turn is not used; None if it is."""


@dataclass(frozen=True, slots=True)
class _Pick:
    """A hop, and what it should have said."""

    hop: Hop
    completion: Message | None
    source: Source
    duty: Duty

    @property
    def as_served(self) -> bool:
        return self.source in ("verified", "thumb", "replay")


def harvest(
    bundle: "TurnBundle",
    slot: str,
    profile: Profile,
    config: CurationConfig,
    withdrawn: frozenset[str] = frozenset(),
) -> Harvest:
    """Return the candidates that a turn offers to `slot`, or why there are none.

    `withdrawn` are the versions that were rolled back, by 12 hex digits.
    """
    refused = _turn_refusal(bundle, slot, profile, withdrawn)
    bundle = replace(bundle, hops=standing(bundle.hops))
    if refused is not None:
        return Harvest((), (), refused)
    parts: list[list[_Pick] | str] = [_answer_picks(bundle, slot, config)]
    replayed = _summary_picks(bundle, slot)
    if slot == profile.router:
        parts.append(_route_picks(bundle, slot, profile, config))
    results = tool_results(bundle.hops)
    used: list[Candidate] = []
    dropped: list[str] = []
    taken = [pick for part in parts if not isinstance(part, str) for pick in part]
    for pick in [*taken, *replayed]:
        problem = _pick_refusal(pick, results)
        if problem is not None:
            dropped.append(problem)
        else:
            used.append(_candidate(bundle, slot, pick, config))
    if used:
        return Harvest(tuple(used), tuple(dropped), None)
    why = [part for part in parts if isinstance(part, str)]
    # The router slot may have two reasons: the answer's if it answered, else the route's.
    return Harvest((), (), dropped[0] if dropped else why[0 if bundle.turn.slot == slot else -1])


def tool_results(hops: tuple[Hop, ...]) -> frozenset[str]:
    """Return the normalised texts that tools gave back in a turn."""
    texts = {m.content for hop in hops for m in hop.messages if m.role == "tool"}
    return frozenset(filter(None, map(normalise, texts)))


def untrusted(bundle: "TurnBundle", withdrawn: frozenset[str]) -> str | None:
    """Return why a turn's versions teach nothing, whatever became of it; None if they may.

    A version on trial, or one that was rolled back, had a part in it: in any call, also one that
    only routed, or that a later attempt replaced.
    """
    turn = bundle.turn
    if turn.canary or any(hop.canary for hop in bundle.hops):
        return reasons.CANARY
    if turn.digest in withdrawn or any(hop.digest in withdrawn for hop in bundle.hops):
        return reasons.ROLLED_BACK
    return None


class Distrust:
    """Since when each conversation teaches nothing, from all of its turns, in any order.

    What an untrusted version said is in the views of the turns that follow, so these would teach
    to go on from it.
    """

    def __init__(self, withdrawn: frozenset[str]) -> None:
        """Trust no canary, nor the versions in `withdrawn`."""
        self._withdrawn = withdrawn
        self._since: dict[str, tuple[datetime, str]] = {}

    def add(self, bundle: "TurnBundle") -> None:
        """Note a turn."""
        why, turn = untrusted(bundle, self._withdrawn), bundle.turn
        if why is not None:
            first = (turn.started_at, _AFTER[why])
            before = self._since.get(turn.conversation_id, first)
            self._since[turn.conversation_id] = min(before, first)

    def reason(self, conversation_id: str, started_at: datetime) -> str | None:
        """Return why a turn teaches nothing for what came before it; None if it may."""
        since, why = self._since.get(conversation_id, (None, None))
        return why if since is not None and started_at >= since else None


_AFTER = {
    reasons.CANARY: reasons.AFTER_CANARY,
    reasons.ROLLED_BACK: reasons.AFTER_ROLLED_BACK,
}


def _turn_refusal(
    bundle: "TurnBundle", slot: str, profile: Profile, withdrawn: frozenset[str]
) -> str | None:
    turn, outcome = bundle.turn, bundle.outcome
    if slot != profile.router and turn.slot is not None and turn.slot != slot:
        return reasons.OTHER_SLOT
    if outcome.rule == ENGINE:
        return reasons.ENGINE_FAILED
    if turn.status != "ok" or turn.slot is None:
        return reasons.TURN_FAILED
    distrusted = untrusted(bundle, withdrawn)
    if distrusted is not None:
        return distrusted
    if outcome.rule == SUPERSEDED:
        return reasons.ASKED_AGAIN
    if outcome.tier == "C":
        return reasons.IMPLICIT_ONLY
    if outcome.success is None or outcome.tier is None:
        return reasons.NO_OUTCOME
    return None


def _answer_picks(bundle: "TurnBundle", slot: str, config: CurationConfig) -> list[_Pick] | str:
    outcome = bundle.outcome
    if bundle.turn.slot != slot:
        return reasons.OTHER_SLOT
    hops = [hop for hop in bundle.hops if hop.role == "answer" and hop.slot == slot]
    if not hops:
        return reasons.NO_HOP
    if outcome.success:
        source: Source = "verified" if outcome.tier == "A" else "thumb"
        return [_Pick(hop, hop.completion, source, "answer") for hop in hops]
    if outcome.truncated:
        # What is missing may only have been cut: no failure of the adapter.
        return reasons.TRUNCATED
    refused = _blame_refusal(bundle.blame, "adapter", config)
    if refused is not None:
        return refused
    if bundle.blame is not None and bundle.blame.slot != slot:
        return reasons.OTHER_ADAPTER
    if outcome.correction is None:
        return reasons.NO_CORRECTION
    # The first hop made the mistake; a retry after an engine error is the one that answered.
    first = next((hop for hop in hops if hop.status == "ok"), hops[0])
    called = first.completion is not None and first.completion.tool_calls
    if called and not outcome.correction.tool_calls:
        # The text may rest on tool results that this hop had not seen.
        return reasons.TEXT_FOR_CALL
    return [_Pick(first, outcome.correction, "edit", "answer")]


def _summary_picks(bundle: "TurnBundle", slot: str) -> list[_Pick]:
    if bundle.turn.slot != slot or not bundle.outcome.success or bundle.outcome.tier != "A":
        return []
    return [
        _Pick(hop, hop.completion, "replay", "summary")
        for hop in bundle.hops
        if hop.role == "summary" and hop.slot == slot
    ]


def _route_picks(
    bundle: "TurnBundle", slot: str, profile: Profile, config: CurationConfig
) -> list[_Pick] | str:
    turn, outcome, blame = bundle.turn, bundle.outcome, bundle.blame
    hops = [hop for hop in bundle.hops if hop.role == "route" and hop.slot == slot]
    if not hops:
        return reasons.NO_ROUTE
    hop = next((hop for hop in reversed(hops) if hop.status == "ok"), hops[-1])
    if outcome.success:
        if outcome.tier != "A":
            return reasons.ROUTE_UNVERIFIED
        if labels_in(hop.completion, profile) != {turn.slot}:
            return reasons.ROUTE_NOT_FOLLOWED
        return [_Pick(hop, hop.completion, "verified", "route")]
    if turn.decision == "explored":
        return reasons.EXPLORED
    refused = _blame_refusal(blame, "router", config)
    if refused is not None:
        return refused
    right = blame.right_slot if blame is not None else None
    if right is None or right not in profile.labels or right == turn.slot:
        return reasons.RIGHT_SLOT_UNKNOWN
    return [_Pick(hop, Message(role="assistant", content=right), "route", "route")]


def labels_in(completion: Message | None, profile: Profile) -> set[str]:
    """Return the slot names that a route completion names, in its text or its call's arguments."""
    if completion is None:
        return set()
    text = " ".join([completion.content, *(call.arguments for call in completion.tool_calls)])
    return set(re.findall(r"[A-Za-z][A-Za-z0-9_-]*", text)) & set(profile.labels)


def _blame_refusal(blame: "Blame | None", klass: str, config: CurationConfig) -> str | None:
    if blame is None or blame.klass == "unknown":
        return reasons.BLAME_UNKNOWN
    if blame.klass != klass:
        return reasons.BLAMED_ON[blame.klass]
    return reasons.LOW_CONFIDENCE if blame.confidence < config.min_confidence else None


def _pick_refusal(pick: _Pick, results: frozenset[str]) -> str | None:
    """Return why a hop cannot become a row, None if it can."""
    hop, completion = pick.hop, pick.completion
    if hop.status != "ok":
        return reasons.HOP_FAILED
    if completion is None or not (completion.content.strip() or completion.tool_calls):
        return reasons.EMPTY
    if pick.as_served and hop.finish_reason == "length":
        return reasons.TRUNCATED
    if completion.role != "assistant":
        return reasons.NOT_AN_ANSWER
    if not _is_json(hop.tools, list) or not all(
        _is_json(call.arguments, dict) for call in completion.tool_calls
    ):
        return reasons.NOT_JSON
    if view_end(hop.messages) not in VIEW_ENDS:
        return reasons.VIEW_END
    if _quotes(completion, results):
        return reasons.TOOL_RESULT
    return None


def _is_json(text: str, kind: type) -> bool:
    try:
        return isinstance(json.loads(text), kind)
    except (ValueError, RecursionError):
        return False


def _quotes(completion: Message, results: frozenset[str]) -> bool:
    text = normalise(completion.content)
    return any(text == r or (len(r) >= QUOTE_CHARS and r in text) for r in results)


def _candidate(bundle: "TurnBundle", slot: str, pick: _Pick, config: CurationConfig) -> Candidate:
    turn, hop = bundle.turn, pick.hop
    assert pick.completion is not None
    example = Example.make(
        # Sides are dealt once all users and conversations are known (`curation.split`).
        split="train",
        slot=slot,
        duty=pick.duty,
        messages=hop.messages,
        tools=hop.tools,
        completion=pick.completion,
        source=pick.source,
        weight=config.thumb_weight if pick.source == "thumb" else 1.0,
        user=turn.user,
        conversation_id=turn.conversation_id,
        turn_id=turn.turn_id,
        hop_id=hop.hop_id,
    )
    asked = [m.content for m in hop.messages if m.role == "user"][-1:]
    prompt_key = seen_key([*hop.messages], hop.tools)
    return Candidate(
        example=example,
        order=(turn.started_at, turn.turn_id, hop.seq),
        prompt_key=prompt_key,
        row_key=seen_key([*hop.messages, pick.completion], hop.tools),
        # A route hop's text is the request plus the route prompt, hence both.
        prompt_ids=frozenset(map(prompt_id, [turn.request, *asked])),
    )
