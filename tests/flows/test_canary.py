"""Canaries from traffic to the registry and back, over a real gateway, its spool and the lake.

Proved: a version that does harm in traffic loses it, one that does not goes on, one that is held
stays; serving follows within its next look; and nothing that a canary or a rolled-back version
answered becomes a training row. The stub engine's answers are made up, and so are the tests that
clients report. Adapters are real ones of a tiny base.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from engine_calls import make_adapter
from mol_server import Running, mol_server
from registry_records import attempted
from stub_engine import Answer, Asked, StubEngine, stub_engine
from tiny_loop import tiny_settings
from typer.testing import CliRunner

from curation import reasons
from curation.manifest import read_examples
from flows import canaries, manual, slots, stages
from flows.canaries import PersonUnnamed
from flows.cli import app
from flows.config import Settings
from flows.registering import register
from promotion.canary.rollout import RolloutReport
from promotion.config import GateConfig
from promotion.gate import GateIdentity, judge, save_report
from promotion.promote import bootstrap, export_slots
from promotion.slices import SuiteScores
from promotion.slot_rows import VersionWithdrawn
from promotion.state import RegisteredVersion
from traces.read import read_turns

QUIET_S = 0.3
LIMIT_S = 30.0
CANARY = {
    "steps": [50],
    "min_pairs": 12,
    "quiet_s": QUIET_S,
    "auto_advance": True,
    # Every call of the stub takes about as long; a busy machine decides which is the slower one.
    "latency_tolerance": 0.9,
}


@pytest.fixture
def trial(tmp_path: Path, tiny_base: Path) -> tuple[Settings, str, str]:
    """A slot with a champion and a canary at 50 %; the settings and both names."""
    from training.artifact import adapter_folder, base_digest, import_adapter

    settings = tiny_settings(
        tmp_path / ".mol", tiny_base, (), canary=CANARY, curation={"min_rows": 4}
    )
    base, versions = base_digest(tiny_base), []
    with stages.open_registry(settings) as registry:
        for seed in (1, 2):
            made = make_adapter(tmp_path / f"made-{seed}", tiny_base, seed)
            digest = import_adapter(settings.home, made, "L2", tiny_base).digest
            path = str(adapter_folder(Path(), digest))
            version = RegisteredVersion(
                slot="L2", digest=digest, base_digest=base, path=path, created_at=datetime.now(UTC)
            )
            register(settings, registry, version)
            versions.append(version)
        bootstrap(settings.home, registry, "L2", versions[0].digest)
        export_slots(settings.home, registry)
    n = 60
    scores = SuiteScores(
        suite="code", slot="L2", item_ids=tuple(map(str, range(n))),
        clusters=tuple(map(str, range(n))), champion=(0.0,) * n, challenger=(1.0,) * n,
        identical=False, unchanged=False,
    )  # fmt: skip
    identity = GateIdentity(
        slot="L2", champion_digest=versions[0].digest, challenger_digest=versions[1].digest,
        base_digest=base, suites_digest="s", primary_suite="code", seed=0, code_version="1",
    )  # fmt: skip
    report = attempted(settings.home, judge(scores, [], GateConfig(), identity))
    save_report(settings.home, report)
    slots.begin_canary(settings, "L2", versions[1].name, 50)
    return settings, versions[0].name, versions[1].name


def answering(good: Callable[[str], bool]) -> Callable[[Asked], Answer]:
    """Return a stub's reply: L2 for every route, and an answer that is right or wrong."""

    def reply(asked: Asked) -> Answer:
        if "choice" in str(asked.body.get("structured_outputs")):
            return Answer(text="L2")
        return Answer(text="right" if good(asked.model) else "wrong")

    return reply


def talk(mol: Running, mark: str, count: int) -> None:
    """Take so many conversations of one turn, each reported as its answer says."""
    with httpx.Client(base_url=mol.url, timeout=LIMIT_S) as client:
        for n in range(count):
            body = {"model": "mol", "messages": [{"role": "user", "content": f"Do {mark} {n}."}]}
            headers = {"X-Session-Id": f"{mark}-{n}"}
            answer = client.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            said = answer.json()
            passed = said["choices"][0]["message"]["content"] == "right"
            word = {
                "response_id": said["id"],
                "outcome": {"name": "python_tests", "passed": passed},
            }
            assert client.post("/v1/feedback", json=word).status_code < 300


def look(settings: Settings, mol: Running, mark: str, count: int = 60) -> RolloutReport:
    """Have some traffic, wait until it is over, and look at the canary of L2."""
    talk(mol, mark, count)
    time.sleep(QUIET_S)
    talk(mol, f"{mark}-later", 1)
    mol.settle()
    stages.ingest_stage(settings)
    stages.attribute_stage(settings)
    found = canaries.canary_stage(settings)
    (ours,) = (each for each in found if each.slot == "L2")
    assert {each.status for each in found if each is not ours} == {"none"}
    return ours


def serves(mol: Running, stub: StubEngine, name: str) -> None:
    """Wait until every conversation is answered by one version."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        before = len(stub.chats)
        talk(mol, f"{name}-{before}", 12)
        asked = {chat.model for chat in stub.chats[before:] if chat.model.startswith("L2")}
        if asked == {name}:
            return
        assert time.monotonic() < deadline, asked


def test_a_canary_that_does_harm_loses_its_traffic_and_teaches_nothing(trial) -> None:
    settings, champion, canary = trial
    with stub_engine() as stub, mol_server(settings.home, stub.url) as mol:
        stub.reply = answering(lambda model: model != canary)
        found = look(settings, mol, "harm")
        assert (found.status, found.changed) == ("rolled_back", True)
        assert found.version == canary
        serves(mol, stub, champion)
    assert stages.withdrawn_versions(settings) == {canary.split("@")[1]}

    answered = {
        bundle.turn.turn_id: f"L2@{bundle.turn.digest}" for bundle in read_turns(settings.home)
    }
    assert {champion, canary} <= set(answered.values())
    manifest = stages.curate_stage(settings, "L2")
    taught = {answered[row.turn_id] for row in read_examples(settings.home, manifest, None)}
    assert taught == {champion}
    assert manifest.stages[0].dropped[reasons.CANARY] >= 10


def test_a_good_canary_goes_on_and_a_held_one_stays(
    trial, prefect: None, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, champion, canary = trial
    with pytest.raises(PersonUnnamed, match="--by NAME --reason TEXT"):
        canaries.hold(settings, "L2", "ann", " ", held=True)
    canaries.hold(settings, "L2", "ann", "the week before the fair", held=True)
    with stub_engine() as stub, mol_server(settings.home, stub.url) as mol:
        stub.reply = answering(lambda model: True)
        held = look(settings, mol, "good")
        assert (held.status, held.changed) == ("held", False)
        assert held.hold is not None
        assert held.hold.reason == "the week before the fair"

        canaries.hold(settings, "L2", "ann", "it is over", held=False)
        outcome = manual.run(settings.model_copy(update={"slot": "L2"}), "canary")
        (grown,) = outcome.value
        assert grown["status"] == "promoted"
        told = capsys.readouterr().out
        assert f"CANARY    {canary} at 50% beside {champion}: promoted" in told
        serves(mol, stub, canary)

        # As champion it begins to fail; the guard sends it back, and its turns teach nothing.
        stub.reply = answering(lambda model: model != canary)
        back = look(settings, mol, "worse")
        assert (back.status, back.beside) == ("rolled_back", champion)
        assert back.forecast is not None
        assert back.forecast.forecast == 1.0
        serves(mol, stub, champion)
    answered = {bundle.turn.turn_id: bundle.turn.digest for bundle in read_turns(settings.home)}
    manifest = stages.curate_stage(settings, "L2")
    rows = read_examples(settings.home, manifest, None)
    assert {answered[row.turn_id] for row in rows} == {champion.split("@")[1]}

    # Nor does a dataset from before its champion was rolled back, which is brought back by a word.
    where = ("--home", str(settings.home))
    refused = CliRunner().invoke(app, ["rollback", "L2", *where])
    assert isinstance(refused.exception, VersionWithdrawn)
    assert "--by NAME --reason TEXT" in str(refused.exception)
    unnamed = CliRunner().invoke(app, ["rollback", "L2", "--by", "ann", *where])
    assert isinstance(unnamed.exception, PersonUnnamed)
    word = ("--by", "ann", "--reason", "the tests were wrong")
    done = CliRunner().invoke(app, ["rollback", "L2", *word, *where])
    assert done.exit_code == 0
    assert "'flows serve' follows" in done.output
    with stages.open_registry(settings) as registry:
        assert registry.slot("L2").champion_name == canary
        said = registry.events("L2")[-1].note
        assert said == {"by": "ann", "reason": "the tests were wrong"}
        registry.verify_chain()
    with pytest.raises(stages.DatasetStale, match="flows run curate --slot L2"):
        stages.train_stage(settings, manifest)
    assert manifest.stages[0].dropped[reasons.ROLLED_BACK] >= 20


def test_what_a_refusal_asks_for_brings_a_withdrawn_version_back(trial) -> None:
    """The words of the refusal, followed on the command line, end in a canary."""
    settings, champion, canary = trial
    with stages.open_registry(settings) as registry:
        digest = registry.version(canary).digest
        note = {"by": "canary", "rolled_back": digest, "reason": "it did harm."}
        registry.end_canary("L2", note=note)

    def begin(*words: str):
        where = ("--home", str(settings.home), "--base", str(settings.base))
        command = ["slots", "canary", "L2", canary, "--percent", "5", *words, *where]
        return CliRunner().invoke(app, command)

    refused = begin()
    assert isinstance(refused.exception, VersionWithdrawn)
    assert "--override-by NAME --reason TEXT --expires DATE" in str(refused.exception)
    word = ("--override-by", "ann", "--reason", "an attack", "--expires", "2099-12-31")
    assert begin(*word).exit_code == 0
    with stages.open_registry(settings) as registry:
        state = registry.slot("L2")
        assert (state.champion_name, state.canary_name) == (champion, canary)
        assert registry.events("L2")[-1].note["by"] == "ann"
        registry.verify_chain()


def test_a_canary_that_begins_again_says_what_was_known_of_it(trial) -> None:
    settings, _, canary = trial

    def said(*words: str) -> str:
        where = ("--home", str(settings.home), "--base", str(settings.base))
        done = CliRunner().invoke(app, ["slots", "canary", "L2", *words, *where])
        assert done.exit_code == 0, (done.output, done.exception)
        return " ".join(done.output.split())

    assert "on trial before" not in said("--end")
    again = said(canary, "--percent", "20")
    assert "It was on trial before, since " in again
    assert "that evidence goes on: failures +0.0 points over 0 pairs, evidence 1 to 1." in again
