"""What a person sees: progress and the log on stderr, tables and results on stdout."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from serving.records import UNDATED

NOTHING = "Nothing there yet. Run 'flows run' first."
"""What a list says where nothing was made yet."""
QUIET_S = 2.0
"""Work shorter than this shows no progress."""
LINE_EVERY_S = 10.0
"""Time between progress lines where stderr is no terminal."""


class Mode:
    """How this process talks; set once by the command line."""

    json = False
    """Whether stdout is for JSON alone, and the story goes to stderr."""


def say(text: str = "") -> None:
    """Print one line of the log."""
    print(text, file=sys.stderr, flush=True)


def tell(text: str) -> None:
    """Print one line of the story: on stdout, unless that is for JSON."""
    print(text, file=sys.stderr if Mode.json else sys.stdout, flush=True)


@contextmanager
def progress(
    what: str, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[..., None]]:
    """Yield a function to call with (done, total[, loss]) as work goes on.

    On a terminal one line is redrawn; elsewhere a line is printed now and then. The time left is
    estimated from the first call on, before which models are loaded and kept work is found.
    `clock` tells seconds that never go back.
    """
    started = last = clock()
    first: tuple[int, float] | None = None
    drawn = False

    def show(done: int, total: int, loss: float | None = None) -> None:
        nonlocal last, drawn, first
        now = clock()
        first = first or (done, now)
        terminal = sys.stderr.isatty()
        if now - started < QUIET_S or (now - last < (0.2 if terminal else LINE_EVERY_S)):
            return
        last, drawn = now, terminal
        text = f"  {what}: {done:,} of {total:,}, {now - started:.0f} s"
        if done > first[0]:
            rest = (now - first[1]) * (total - done) / (done - first[0])
            text += f", about {rest:.0f} s left"
        if loss is not None:
            text += f", loss {loss:.3f}"
        print(f"\r\033[K{text}" if terminal else text, end="" if terminal else "\n",
              file=sys.stderr, flush=True)  # fmt: skip

    try:
        yield show
    finally:
        if drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def short_id(text: str) -> str:
    """Return an id with the digests in it cut to the 12 digits that tell them apart."""
    return re.sub(r"(?:sha256:)?([0-9a-f]{12})[0-9a-f]{52}", r"\1", text)


def moment(when: datetime, form: str = "%Y-%m-%d %H:%M") -> str | None:
    """Return a time to read; None for a record whose source had no times."""
    return None if when.date() == UNDATED.date() else f"{when:{form}}"


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout."""
    print(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def print_json_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows as a JSON array on stdout, one by one, so that any number may come."""
    before = "["
    for row in rows:
        text = json.dumps(row, ensure_ascii=False, indent=2, default=str)
        print(before + "\n  " + text.replace("\n", "\n  "), end="")
        before = ","
    print("\n]" if before == "," else "[]")


def print_table(rows: Sequence[Mapping[str, Any]], empty: str) -> None:
    """Print rows as a table on stdout, or the line `empty` if there are none."""
    if not rows:
        print(empty)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in rows[0]:
        numeric = all(isinstance(row[name], int | float) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*[cell(value) for value in row.values()])
    Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False).print(table)


def cell(value: Any) -> str:
    """Render a value for a table."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return " ".join(str(value).split())
