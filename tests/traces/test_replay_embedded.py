"""Replay on the embedded engine: the same run gives the same, and a kill loses little.

A real tiny base with real adapters, random weights, and conversations recorded over them by the
real harness. What they say is noise, so the check passes a part of it: an answer that holds one of
some common letters as a word. Nothing is faked.
"""

import asyncio
import json
import multiprocessing
import shutil
import signal as signals
import time
from pathlib import Path
from typing import Any

import pytest
from engine_calls import make_adapter
from tiny import make_tiny_base
from trace_records import PROFILE, signal, write_spool

from serving.embedded import EmbeddedEngine
from serving.hops import OpenTurn, Server
from serving.own_view import Conversation
from serving.records import Record
from serving.turn import begin_turn, close_turn
from traces.attribute import attribute
from traces.attribution.replay import ReplayReport, replay
from traces.attribution.replay_jobs import Pool, Version
from traces.config import AttributionConfig
from traces.ingest import ingest
from traces.storage.lake import Lake
from traces.verifiers.registry import checker

# PEFT 0.21 reads a property that transformers 5.24 renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")

TURNS = 64
"""So many that more fail, whole, than are asked at once: there is a commit to be killed after."""
SAMPLES = 4
AT_ONCE = 8
"""Turns of 4 arms of 4 samples that are asked together."""
STOP = {"stop": list("aeioutsr")}
"""So that a random model comes to an end."""
SHORT = PROFILE.model_copy(update={"max_answer_tokens": 24, "max_summary_tokens": 8})
CHECK = json.dumps({"verifier": "short_answer", "accepted": list("bcdfghjklmnpqrstvwxyz")})
DIGESTS = {slot: f"{n}" * 12 for n, slot in enumerate(SHORT.labels)}
NAMES = {slot: f"{slot}@{digest}" for slot, digest in DIGESTS.items()}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base, an adapter a slot, and a lake of failed turns that they answered."""
    folder = tmp_path_factory.mktemp("parts")
    made = {"base": make_tiny_base(folder / "base")}
    for seed, slot in enumerate(NAMES):
        made[slot] = make_adapter(folder / slot, made["base"], seed)
    records = asyncio.run(record(made))
    ingest(folder / "home", write_spool(folder / "spool.jsonl", records))
    attribute(folder / "home", SHORT)
    return made | {"home": folder / "home"}


async def record(parts: dict[str, Path]) -> list[Any]:
    engine, check = await loaded(parts), checker(CHECK)
    assert check is not None
    server = Server(engine, SHORT, NAMES)

    async def talk(n: int) -> list[Record]:
        conversation, records = Conversation(f"c{n}"), []
        for place, text in enumerate((f"What is {n}?", f"And {n} again?")):
            turn = OpenTurn(
                f"t{n}-{place}", f"c{n}", None, text, server.clock(), place, options=STOP
            )
            await begin_turn(server, conversation, turn)
            closed = await close_turn(server, conversation, turn)
            assert closed.answer is not None
            passed = check(closed.answer).passed is True
            said = signal(
                name="made_up", value=float(passed), target_id=closed.turn_id, reference=CHECK
            )
            records += [*turn.hops, closed, said]
        return records

    parts_of = await asyncio.gather(*map(talk, range(TURNS // 2)))
    await engine.close()
    return [record for each in parts_of for record in each]


async def loaded(parts: dict[str, Path]) -> EmbeddedEngine:
    engine = EmbeddedEngine(parts["base"])
    for slot, name in NAMES.items():
        await engine.load_adapter(name, parts[slot])
    return engine


async def run(parts: dict[str, Path], home: Path, progress: Any = None) -> ReplayReport:
    engine = await loaded(parts)
    champions = {slot: Version(name, DIGESTS[slot]) for slot, name in NAMES.items()}

    async def gone(slot: str, digest: str) -> None:
        return None

    pool = Pool(engine, champions, Version("base", None), gone)
    config = AttributionConfig(samples=SAMPLES)
    try:
        return await replay(home, pool, SHORT, config, progress=progress)
    finally:
        await engine.close()


def kept(home: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return all that a replay leaves, but for when."""
    with Lake.open(home, read_only=True) as lake:
        return {
            table: lake.connection.execute(
                f"SELECT * EXCLUDE (created_at) FROM {table} ORDER BY ALL"
            ).fetchall()
            for table in ("replays", "preferences")
        }


@pytest.fixture(scope="module")
def whole(parts: dict[str, Path]) -> tuple[ReplayReport, dict[str, list[tuple[Any, ...]]]]:
    """What an uninterrupted run reports and leaves."""
    home = Path(shutil.copytree(parts["home"], parts["home"].parent / "whole" / "home"))
    return asyncio.run(run(parts, home)), kept(home)


def test_every_arm_is_asked_and_the_answers_differ(whole) -> None:
    report, found = whole
    assert set(report.left_out) <= {"truncated answer"}
    assert report.replayed > AT_ONCE
    assert report.calls == report.replayed * 4 * SAMPLES
    assert report.versions == {"served": report.replayed}
    judged = sum(row[3] for row in found["replays"])
    successes = sum(row[4] for row in found["replays"])
    assert 0 < successes < judged
    assert report.pairs == len(found["preferences"]) > 0


@pytest.mark.slow
def test_the_same_run_gives_the_same(whole, parts, tmp_path) -> None:
    home = Path(shutil.copytree(parts["home"], tmp_path / "home"))
    report = asyncio.run(run(parts, home))
    assert (report, kept(home)) == whole


def stalling(parts: dict[str, Path], home: Path, marker: Path) -> None:
    """Run until the turns asked first were kept and the next ones are under way, and stop there."""

    def stall(done: int, total: int) -> None:
        if done > AT_ONCE * 4 * SAMPLES:
            marker.touch()
            time.sleep(600)

    asyncio.run(run(parts, home, stall))


def test_killed_in_the_middle_it_goes_on_and_ends_the_same(whole, parts, tmp_path) -> None:
    home = Path(shutil.copytree(parts["home"], tmp_path / "home"))
    marker = tmp_path / "under-way"
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=stalling, args=(parts, home, marker))
    process.start()
    while process.is_alive() and not marker.exists():
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signals.SIGKILL
    done = {row[0] for row in kept(home)["replays"]}
    assert len(done) == AT_ONCE
    report = asyncio.run(run(parts, home))
    assert report.replayed == whole[0].replayed - AT_ONCE
    assert kept(home) == whole[1]
