"""Runs the flows of a home on a schedule: ingest with attribution, upkeep, the whole cycle.

    ingest   every few minutes; what came in is attributed in the same run
    canary   every few minutes; ends canaries and new champions that do harm
    upkeep   nightly
    cycle    when the settings say so

Each flow is a Prefect deployment, reached by module path: a file path would load the module
twice. `flows schedule` serves them in one process (`serve_schedule`); `infra/prefect.yaml`
puts the same flows on a Prefect server with workers. In: a configuration file, read anew by
every run. A run that comes due while the last one of its kind still runs is cancelled by
Prefect; ingest and upkeep of one home wait for each other here. The lake needs neither: its
own lock keeps commits apart.
"""

import asyncio
import contextlib
import fcntl
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from prefect import Flow, flow, get_client, serve
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import (
    ConcurrencyLimitConfig,
    ConcurrencyLimitStrategy,
    FlowRun,
    State,
    StateType,
)
from prefect.deployments.runner import RunnerDeployment
from prefect.schedules import Cron, Interval, Schedule
from prefect.states import Crashed
from prefect.types.entrypoint import EntrypointType

from flows import canaries, lineage, manual, story, tasks
from flows.config import ScheduleConfig, Settings, SettingsInvalid, load_settings
from flows.console import say

DEPLOYMENT = "scheduled"
"""Name of every deployment: one of each flow."""

_PREFIX = "Flow run encountered an exception: "
_ONE = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)


def say_ended(flow: Flow[..., Any], run: FlowRun, state: State[Any]) -> None:
    """Say in one line how a run ended that did not complete."""
    told = (state.message or "no reason was given").removeprefix(_PREFIX)
    why = " ".join(told.split())
    say(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {flow.name} {state.type.value.lower()}: {why}")


_OPTIONS: dict[str, Any] = {
    "on_failure": [say_ended],
    "on_crashed": [say_ended],
    "on_cancellation": [say_ended],
}


@flow(name="ingest", **_OPTIONS)
def ingest_flow(
    config: str | None = None, home: str | None = None, flags: tuple[str, ...] = ()
) -> None:
    """Bring every source into the lake, then settle outcomes and blame."""
    settings = _settings(config, home, flags)
    with _turn(settings.home, "ingest"):
        for report in tasks.ingest(settings):
            story.tell_ingest(report)
        story.tell_attribute(tasks.attribute(settings))


@flow(name="upkeep", **_OPTIONS)
def upkeep_flow(
    config: str | None = None, home: str | None = None, flags: tuple[str, ...] = ()
) -> None:
    """Keep the lake small and quick."""
    settings = _settings(config, home, flags)
    with _turn(settings.home, "upkeep"):
        story.tell_upkeep(tasks.upkeep(settings))


@flow(name="canary", **_OPTIONS)
def canary_flow(
    config: str | None = None, home: str | None = None, flags: tuple[str, ...] = ()
) -> None:
    """Look at canaries and new champions, and do what follows."""
    settings = _settings(config, home, flags)
    if not canaries.anything_to_watch(settings):
        return
    try:
        with _turn(settings.home, "canary"):
            canaries.watch(settings)
    finally:  # where one slot fails, others may have changed
        lineage.publish_or_say(settings)


@flow(name="cycle", **_OPTIONS)
def cycle_flow(
    config: str | None = None, home: str | None = None, flags: tuple[str, ...] = ()
) -> None:
    """Run the loop once."""
    from flows.cycle import cycle

    # Its function, so that one run shows in Prefect and not a run in a run.
    cycle.fn(_settings(config, home, flags))


@dataclass(frozen=True, slots=True)
class Planned:
    """A flow and when it runs; never, if there is no schedule."""

    flow: Flow[Any, Any]
    what: str
    schedule: Schedule | None
    when: str


def plan(config: ScheduleConfig) -> list[Planned]:
    """Return what runs when.

    Raises:
        SettingsInvalid: if cron or time zone mean nothing.
    """
    try:
        ZoneInfo(config.timezone)
    except (KeyError, ValueError, OSError) as error:
        raise SettingsInvalid(
            f"Setting 'schedule.timezone': {config.timezone!r} is no time zone. Give an IANA "
            "name such as UTC or Europe/Berlin."
        ) from error
    return [
        _by_interval(ingest_flow, "ingest, then attribute", config.ingest_every_s, config),
        _by_interval(canary_flow, "canaries", config.canary_every_s, config),
        _by_cron(upkeep_flow, "upkeep of the lake", "upkeep_cron", config),
        _by_cron(cycle_flow, "the whole cycle", "cycle_cron", config),
    ]


def deployments(
    settings: ScheduleConfig, parameters: dict[str, Any] | None = None
) -> list[RunnerDeployment]:
    """Return the deployments that have a schedule; every run gets `parameters`."""
    return [
        RunnerDeployment.from_flow(
            planned.flow,
            DEPLOYMENT,
            schedule=planned.schedule,
            parameters=parameters or {},
            concurrency_limit=_ONE,
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
        for planned in plan(settings)
        if planned.schedule
    ]


def end_dead_runs() -> int:
    """Mark runs that a killed schedule left as crashed, so that they hold up no others.

    Only for a server that no other schedule uses: there, none can be alive when one begins.
    """
    kinds = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
    under_way = FlowRunFilterState(type=FlowRunFilterStateType(any_=kinds))
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(flow_run_filter=FlowRunFilter(state=under_way))
        # One without a deployment is somebody's `flows run`.
        dead = [run for run in found if run.deployment_id]
        for run in dead:
            client.set_flow_run_state(run.id, Crashed(message="The schedule was killed."))
    return len(dead)


def serve_schedule(settings: Settings, config: Path | None, flags: list[str]) -> None:
    """Run what the settings schedule, each run in a process of its own, until Ctrl-C or SIGTERM.

    Runs under way are cancelled then. One that fails says so, and the schedule goes on.

    Raises:
        SettingsInvalid: if nothing is scheduled.
    """
    parameters = {
        "config": str(config.resolve()) if config else None,
        "home": str(settings.home.resolve()),
        "flags": flags,
    }
    made = deployments(settings.schedule, parameters)
    if not made:
        raise SettingsInvalid(
            "Nothing is scheduled: 'schedule.ingest_every_s' and 'schedule.canary_every_s' are 0, "
            "'schedule.upkeep_cron' and 'schedule.cycle_cron' are empty. Run 'flows config' for "
            "their meaning."
        )
    for planned in plan(settings.schedule):
        say(f"  {planned.what}: {planned.when}")
    say("Ctrl-C stops.")
    # Prefect stops in order at SIGTERM: runs are ended, then schedules are paused.
    signal.signal(signal.SIGINT, lambda number, frame: signal.raise_signal(signal.SIGTERM))
    serve(*made, limit=None, print_starting_message=False)


@contextlib.contextmanager
def _turn(home: Path, name: str) -> Iterator[None]:
    """Wait until no other scheduled run writes to the lake; the kernel frees a dead one's lock."""
    manual.make_home(home)
    with (home / "turn.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"  {name} waits for another run that writes to the lake ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _settings(config: str | None, home: str | None, flags: tuple[str, ...]) -> Settings:
    overrides = {"home": home} if home else {}
    return load_settings(Path(config) if config else None, flags, overrides)


def _by_interval(flow: Flow[Any, Any], what: str, every_s: int, config: ScheduleConfig) -> Planned:
    if not every_s:
        return Planned(flow, what, None, "never")
    schedule = Interval(timedelta(seconds=every_s), timezone=config.timezone)
    return Planned(flow, what, schedule, f"every {every_s} s, the first at once")


def _by_cron(flow: Flow[Any, Any], what: str, field: str, config: ScheduleConfig) -> Planned:
    from prefect.server.schemas.schedules import CronSchedule

    cron = getattr(config, field)
    if not cron:
        return Planned(flow, what, None, f"never ('schedule.{field}' is empty)")
    try:
        schedule = Cron(cron, timezone=config.timezone)
        dates = asyncio.run(CronSchedule(cron=cron, timezone=config.timezone).get_dates(n=1))
    except ValueError as error:
        raise SettingsInvalid(
            f"Setting 'schedule.{field}': {cron!r} is no schedule as in cron. An example is "
            "'30 3 * * *': every night at half past three."
        ) from error
    return Planned(
        flow, what, schedule, f"at {cron!r}, next {dates[0]:%Y-%m-%d %H:%M} {config.timezone}"
    )
