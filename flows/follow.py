"""`flows run ingest PATH --follow`: ingest again whenever the source grows, until Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

from flows import manual, stages
from flows.config import Settings
from flows.console import say


def follow_source(settings: Settings) -> None:
    """Ingest the one source again whenever it has changed, until the first Ctrl-C.

    Not under Prefect: a flow run for every change would cost more than the ingest.

    Raises:
        MolError: if there is not one local source, or the lake cannot be used.
    """
    from flows import story
    from traces.follow import Follower, follow
    from traces.sources.detect import candidates, check_format
    from traces.sources.locations import local_path, shown

    check_format(settings.format)
    sources = stages.named_sources(settings)
    path = local_path(sources[0])
    if path is None or len(sources) > 1:
        raise stages.NothingToIngest(
            f"Cannot follow {', '.join(shown(s) for s in sources)}: --follow takes one file or "
            "folder of this machine. Ingest the others without it."
        )
    if not path.is_dir():
        candidates(path)
    manual.make_home(settings.home)
    stop = Event()
    with stopped_by_signals(stop):
        say(f"following {path}; Ctrl-C ends it")
        follower = Follower(settings.home, path, settings.format)
        follow(follower, stop, story.tell_followed, lambda why: say(f"waiting: {why}"))


@contextmanager
def stopped_by_signals(stop: Event) -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM set `stop`; another one interrupts."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def end(_number: int, _frame: Any) -> None:
        stop.set()
        restore()

    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        restore()
