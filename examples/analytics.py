"""The lake that `docs/analytics.md` asks, and the page's answers, made again.

    python -m examples.analytics lake HOME    # ingest the bundled examples into a new home
    python -m examples.analytics write        # answer the page's questions anew

A mark such as `<!-- blame -->` stands before each question's SQL and the table that
`flows sql` prints for it; both are rewritten up to `<!-- end -->`.
"""

import contextlib
import io
import re
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from flows import lineage
from flows.config import Settings
from flows.console import print_table
from flows.turn_page import turn_lines
from serving.slots import load_profile
from traces.analytics.questions import QUESTIONS
from traces.analytics.views import describe, query
from traces.attribute import attribute
from traces.ingest import ingest
from traces.lookup import find_turns

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "analytics.md"
EXAMPLES = Path(__file__).parent
SOURCES = ("traces", "promoted/traces", "tau_bench/airline.json.gz")
SHOWN = "00ae0d6cd0c0"
"""The turn that the page shows."""

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def lake(home: Annotated[Path, typer.Argument(help="A folder that is not there yet.")]) -> None:
    """Ingest the bundled examples, judge the turns, and tell the lake who learned from them."""
    make_lake(home)


@app.command()
def write() -> None:
    """Answer the page's questions anew."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        make_lake(home)
        PAGE.write_text(answered(PAGE.read_text(encoding="utf-8"), home), encoding="utf-8")


def make_lake(home: Path) -> None:
    """Make the home of the page: the bundled traffic, the loop's history, a benchmark's runs."""
    shutil.copytree(EXAMPLES / "promoted", home, ignore=shutil.ignore_patterns("traces"))
    for source in SOURCES:
        ingest(home, EXAMPLES / source)
    attribute(home, load_profile())
    lineage.publish(Settings(home=home))


def answered(page: str, home: Path) -> str:
    """Return the page with every marked block made anew from a lake.

    Raises:
        KeyError: if a mark names no question.
    """
    blocks = {question.name: _block(question.sql, home) for question in QUESTIONS}
    blocks["views"] = "\n".join(
        ["| view or macro | one row is |", "|---|---|"]
        + [f"| `{name}` | {doc} |" for name, doc in describe()]
    )
    (story,) = find_turns(home, SHOWN)
    shown = "\n".join(line.plain for line in turn_lines(story))
    blocks["shown"] = _fenced("text", "\n".join(map(str.rstrip, shown.splitlines())))

    def anew(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n{blocks[found[1]]}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", anew, page, flags=re.DOTALL)


def _block(sql: str, home: Path) -> str:
    columns, rows = query(home, sql)
    table = io.StringIO()
    with contextlib.redirect_stdout(table):
        print_table([dict(zip(columns, row, strict=True)) for row in rows], "No rows.")
    lines = (line.rstrip() for line in table.getvalue().strip("\n").splitlines())
    return _fenced("sql", sql) + "\n\n" + _fenced("text", "\n".join(filter(None, lines)))


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


if __name__ == "__main__":
    app()
