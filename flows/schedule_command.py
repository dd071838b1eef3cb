"""`flows schedule`: run ingest, canaries, upkeep and the cycle when due, until Ctrl-C."""

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from flows.config import load_settings
from flows.console import say
from serving.errors import MolError


class AlreadyScheduled(MolError, RuntimeError):
    """Another process runs the schedule of this home."""


def schedule(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file with settings.")
    ] = None,
    home: Annotated[
        Path | None, typer.Option("--home", help="Folder of the loop's state [.mol].")
    ] = None,
) -> None:
    """Run ingest, canaries, upkeep and the cycle when they are due, as [schedule] says.

    Any setting is a dotted flag, as in --schedule.ingest-every-s 60.
    """
    from flows import manual
    from flows.prefect_server import prefect_api

    settings = load_settings(config, context.args, {"home": home})
    stage = "cycle" if settings.schedule.cycle_cron else "ingest"
    # Without sources it is the spool, which may be there only when 'flows serve' has begun.
    manual.check(settings, stage if settings.sources else "attribute")
    manual.make_home(settings.home)
    # Until Prefect takes over, SIGTERM ends what was started here.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    own_server = not os.environ.get("PREFECT_API_URL")
    with alone(settings.home), prefect_api(settings.home, scheduling=True):
        from flows.schedule import end_dead_runs, serve_schedule

        if own_server and (dead := end_dead_runs()):
            say(f"  {dead} runs of a schedule that was killed are marked as crashed")
        serve_schedule(settings, config, context.args)


@contextlib.contextmanager
def alone(home: Path) -> Iterator[None]:
    """Be the only schedule of a home while the block runs.

    Raises:
        AlreadyScheduled: if another process is.
    """
    with (home / "schedule.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyScheduled(
                f"Another 'flows schedule' runs for the home {str(home)!r}. Stop it first, or "
                "choose another home with '--home'."
            ) from error
        yield
