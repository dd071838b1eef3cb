"""`flows run attribute --replay`: a real Prefect run on the embedded engine, and what it refuses.

A tiny random base with real adapters, and conversations recorded over them by the real harness.
Nothing is faked; the check passes what a random model says by chance.
"""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from engine_calls import make_adapter
from engine_server import tiny_engine_server
from trace_records import signal, write_spool
from typer.testing import CliRunner

from flows import manual, stages
from flows.cli import app
from flows.config import Settings
from flows.replaying import (
    AdapterMissing,
    NothingServes,
    ReplayStopped,
    refuse_stopped,
    replay_stage,
)
from promotion.proof import NotProved
from promotion.signing import SignatureRefused
from promotion.state import RegisteredVersion
from serving.embedded import EmbeddedEngine
from serving.hops import OpenTurn, Server
from serving.own_view import Conversation
from serving.records import Record, short_digest
from serving.slots import load_profile
from serving.turn import begin_turn, close_turn
from traces.ingest import ingest
from traces.read import read_preferences
from traces.storage.lake import Lake
from training.artifact import BaseNotFound, adapter_digest

# PEFT 0.21 reads a property that transformers 5.24 renamed.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing"),
    pytest.mark.timeout(600),
]

CHECK = json.dumps({"verifier": "short_answer", "accepted": list("bcdfghjklmnpqrstvwxyz")})
SLOTS = ("L0", "L2")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path) -> Path:
    """First adapters of two slots; the others serve the base."""
    folder = tmp_path_factory.mktemp("first")
    for seed, slot in enumerate(SLOTS):
        make_adapter(folder / slot, tiny_base, seed)
    return folder


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path, first: Path) -> Path:
    """A home whose lake has failed turns that the first adapters answered."""
    home = tmp_path_factory.mktemp("recorded") / "home"
    records = asyncio.run(record(tiny_base, first))
    ingest(home, write_spool(home.parent / "spool.jsonl", records))
    return home


async def record(base: Path, first: Path) -> list[Record]:
    engine, names, records = EmbeddedEngine(base), {}, []
    for slot in SLOTS:
        names[slot] = f"{slot}@{short_digest(adapter_digest(first / slot))}"
        await engine.load_adapter(names[slot], first / slot)
    profile = load_profile().model_copy(update={"max_answer_tokens": 16, "max_summary_tokens": 4})
    server = Server(engine, profile, names)
    for n in range(6):
        options = {"stop": list("aeioutsr")}
        turn = OpenTurn(f"t{n}", f"c{n}", None, f"What is {n}?", server.clock(), 0, options=options)
        conversation = Conversation(f"c{n}")
        await begin_turn(server, conversation, turn)
        closed = await close_turn(server, conversation, turn)
        records += [*turn.hops, closed]
        records.append(signal(name="made_up", target_id=closed.turn_id, reference=CHECK))
    await engine.close()
    return records


def settings_of(home: Path, base: Path, first: Path | None, **changes: object) -> Settings:
    raw = {"home": home, "base": base, "first_adapters": first, "attribution": {"samples": 3}}
    return Settings.model_validate(raw | changes)


def attributed(
    recorded: Path, base: Path, first: Path, tmp_path: Path
) -> tuple[Settings, RegisteredVersion]:
    """Return settings of a copy whose turns are attributed, and the champion of L2."""
    settings = settings_of(Path(shutil.copytree(recorded, tmp_path / "home")), base, first)
    stages.prepare_registry(settings)
    stages.attribute_stage(settings)
    with stages.open_registry(settings) as registry:
        return settings, registry.version(str(registry.slot("L2").champion))


def test_a_replay_leaves_rows_pairs_and_a_blame_of_its_own(
    prefect, recorded, tiny_base, first, tmp_path, capsys
) -> None:
    home = Path(shutil.copytree(recorded, tmp_path / "home"))
    settings = settings_of(home, tiny_base, first)
    value = manual.run(settings, manual.REPLAY).value
    replayed = value["replay"]
    assert replayed["replayed"] > 0
    assert replayed["calls"] == replayed["replayed"] * 4 * 3
    assert replayed["versions"] == {"served": replayed["replayed"]}
    told = capsys.readouterr().out
    assert "REPLAY" in told
    assert "preference pairs" in told
    with Lake.open(home, read_only=True) as lake:
        methods = lake.connection.execute(
            "SELECT method, count(*) FROM blame WHERE verdict IS NOT NULL GROUP BY method"
        ).fetchall()
    assert methods == [("replay", replayed["replayed"])]
    assert len(list(read_preferences(home))) == replayed["pairs"]
    again = manual.run(settings, manual.REPLAY).value["replay"]
    assert (again["calls"], again["left_out"]["replayed before"]) == (0, replayed["replayed"])


@pytest.mark.slow
def test_a_server_gives_what_the_embedded_engine_gives(
    recorded, tiny_base, first, tmp_path
) -> None:
    found = {}
    with tiny_engine_server(tmp_path, base=tiny_base) as url:
        for engine in (stages.EMBEDDED, url):
            home = Path(shutil.copytree(recorded, tmp_path / f"home{len(found)}"))
            settings = settings_of(home, tiny_base, first, engine=engine)
            stages.prepare_registry(settings)
            stages.attribute_stage(settings)
            report = replay_stage(settings)
            with Lake.open(home, read_only=True) as lake:
                rows = lake.connection.execute(
                    "SELECT * EXCLUDE (created_at) FROM replays ORDER BY turn_id, slot"
                ).fetchall()
            found[engine] = report, rows
    assert found[url] == found[stages.EMBEDDED]
    assert found[url][0].replayed > 0


def test_what_is_missing_is_said_before_anything_is_asked(
    recorded, tiny_base, first, tmp_path
) -> None:
    home = Path(shutil.copytree(recorded, tmp_path / "home"))
    with pytest.raises(NothingServes, match="No slot serves an adapter"):
        replay_stage(settings_of(home, tiny_base, None))
    with pytest.raises(BaseNotFound, match="No base model"):
        manual.check(settings_of(home, tmp_path / "nothing", first), manual.REPLAY)
    settings = settings_of(home, tiny_base, first, engine="http://127.0.0.1:9")
    with pytest.raises(ConnectionError, match="No answer from the engine"):
        replay_stage(settings)
    for folder in (home / "adapters").iterdir():
        shutil.rmtree(folder)
    with pytest.raises(AdapterMissing, match="is missing"):
        replay_stage(settings_of(home, tiny_base, None))


def test_versions_altered_or_named_by_others_are_not_asked(
    recorded, tiny_base, first, tmp_path
) -> None:
    settings, champion = attributed(recorded, tiny_base, first, tmp_path)
    with Lake.open(
        settings.home
    ) as lake:  # as a harness that names its versions otherwise records it
        lake.commit(lambda connection: connection.execute("UPDATE turns SET digest = 'v2'"))
    report = replay_stage(settings)
    assert report.replayed > 0
    assert "served" not in report.versions

    other = make_adapter(tmp_path / "other", tiny_base, 77) / "adapter_model.safetensors"
    shutil.copy(other, settings.home / champion.path)
    with pytest.raises(SignatureRefused, match=champion.name):
        replay_stage(settings)


def test_what_a_server_calls_a_champion_is_proved_before_it_is_asked(
    recorded, tiny_base, first, tmp_path
) -> None:
    settings, champion = attributed(recorded, tiny_base, first, tmp_path)
    other = make_adapter(tmp_path / "other", tiny_base, 77)
    with (
        tiny_engine_server(tmp_path, {champion.name: other}, tiny_base) as url,
        pytest.raises(NotProved, match=champion.name),
    ):
        replay_stage(settings.model_copy(update={"engine": url}))
    assert not list(read_preferences(settings.home))


def test_an_engine_that_went_away_is_an_error_that_tells_what_was_kept(recorded) -> None:
    from traces.attribution.replay import ReplayReport

    report = ReplayReport(
        replayed=3, left_out={}, waiting=2, calls=96, budget=2000, samples_left_out={},
        verdicts={}, versions={}, pairs=0, stopped="No answer from the engine.",
    )  # fmt: skip
    with pytest.raises(ReplayStopped, match="3 turns replayed before are kept"):
        refuse_stopped(report)
    refuse_stopped(report.model_copy(update={"stopped": None}))


def test_the_flag_belongs_to_attribute_and_a_dry_run_says_what_it_would_do(home: Path) -> None:
    wrong = CliRunner().invoke(app, ["run", "ingest", "--replay", "--home", str(home)])
    assert wrong.exit_code == 2
    base = home.parent / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    words = ["run", "attribute", "--replay", "--dry-run", "--json", "--attribution.replay-budget=7"]
    said = CliRunner().invoke(app, [*words, "--home", str(home), "--base", str(base)])
    assert said.exit_code == 0
    steps = json.loads(said.stdout)
    assert [step["stage"] for step in steps] == ["attribute", "replay"]
    assert "at most 7 engine calls" in steps[1]["would"]
