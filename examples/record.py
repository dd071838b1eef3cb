"""Record the bundled example: first adapters, and traffic of an MoL server over real vLLM.

    python -m examples.record adapters   # trains examples/adapters/L0..L3 from seed demonstrations
    python -m examples.record traffic    # serves them, simulates users, writes examples/traces/

The answers are the model's own. Users are simulated: their requests come from the task
world (`promotion/suites`), a verifier or the user says what was right, and an edit is
the task's right answer. Days and pauses are simulated, durations measured.
"""

import asyncio
import gzip
import json
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from curation.examples import Duty, Example
from promotion.suites.household import TOOLS, run_tool
from promotion.suites.world import ConversationPlan, PlannedTurn, make_tasks, plan_traffic
from serving.engine import Engine
from serving.hops import SOURCE, OpenTurn, Server, TurnFailed
from serving.openai_engine import OpenAIEngine
from serving.own_view import Conversation, own_view, route_view, summary_view
from serving.records import (
    AdapterVersion,
    Feedback,
    Hop,
    Message,
    Record,
    Turn,
    canonical_json,
)
from serving.slots import load_profile
from serving.turn import accept_results, close_turn, continue_turn, finished, start_turn

EXAMPLES = Path(__file__).parent
DEFAULT_BASE = Path(".mol/base/SmolLM2-135M-Instruct")
FIRST_DAY = datetime(2026, 11, 2, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SeedPlan:
    """How much a first adapter has seen: enough to serve, with much left to learn."""

    skill_rows: int
    summary_rows: int
    route_rows: int = 0
    """Rows for each label."""
    epochs: int = 1
    learning_rate: float = 6e-4


SEED_PLANS = {
    "L0": SeedPlan(skill_rows=60, summary_rows=24, route_rows=48, epochs=2),
    "L1": SeedPlan(skill_rows=96, summary_rows=24, epochs=2),
    "L2": SeedPlan(skill_rows=64, summary_rows=24),
    "L3": SeedPlan(skill_rows=96, summary_rows=24, epochs=2),
}

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def adapters(
    base: Annotated[Path, typer.Option(help="Folder of the base model.")] = DEFAULT_BASE,
    slots: Annotated[str, typer.Option(help="Which slots, separated by commas.")] = "L0,L1,L2,L3",
    out: Annotated[Path, typer.Option(help="Folder for the adapters.")] = EXAMPLES / "adapters",
) -> None:
    """Train the first adapter of each slot from a few demonstrations of the seed partition."""
    from training import sft
    from training.artifact import check_servable
    from training.config import TrainConfig
    from training.render import render_rows
    from training.train import load_tokenizer

    tokenizer = load_tokenizer(base, None)
    for slot in slots.split(","):
        plan = SEED_PLANS[slot]
        config = TrainConfig(r=2, alpha=4, epochs=plan.epochs, learning_rate=plan.learning_rate)
        rows = render_rows(tokenizer, seed_examples(slot, plan), config.max_length).rows
        with tempfile.TemporaryDirectory() as work:
            metrics = sft.fit(rows, base, tokenizer, config, Path(work), _say(slot))
            typer.echo(f"\n{slot}: {metrics}", err=True)
            check_servable(Path(work), base)
            (out / slot).mkdir(parents=True, exist_ok=True)
            for name in ("adapter_config.json", "adapter_model.safetensors"):
                shutil.copyfile(Path(work, name), out / slot / name)


def seed_examples(slot: str, plan: SeedPlan) -> list[Example]:
    """Return demonstrations of a slot's duties: its skill, summaries, and routes for the router."""
    profile = load_profile()
    seen: list[tuple[Duty, tuple[Message, ...], str, Message]] = []
    tools = json.dumps(list(TOOLS)) if profile.slot(slot).offers_tools else "[]"
    for task in make_tasks(slot, plan.skill_rows, 0, "seed"):
        view = own_view(profile, Conversation("seed"), slot, task.text)
        seen.append(("answer", view, tools, task.answer))
    for task in make_tasks(slot, plan.summary_rows, 1, "seed"):
        view = own_view(profile, Conversation("seed"), slot, task.text)
        calls = task.answer.tool_calls
        results = [
            Message(role="tool", content=run_tool(call), tool_call_id=call.id) for call in calls
        ]
        said = task.answer.content or f"{calls[0].name} {calls[0].arguments}"
        summary = Message(role="assistant", content=f"Asked: {task.text} Answer: {said}")
        seen.append(("answer", summary_view(profile, view, [task.answer, *results]), "[]", summary))
    for label in profile.labels if plan.route_rows else ():
        for task in make_tasks(label, plan.route_rows, 2, "seed"):
            route = Message(role="assistant", content=label)
            seen.append(("route", route_view(profile, task.text), "[]", route))
    return [
        Example.make(
            "train",
            slot=slot,
            duty=duty,
            messages=messages,
            tools=tools_text,
            completion=completion,
            source="verified",
            weight=1.0,
            user=None,
            conversation_id="seed",
            turn_id=f"seed-{number}",
            hop_id=f"seed-{number}",
        )
        for number, (duty, messages, tools_text, completion) in enumerate(seen)
    ]


def _say(slot: str) -> Callable[[int, int, float], None]:
    def say(step: int, steps: int, loss: float) -> None:
        typer.echo(f"\r{slot}: step {step} of {steps}, loss {loss:.3f}", nl=False, err=True)

    return say


@app.command()
def traffic(
    base: Annotated[Path, typer.Option(help="Folder of the base model.")] = DEFAULT_BASE,
    turns: Annotated[int, typer.Option(help="Turns to record, at least.")] = 440,
    seed: Annotated[int, typer.Option(help="Which traffic to simulate.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the spool files.")] = EXAMPLES / "traces",
) -> None:
    """Serve the four first adapters with vLLM, let simulated users talk to them, record all."""
    from infra.vllm_server import start
    from training.artifact import adapter_digest

    folders = {slot: EXAMPLES / "adapters" / slot for slot in load_profile().labels}
    versions = {
        slot: AdapterVersion(slot=slot, digest=adapter_digest(folder))
        for slot, folder in folders.items()
    }
    modules = {versions[slot].name: folder for slot, folder in folders.items()}
    plans = plan_traffic(turns, seed, FIRST_DAY)
    with start(base, lora_modules=modules) as base_url:
        engine = OpenAIEngine(base_url, concurrency=16)
        names = {slot: version.name for slot, version in versions.items()}
        records = asyncio.run(record_traffic(engine, names, plans))
    write_spool(out, records)


async def record_traffic(
    engine: Engine, names: dict[str, str], plans: Sequence[ConversationPlan], at_once: int = 16
) -> list[Record]:
    """Run all conversations and return hops, turns and feedback."""
    gate = asyncio.Semaphore(at_once)
    done = 0

    async def run(plan: ConversationPlan) -> list[Record]:
        nonlocal done
        async with gate:
            records = await _converse(engine, names, plan)
        done += 1
        typer.echo(f"\r{done} of {len(plans)} conversations", nl=False, err=True)
        return records

    parts = await asyncio.gather(*[run(plan) for plan in plans])
    typer.echo(err=True)
    await engine.close()
    return [record for part in parts for record in part]


def write_spool(folder: Path, records: Iterable[Record]) -> None:
    """Write one compressed JSON-lines file a day, in order of time; equal records, equal bytes."""
    days: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
    for record in records:
        kind = type(record).__name__.lower()
        at = record.created_at if isinstance(record, Feedback) else record.started_at  # type: ignore[attr-defined]
        line = json.dumps(
            {"kind": kind, "record": record.model_dump(mode="json")}, ensure_ascii=False
        )
        days[f"{at:%Y-%m-%d}"].append((at, line))
    folder.mkdir(parents=True, exist_ok=True)
    for day, lines in sorted(days.items()):
        text = "".join(line + "\n" for _, line in sorted(lines))
        (folder / f"{day}.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


async def _converse(engine: Engine, names: dict[str, str], plan: ConversationPlan) -> list[Record]:
    profile = load_profile()
    now = plan.started_at
    server = Server(engine, profile, names, clock=lambda: now)
    conversation = Conversation(plan.conversation_id, plan.user)
    rng = random.Random(plan.conversation_id)
    records: list[Record] = []
    waiting = list(plan.turns)
    while waiting:
        planned = waiting.pop(0)
        open_turn, turn = await _take(server, conversation, planned)
        now += timedelta(seconds=turn.duration_s)
        signals, again = _react(planned, open_turn, turn, now, rng)
        records += [*open_turn.hops, turn, *signals]
        if again:
            waiting.insert(0, again)
        now += timedelta(seconds=rng.uniform(5, 90))
    return records


async def _take(
    server: Server, conversation: Conversation, planned: PlannedTurn
) -> tuple[OpenTurn, Turn]:
    try:
        turn = await start_turn(server, conversation, planned.task.text, TOOLS)
        results = [
            Message(
                role="tool",
                content=run_tool(call, broken=planned.device_broken),
                tool_call_id=call.id,
            )
            for call in turn.pending_calls
        ]
        if results and planned.narrated:
            await continue_turn(server, turn, results)
        elif results:
            accept_results(turn, results)
        return turn, await close_turn(server, conversation, turn)
    except TurnFailed as failure:
        return failure.turn, finished(failure.turn)


def signal_about(
    turn: Turn, rng: random.Random, at: datetime, kind: str, name: str, **fields: object
) -> Feedback:
    """Return a signal that names the turn, or half the time the response that the client got."""
    by_response = rng.random() < 0.5 and bool(turn.response_ids)
    return Feedback.model_validate(
        {
            "source": SOURCE,
            "target_kind": "response" if by_response else "turn",
            "target_id": turn.response_ids[0] if by_response else turn.turn_id,
            "kind": kind,
            "name": name,
            "user": turn.user,
            "created_at": at,
            **fields,
        }
    )


def _react(
    planned: PlannedTurn, open_turn: OpenTurn, turn: Turn, now: datetime, rng: random.Random
) -> tuple[list[Feedback], PlannedTurn | None]:
    """Return the signals a turn gets, and the same request again if the user retries."""
    if turn.status != "ok":
        return [], None
    task, reaction = planned.task, planned.reaction
    first: Hop = next(hop for hop in open_turn.hops if hop.role == "answer")
    check = task.check(first.completion or Message(role="assistant"))
    if check.passed is None:  # as a user who cannot tell
        return [], None
    broken = planned.device_broken and bool(first.completion and first.completion.tool_calls)
    passed = check.passed and not broken

    def signal(kind: str, name: str, late: timedelta, **fields: object) -> Feedback:
        return signal_about(turn, rng, now + late, kind, name, **fields)

    signals = []
    if reaction.verified:
        detail = "the device did not act" if broken else check.detail
        signals.append(
            signal(
                "verifier",
                task.verifier,
                timedelta(),
                value=float(passed),
                detail=detail,
                reference=canonical_json(task.reference),
            )
        )
    if reaction.thumbs:
        thumb = 1.0 if passed == (rng.random() > 0.03) else -1.0
        signals.append(signal("thumb", "thumb", timedelta(seconds=4), value=thumb))
    if passed or broken:
        return signals, None
    if reaction.edits:
        signals.append(signal("edit", "edit", reaction.delay, correction=task.answer))
    elif reaction.retries:
        signals.append(signal("retry", "retry", timedelta(seconds=5)))
        tired = type(reaction)(reaction.verified, reaction.thumbs, False, False, reaction.delay)
        return signals, PlannedTurn(task, tired, planned.narrated, planned.device_broken)
    return signals, None


if __name__ == "__main__":
    app()
