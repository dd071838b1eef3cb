"""The router head from traces to service: trained, judged on held-out turns, promoted, undone.

A scripted server made the traces: it routes badly on purpose, and verifiers say which slot
was right. Lake, base model (tiny, random), training, gate and registry are the real parts.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_loop import tiny_settings

from curation.routes import Routes, harvest_routes
from flows import router, stages
from promotion.gate import load_report, save_report
from promotion.registry import PromotionRefused
from promotion.signing import SignatureRefused
from promotion.spending import alpha_of
from promotion.standing import is_of_attempt
from promotion.tables import Database, gate_attempts_table
from serving.head import HEAD_SLOT, RouterHead, head_folder
from serving.slot_table import effective_profile, read_slot_file
from serving.slots import load_profile
from training.artifact import base_digest
from training.router_head import TooFewRoutes, hidden_states, train_head

pytestmark = pytest.mark.timeout(300)

FLOWS = Path(sys.executable).with_name("flows")
HOLDOUT = {"holdout_percent": 50}


@pytest.fixture(scope="module")
def lake(tiny_base, spool, tmp_path_factory):
    """Settings of a home with an ingested and attributed lake."""
    home = tmp_path_factory.mktemp("router") / "home"
    settings = tiny_settings(home, tiny_base, (spool,), curation=HOLDOUT)
    stages.ingest_stage(settings)
    stages.attribute_stage(settings)
    return settings


@pytest.fixture
def settings(lake, tmp_path):
    """A copy of that home."""
    import shutil

    shutil.copytree(lake.home, tmp_path / "home")
    return lake.model_copy(update={"home": tmp_path / "home"})


def routes_of(settings):
    from traces.read import read_turns

    return harvest_routes(
        read_turns(settings.home), load_profile(settings.profile), settings.curation
    )


def flows(*words):
    return subprocess.run(
        [FLOWS, *map(str, words)],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def entry(settings):
    return read_slot_file(settings.home / "slots.json").get(HEAD_SLOT)


def test_a_head_that_routes_better_than_the_recorded_router_is_put_in_force(settings):
    held = router.gate_items(routes_of(settings))
    made = router.train_stage(settings)
    majority = Counter(row.slot for row in held).most_common(1)[0][1] / len(held)
    recorded = sum(row.served == row.slot for row in held) / len(held)
    assert made.metrics["accuracy"] > max(majority, recorded) + 0.2
    assert (made.verdict, made.in_force) == ("PASS", True)
    in_table = entry(settings)
    assert (in_table.role, in_table.champion) == ("head", made.head)
    loaded = RouterHead.load(settings.home / in_table.path, in_table.digest)
    assert loaded.name == made.head
    table = read_slot_file(settings.home / "slots.json")
    profile = load_profile(settings.profile)
    assert effective_profile(profile, table).labels == profile.labels


def test_doing_it_again_changes_nothing(settings):
    first = router.train_stage(settings)
    before = entry(settings)
    again = router.train_stage(settings)
    assert (again.digest, again.report, again.in_force) == (first.digest, first.report, True)
    assert entry(settings) == before
    assert len(list((settings.home / "heads").iterdir())) == 1


def test_a_damaged_report_of_something_else_stops_no_head(settings):
    (settings.home / "gates").mkdir()
    (settings.home / "gates" / ("0" * 64 + ".json")).write_text("{")
    first = router.train_stage(settings)
    again = router.train_stage(settings)
    assert (first.verdict, again.report, again.in_force) == ("PASS", first.report, True)
    assert [row["gate"] for row in router.show_stage(settings)] == ["PASS"]


def shuffled(routes, seed=0):
    slots = [row.slot for row in routes.rows]
    random.Random(seed).shuffle(slots)
    rows = [replace(row, slot=slot) for row, slot in zip(routes.rows, slots, strict=True)]
    return Routes(tuple(rows), routes.turns, routes.dropped)


def test_a_head_trained_on_shuffled_labels_is_kept_out(settings):
    good = router.train_stage(settings)
    routes, base = routes_of(settings), base_digest(settings.base)
    items = router.gate_items(routes)

    async def make():
        engine, _ = stages.open_engine(settings, base)
        try:
            bad = await train_head(
                settings.home, shuffled(routes), engine.embed, base, settings.head, 0
            )
            return bad, await hidden_states(items, engine.embed)
        finally:
            await engine.close()

    bad, states = asyncio.run(make())
    champion = RouterHead.load(head_folder(settings.home, good.digest), good.digest)
    report = router.judge_heads(settings, bad.head, champion, items, states, base)
    assert report.verdict == "FAIL"
    assert (report.champion_digest, report.challenger_digest) == (good.digest, bad.head.digest)
    router.register_head(settings, bad, routes, base)
    with pytest.raises(PromotionRefused, match="only 'PASS' promotes"):
        router.promote_stage(settings, report)
    assert entry(settings).champion == good.head


def test_a_head_is_judged_again_by_other_code_only_if_its_report_is_lost(settings):
    first = router.train_stage(settings)
    report = load_report(settings.home, first.report)
    head = RouterHead.load(head_folder(settings.home, first.digest), first.digest)
    items, base = router.gate_items(routes_of(settings)), base_digest(settings.base)
    # As if other code had judged it: the same question, another report.
    other = report.model_copy(update={"code_version": "another"})
    database = Database(settings.home)
    with database.writing() as connection:
        connection.execute(gate_attempts_table.update().values(report_key=other.key))
    save_report(settings.home, other)
    (settings.home / "gates" / f"{report.key}.json").unlink()

    async def states():
        engine, _ = stages.open_engine(settings, base)
        try:
            return await hidden_states(items, engine.embed)
        finally:
            await engine.close()

    states_N_D = asyncio.run(states())
    assert router.judge_heads(settings, head, None, items, states_N_D, base) == other
    (settings.home / "gates" / f"{other.key}.json").unlink()
    again = router.judge_heads(settings, head, None, items, states_N_D, base)
    assert (again.attempt, again.code_version) == (2, report.code_version)
    with database.reading() as connection:
        assert is_of_attempt(connection, again.key)
        assert is_of_attempt(connection, other.key)
    database.close()
    assert router.judge_heads(settings, head, None, items, states_N_D, base).key == again.key


def test_each_night_is_the_next_attempt_though_its_held_out_turns_are_a_few_more(settings):
    routes, base = routes_of(settings), base_digest(settings.base)
    made, states_N_D = asyncio.run(router.train_and_embed(settings, routes, base, None))
    items = router.gate_items(routes)
    counted = []
    for n in (len(items) - 1, len(items), len(items)):
        report = router.judge_heads(settings, made.head, None, items[:n], states_N_D[:n], base)
        counted.append((report.sealed_set, report.attempt, report.alpha_k))
    levels = [alpha_of(k, settings.gate.alpha) for k in (1, 2)]
    assert counted[:2] == [("router/routing", 1, levels[0]), ("router/routing", 2, levels[1])]
    assert counted[2] == counted[1]  # the same turns are the same question


def test_a_head_whose_folder_was_altered_is_not_promoted(settings):
    routes, base = routes_of(settings), base_digest(settings.base)
    made, states = asyncio.run(router.train_and_embed(settings, routes, base, None))
    router.declare_slot(settings)
    router.register_head(settings, made, routes, base)
    items = router.gate_items(routes)
    report = router.judge_heads(settings, made.head, None, items, states, base)
    assert report.verdict == "PASS"
    card = head_folder(settings.home, made.head.digest) / "head.json"
    card.write_text(card.read_text().replace('"temperature": ', '"temperature": 1'))
    with pytest.raises(SignatureRefused, match=r"'head\.json' was altered"):
        router.promote_stage(settings, report)
    with stages.open_registry(settings) as registry:
        assert registry.slot(HEAD_SLOT).champion is None


def test_the_gate_of_adapters_is_not_confused_by_a_head(settings):
    router.train_stage(settings)
    stages.prepare_registry(settings)
    with stages.open_registry(settings) as registry:
        assert registry.slot(HEAD_SLOT).champion is not None
        assert registry.verify_chain() > 0


def test_the_commands_train_show_and_roll_back(settings, tmp_path):
    config = tmp_path / "router.toml"
    config.write_text(
        f"home = '{settings.home}'\nbase = '{settings.base}'\n[curation]\nholdout_percent = 50\n"
    )
    assert "No head yet" in flows("router", "show", "--config", config).stdout
    trained = flows("router", "train", "--config", config, "--json")
    assert trained.returncode == 0, trained.stderr
    made = json.loads(trained.stdout)
    assert made["in_force"]
    (row,) = json.loads(flows("router", "show", "--config", config, "--json").stdout)
    assert (row["head"], row["serves"], row["gate"]) == (made["head"], "in force", "PASS")
    assert row["accuracy"] == made["metrics"]["accuracy"] > row["before"]
    assert made["head"] in flows("router", "show", "--config", config).stdout
    back = flows("router", "rollback", "--config", config, "--json")
    assert back.returncode == 0, back.stderr
    assert json.loads(back.stdout)["champion"] is None
    assert entry(settings).champion is None


def test_too_few_held_out_turns_leave_routing_as_it_is_with_status_3(settings, tmp_path):
    config = tmp_path / "router.toml"
    config.write_text(
        f"home = '{settings.home}'\nbase = '{settings.base}'\n[curation]\nholdout_percent = 50\n"
        "[gate]\nmin_items = 4000\n"
    )
    done = flows("router", "train", "--config", config)
    assert done.returncode == 3, done.stderr
    assert "INCONCLUSIVE" in done.stdout
    assert "Nothing was changed" in done.stdout
    table = settings.home / "slots.json"
    assert not table.exists() or entry(settings).champion is None


def test_known_problems_are_one_line_with_status_1(settings, tmp_path):
    for words, word in (
        (["train", "--home", tmp_path / "none", "--base", settings.base], "flows run ingest"),
        (["train", "--home", settings.home, "--base", tmp_path], "No base model"),
        (["rollback", "--home", settings.home], "no previous version"),
    ):
        done = flows("router", *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert len(done.stderr.splitlines()) == 1
        assert word in done.stderr


def test_a_lake_that_tells_too_little_is_refused(settings):
    few = settings.model_copy(update={"head": settings.head.model_copy(update={"min_rows": 9999})})
    with pytest.raises(TooFewRoutes, match="9999"):
        router.train_stage(few)
    assert not (few.home / "heads").exists()


def test_a_profile_with_a_slot_of_that_name_is_refused(settings, tmp_path):
    text = settings.profile.read_text().replace('"L3"', '"router"')
    (tmp_path / "profile.toml").write_text(text)
    with pytest.raises(router.RouterSlotTaken, match="another name"):
        router.train_stage(settings.model_copy(update={"profile": tmp_path / "profile.toml"}))
