"""Who is responsible for a failed turn: the record, and the way to it.

    case -> first rule of `traces.attribution.structure.RULES` that claims it -> `Blame`

Pure: a turn, its hops, its outcome and its neighbours in, one `Blame` or None out. Where the
evidence contradicts itself or there is none the answer is `unknown`; odd data never raises.
Attempts that a later one supersedes are no evidence.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator

from serving.records import Feedback, Hop, Record, Turn
from serving.slots import Profile
from traces.attribution.case import Case, Claim, Klass
from traces.attribution.confidence import confidence
from traces.attribution.outcomes import Ended, Outcome
from traces.attribution.structure import RULES, Rule, first_claim
from traces.attribution.tool_results import Elsewhere, Shapes
from traces.joins.standing import SUPERSEDED, standing
from traces.verifiers.check import writable

CODE_VERSION = "structural-7"

Method = Literal["structure", "pooled", "replay", "steps"]
Verdict = Literal["adapter", "router", "stochastic", "unsolvable"]


class Blame(Record):
    """Who is responsible for one failed turn, or that it cannot be said."""

    turn_id: str
    klass: Klass
    slot: str | None
    """The slot to blame; None for classes that are no slot's fault."""
    confidence: float
    """In [0, 1]; 0 where nothing is claimed."""
    evidence: Annotated[str, AfterValidator(writable)]
    right_slot: str | None = None
    """For `router` and a wrong explored slot: the slot that should have answered, if known."""
    code_version: str = CODE_VERSION
    hop_id: str | None = None
    """The decisive engine call, where one is."""
    method: Method = "structure"
    """What decided: the turn itself, similar turns, a replay, or the steps of several agents."""
    verdict: Verdict | None = None
    """What a counterfactual replay found."""

    rule: str | None = None
    """Name of the rule that decided, see `traces.attribution.structure`."""

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
    summaries: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Of earlier turns by id: the id of the hop that summed it up, and what it said."""
    elsewhere: Mapping[str, Sequence[Elsewhere]] = field(default_factory=dict)
    """Of calls of this turn by id: what equal calls of other turns gave."""
    shapes: Mapping[str, Shapes] = field(default_factory=dict)
    """Of tools by name: how their results look where turns went well."""


def may_blame(turn: Ended, outcome: Outcome) -> bool:
    """Whether a turn is one that `blame` has something to say about."""
    if outcome.rule == SUPERSEDED:
        return False
    return outcome.success is False or turn.status != "ok" or outcome.tier == "C"


def blame(
    turn: Turn,
    hops: Sequence[Hop],
    outcome: Outcome,
    context: Context,
    profile: Profile,
    rules: Sequence[tuple[str, Rule]] = RULES,
) -> Blame | None:
    """Return who is responsible, or None for a turn that is not known to have failed.

    An implicit signal alone (tier C) gives a row of low confidence, a pointer for
    people, never one to train on.
    """
    if not may_blame(turn, outcome):
        return None
    try:
        rule, claim = first_claim(_case(turn, hops, outcome, context, profile), rules)
    except Exception as error:  # whatever a log holds, one turn must not stop the rest
        reason = f"the record cannot be read: {type(error).__name__}: {error}"
        rule, claim = "unreadable", Claim("unknown", reason[:200])
    return Blame(
        turn_id=turn.turn_id,
        klass=claim.klass,
        slot=claim.slot,
        confidence=0.0
        if claim.klass == "unknown"
        else confidence(rule, outcome.tier, claim.factor),
        evidence=claim.evidence + _remarks(turn, hops, rule),
        right_slot=claim.right_slot,
        hop_id=claim.hop,
        rule=rule,
        method="steps" if rule == "several_agents" else "structure",
    )


def _case(
    turn: Turn, hops: Sequence[Hop], outcome: Outcome, context: Context, profile: Profile
) -> Case:
    whole = len(hops) == len(turn.hop_ids)
    return Case(
        turn=turn,
        hops=standing(hops),
        missing=len(set(turn.hop_ids)) - len(hops),
        outcome=outcome,
        signals=tuple(Feedback.model_validate(s) for s in json.loads(outcome.signals)),
        earlier=context.earlier,
        later=context.later,
        summaries=context.summaries,
        elsewhere=context.elsewhere,
        shapes=context.shapes,
        profile=profile,
        ids={id(h): hop_id for h, hop_id in zip(hops, turn.hop_ids, strict=True)} if whole else {},
    )


def _remarks(turn: Turn, hops: Sequence[Hop], rule: str) -> str:
    """Return what tells a turn apart from ordinary traffic, whoever is to blame."""
    answers = [hop for hop in standing(hops) if hop.role == "answer"]
    cut = bool(answers) and answers[-1].finish_reason == "length" and rule != "truncated"
    remarks = "; the answer was cut at its token limit" if cut else ""
    return remarks + ("; canary traffic" if turn.canary else "")
