"""Record what came after the bundled loop: its registry, its dataset, and turns of the new version.

    make run                             # the loop over examples/traces: L1 gets a new version
    python -m examples.record_promoted   # 2 minutes: serves the champions, writes examples/promoted

The answers are the models' own, from the embedded engine; users and clock are simulated as in
`examples.record`. With `examples/traces` this is a whole history: an adapter learned from
turns, the gate let it pass, and turns were answered by it.
"""

import asyncio
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from examples.record import DEFAULT_BASE, EXAMPLES, record_traffic, write_spool
from promotion.suites.world import ConversationPlan, plan_traffic
from serving.embedded import EmbeddedEngine
from serving.records import Record
from serving.slot_table import read_slot_file

FIRST_DAY = datetime(2026, 11, 30, tzinfo=UTC)
KEPT = ("registry.sqlite", "datasets", "gates")
"""What is copied from the home: who may serve, what was learned, and why."""


def main(
    home: Annotated[Path, typer.Option(help="Home of a finished loop.")] = Path(".mol"),
    base: Annotated[Path, typer.Option(help="Folder of the base model.")] = DEFAULT_BASE,
    turns: Annotated[int, typer.Option(help="Turns at least.")] = 24,
    out: Annotated[Path, typer.Option(help="Folder to write.")] = EXAMPLES / "promoted",
) -> None:
    """Serve the champions for a few turns, and keep what the loop knows about them."""
    slots = read_slot_file(home / "slots.json").slots
    names = {entry.slot: str(entry.champion) for entry in slots}
    folders = {str(entry.champion): home / str(entry.path) for entry in slots}
    plans = plan_traffic(turns, seed=11, first_day=FIRST_DAY, days=2)
    records = asyncio.run(_serve(base, folders, names, plans))
    write_spool(out / "traces", records)
    for name in KEPT:
        source = home / name
        if source.is_dir():
            shutil.copytree(source, out / name, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, out / name)


async def _serve(
    base: Path, folders: dict[str, Path], names: dict[str, str], plans: list[ConversationPlan]
) -> list[Record]:
    engine = EmbeddedEngine(base)
    for name, folder in folders.items():
        await engine.load_adapter(name, folder)
    return await record_traffic(engine, names, plans)


if __name__ == "__main__":
    typer.run(main)
