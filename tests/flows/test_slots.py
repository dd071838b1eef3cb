"""`flows slots` as a person uses it, and the loop beside slots that nothing can judge yet.

Commands run in a process of their own on a real registry. The canary's adapter is a real one of
the tiny base; its gate report is made from made-up scores.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_calls import make_adapter
from registry_records import attempted
from tiny_loop import tiny_settings
from typer.testing import CliRunner

from flows import canaries, manual, stages
from flows.cli import app
from flows.registering import register_adapter
from promotion.config import GateConfig
from promotion.gate import GateIdentity, SuiteScores, judge, save_report
from promotion.slot_rows import SlotHeld
from promotion.suites.build import NoSuite, build_suites
from serving.slot_table import read_slot_file
from serving.slots import load_profile

FLOWS = Path(sys.executable).with_name("flows")


def flows(*words: object) -> subprocess.CompletedProcess[str]:
    command = [FLOWS, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})


def said(*words: object) -> list[dict]:
    done = flows(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    for word in ("flows: ", *words):
        assert word in line


@pytest.mark.parametrize(
    "command", [(), ("list",), ("add",), ("set",), ("canary",), ("resume",)], ids=" ".join
)
def test_every_command_has_a_help_text(command: tuple[str, ...]) -> None:
    done = flows("slots", *command, "--help")
    assert done.returncode == 0
    assert "Usage: flows slots" in done.stdout


def test_another_slot_is_a_row(home: Path) -> None:
    rows = said("slots", "list", "--home", home)
    assert [(r["slot"], r["role"], r["serves"]) for r in rows] == [
        ("L0", "router", "base"), ("L1", "expert", "base"), ("L2", "expert", "base"),
        ("L3", "expert", "base"),
    ]  # fmt: skip
    (row,) = said(
        "slots", "add", "L4", "--description", "law", "--system", "Be exact.", "--rule",
        "contract,!lawsuit", "--tier", "extra", "--offers-tools", "--home", home,
    )  # fmt: skip
    assert (row["slot"], row["tier"], row["rule"]) == ("L4", "extra", "contract,!lawsuit")
    entry = read_slot_file(home / "slots.json").get("L4")
    assert entry is not None
    assert (entry.description, entry.system, entry.offers_tools) == ("law", "Be exact.", True)

    (row,) = said("slots", "set", "L4", "--description", "law, contracts", "--home", home)
    assert (row["description"], row["tier"], row["generation"]) == ("law, contracts", "extra", 2)
    changed = read_slot_file(home / "slots.json").get("L4")
    assert changed == entry.model_copy(update={"description": "law, contracts", "generation": 2})
    assert "L4" in flows("slots", "list", "--home", home).stdout


def test_wrong_slots_are_one_clear_line(home: Path) -> None:
    new = ("--description", "x", "--system", "y", "--home", home)
    assert_refused(flows("slots", "add", "L2", *new), "'L2'", "flows slots set")
    assert_refused(flows("slots", "add", "4 L", *new), "'4 L'")
    assert_refused(flows("slots", "set", "L9", "--tier", "core", "--home", home), "'L0', 'L1'")
    assert_refused(flows("slots", "canary", "L9", "--end", "--home", home), "'L0', 'L1'")
    for words in (
        ("add", "L4"),
        ("set", "L2", "--home", home),
        ("set", "L2", "--tier", "gold", "--home", home),
        ("canary", "L2", "--home", home),
        ("canary", "L2", "L2@aaaaaaaaaaaa", "--home", home),
        ("canary", "L2", "L2@aaaaaaaaaaaa", "--percent", "101", "--home", home),
    ):
        assert flows("slots", *words).returncode == 2, words


# --- canaries


@pytest.fixture
def judged(home: Path, tiny_base: Path):
    """A home with an adapter of L2 that passed the gate against the base, and one unjudged."""
    from training.artifact import base_digest, import_adapter

    settings = tiny_settings(home, tiny_base, ())
    digests = []
    for seed in (1, 2):
        made = make_adapter(home.parent / f"made-{seed}", tiny_base, seed)
        digests.append(import_adapter(home, made, "L2", tiny_base).digest)
    with stages.open_registry(settings) as registry:
        for digest in digests:
            register_adapter(settings, registry, digest, {})
    judge_against_the_base(home, digests[0], base_digest(tiny_base), gains=60)
    return settings, [f"L2@{d.removeprefix('sha256:')[:12]}" for d in digests]


def judge_against_the_base(home: Path, digest: str, base: str, gains: int) -> None:
    """Keep a gate report of 60 items, of which some were won."""
    n = 60
    scores = SuiteScores(
        suite="code", slot="L2", item_ids=tuple(map(str, range(n))),
        clusters=tuple(map(str, range(n))), champion=(0.0,) * n,
        challenger=(1.0,) * gains + (0.0,) * (n - gains), identical=False, unchanged=False,
    )  # fmt: skip
    identity = GateIdentity(
        slot="L2", champion_digest=None, challenger_digest=digest, base_digest=base,
        suites_digest="s", primary_suite=scores.suite, seed=0, code_version="1",
    )  # fmt: skip
    save_report(home, attempted(home, judge(scores, [], GateConfig(), identity)))


def test_only_what_passed_the_gate_becomes_a_canary(judged) -> None:
    settings, (good, unjudged) = judged
    where = ("--home", settings.home, "--base", settings.base)
    assert_refused(
        flows("slots", "canary", "L2", unjudged, "--percent", 5, *where), unjudged, "flows run gate"
    )
    assert_refused(
        flows("slots", "canary", "L1", good, "--percent", 5, *where), "belongs to slot 'L2'"
    )
    done = flows("slots", "canary", "L2", good, "--percent", 5, *where)
    assert done.returncode == 0, done.stderr
    assert f"gives 5% of its traffic to '{good}'" in done.stdout
    entry = read_slot_file(settings.home / "slots.json").get("L2")
    assert entry is not None
    assert (entry.champion, entry.canary, entry.canary_percent) == (None, good, 5.0)
    serves = {r["adapter"]: r["serves"] for r in said("adapters", "list", *where[:2])}
    assert serves == {good: "canary", unjudged: None}

    assert flows("slots", "canary", "L2", "--percent", 0, "--home", settings.home).returncode == 0
    entry = read_slot_file(settings.home / "slots.json").get("L2")
    assert entry is not None
    assert (entry.canary, entry.canary_percent, entry.generation) == (None, 0.0, 2)


def test_a_person_may_begin_a_canary_of_what_did_not_pass(judged) -> None:
    from training.artifact import base_digest

    settings, (good, other) = judged
    where = ("--home", str(settings.home), "--base", str(settings.base))
    begin = ("slots", "canary", "L2", other, "--percent", "5")
    with stages.open_registry(settings) as registry:
        digest = registry.version(other).digest
    judge_against_the_base(settings.home, digest, base_digest(settings.base), gains=2)

    def here(*words: str):
        return CliRunner().invoke(app, [*words, *where])

    assert "only 'PASS' promotes" in str(here(*begin).exception)
    name = ("--override-by", "ann")
    assert here(*begin, *name).exit_code == 2
    word = (*name, "--reason", "a drill", "--expires", "2099-12-31")
    assert here("slots", "canary", "L2", "--end", *word).exit_code == 2
    passed = here("slots", "canary", "L2", good, "--percent", "5", *word)
    assert "nothing has to be overridden" in str(passed.exception)
    assert here(*begin, *word).exit_code == 0
    # The next step needs no word while that one lasts.
    assert here(*begin[:-1], "20").exit_code == 0
    with stages.open_registry(settings) as registry:
        state = registry.slot("L2")
        assert (state.canary_name, state.canary_percent) == (other, 20)
        given, began, grown = registry.events("L2")
    assert (given.kind, given.note["reason"]) == ("override", "a drill")
    assert began.note == grown.note == {"override": given.note["override"], "by": "ann"}


def test_a_slot_is_held_and_released_by_a_named_person(judged) -> None:
    settings, (good, _) = judged

    def here(*words: object):
        where = ["--home", settings.home]
        return CliRunner().invoke(app, ["slots", *map(str, [*words, *where])])

    for words in (("--hold",), ("--hold", "--by", "ann"), ("--release", "--reason", "done")):
        refused = here("canary", "L2", *words)
        assert isinstance(refused.exception, canaries.PersonUnnamed), words
    held = here("canary", "L2", "--hold", "--by", "ann", "--reason", "the week before the fair")
    assert held.exit_code == 0
    assert "Slot 'L2' is held by 'ann': the week before the fair" in held.stdout
    begin = ("canary", "L2", good, "--percent", 5, "--base", settings.base)
    assert isinstance(here(*begin).exception, SlotHeld)
    assert here("canary", "L2", "--hold", "--status").exit_code == 2

    assert here("canary", "L2", "--release", "--by", "bob", "--reason", "it is over").exit_code == 0
    assert here(*begin).exit_code == 0
    rows = json.loads(here("canary", "L2", "--status", "--json").stdout)
    assert {(r["version"], r["beside"], r["percent"], r["status"]) for r in rows} == {
        (good, "base", 5.0, "insufficient")
    }
    assert [(r["guard"], r["pairs"], r["evidence"]) for r in rows] == [
        (guard, 0, 1.0) for guard in ("failures", "tool_calls", "refusals", "latency")
    ]
    said = here("resume", "L2", "--by", "ann", "--reason", "new teacher")
    assert "goes on with slot 'L2' by the word of 'ann': new teacher" in said.stdout


def test_a_word_that_nothing_would_keep_is_refused(judged) -> None:
    settings, (good, _) = judged
    begin = (good, "--percent", "5", "--base", str(settings.base))
    by, why = ("--by", "ann"), ("--reason", "a drill")
    where = ("--home", str(settings.home))
    for words in (
        ("--end", *by, *why), ("--percent", "0", *why), ("--status", *by, *why),
        (*begin, *by, *why), (*begin, *why), (*begin, "--override-by", ""),
        (*begin, *by, *why, "--override-by", "ann", "--expires", "2099-12-31"),
    ):  # fmt: skip
        done = CliRunner().invoke(app, ["slots", "canary", "L2", *words, *where])
        assert done.exit_code == 2, words
    with stages.open_registry(settings) as registry:
        assert registry.events("L2") == ()


def test_an_altered_adapter_becomes_no_canary(judged) -> None:
    settings, (good, _) = judged
    folder = next((settings.home / "adapters").glob(good.split("@")[1] + "*"))
    weights = folder / "adapter_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    where = ("--home", settings.home, "--base", settings.base)
    assert_refused(flows("slots", "canary", "L2", good, "--percent", 5, *where), "was altered")
    with stages.open_registry(settings) as registry:
        assert registry.slot("L2").canary is None


# --- the loop beside slots without a suite


def add_law(settings) -> None:
    from flows import slots

    slots.add(settings, "L4", {"description": "law", "system": "Be exact.", "tier": "extra"})


def test_the_loop_knows_the_slot_and_leaves_it_alone(home: Path, tiny_base: Path) -> None:
    settings = tiny_settings(home, tiny_base, ())
    assert stages.profile_in_force(settings) == load_profile(settings.profile)
    add_law(settings)
    assert stages.profile_in_force(settings).labels == ("L0", "L1", "L2", "L3", "L4")
    assert stages.rank_slots(settings, {"L4": 60, "L2": 50, "base": 55}) == ["L2"]
    stages.prepare_registry(settings)
    entry = read_slot_file(home / "slots.json").get("L4")
    assert entry is not None
    assert entry.description == "law"


@pytest.mark.parametrize("stage", ["cycle", "curate", "train", "gate"])
def test_a_stage_that_could_not_judge_says_so_at_once(
    home: Path, tiny_base: Path, spool: Path, stage: str
) -> None:
    settings = tiny_settings(home, tiny_base, (spool,), slot="L4")
    add_law(settings)
    with pytest.raises(NoSuite, match="L0, L1, L2, L3"):
        manual.check(settings, stage)


def test_other_slots_suites_ask_for_the_new_label_too(home: Path, tiny_base: Path) -> None:
    settings = tiny_settings(home, tiny_base, ())
    add_law(settings)
    profile = stages.profile_in_force(settings)
    suites = {suite.name: suite for suite in build_suites(profile, "L0", settings.seed)}
    assert suites["route"].items
    assert all("L4" in item.choices for item in suites["route"].items)
    assert "L4" not in {suite.slot for suite in suites.values()}
