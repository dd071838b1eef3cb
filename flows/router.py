"""Train the router head, judge it on held-out turns, put it in force; no command line here.

The head is a version like any adapter: registered in slot `router` of role `head`, judged
by the gate against the present way of routing on the same held-out turns, promoted and
rolled back through the registry. The present way is the head in force or, before the first
one, what the router did when the turns were recorded.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import stages
from flows.config import Settings
from serving.errors import MolError
from serving.records import Record

if TYPE_CHECKING:
    from curation.routes import RouteRow, Routes
    from promotion.gate import GateIdentity, GateReport
    from promotion.promote import PromotionResult
    from serving.head import RouterHead
    from training.router_head import Embed, TrainedHead

SUITE = "routing"


class RouterSlotTaken(MolError, ValueError):
    """The profile has a slot of the name under which heads are registered."""


class RouterResult(Record):
    """What `flows router train` made."""

    head: str
    """`router@<12 hex>`."""
    digest: str
    metrics: dict[str, float]
    verdict: str
    report: str
    """Key of the gate report."""
    reasons: tuple[str, ...]
    in_force: bool
    """Whether this head routes now, where the server's router mode is `head`."""
    message: str


def train_stage(
    settings: Settings, progress: Callable[[int, int], None] | None = None
) -> RouterResult:
    """Train, register, judge and, if the gate says PASS, promote; finished steps are found again.

    Raises:
        RouterSlotTaken: if the profile has a slot called `router`.
        TooFewRoutes: if the lake tells too few right slots.
        LakeNotFound: if nothing was ingested yet.
        BaseNotFound: if there is no base model.
    """
    from curation.routes import harvest_routes
    from promotion.gate import save_report
    from traces.read import read_turns
    from training.artifact import base_digest
    from training.router_head import require_enough

    profile = stages.profile_in_force(settings)
    _check_name(settings)
    base = base_digest(settings.base)
    gone = stages.withdrawn_versions(settings)
    routes = harvest_routes(read_turns(settings.home), profile, settings.curation, gone)
    require_enough(routes, settings.head)
    champion = _head_in_force(settings)
    trained, states = asyncio.run(train_and_embed(settings, routes, base, progress))
    register_head(settings, trained, routes, base)
    serves = champion is not None and champion.digest == trained.head.digest
    kept = _report_of(settings, trained.head.digest) if serves else None
    report = kept or judge_heads(settings, trained.head, champion, gate_items(routes), states, base)
    save_report(settings.home, report)
    if serves:
        return _result(trained, report, True, f"{trained.head.name!r} routes already.")
    if report.verdict != "PASS":
        now = champion.name if champion else "as it was"
        return _result(trained, report, False, f"Nothing was changed; routing stays {now}.")
    promoted = promote_stage(settings, report)
    return _result(trained, report, True, promoted.message)


def judge_heads(
    settings: Settings,
    challenger: "RouterHead",
    champion: "RouterHead | None",
    items: "Sequence[RouteRow]",
    states_N_D: Any,
    base: str,
) -> "GateReport":
    """Compare a head with the head in force, or with the recorded routes, on the same turns.

    Each new question about these turns is an attempt on them.

    Raises:
        SetSpent: if the turns of so few users could show nothing at the next attempt's level.
    """
    from promotion.gate import GateIdentity, judge
    from promotion.slices import SuiteScores
    from serving.head import HEAD_SLOT
    from serving.records import content_id

    before = [row.served for row in items]
    if champion is not None:
        before = _routes(champion, states_N_D)
    after = _routes(challenger, states_N_D)
    scores = SuiteScores(
        suite=SUITE,
        slot=HEAD_SLOT,
        item_ids=tuple(row.turn_id for row in items),
        clusters=tuple(row.cluster for row in items),
        champion=_right(before, items),
        challenger=_right(after, items),
        identical=before == after,
        unchanged=champion is not None and champion.digest == challenger.digest,
    )
    identity = GateIdentity(
        slot=HEAD_SLOT,
        champion_digest=champion.digest if champion else None,
        challenger_digest=challenger.digest,
        base_digest=base,
        suites_digest=content_id([[row.turn_id, row.slot, row.served] for row in items]),
        primary_suite=SUITE,
        seed=settings.seed,
        manifest_digest=challenger.card.origin.get("routes_digest"),
        code_version=stages.code_version(),
    )
    return _as_attempt(
        settings, identity, len(set(scores.clusters)), partial(judge, scores, (), settings.gate)
    )


def _as_attempt(
    settings: Settings,
    identity: "GateIdentity",
    units: int,
    judged: "Callable[[GateIdentity], GateReport]",
) -> "GateReport":
    """Reserve an attempt on the held-out turns, then judge; what was judged before stands.

    Every night holds out a few turns more. They are the same set all the same, or 20 nights would
    be 20 first attempts on nearly the same turns.
    Judged anew by other code, its report lost, it would be another: then it is another attempt.
    """
    from promotion.gate import read_reports
    from promotion.spending import finish, reserve, set_name
    from promotion.tables import Database
    from serving.records import content_id

    gate = settings.gate
    question = content_id([identity.model_dump(mode="json", exclude={"code_version"}), gate.alpha])
    database = Database(settings.registry.url or settings.home)
    try:
        while True:
            attempt = reserve(
                database,
                set_name(identity.slot, identity.primary_suite),
                question,
                slot=identity.slot,
                champion=identity.champion_digest,
                challenger=identity.challenger_digest,
                alpha=gate.alpha,
                units=units,
            )
            update = {"sealed_set": attempt.sealed_set, "attempt": attempt.attempt}
            kept = read_reports(settings.home, {attempt.report_key or ""})
            report = kept[0] if kept else judged(identity.model_copy(update=update))
            if finish(database, attempt, report) == report.key:
                return report
            question = content_id([question, attempt.attempt])
    finally:
        database.close()


def promote_stage(settings: Settings, report: "GateReport") -> "PromotionResult":
    """Put the head of a passed report in force, after its folder was checked."""
    from promotion.promote import promote

    return promote(
        settings.home,
        report,
        verify=_verifier(settings),
        registry_url=settings.registry.url,
    )


def rollback_stage(settings: Settings) -> "PromotionResult":
    """Swap the head in force with the one before, which may be none."""
    from promotion.promote import rollback
    from serving.head import HEAD_SLOT

    declare_slot(settings)
    return rollback(
        settings.home, HEAD_SLOT, verify=_verifier(settings), registry_url=settings.registry.url
    )


def show_stage(settings: Settings) -> list[dict[str, Any]]:
    """Return one row a head."""
    from flows.reports import founded_reports
    from serving.head import HEAD_SLOT
    from training.router_head import list_heads

    verdicts = {r.challenger_digest: r for r in founded_reports(settings, HEAD_SLOT)}
    declare_slot(settings)
    with stages.open_registry(settings) as registry:
        state = registry.slot(HEAD_SLOT)
    rows = []
    for made in list_heads(settings.home):
        digest, m = made.head.digest, made.metrics
        report = verdicts.get(digest)
        comparison = report.primary.comparison if report else None
        serves = {state.champion: "in force", state.previous: "previous"}.get(digest)
        rows.append(
            {
                "head": made.head.name,
                "serves": serves,
                "slots": " ".join(made.head.labels),
                "rows": int(m["train"]),
                "held_out": int(m["holdout"]),
                "accuracy": m["accuracy"],
                "before": comparison.mean_champion if comparison else None,
                "log_loss": m["log_loss"],
                "ece": m["ece"],
                "gate": report.verdict if report else None,
            }
        )
    return rows


async def train_and_embed(
    settings: Settings,
    routes: "Routes",
    base: str,
    progress: Callable[[int, int], None] | None,
) -> "tuple[TrainedHead, Any]":
    """Return the head and the hidden states of the gate's items."""
    from training.router_head import hidden_states, train_head

    engine, _ = stages.open_engine(settings, base)
    embed = _remembered(engine.embed)
    try:
        await hidden_states(routes.rows, embed, progress)
        trained = await train_head(settings.home, routes, embed, base, settings.head, settings.seed)
        return trained, await hidden_states(gate_items(routes), embed)
    finally:
        await engine.close()


def _remembered(embed: "Embed") -> "Embed":
    states: dict[str, Sequence[float]] = {}

    async def remembered(text: str) -> Sequence[float]:
        if text not in states:
            states[text] = await embed(text)
        return states[text]

    return remembered


def gate_items(routes: "Routes") -> "list[RouteRow]":
    """Return the held-out turns that a router decided; rules and draws are not its merit."""
    return [row for row in routes.of("holdout") if row.routed]


def _routes(head: "RouterHead", states_N_D: Any) -> list[str]:
    return [head.labels[n] for n in head.batch(states_N_D).argmax(axis=1)]


def _right(chosen: Sequence[str], items: "Sequence[RouteRow]") -> tuple[float, ...]:
    return tuple(float(c == row.slot) for c, row in zip(chosen, items, strict=True))


def _check_name(settings: Settings) -> None:
    from serving.head import HEAD_SLOT
    from serving.slots import load_profile

    if HEAD_SLOT in load_profile(settings.profile).labels:
        raise RouterSlotTaken(
            f"The profile has a slot {HEAD_SLOT!r}, under which router heads are registered. "
            "Give that slot another name."
        )


def declare_slot(settings: Settings) -> None:
    """Make the slot of heads known to the registry.

    Raises:
        RouterSlotTaken: if the profile has a slot of that name.
    """
    from serving.head import HEAD_SLOT
    from serving.slot_table import SlotTraits

    _check_name(settings)
    with stages.open_registry(settings) as registry:
        registry.declare({HEAD_SLOT: SlotTraits(role="head", description="names the slot")})


def _head_in_force(settings: Settings) -> "RouterHead | None":
    from serving.head import HEAD_SLOT, RouterHead

    declare_slot(settings)
    with stages.open_registry(settings) as registry:
        digest = registry.slot(HEAD_SLOT).champion
        if digest is None:
            return None
        path = registry.version(digest).path
    return RouterHead.load(settings.home / path, digest)


def register_head(settings: Settings, trained: "TrainedHead", routes: "Routes", base: str) -> None:
    """Sign a head and enter it in the registry; a second time changes nothing."""
    from flows.registering import register
    from promotion.state import RegisteredVersion
    from serving.head import HEAD_SLOT, head_folder

    digest = trained.head.digest
    with stages.open_registry(settings) as registry:
        register(
            settings,
            registry,
            RegisteredVersion(
                slot=HEAD_SLOT,
                digest=digest,
                base_digest=base,
                manifest_digest=routes.digest,
                run_key=trained.run_key,
                metrics=trained.metrics,
                path=str(head_folder(Path(), digest)),
                created_at=datetime.now(UTC),
            ),
        )


def _verifier(settings: Settings) -> Callable[[Path], object]:
    """Return a check that a head's folder is what its name says and fits the profile's slots."""
    from serving.head import RouterHead

    labels = stages.profile_in_force(settings).labels
    return lambda path: RouterHead.load(path, f"sha256:{path.name}", labels)


def _report_of(settings: Settings, digest: str) -> "GateReport | None":
    """Return the report on whose word a head was promoted."""
    from flows.reports import founded_reports
    from serving.head import HEAD_SLOT

    made = founded_reports(settings, HEAD_SLOT, digest)
    return next((report for report in made if report.verdict == "PASS"), None)


def _result(
    trained: "TrainedHead", report: "GateReport", in_force: bool, message: str
) -> RouterResult:
    return RouterResult(
        head=trained.head.name,
        digest=trained.head.digest,
        metrics=trained.metrics,
        verdict=report.verdict,
        report=report.key,
        reasons=report.reasons,
        in_force=in_force,
        message=message,
    )
