"""The rule for turns that several agents answered: the decisive step names whose fault it was.

It takes a `Case` and answers with a `Claim`, or None where it has nothing to say: one agent alone,
two of the profile's own slots, answers that compete instead of building on each other, or a
record that is incomplete.
"""

from collections.abc import Sequence
from itertools import pairwise

from serving.records import Hop
from traces.attribution.case import Case, Claim
from traces.attribution.record_rules import contradicted, strangers
from traces.attribution.steps import decisive_step

MIN_MARGIN = 0.1
"""Below it the two most probable agents are too close: of 126 labelled runs, by weights that never
saw them, a ninth is, and less than half of those are named rightly."""
_PAIR = 2


def several_agents(case: Case) -> Claim | None:
    """The agent whose step was decisive, in a run of several that heard each other."""
    speakers = {hop.slot for hop in case.answers}
    own = speakers <= set(case.profile.labels)
    if case.missing or len(speakers) < _PAIR or (own and len(speakers) == _PAIR):
        return None
    backwards = any(b.started_at < a.started_at for a, b in pairwise(case.hops))
    if backwards or not _heard(case.answers):
        return None
    step = decisive_step(case.turn, case.hops)
    if step is None:
        return None
    if disputed := contradicted(case) or strangers(case):
        return disputed
    if step.margin < MIN_MARGIN:
        return case.abstain(f"no agent of the run stands out; {step.evidence}")
    return Claim("adapter", step.evidence, slot=step.agent, hop=step.hop_id, factor=step.confidence)


def _heard(answers: Sequence[Hop]) -> bool:
    """Whether any agent was given what another one said right before it."""
    for before, after in pairwise(answers):
        said = before.completion.content if before.completion else ""
        if said and before.slot != after.slot and any(said in m.content for m in after.messages):
            return True
    return False
