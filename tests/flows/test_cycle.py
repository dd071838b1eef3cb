"""The whole loop under a real Prefect server, on a tiny random base model that really learns.

Faked: only the server that the traffic came from (`tiny_loop.ScriptedEngine`). What is
proved: a better adapter is promoted and nothing else moves; without true outcomes nothing
is; a second run stops at once; a run killed in any stage ends, run again, in the same state.
"""

import gzip
import json
import multiprocessing
import signal
from typing import Any

import pytest
from cycle_kills import REACHED, run_until
from tiny_loop import tiny_settings

from benchmarks.loop import read_spool
from flows import manual
from flows.config import Settings
from flows.gate_checks import GateInvalid
from promotion.registry import Registry
from serving.slots import load_profile
from traces.storage.lake import Lake

pytestmark = [pytest.mark.usefixtures("prefect"), pytest.mark.timeout(900)]

TABLES = ("hops", "turns", "feedback", "outcomes", "blame", "quarantine")


@pytest.fixture(scope="session")
def finished(prefect, tiny_base, spool, tmp_path_factory) -> tuple[Settings, dict[str, Any]]:
    """A home after one uninterrupted cycle, and the cycle's result."""
    settings = tiny_settings(tmp_path_factory.mktemp("whole") / "home", tiny_base, (spool,))
    return settings, manual.run(settings, "cycle").value


def end_state(settings: Settings) -> dict[str, Any]:
    """Return everything that two equal loops must agree on."""
    home = settings.home
    with Lake.open(home, read_only=True) as lake:
        rows = {
            table: lake.connection.execute(
                f"SELECT count(*), sum(hash(CAST(t AS VARCHAR))) FROM {table} t"
            ).fetchone()
            for table in TABLES
        }
    with Registry.open(home) as registry:
        slots = [state.model_dump() for state in registry.slots()]
        events = [(event.slot, event.kind, event.report_key) for event in registry.events()]
    names = {
        folder: sorted(p.name for p in (home / folder).glob("[!.]*"))
        for folder in ("datasets", "adapters", "gates", "evals", "cycles")
    }
    (result,) = (p for p in (home / "cycles").glob("*.json") if "settings" not in p.name)
    verdict = json.loads(result.read_text()) | {"cycle_s": None, "ended_at": None}
    return {"rows": rows, "slots": slots, "events": events, "names": names, "verdict": verdict}


def test_a_better_adapter_is_promoted(finished):
    settings, result = finished
    assert (result["verdict"], result["promoted"], result["slot"]) == ("PASS", True, "L0")
    assert result["heldout_after"] > result["heldout_before"]
    with Registry.open(settings.home) as registry:
        champions = {state.slot: state.champion for state in registry.slots()}
    assert [slot for slot, champion in champions.items() if champion] == ["L0"]


def test_a_second_run_ingests_nothing_and_stops(finished, capsys):
    settings, result = finished
    before = end_state(settings)
    again = manual.run(settings, "cycle")
    told = capsys.readouterr().out
    assert "NOTHING NEW" in told
    assert "nothing new: all of it was ingested before" in told
    assert (again.value, again.gate_said_no) == (result, False)
    assert end_state(settings) == before


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_shuffled_outcomes_promote_nothing(seed, tiny_base, spool, tmp_path):
    shuffled = tmp_path / "shuffled"
    shuffled.mkdir()
    for name, text in read_spool(sorted(spool.glob("*.gz")), shuffle_seed=seed).items():
        (shuffled / name).write_bytes(gzip.compress(text.encode(), mtime=0))
    settings = tiny_settings(tmp_path / "home", tiny_base, (shuffled,), seed=seed)
    outcome = manual.run(settings, "cycle")
    assert outcome.value["promoted"] is False
    assert outcome.gate_said_no
    with Registry.open(settings.home) as registry:
        assert all(state.champion is None for state in registry.slots())


def test_a_cycle_without_evidence_trains_nothing(tiny_base, spool, tmp_path):
    settings = tiny_settings(tmp_path / "home", tiny_base, (spool,), policy={"min_blamed": 100_000})
    outcome = manual.run(settings, "cycle")
    assert outcome.value["slot"] is None
    assert not outcome.gate_said_no
    assert not (settings.home / "datasets").exists()


@pytest.mark.parametrize(
    "gate", [{"margins": {"format-L9": 0.06}}, {"samples": 3}], ids=["margin", "samples"]
)
def test_rules_that_no_gate_could_go_by_are_refused_before_anything_is_done(
    gate, tiny_base, spool, tmp_path
):
    settings = tiny_settings(tmp_path / "home", tiny_base, (spool,), gate=gate)
    with pytest.raises(GateInvalid):
        manual.run(settings, "cycle")
    assert not (settings.home / "lake").exists()
    assert not (settings.home / "datasets").exists()


@pytest.mark.parametrize(
    "stages",
    [("train", "promote"), pytest.param(tuple(REACHED), marks=pytest.mark.slow)],
    ids=["some", "every"],
)
def test_killed_in_any_stage_it_ends_the_same(stages, finished, tiny_base, spool, tmp_path):
    settings, _ = finished
    killed = settings.model_copy(update={"home": tmp_path / "home"})
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trl", "prefect", "great_expectations", "flows.manual"])
    survived = []
    for stage in stages:
        process = context.Process(target=run_until, args=(killed, stage))
        process.start()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            survived.append(stage)
    assert survived == []
    manual.run(killed, "cycle")
    assert end_state(killed) == end_state(settings)
    assert list(killed.home.rglob("*.tmp")) == []


def test_the_profile_names_the_slots_that_serve(finished):
    settings, _ = finished
    serving = json.loads((settings.home / "slots.json").read_text())["slots"]
    assert tuple(entry["slot"] for entry in serving) == load_profile().labels
