"""Fresh answers for the fault set: every slot asked again, and slots that are all the same.

    python -m examples.fault_replays arms    # after examples.record_faults traffic; 20 minutes
    python -m examples.fault_replays equal   # one adapter under all four names; 10 minutes

Both sample with the project's own replay (`traces.attribution.replay`) over the embedded engine, 8
answers of each slot, the one that had answered too with the version it had, and keep its rows.
"""

import asyncio
import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from examples.fault_injection import Fault
from examples.fault_plans import Plan, plan_one
from examples.fault_world import plain
from examples.record import DEFAULT_BASE, write_spool
from examples.record_faults import (
    FAULTS,
    WORK,
    Base,
    Work,
    converse,
    read_lines,
    served,
    write_lines,
)
from examples.remembered_engine import RememberedEngine
from serving.embedded import EmbeddedEngine
from serving.engine import Engine
from serving.records import Feedback, Hop, Record, Turn, parse_adapter_name
from serving.slots import Profile, load_profile
from traces.attribute import attribute
from traces.attribution.replay import replay
from traces.attribution.replay_jobs import Pool, Version
from traces.config import AttributionConfig
from traces.ingest import ingest
from traces.storage.lake import Lake

A_CLASS = {"router": 74, "adapter": 94}
"""Failures of a class that are looked at; cut answers, and what nothing can check, are left out."""
EQUAL_TURNS, EQUAL_FAILING = 300, 72

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def arms(
    base: Base = DEFAULT_BASE,
    work: Work = WORK,
    out: Path = FAULTS,
    classes: str = "router,adapter",
) -> None:
    """Replay some failures of the router and of adapters; rows of other turns stay."""
    labels = read_lines(out / "labels.jsonl.gz")
    random.Random("arms").shuffle(labels)
    chosen = [
        label["turn_id"]
        for klass in classes.split(",")
        for label in [label for label in labels if label["class"] == klass][: A_CLASS[klass]]
    ]
    profile = load_profile(out / "profile.toml")
    folders, names = served(profile, work)
    champions = {slot: names[slot] for slot in profile.labels}
    records = conversations_of(out / "spool", chosen)
    memory = work / f"replays-{classes.replace(',', '-')}.jsonl"
    rows = asyncio.run(_replayed(profile, base, folders, champions, records, len(chosen), memory))
    asked = set(chosen)
    path = out / "replays.jsonl.gz"
    others = (
        [row for row in read_lines(path) if row["turn_id"] not in asked] if path.is_file() else []
    )
    mine = [row for row in rows if row["turn_id"] in asked]
    write_lines(path, sorted([*others, *mine], key=lambda row: (row["turn_id"], row["slot"])))


@app.command()
def equal(base: Base = DEFAULT_BASE, work: Work = WORK, out: Path = FAULTS / "equal") -> None:
    """Record traffic of four equal slots, and replay its failures."""
    profile = load_profile(out / "profile.toml")
    folders, names = served(load_profile(FAULTS / "profile.toml"), work)
    one = folders[names[profile.router]]
    digest = parse_adapter_name(names[profile.router])[1]
    same = {slot: f"{slot}@{digest}" for slot in profile.labels}
    by_name = dict.fromkeys(same.values(), one)
    records = asyncio.run(_equal_traffic(profile, base, by_name, same, work))
    write_spool(out / "spool", records)
    memory = work / "replays-equal.jsonl"
    rows = asyncio.run(_replayed(profile, base, by_name, same, records, EQUAL_FAILING, memory))
    write_lines(out / "replays.jsonl.gz", rows)
    write_lines(
        out / "failing.jsonl.gz",
        [{"turn_id": turn} for turn in sorted({r["turn_id"] for r in rows})],
    )


async def _equal_traffic(
    profile: Profile, base: Path, folders: Mapping[str, Path], names: dict[str, str], work: Path
) -> list[Record]:
    engine = RememberedEngine(await _loaded(base, folders), work / "equal.jsonl")
    talks = await asyncio.gather(*[
        converse(engine, profile, names, plan) for plan in equal_plans(profile, EQUAL_TURNS)
    ])  # fmt: skip
    await engine.close()
    return [record for talk in talks for record in talk.records]


def equal_plans(profile: Profile, count: int) -> list[Plan]:
    """Return short questions, each sent to a slot drawn at random: whoever answers is as good."""
    plans = []
    for number in range(count):
        rng = random.Random(f"equal-{number}")
        fault = Fault(
            "router", "drawn", to_slot=rng.choice(profile.labels), confidence=rng.uniform(0.4, 1)
        )
        plans.append(plan_one(rng, ["equal", number], (plain(rng, "L0"),), fault))
    return plans


async def _replayed(
    profile: Profile, base: Path, folders: Mapping[str, Path], champions: Mapping[str, str],
    records: Sequence[Record], turns: int, memory: Path,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the rows of a replay of the failures among `records`."""
    engine = RememberedEngine(await _loaded(base, folders), memory)

    async def version(slot: str, digest: str) -> Version | None:
        name = f"{slot}@{digest}"
        return Version(name, digest) if name in folders else None

    pool = Pool(
        engine,
        {slot: Version(name, parse_adapter_name(name)[1]) for slot, name in champions.items()},
        Version("base", None),
        version,
    )
    config = AttributionConfig(replay_budget=turns * len(profile.labels) * 8)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        write_spool(Path(folder, "spool"), records)
        ingest(home, Path(folder, "spool"))
        attribute(home, profile)
        report = await replay(home, pool, profile, config, progress=_say)
        typer.echo(report.model_dump_json(), err=True)
        with Lake.open(home, read_only=True) as lake:
            found = lake.connection.execute("SELECT * FROM replays ORDER BY turn_id, slot")
            names = [column[0] for column in found.description]
            rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    await engine.close()
    for row in rows:
        row["created_at"] = row["created_at"].isoformat()
    return rows


async def _loaded(base: Path, folders: Mapping[str, Path]) -> Engine:
    engine = EmbeddedEngine(base, max_batch=96)
    for name, folder in folders.items():
        await engine.load_adapter(name, folder)
    return engine


def conversations_of(spool: Path, turn_ids: Sequence[str]) -> list[Record]:
    """Return all records of the conversations that these turns belong to."""
    kinds: dict[str, type[Record]] = {"hop": Hop, "turn": Turn, "feedback": Feedback}
    records: list[Any] = [
        kinds[line["kind"]].model_validate_json(json.dumps(line["record"]))
        for file in sorted(spool.glob("*.gz"))
        for line in read_lines(file)
    ]
    turns = [record for record in records if isinstance(record, Turn)]
    kept = {turn.conversation_id for turn in turns if turn.turn_id in set(turn_ids)}
    inside = [turn for turn in turns if turn.conversation_id in kept]
    named = {name for turn in inside for name in (turn.turn_id, *turn.response_ids)}
    return [
        record
        for record in records
        if (
            record.target_id in named
            if isinstance(record, Feedback)
            else record.conversation_id in kept
        )
    ]


def _say(done: int, budget: int) -> None:
    typer.echo(f"\r{done} of {budget} engine calls", nl=False, err=True)


if __name__ == "__main__":
    app()
