"""Proves what `flows schedule` runs when, on a real Prefect server; nothing is faked.

The slow tests run the command in a process of its own, with flow runs in theirs.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console

from flows import schedule
from flows.config import ScheduleConfig, Settings, SettingsInvalid
from flows.schedule_command import AlreadyScheduled, alone
from traces.analytics.views import query

pytestmark = pytest.mark.timeout(600)

FLOWS = Path(sys.executable).with_name("flows")
PREFECT_YAML = Path(__file__).parents[2] / "infra" / "prefect.yaml"
LIMIT_S = 240.0


def test_deployments_are_registered_with_their_schedules(prefect: None) -> None:
    from prefect import get_client

    config = ScheduleConfig(ingest_every_s=60, cycle_cron="0 4 * * 0", timezone="Europe/Berlin")
    ids = [made.apply() for made in schedule.deployments(config, {"config": "loop.toml"})]
    with get_client(sync_client=True) as client:
        found = [client.read_deployment(id) for id in ids]

    schedules = [deployment.schedules[0].schedule for deployment in found]
    assert [deployment.entrypoint for deployment in found] == [
        "flows.schedule.ingest_flow", "flows.schedule.canary_flow",
        "flows.schedule.upkeep_flow", "flows.schedule.cycle_flow",
    ]  # fmt: skip
    assert [s.interval for s in schedules[:2]] == [timedelta(seconds=60), timedelta(seconds=300)]
    assert [(s.cron, s.timezone) for s in schedules[2:]] == [
        ("30 3 * * *", "Europe/Berlin"), ("0 4 * * 0", "Europe/Berlin")
    ]  # fmt: skip
    for deployment in found:
        assert deployment.global_concurrency_limit.limit == 1
        assert deployment.concurrency_options.collision_strategy == "CANCEL_NEW"
        assert deployment.parameters == {"config": "loop.toml"}


def test_what_has_no_time_is_not_deployed() -> None:
    config = ScheduleConfig(ingest_every_s=0, canary_every_s=0, upkeep_cron="")

    assert schedule.deployments(config) == []
    assert [planned.when.split()[0] for planned in schedule.plan(config)] == ["never"] * 4
    with pytest.raises(SettingsInvalid, match="Nothing is scheduled"):
        schedule.serve_schedule(Settings(schedule=config), None, [])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"upkeep_cron": "at night"}, "upkeep_cron"),
        ({"cycle_cron": "99 4 * * *"}, "cycle_cron"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"timezone": "../etc"}, "timezone"),
    ],
)
def test_a_time_that_means_nothing_is_named(change: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsInvalid, match=named):
        schedule.plan(ScheduleConfig(**change))


def test_the_deployment_file_has_flows_that_load() -> None:
    from prefect.cli.deploy._config import _load_deploy_configs_and_actions
    from prefect.cli.deploy._schedules import _construct_schedules
    from prefect.flows import load_flow_from_entrypoint

    console = Console(record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    found, _ = _load_deploy_configs_and_actions(PREFECT_YAML, console=console)
    console.file.close()

    assert console.export_text() == ""
    loaded = [load_flow_from_entrypoint(deployment["entrypoint"]) for deployment in found]
    assert loaded == [
        schedule.ingest_flow, schedule.canary_flow, schedule.upkeep_flow, schedule.cycle_flow
    ]  # fmt: skip
    for deployment, flow in zip(found, loaded, strict=True):
        made = _construct_schedules(deployment, {}, console=console, is_interactive=lambda: False)
        assert made is not None
        assert made[0]["schedule"].timezone == "UTC"
        assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
        flow.validate_parameters(deployment["parameters"])
        assert Path(PREFECT_YAML.parents[1], deployment["parameters"]["config"]).is_file()


def test_one_home_has_one_schedule(tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(AlreadyScheduled, match=tmp_path.name), alone(tmp_path):
        pass
    with alone(tmp_path):
        pass


class Running:
    """A `flows schedule` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.log = folder / "log"
        environment = {key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"}
        environment |= {
            "PREFECT_HOME": str(self.home / "prefect"),
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [FLOWS, "schedule", "--config", "loop.toml", "--home", self.home]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until the log has a text so many times."""
        deadline = time.monotonic() + LIMIT_S
        while self.log.read_text().count(text) < times:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"no {text!r} in: {self.log.read_text()}"
            time.sleep(0.1)

    def processes(self, module: str = "") -> list[int]:
        """Return the processes of this home that live, and run a module if one is named."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                mine = f"PREFECT_HOME={self.home}/".encode() in (folder / "environ").read_bytes()
                if mine and module.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
        return found

    def all_end(self) -> bool:
        """Whether no process is left before long."""
        deadline = time.monotonic() + 60
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        return not self.processes()

    def stop(self, number: signal.Signals) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)


@pytest.fixture
def folder(tmp_path: Path, spool: Path) -> Path:
    """A folder with a configuration whose schedule is tight."""
    write_config(tmp_path, spool)
    return tmp_path


def write_config(folder: Path, source: Path) -> None:
    """Write the configuration whole, for a run may read it any time."""
    text = f'sources = ["{source}"]\n[schedule]\ningest_every_s = 5\nupkeep_cron = "* * * * *"\n'
    (folder / "new.toml").write_text(text)
    (folder / "new.toml").replace(folder / "loop.toml")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_runs_come_when_due_and_one_that_fails_ends_nothing(
    folder: Path, spool: Path, number: signal.Signals
) -> None:
    running = Running(folder)
    try:
        running.wait_for("INGEST")
        running.wait_for("UPKEEP")
        write_config(folder, folder / "missing")
        running.wait_for("ingest failed: ")
        come = running.log.read_text().count("INGEST")
        write_config(folder, spool)
        running.wait_for("INGEST", come + 1)
        status = running.stop(number)
    finally:
        running.process.kill()
    text = running.log.read_text()

    assert status == 0
    assert running.all_end()
    assert "Traceback" not in text
    assert "missing" in next(line for line in text.splitlines() if "ingest failed: " in line)
    assert query(running.home, "SELECT count(*) FROM turns")[1][0][0] > 100
    assert query(running.home, "SELECT count(*) FROM upkeep")[1][0][0] > 0


@pytest.mark.slow
def test_a_schedule_that_was_killed_begins_again(folder: Path) -> None:
    killed = Running(folder)
    try:
        deadline = time.monotonic() + LIMIT_S
        while not killed.processes("prefect.engine"):
            assert time.monotonic() < deadline, killed.log.read_text()
            time.sleep(0.05)
    finally:
        killed.stop(signal.SIGKILL)
    assert killed.all_end()

    again = Running(folder)
    try:
        again.wait_for("marked as crashed")
        again.wait_for("INGEST")
        status = again.stop(signal.SIGTERM)
    finally:
        again.process.kill()

    assert status == 0
    assert again.all_end()
