"""Prefect for a run or a schedule: the server named by `PREFECT_API_URL`, or one of our own.

Our own is the real `prefect server` on a free loopback port, with its database in the
home folder, gone when the run or the schedule is. Nothing is sent to anybody.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from flows.console import say
from serving.child import HOST, free_port, start_child, stop_child
from serving.errors import MolError

STARTUP_LIMIT_S = 300.0


class PrefectNotStarted(MolError, RuntimeError):
    """The Prefect server ended or did not answer in time."""


@contextlib.contextmanager
def prefect_api(home: Path, scheduling: bool = False) -> Iterator[None]:
    """Have a Prefect API while the block runs; import `prefect` inside it first.

    With `scheduling` our own server also makes runs of deployments when they are due, and has
    its pages for a browser.

    Raises:
        PrefectNotStarted: if the server does not come up; names its log.
    """
    _set_defaults(home)
    if os.environ.get("PREFECT_API_URL"):
        yield
        return
    log = home / "prefect" / ("schedule.log" if scheduling else "server.log")
    port = free_port()
    url = f"http://{HOST}:{port}/api"
    options = ["server", "start", "--host", HOST, "--port", str(port)]
    options += [] if scheduling else ["--no-ui", "--no-services"]
    what = "the schedule" if scheduling else "this run"
    say(f"  starting Prefect for {what} at {url} ...")
    child = start_child("prefect", options, os.environ, log)
    try:
        _wait(child.poll, url, log)
        os.environ["PREFECT_API_URL"] = url
        from prefect.settings import PREFECT_API_URL, temporary_settings

        # Prefect reads the environment once; a second run in this process has another server.
        with temporary_settings({PREFECT_API_URL: url}):
            yield
    finally:
        os.environ.pop("PREFECT_API_URL", None)
        stop_child(child)


def _set_defaults(home: Path) -> None:
    """Set what a run needs unless the environment says otherwise; no telemetry in any case."""
    defaults = {
        "PREFECT_HOME": str((home / "prefect").resolve()),
        # What fails is raised to the caller, who says it once; Prefect would add a traceback.
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        # Prefect would copy its pages into the environment, which may not be ours to write to.
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str((home / "prefect" / "pages").resolve()),
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # In memory, a limit that a killed run held would be held for good.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
            "prefect.server.concurrency.lease_storage.filesystem"
        ),
    }
    for key, value in defaults.items():
        os.environ.setdefault(key, value)
    os.environ |= {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "GX_ANALYTICS_ENABLED": "False",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _wait(poll: Callable[[], int | None], url: str, log: Path) -> None:
    started = time.monotonic()
    with httpx.Client(trust_env=False, timeout=5) as client:
        while True:
            if poll() is not None:
                raise PrefectNotStarted(
                    f"The Prefect server ended while starting. Its log is {str(log)!r}."
                )
            with contextlib.suppress(httpx.TransportError):
                if client.get(f"{url}/health").is_success:
                    return
            if time.monotonic() - started > STARTUP_LIMIT_S:
                raise PrefectNotStarted(
                    f"The Prefect server did not answer within {STARTUP_LIMIT_S:.0f} s. "
                    f"Its log is {str(log)!r}; or name a running one in PREFECT_API_URL."
                )
            time.sleep(0.1)
