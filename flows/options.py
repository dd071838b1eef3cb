"""Options that many commands share."""

from pathlib import Path
from typing import Annotated

import typer

from training.config import MOST_SEEDS

Config = Annotated[Path | None, typer.Option("--config", help="TOML file with settings.")]
Home = Annotated[Path | None, typer.Option("--home", help="Folder of the loop's state [.mol].")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Base = Annotated[Path | None, typer.Option("--base", help="Folder of the frozen base model.")]
MOST_ROWS = 10**9
Limit = Annotated[int, typer.Option("--limit", min=1, max=MOST_ROWS, help="Rows at most.")]
Seed = Annotated[
    int | None, typer.Option(min=0, max=MOST_SEEDS - 1, help="Seed of training and gate.")
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine", help="'embedded', or addresses of vLLM servers with commas between them."
    ),
]
By = Annotated[str | None, typer.Option(help="Who says so; with --reason.")]
Reason = Annotated[str | None, typer.Option(help="Why; with --by.")]
OverrideBy = Annotated[
    str | None,
    typer.Option(
        help="Who answers for it, where the gate did not say PASS or it was rolled back since."
    ),
]
Expires = Annotated[
    str | None, typer.Option(metavar="DATE", help="Last day of the override, as in 2026-12-31.")
]


def check_override_words(
    by: str | None, reason: str | None, expires: str | None
) -> tuple[str, str, str] | None:
    """Return a person's override as three words, None if none was given; refuse a part of it."""
    if by is None and reason is None and expires is None:
        return None
    if by is None or reason is None or expires is None:
        raise typer.BadParameter("--override-by, --reason and --expires go together.")
    return by, reason, expires
