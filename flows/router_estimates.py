"""What other ways of routing would have been worth, estimated on explored turns; no command here.

In: settings, and a slot that takes all requests, a trained head that routes them, or neither for
every slot in turn. Out: a row a policy beside what the logged router itself was worth.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import stages
from flows.config import Settings
from serving.errors import MolError
from serving.records import Record
from traces.attribution.off_policy import MIN_ESS, EstimateRefused, PolicyValue

if TYPE_CHECKING:
    from serving.head import RouterHead
    from traces.attribution.logged_routes import LoggedTurns, Tier
    from traces.attribution.off_policy import Floats

Progress = Callable[[int, int], None]
LEARNED = "head_learned"
"""Why a turn is left out that the head may have learned from."""


class HeadNotFound(MolError, LookupError):
    """No trained head has this name."""


class PolicyEstimate(Record):
    """One policy's value, or why it cannot be told."""

    policy: str
    """A slot that takes every request, or a head by its name."""
    value: PolicyValue | None
    refused: str | None = None
    versions: int
    """Versions of the slots in question that answered; the value is over all of them."""


class RouterEstimates(Record):
    """What the explored turns tell."""

    policies: tuple[PolicyEstimate, ...]
    turns: int
    """Turns that could be weighed."""
    epsilons: tuple[float, ...]
    """Share of draws of each router that logged them."""
    left_out: dict[str, int]
    """Turns of the lake, or of the condition, that could not, by reason."""


def estimate_stage(
    settings: Settings,
    slot: str | None = None,
    head: str | None = None,
    where: str | None = None,
    tiers: "Sequence[Tier]" = ("A", "B"),
    min_ess: float = MIN_ESS,
    progress: Progress | None = None,
) -> RouterEstimates:
    """Estimate the value of a slot, of a head, or of every slot.

    A head is judged on turns that it did not learn from.

    Raises:
        EstimateRefused: if the turns cannot tell the value of any policy that was asked for.
        UnknownSlot: if the profile has no such slot.
        HeadNotFound: if there is no such head.
        QueryRefused: if the condition is none.
        LakeNotFound: if nothing was ingested yet.
    """
    from traces.attribution.logged_routes import read_logged

    profile = stages.profile_in_force(settings)
    slots = profile.labels if slot is None else (profile.slot(slot).name,)
    chosen = None if head is None else find_head(settings.home, head, profile.labels)
    logged = read_logged(settings.home, profile.labels, where, tiers)
    if chosen is not None:
        logged = _held_out(settings, logged)
        policies = {chosen.name: _by_head(settings, chosen, logged, progress)}
    else:
        policies = {name: _constant(logged, name) for name in slots}
    rows = _estimates(logged, policies, min_ess)
    if all(row.value is None for row in rows):
        raise EstimateRefused(rows[0].refused)
    return RouterEstimates(
        policies=rows,
        turns=len(logged.turns),
        epsilons=logged.epsilons,
        left_out=logged.left_out,
    )


def find_head(home: Path, wanted: str, slots: Sequence[str]) -> "RouterHead":
    """Return the head of this name, digest, beginning of a digest, or folder.

    Raises:
        HeadNotFound: if there is none, or more than one.
        HeadInvalid: if it is damaged or could name a slot which is not there.
    """
    from serving.head import CARD_NAME, HEAD_SLOT, RouterHead

    if Path(wanted, CARD_NAME).is_file():
        return RouterHead.load(Path(wanted), None, slots)
    digits = wanted.removeprefix(f"{HEAD_SLOT}@").removeprefix("sha256:")
    folders = sorted(path.parent for path in (home / "heads").glob(f"[0-9a-f]*/{CARD_NAME}"))
    found = [folder for folder in folders if digits and folder.name.startswith(digits)]
    if len(found) != 1:
        there = ", ".join(f"{HEAD_SLOT}@{folder.name[:12]}" for folder in folders[:3]) or "none"
        raise HeadNotFound(
            f"{'More than one head' if found else 'No head'} is called {wanted!r}; there are: "
            f"{there}. Run 'flows router show' for all, 'flows router train' for one."
        )
    return RouterHead.load(found[0], f"sha256:{found[0].name}", slots)


def _estimates(
    logged: "LoggedTurns", policies: "dict[str, Floats]", min_ess: float
) -> tuple[PolicyEstimate, ...]:
    from traces.attribution.off_policy import estimate
    from traces.attribution.outcome_model import cross_fitted

    arrays, k = logged.arrays, len(logged.labels)
    predicted_N_K = cross_fitted(
        logged.texts, arrays.action_N, arrays.reward_N, arrays.conversation_N, k
    )
    rows = []
    for name, policy_N_K in policies.items():
        value, refused = None, None
        try:
            value = estimate(arrays, policy_N_K, predicted_N_K, min_ess=min_ess)
        except EstimateRefused as problem:
            refused = str(problem)
        used = {label for label, most in zip(logged.labels, policy_N_K.max(axis=0), strict=True)
                if most > 0}  # fmt: skip
        versions = {(turn.slot, turn.digest) for turn in logged.turns if turn.slot in used}
        rows.append(
            PolicyEstimate(policy=name, value=value, refused=refused, versions=len(versions))
        )
    return tuple(rows)


def _constant(logged: "LoggedTurns", slot: str) -> "Floats":
    import numpy as np

    policy_N_K = np.zeros((len(logged.turns), len(logged.labels)))
    policy_N_K[:, logged.labels.index(slot)] = 1.0
    return policy_N_K


def _held_out(settings: Settings, logged: "LoggedTurns") -> "LoggedTurns":
    """Leave out what heads learn from; on that a head looks better than it is."""
    from curation.split import Groups
    from traces.attribution.logged_routes import users_of

    groups = Groups()
    for user, conversation in users_of(settings.home):
        groups.add(user, conversation)
    sides = groups.sides(settings.curation.holdout_percent)
    kept = logged.only((c for c, side in sides.items() if side == "holdout"), LEARNED)
    if not kept.turns:
        raise EstimateRefused(
            f"All {len(logged.turns):,} explored turns are of users whom heads learn from; a head "
            "is judged on those held out. Explore longer, or raise 'curation.holdout_percent'."
        )
    return kept


def _by_head(
    settings: Settings, head: "RouterHead", logged: "LoggedTurns", progress: Progress | None
) -> "Floats":
    """Return the policy of a head that takes its likeliest slot."""
    import numpy as np

    states_N_D = asyncio.run(_states(settings, head, logged, progress))
    columns = [logged.labels.index(label) for label in head.labels]
    policy_N_K = np.zeros((len(logged.turns), len(logged.labels)))
    chosen_N = head.batch(states_N_D).argmax(axis=1)
    policy_N_K[np.arange(len(chosen_N)), np.array(columns)[chosen_N]] = 1.0
    return policy_N_K


async def _states(
    settings: Settings, head: "RouterHead", logged: "LoggedTurns", progress: Progress | None
) -> Any:
    from serving.head import HiddenStateInvalid
    from training.artifact import base_digest
    from training.router_head import hidden_states

    base = base_digest(settings.base)
    if base != head.card.base_digest:
        raise HiddenStateInvalid(
            f"Head {head.name!r} was trained on base {head.card.base_digest!r}, and "
            f"{str(settings.base)!r} has {base!r}. Name that base with '--base'."
        )
    engine, _ = stages.open_engine(settings, base)
    try:
        return await hidden_states(logged.turns, engine.embed, progress)
    finally:
        await engine.close()
