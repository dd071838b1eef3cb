"""Prefect tasks around the stages: names, retries and time limits; no logic.

Stages find finished work by content, so nothing is cached here, and a retry goes on
where the failed try was. A known error is final: trying again would say the same.
"""

from typing import TYPE_CHECKING, Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.utilities import engine

from flows import gating, stages
from flows.config import Settings
from flows.console import progress, say
from serving.errors import MolError
from traces.storage.connections import ending_queries

if TYPE_CHECKING:
    from curation.manifest import Manifest
    from promotion.canary.rollout import RolloutReport
    from promotion.gate import GateReport
    from promotion.promote import PromotionResult
    from traces.attribute import AttributeReport
    from traces.attribution.replay import ReplayReport
    from traces.ingest import IngestReport
    from traces.storage.upkeep import UpkeepReport
    from training.runs import TrainedAdapter

HOUR_S = 3600

# What Prefect does at SIGTERM while a flow runs. It tells its handler by identity, so the flow's
# cancelling stays what it is only if the handler is this one throughout.
engine._prefect_sigterm_handler = ending_queries(engine._prefect_sigterm_handler)


def _worth_retrying(_task: Any, _run: Any, state: Any) -> bool:
    return not isinstance(state.result(raise_on_failure=False), MolError)


_OPTIONS: dict[str, Any] = {
    "cache_policy": NO_CACHE,
    "retries": 2,
    "retry_delay_seconds": [2, 10],
    "retry_condition_fn": _worth_retrying,
}


@task(name="ingest", timeout_seconds=12 * HOUR_S, **_OPTIONS)
def ingest(settings: Settings) -> "list[IngestReport]":
    """Bring every source into the lake."""
    with progress("ingesting bytes") as show:
        return stages.ingest_stage(settings, show)


@task(name="attribute", timeout_seconds=6 * HOUR_S, **_OPTIONS)
def attribute(settings: Settings) -> "AttributeReport":
    """Settle outcomes and blame, with a judge where one is configured."""
    from flows.judging import attribute_and_judge

    with progress("attributing turns") as show:
        return attribute_and_judge(settings, show)


@task(name="replay", timeout_seconds=48 * HOUR_S, **_OPTIONS)
def replay(settings: Settings) -> "ReplayReport":
    """Answer failed turns afresh with every slot."""
    from flows.replaying import replay_stage

    say("  loading the engine with what the slots serve ...")
    with progress("engine calls") as show:
        return replay_stage(settings, show)


@task(name="upkeep", timeout_seconds=12 * HOUR_S, **_OPTIONS)
def upkeep(settings: Settings) -> "UpkeepReport":
    """Keep the lake small and quick."""
    with progress("upkeep steps") as show:
        return stages.upkeep_stage(settings, show)


@task(name="curate", timeout_seconds=6 * HOUR_S, **_OPTIONS)
def curate(settings: Settings, slot: str) -> "Manifest":
    """Make the slot's dataset."""
    say(f"  curating {slot}: filters, data contract ...")
    return stages.curate_stage(settings, slot)


@task(name="train", timeout_seconds=48 * HOUR_S, **_OPTIONS)
def train(settings: Settings, manifest: "Manifest") -> "TrainedAdapter":
    """Train the slot's adapter."""
    say("  loading the base model and the trainer ...")
    with progress("training steps") as show:
        return stages.train_stage(settings, manifest, show)


@task(name="gate", timeout_seconds=12 * HOUR_S, **_OPTIONS)
def gate(settings: Settings, slot: str, challenger: str) -> "GateReport":
    """Compare challenger and champion."""
    say("  loading the engine with all champions and the challenger ...")
    with progress("answering suite items") as show:
        return gating.gate_stage(settings, slot, challenger, show)


@task(name="promote", timeout_seconds=HOUR_S, **_OPTIONS)
def promote(settings: Settings, report: "GateReport") -> "PromotionResult":
    """Make the challenger champion."""
    return stages.promote_stage(settings, report)


@task(name="begin_canary", timeout_seconds=HOUR_S, **_OPTIONS)
def begin_canary(settings: Settings, report: "GateReport") -> "PromotionResult":
    """Give the challenger the first step of the traffic."""
    from flows.canaries import begin_stage

    return begin_stage(settings, report)


@task(name="canary", timeout_seconds=HOUR_S, **_OPTIONS)
def canary(settings: Settings) -> "list[RolloutReport]":
    """Look at canaries and new champions, and do what follows."""
    from flows.canaries import canary_stage

    return canary_stage(settings)
