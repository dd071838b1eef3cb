"""The gate as a stage: reserve an attempt, ask both arms on the sealed set, judge, keep the report.

What is compared, and by which rules, is settled before anything is scored and has a digest, the
question. A question that has its report is answered by it and spends nothing; one whose run was
killed goes on as the attempt that it was.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flows import stages
from flows.config import Settings
from flows.gate_checks import check_rules
from flows.sealed import SealedSet, sealed_sets, why_too_small
from serving.errors import MolError
from serving.records import content_id

if TYPE_CHECKING:
    from promotion.drift import Drift
    from promotion.evaluate import SuiteRun
    from promotion.gate import GateIdentity, GateReport
    from promotion.latency import Durations
    from promotion.slices import SuiteScores
    from promotion.spending import Attempt
    from promotion.suites.suite import Suite
    from promotion.tables import Database
    from serving.engine import Engine


log = logging.getLogger(__name__)


class AnsweredElsewhere(MolError, RuntimeError):
    """Another run of the same attempt was first, and its report is in another home."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A comparison that is settled: what both arms are asked, and as which attempt."""

    identity: "GateIdentity"
    suites: "list[Suite]"
    champions: dict[str, str | None]
    attempt: "Attempt"


def gate_stage(
    settings: Settings, slot: str, challenger: str, progress: stages.Progress | None = None
) -> "GateReport":
    """Compare the challenger with the slot's champion on the sealed set; keep the report.

    Raises:
        GateInvalid: if the gate's settings do not fit together.
        NotProved: if the engine does not answer as what was trained; nothing is scored.
        SetSpent: if no sealed set is left on which another attempt could pass; nothing is asked.
        AnsweredElsewhere: if another run of this attempt, in another home, was first.
    """
    from promotion.gate import judge
    from promotion.tables import Database
    from training.artifact import adapter_folder, base_digest, verify_adapter

    base = base_digest(settings.base)
    verify_adapter(adapter_folder(settings.home, challenger), settings.base, base)
    database = Database(settings.registry.url or settings.home)
    try:
        asked = _settle(settings, database, slot, challenger, base)
        if not isinstance(asked, _Asked):
            return asked
        for champion in filter(None, asked.champions.values()):
            verify_adapter(adapter_folder(settings.home, champion), settings.base, base)
        _warn_of_small_guards(settings, asked)
        measured = asyncio.run(_measure(settings, asked, base, progress))
        scores, durations, drift = measured
        report = judge(scores[0], scores[1:], settings.gate, asked.identity, durations, drift)
        report = _keep(settings, database, asked.attempt, report)
    finally:
        database.close()
    if report.verdict != "PASS":
        asyncio.run(_withdraw(settings, slot, challenger))
    return report


def _settle(
    settings: Settings, database: "Database", slot: str, challenger: str, base: str
) -> "_Asked | GateReport":
    """Return what is to be asked, its attempt reserved; or the report that answers it already."""
    from promotion.gate import read_reports
    from promotion.spending import SetSpent
    from promotion.suites.build import build_suites

    profile = stages.profile_in_force(settings)
    with stages.open_registry(settings) as registry:
        # Others, such as the router head, are no adapters that an engine loads.
        states = [state for state in registry.slots() if state.slot in profile.labels]
        # A file that no attempt ended in answers nothing, whoever wrote it: the killed run that
        # did not come to say so asks again.
        kept = read_reports(settings.home, registry.log.report_keys(slot, challenger))
    champions = {state.slot: state.champion for state in states}
    whole = build_suites(profile, slot, settings.seed, settings.suites)
    check_rules(settings, whole)
    for sealed in sealed_sets(settings, whole, database):
        identity = _identity(settings, sealed.suites, champions[slot], challenger, base)
        for report in kept:
            promoted = report.verdict == "PASS" and champions[slot] == challenger
            champion = report.champion_digest if promoted else champions[slot]
            if report.question == _question(settings, identity, champion):
                return report
        try:
            identity, attempt = _reserve(settings, database, identity, sealed, kept)
            break
        except SetSpent as error:
            spent = SetSpent(sealed.why_spent) if sealed.why_spent else error
    else:
        raise spent
    answer = next((r for r in kept if r.key == attempt.report_key), None)
    return answer or _Asked(identity, sealed.suites, champions, attempt)


def _reserve(
    settings: Settings,
    database: "Database",
    identity: "GateIdentity",
    sealed: SealedSet,
    kept: "Sequence[GateReport]",
) -> "tuple[GateIdentity, Attempt]":
    """Take an attempt that is open, or whose report is `kept`; return both as they belong together.

    An answered question whose report is not here (it was deleted, or another home's with the same
    registry) is another look: durations are measured anew, and what is drawn anew must be paid.
    """
    from promotion.spending import reserve, set_name

    primary = sealed.suites[0]
    question = _question(settings, identity, identity.champion_digest)
    known = {None, *(report.key for report in kept)}
    while True:
        attempt = reserve(
            database,
            set_name(identity.slot, primary.name, sealed.number),
            question,
            slot=identity.slot,
            champion=identity.champion_digest,
            challenger=identity.challenger_digest,
            alpha=settings.gate.alpha,
            units=len({item.cluster for item in primary.items}),
            most=sealed.most,
            asked={item.asked_id for item in primary.items},
        )
        if attempt.report_key in known:
            break
        question = content_id([question, attempt.attempt])
    update = {
        "question": question, "sealed_set": attempt.sealed_set, "attempt": attempt.attempt
    }  # fmt: skip
    return identity.model_copy(update=update), attempt


def _warn_of_small_guards(settings: Settings, asked: _Asked) -> None:
    """Say before minutes are spent which guards are too small for their margins."""
    too_small = why_too_small(settings, asked.suites, asked.attempt.attempt)
    for suite in asked.suites:
        if suite.name in too_small:
            margin = 100 * settings.gate.margin(suite.name, suite.kind)
            why = too_small[suite.name]
            log.warning("%s will hardly exclude a loss of %g points: %s", suite.name, margin, why)


def _identity(
    settings: Settings,
    suites: "Sequence[Suite]",
    champion: str | None,
    challenger: str,
    base: str,
) -> "GateIdentity":
    from promotion.gate import GateIdentity
    from training.artifact import adapter_folder, read_version

    gate = settings.gate
    sampled = gate.samples > 1 or gate.temperature > 0
    return GateIdentity(
        slot=suites[0].slot,
        champion_digest=champion,
        challenger_digest=challenger,
        base_digest=base,
        suites_digest=content_id([suite.digest for suite in suites]),
        primary_suite=suites[0].name,
        seed=settings.seed,
        manifest_digest=read_version(adapter_folder(settings.home, challenger)).manifest_digest,
        code_version=stages.code_version(),
        samples=gate.samples,
        temperature=gate.temperature,
        sample_seeds=tuple(_seed(settings.seed, n) for n in range(gate.samples if sampled else 0)),
    )


def _seed(seed: int, sample: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {sample}".encode()).digest()[:4], "big")


def _question(settings: Settings, identity: "GateIdentity", champion: str | None) -> str:
    """Return a digest of all that decides the answer, whichever attempt it is."""
    apart = {"sealed_set", "attempt", "question", "code_version"}
    asked = identity.model_dump(mode="json", exclude=apart) | {"champion_digest": champion}
    rules = settings.gate.model_dump(mode="json")
    return content_id([asked, rules, settings.engine])


def _keep(
    settings: Settings, database: "Database", attempt: "Attempt", report: "GateReport"
) -> "GateReport":
    """Keep the report, unless another run of the same attempt was first: then return that one.

    Raises:
        AnsweredElsewhere: if that one is not in this home.
    """
    from promotion.gate import UnknownReport, load_report, save_report
    from promotion.spending import finish

    path = save_report(settings.home, report)
    standing = finish(database, attempt, report)
    if standing == report.key:
        return report
    path.unlink()
    try:
        return load_report(settings.home, standing)
    except UnknownReport as error:
        raise AnsweredElsewhere(
            f"Attempt {attempt.attempt!r} on {attempt.sealed_set!r} was answered meanwhile by the "
            f"report {standing[:12]!r}, which is not in {str(settings.home)!r}; this run's is not "
            "kept. Look where the other ran, or run 'flows run gate' again: a new attempt."
        ) from error


async def _measure(
    settings: Settings, asked: _Asked, base: str, progress: stages.Progress | None
) -> "tuple[list[SuiteScores], Durations | None, Drift | None]":
    from promotion.evaluate import Sampling, ask_moved_alone, pair, run_suites
    from promotion.latency import measure_durations
    from promotion.proof import NotProved, prove_served
    from training.proofs import ensure_proofs

    slot, suites, identity = asked.identity.slot, asked.suites, asked.identity
    challenger, champions = identity.challenger_digest, asked.champions
    digests = [digest for digest in (*champions.values(), challenger) if digest is not None]
    ensure_proofs(settings.home, settings.base, digests)
    sampling = Sampling(slot, identity.temperature, identity.sample_seeds)
    engine, engine_id = stages.open_engine(settings, base)
    try:
        before = {
            s: await stages.load_version(settings, engine, s, champions[s]) for s in champions
        }
        after = before | {slot: await stages.load_version(settings, engine, slot, challenger)}
        served = {before[s]: champions[s] for s in champions} | {after[slot]: challenger}
        try:
            await prove_served(settings.home, engine, served)
        except NotProved:
            await _withdraw(settings, slot, challenger)
            raise
        runs: list[dict[str, SuiteRun]] = []
        for arm, names in enumerate((before, after)):

            def say(done: int, total: int, arm: int = arm) -> None:
                if progress:
                    progress(arm * total + done, 2 * total)

            how = sampling if sampling.seeds else None
            kept_as = _kept_as(settings, engine_id, identity)
            runs.append(await run_suites(settings.home, engine, suites, names, kept_as, say, how))
        await ask_moved_alone(engine, suites, slot, (before, after), runs)
        timed = suites[0].items[: settings.gate.latency_items]
        durations = None
        if timed:
            durations = await measure_durations(engine, timed, before[slot], after[slot])
        drift = await _drift(settings, engine, asked, before, after, runs)
    finally:
        await engine.close()
    return pair(suites, runs[0], runs[1], slot), durations, drift


def _kept_as(settings: Settings, engine_id: str, identity: "GateIdentity") -> str:
    """Return under what runs are kept: a server's for one question alone.

    By the next one there may be another server under its address, of another number format say,
    and then the arms would not be compared but the servers.
    """
    asked_once = settings.engine != stages.EMBEDDED
    return f"{engine_id} {identity.question}" if asked_once else engine_id


async def _drift(
    settings: Settings,
    engine: "Engine",
    asked: _Asked,
    before: dict[str, str],
    after: dict[str, str],
    runs: "Sequence[dict[str, SuiteRun]]",
) -> "Drift | None":
    from promotion.drift import Drift, base_answers, measure_distance

    slot, primary = asked.identity.slot, asked.suites[0]
    items = primary.items[: settings.gate.drift_items]
    if not items:
        return None
    answers = await base_answers(engine, items, settings.seed)
    champion = asked.champions[slot]
    return Drift(
        challenger=await measure_distance(engine, answers, after[slot]),
        champion=await measure_distance(engine, answers, before[slot]) if champion else None,
        answers_challenger=runs[1][primary.name].shape,
        answers_champion=runs[0][primary.name].shape,
    )


async def _withdraw(settings: Settings, slot: str, digest: str) -> None:
    """Unload a challenger that did not pass from a server, unless it is of use there by now.

    Another gate or a person may have given it traffic meanwhile. The embedded engine is gone.
    """
    from serving.errors import EngineRefused
    from serving.records import AdapterVersion

    if settings.engine == stages.EMBEDDED:
        return
    with stages.open_registry(settings) as registry:
        if any(digest in (s.champion, s.previous, s.canary) for s in registry.slots()):
            return
    engine = stages.open_server(settings)
    try:
        # Another run that withdrew it was first.
        with contextlib.suppress(EngineRefused):
            await engine.unload_adapter(AdapterVersion(slot=slot, digest=digest).name)
    finally:
        await engine.close()
