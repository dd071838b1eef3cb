"""Labelled failures of several agents, through the real importer, lake and attribution.

In: a folder of Who&When, in either published form, or any folder of files of that format. Out:
`Labelled`, one a run: its turn and hops as the lake gives them back, what attribution blamed, and
who people say did it. A run without a usable label is counted and left out.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.records import Hop, Turn, content_id
from serving.slots import Profile, Slot
from traces.attribute import attribute
from traces.attribution.blame import Blame
from traces.importers.who_and_when import recognises
from traces.ingest import ingest
from traces.read import read_turns

WHO_AND_WHEN = Path("../shared/data/who-and-when")
_NO_AGENT = Profile(
    slots=(
        Slot(name="L0", description="chat", system="chat"),
        Slot(name="L1", description="tools", system="tools"),
    ),
    route_prompt="{text}\nPick one of {labels}.\n{slots}",
    summary_prompt="Summarise.",
    handover_template="{summaries}",
)
"""Slots of a deployment; no agent of a run is one."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """One failed run and its label."""

    turn: Turn
    hops: tuple[Hop, ...]
    blame: Blame | None
    agent: str
    step: int
    truth: str | None
    """The right answer, which nobody who attributes without a judge looks at."""


def read_runs(folder: Path) -> tuple[list[Labelled], int]:
    """Return the labelled runs of a folder, in a fixed order, and how many had no usable label.

    Raises:
        FileNotFoundError: if the folder holds no run.
    """
    runs = [run for path in sorted(folder.rglob("*.json")) for run in _runs_of(path)]
    if not runs:
        raise FileNotFoundError(
            f"No run of several agents in {str(folder)!r}: *.json with 'history' and 'question'."
        )
    with tempfile.TemporaryDirectory(prefix="mol-steps-") as name:
        source, home = Path(name) / "all.json", Path(name) / ".mol"
        source.write_text(json.dumps(runs), encoding="utf-8")
        ingest(home, source)
        attribute(home, _NO_AGENT)
        bundles = list(read_turns(home))
    truths = {_conversation_of(run): run.get("ground_truth") for run in runs}
    labelled = []
    for bundle in bundles:
        label = _label(bundle.outcome.signals)
        if label is not None:
            truth = truths.get(bundle.turn.conversation_id)
            labelled.append(
                Labelled(
                    bundle.turn, bundle.hops, bundle.blame, *label,
                    truth=None if truth is None else str(truth),
                )
            )  # fmt: skip
    return labelled, len(runs) - len(labelled)


def digest_of(runs: Sequence[Labelled]) -> str:
    """Return the digest of a set of runs, whatever their order."""
    return content_id(sorted(run.turn.conversation_id for run in runs))


def _runs_of(path: Path) -> list[dict[str, Any]]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return []
    return [run for run in (value if isinstance(value, list) else [value]) if recognises(run)]


def _conversation_of(run: dict[str, Any]) -> str:
    return content_id([run.get("question_ID"), run["history"]])


def _label(signals: str) -> tuple[str, int] | None:
    for signal in json.loads(signals):
        if signal["name"] != "who_and_when":
            continue
        detail = json.loads(signal.get("detail") or "{}")
        if "mistake_agent" in detail and "mistake_step" in detail:
            return detail["mistake_agent"], detail["mistake_step"]
    return None
