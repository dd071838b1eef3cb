"""The MoL server in a process of its own, for measurements: `flows serve` without a registry.

    python -m benchmarks.serving_mol --home FOLDER --engine URL --port N --admin-port N [--rules]

`write_table` makes the home's slot table, in which all slots serve versions that are not
really there: an instant engine takes any name.
"""

import argparse
from pathlib import Path

import uvloop

from serving.config import RouterConfig, ServeConfig
from serving.serve import running, spare_garbage_collection, stop_on_signals
from serving.slot_table import SlotEntry, SlotFile
from serving.slots import load_profile

POLL_S = 0.05
SLOTS = load_profile().labels


def write_table(home: Path, generation: int) -> SlotFile:
    """Write `slots.json` with a new version for every slot; the number tells them apart."""
    entries = []
    for n, slot in enumerate(SLOTS):
        digest = f"{generation:06x}{n:06x}" + "0" * 52
        path = f"adapters/{digest}"
        (home / path).mkdir(parents=True, exist_ok=True)
        entries.append(
            SlotEntry(
                slot=slot, champion=f"{slot}@{digest[:12]}", digest=f"sha256:{digest}", path=path,
                generation=generation,
            )
        )  # fmt: skip
    table = SlotFile(slots=tuple(entries))
    put_table(home, table)
    return table


def put_table(home: Path, table: SlotFile) -> None:
    """Write `slots.json` at once."""
    temporary = home / "slots.json.tmp"
    temporary.write_text(table.model_dump_json(), encoding="utf-8")
    temporary.replace(home / "slots.json")


def generation_of(name: str) -> int:
    """Return the number under which `write_table` made a served name."""
    return int(name.partition("@")[2][:6], 16)


async def _serve(home: Path, config: ServeConfig) -> None:
    async with running(home, load_profile(), config) as server:
        stop_on_signals(server)
        spare_garbage_collection()
        await server.ended()


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--home", type=Path, required=True, help="folder with slots.json")
    parser.add_argument("--engine", required=True, help="address of the engine")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--admin-port", type=int, required=True)
    parser.add_argument("--rules", action="store_true", help="route by the table's rules alone")
    given = parser.parse_args()
    config = ServeConfig(
        engines=(given.engine,),
        port=given.port,
        admin_port=given.admin_port,
        poll_s=POLL_S,
        router=RouterConfig(mode="rules" if given.rules else "constrained"),
    )
    uvloop.run(_serve(given.home, config))


if __name__ == "__main__":
    main()
