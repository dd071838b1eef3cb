"""Record failures of known cause: turns that succeed, taken again with exactly one fault.

    make run                                 # the loop: its champions are where this begins
    python -m examples.record_faults adapters   # 5 minutes: taught further, and damaged copies
    python -m examples.record_faults traffic    # clean traffic, then the faults; may be stopped
    python -m examples.fault_replays arms       # fresh answers of every slot to some failures

The engine is the embedded one over the real base, answers are the models' own; users, tools and
the clock are simulated. A fault counts only where the same request, without it, succeeded and
with it failed. What a verifier checked against stands in its feedback. See examples/faults.
"""

import asyncio
import gzip
import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from examples.fault_adapters import damaged, teach
from examples.fault_injection import Fault, Taken, close, record_of, take
from examples.fault_plans import Plan, faults_for, plan_clean
from examples.record import DEFAULT_BASE, EXAMPLES, signal_about, write_spool
from examples.remembered_engine import RememberedEngine
from serving.embedded import EmbeddedEngine
from serving.engine import Engine
from serving.hops import Server
from serving.own_view import Conversation
from serving.records import (
    AdapterVersion,
    Feedback,
    Record,
    Turn,
    canonical_json,
)
from serving.slot_table import read_slot_file
from serving.slots import Profile, load_profile

FAULTS = EXAMPLES / "faults"
WORK = Path(".mol/faults")
CLEAN_SHIPPED = 0.7
"""Share of the clean conversations that are in the log, as other users' traffic."""
UNFLIPPED_SHIPPED = 0.5
"""Share of the turns with a fault that succeeded all the same that are in the log."""
Base = Annotated[Path, typer.Option(help="Folder of the base model.")]
Work = Annotated[Path, typer.Option(help="Folder for adapters and answers meanwhile.")]

app = typer.Typer(add_completion=False, help=__doc__)


@dataclass(slots=True)
class Talk:
    """What one conversation left behind."""

    plan: Plan
    records: list[Record] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    label: dict[str, Any] | None = None
    """Of the turn with the fault, if it failed because of it."""


@app.command()
def adapters(
    home: Annotated[Path, typer.Option(help="Home of a finished loop.")] = Path(".mol"),
    base: Base = DEFAULT_BASE,
    work: Work = WORK,
    slots: Annotated[str, typer.Option(help="Which slots, separated by commas.")] = "L0,L1,L2,L3",
) -> None:
    """Teach the loop's champions what the fault set's users ask."""
    profile = load_profile(FAULTS / "profile.toml")
    champions = {
        entry.slot: home / str(entry.path) for entry in read_slot_file(home / "slots.json").slots
    }
    for slot in slots.split(","):
        teach(profile, slot, base, champions[slot], work / "adapters" / slot)


@app.command()
def traffic(
    base: Base = DEFAULT_BASE,
    work: Work = WORK,
    scale: Annotated[float, typer.Option(help="Size, in sets as shipped.")] = 1.0,
    out: Annotated[Path, typer.Option(help="Folder for the set.")] = FAULTS,
) -> None:
    """Record clean traffic and the faults, and write the set."""
    profile = load_profile(FAULTS / "profile.toml")
    folders, names = served(profile, work)
    records, labels = asyncio.run(_record(profile, base, work, folders, names, scale))
    write_set(out, records, labels)


def served(profile: Profile, work: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Return folder by served name, and served name by slot or by `slot/damage`."""
    from training.artifact import adapter_digest

    healthy = {slot: work / "adapters" / slot for slot in profile.labels}
    folders = {**healthy, **damaged(healthy, work / "damaged")}
    names, by_name = {}, {}
    for key, folder in folders.items():
        version = AdapterVersion(slot=key.split("/")[0], digest=adapter_digest(folder))
        names[key] = version.name
        by_name[version.name] = folder
    return by_name, names


async def _record(
    profile: Profile, base: Path, work: Path, folders: dict[str, Path], names: dict[str, str],
    scale: float,
) -> tuple[list[Record], list[dict[str, Any]]]:  # fmt: skip
    embedded = EmbeddedEngine(base, max_batch=96)
    for name, folder in folders.items():
        await embedded.load_adapter(name, folder)
    engine = RememberedEngine(embedded, work / "answers.jsonl")
    recorded = await record_all(engine, profile, names, scale)
    await engine.close()
    return recorded


async def record_all(
    engine: Engine, profile: Profile, names: dict[str, str], scale: float = 1.0
) -> tuple[list[Record], list[dict[str, Any]]]:
    """Return hops, turns and feedback of clean and faulty conversations, and the labels."""
    clean = await _talks(engine, profile, names, plan_clean(scale))
    sure = [hop.confidence for talk in clean for turn in talk.taken for hop in turn.open_turn.hops]
    confidences = [one for one in sure if one is not None]
    passed = [
        (
            talk.plan,
            [(one.passed, turn.slot) for one, turn in zip(talk.taken, talk.turns, strict=True)],
        )
        for talk in clean
    ]
    plans = faults_for(passed, names, profile, confidences, scale)
    faulty = await _talks(engine, profile, names, plans)
    rng = random.Random("shipped")
    records: list[Record] = []
    labels: list[dict[str, Any]] = []
    for talk in clean:
        if rng.random() < CLEAN_SHIPPED:
            records += talk.records
    for talk in faulty:
        if talk.label is not None:
            labels.append(talk.label)
        if talk.label is not None or rng.random() < UNFLIPPED_SHIPPED:
            records += talk.records
    return records, labels


async def _talks(
    engine: Engine, profile: Profile, names: dict[str, str], plans: Sequence[Plan]
) -> list[Talk]:
    done = 0

    async def one(plan: Plan) -> Talk:
        nonlocal done
        talk = await converse(engine, profile, names, plan)
        done += 1
        if done % 20 == 0 or done == len(plans):
            typer.echo(
                f"{datetime.now(UTC):%H:%M:%S} {done} of {len(plans)} conversations", err=True
            )
        return talk

    return list(await asyncio.gather(*[one(plan) for plan in plans]))


async def converse(engine: Engine, profile: Profile, names: dict[str, str], plan: Plan) -> Talk:
    """Hold one conversation, with its fault if it has one."""
    now = plan.started_at
    server = Server(
        engine, profile, {slot: names[slot] for slot in profile.labels}, clock=lambda: now
    )
    conversation = Conversation(plan.conversation_id, plan.user)
    talk, rng = Talk(plan), random.Random(plan.conversation_id)
    last = len(plan.requests) - 1
    for place, request in enumerate(plan.requests):
        fault = plan.fault
        here = fault if fault is not None and (place == last - (fault.klass == "summary")) else None
        answering = None if here is not None and here.klass == "summary" else here
        taken = await take(server, conversation, request, answering)
        if place < last and not taken.open_turn.error:
            # A conversation that goes on hands over what was; the last turn has nobody to tell.
            await close(server, conversation, taken.open_turn, here)
        turn = record_of(taken.open_turn)
        now += timedelta(seconds=min(turn.duration_s, 20.0))
        talk.taken.append(taken)
        talk.turns.append(turn)
        judged = fault is not None and place == last
        talk.records += [*taken.open_turn.hops, turn]
        talk.records += _reaction(plan, place, taken, turn, now, rng, judged)
        now += timedelta(seconds=rng.uniform(5, 90))
    if plan.fault is not None and talk.turns and not talk.taken[-1].passed:
        talk.label = _label(talk, plan.fault)
    return talk


def _label(talk: Talk, fault: Fault) -> dict[str, Any] | None:
    """Return what is known of the failed turn; None where more than the fault is different."""
    taken, turn = talk.taken[-1], talk.turns[-1]
    if turn.status != "ok" or len(talk.plan.routes) != len(talk.turns):
        return None
    misrouted = turn.slot != talk.plan.routes[-1]
    if fault.klass in ("adapter", "summary", "user", "tool") and misrouted:
        return None
    if fault.klass == "tool" and taken.call_passed is False:
        return None
    roles = {"router": "route", "adapter": "answer", "fallback": "answer", "summary": "summary"}
    turn_hops = talk.taken[-2 if fault.klass == "summary" else -1].open_turn.hops
    decisive = [hop for hop in turn_hops if hop.role == roles.get(fault.klass)]
    return {
        "turn_id": turn.turn_id,
        "class": fault.klass,
        "slot": fault.slot,
        "hop_id": decisive[0].hop_id if decisive else None,
        "kind": fault.kind,
        "right_slot": talk.plan.routes[-1] if fault.klass in ("router", "fallback") else None,
    }


def _reaction(
    plan: Plan,
    place: int,
    taken: Taken,
    turn: Turn,
    now: datetime,
    rng: random.Random,
    judged: bool,
) -> list[Feedback]:
    """Return the signals that a turn gets; one whose fault is to be found always gets one."""
    if turn.status != "ok":
        return []
    request = plan.requests[place]

    def signal(kind: str, name: str, late_s: float = 0.0, **fields: object) -> Feedback:
        return signal_about(turn, rng, now + timedelta(seconds=late_s), kind, name, **fields)

    signals = []
    verified = rng.random() < (0.85 if judged else 0.75)
    if verified:
        if taken.call_passed is not None and rng.random() < 0.6:
            call = canonical_json(dict(request.task.reference))
            value = float(taken.call_passed)
            signals.append(signal("verifier", "tool_call", value=value, reference=call))
        # What a device did can be seen once, and not checked again from the answer.
        seen_once = taken.detail == "the device did not act"
        known = None if seen_once else canonical_json(request.reference)
        signals.append(
            signal(
                "verifier", request.verifier, value=float(taken.passed), detail=taken.detail,
                reference=known,
            )
        )  # fmt: skip
    right = rng.random() > 0.03
    wanted = 0.25 if verified else 0.6
    if rng.random() < (wanted if not taken.passed else 0.15):
        signals.append(signal("thumb", "thumb", 4, value=1.0 if taken.passed == right else -1.0))
    if taken.passed:
        return signals
    if rng.random() < 0.35 or (judged and not signals):
        late_s = rng.choice((20, 90, 600, 7200, 100_000)) * (0.5 + rng.random())
        signals.append(signal("edit", "edit", late_s, correction=request.right_answer))
    return signals


def write_set(out: Path, records: Sequence[Record], labels: Sequence[dict[str, Any]]) -> None:
    """Write the spool and its labels; the order of the labels tells nothing."""
    shutil.rmtree(out / "spool", ignore_errors=True)
    write_spool(out / "spool", records)
    write_lines(out / "labels.jsonl.gz", sorted(labels, key=lambda label: label["turn_id"]))
    counts: dict[str, int] = {}
    for label in labels:
        name = label["class"]
        counts[name] = counts.get(name, 0) + 1
    typer.echo(json.dumps({"records": len(records), "labels": counts}))


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write compressed JSON lines; equal rows, equal bytes."""
    text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of compressed JSON lines."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


if __name__ == "__main__":
    app()
