"""The gate as a stage, on a tiny base that really answers: attempts, sets, samples, what is kept.

Adapters are random, so that nothing passes but a question is answered in a second. Engine,
suites, registry, signatures and proofs are the real ones.
"""

import json
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from engine_calls import make_adapter
from tiny_loop import tiny_settings

from flows import gating, stages, story
from flows.config import Settings
from flows.gate_checks import GateInvalid, check_rules
from flows.registering import register_adapter
from promotion.gate import GateReport, list_reports, save_report
from promotion.promote import bootstrap
from promotion.signing import SignatureRefused
from promotion.slot_rows import PromotionRefused
from promotion.spending import MOST_ATTEMPTS, Attempt, SetSpent, alpha_of, reserve
from promotion.suites.build import build_suites, draw
from promotion.suites.sets import divide
from promotion.suites.suite import Suite
from promotion.tables import Database, gate_attempts_table
from serving.slots import DEFAULT_PROFILE
from training.artifact import adapter_folder, import_adapter

SIZES = {
    "primary": 16, "guard": 2, "bystander": 1, "safety": 0, "format": 0, "living": 0
}  # fmt: skip
RULES: dict[str, Any] = {"min_items": 2, "latency_items": 2, "drift_items": 2}


@pytest.fixture(scope="module")
def made(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of three adapters; the first one serves in every test."""
    folder = tmp_path_factory.mktemp("made")
    return [make_adapter(folder / str(seed), tiny_base, seed) for seed in (1, 2, 3)]


@pytest.fixture
def asked(made: list[Path], tiny_base: Path, home: Path) -> tuple[Settings, list[str]]:
    """Settings of a home whose L1 serves one of three versions, and their digests."""
    settings = settings_of(home, tiny_base)
    stages.prepare_registry(settings)
    digests = [import_adapter(home, path, "L1", tiny_base).digest for path in made]
    with stages.open_registry(settings) as registry:
        for digest in digests:
            register_adapter(settings, registry, digest, {})
        bootstrap(home, registry, "L1", digests[0])
    return settings, digests


def settings_of(home: Path, base: Path, **gate: Any) -> Settings:
    """Settings with small suites and answers of a few tokens."""
    profile = home.with_name("profile.toml")
    text = re.sub(r"(max_\w+_tokens) = \d+", r"\1 = 4", DEFAULT_PROFILE.read_text())
    profile.write_text(text)
    settings = tiny_settings(home, base, (), suites=SIZES, profile=profile)
    return settings.model_copy(update={"gate": settings.gate.model_validate(RULES | gate)})


def attempts(home: Path) -> list[tuple[Any, ...]]:
    database = Database(home)
    columns = gate_attempts_table.c
    query = sa.select(columns.sealed_set, columns.attempt, columns.challenger, columns.report_key)
    with database.reading() as connection:
        rows = connection.execute(query.order_by(columns.sealed_set, columns.attempt)).all()
    database.close()
    return [tuple(row) for row in rows]


def ask(settings: Settings, challenger: str) -> GateReport:
    return gating.gate_stage(settings, "L1", challenger)


def test_a_question_is_an_attempt_and_asked_again_has_its_answer(asked) -> None:
    settings, (champion, one, _) = asked
    report = ask(settings, one)
    assert (report.sealed_set, report.attempt) == ("L1/tools", 1)
    assert report.alpha_k == alpha_of(1, settings.gate.alpha)
    assert (report.champion_digest, report.challenger_digest) == (champion, one)
    assert (report.primary_suite, report.primary.suite) == ("tools", "tools")
    assert report.latency is not None
    assert report.latency.n == 2
    assert report.drift is not None
    assert report.drift.challenger is not None
    assert report.drift.champion is not None
    assert report.drift.challenger.kl > 0
    assert attempts(settings.home) == [("L1/tools", 1, one, report.key)]

    assert ask(settings, one) == report
    assert len(attempts(settings.home)) == 1
    assert list_reports(settings.home) == (report,)


def test_other_challengers_and_other_rules_spend_more(asked) -> None:
    settings, (_, one, two) = asked
    ask(settings, one)
    second = ask(settings, two)
    assert (second.attempt, second.alpha_k) == (2, alpha_of(2, settings.gate.alpha))
    third = ask(settings_of(settings.home, settings.base, margins={"skill": 0.5}), one)
    assert third.attempt == 3


def test_a_killed_gate_goes_on_as_the_attempt_that_it_was(asked) -> None:
    settings, (_, one, two) = asked
    database = Database(settings.home)
    base = "sha256:" + "0" * 64
    started = gating._settle(settings, database, "L1", one, base)
    assert isinstance(started, gating._Asked)
    again = gating._settle(settings, database, "L1", one, base)
    assert isinstance(again, gating._Asked)
    database.close()
    assert again.identity == started.identity
    assert attempts(settings.home) == [("L1/tools", 1, one, None)]
    assert ask(settings, two).attempt == 2


def test_of_two_runs_of_one_attempt_the_first_report_stands(asked) -> None:
    settings, (_, one, _) = asked
    report = ask(settings, one)
    other = report.model_copy(update={"verdict": "PASS"})
    database = Database(settings.home)
    attempt = Attempt(sealed_set="L1/tools", attempt=1, alpha=report.alpha_k, report_key=None)
    assert gating._keep(settings, database, attempt, other) == report
    database.close()
    assert list_reports(settings.home) == (report,)
    assert attempts(settings.home) == [("L1/tools", 1, one, report.key)]


def test_a_report_that_was_deleted_is_not_drawn_again_for_nothing(asked) -> None:
    settings, (_, one, _) = asked
    first = ask(settings, one)
    (settings.home / "gates" / f"{first.key}.json").unlink()
    second = ask(settings, one)
    assert (second.attempt, second.alpha_k) == (2, alpha_of(2, settings.gate.alpha))
    assert ask(settings, one) == second
    assert [row[3] for row in attempts(settings.home)] == [first.key, second.key]


def test_a_run_that_another_home_was_faster_than_keeps_nothing(asked) -> None:
    settings, (_, one, _) = asked
    report = ask(settings, one)
    (settings.home / "gates" / f"{report.key}.json").unlink()
    other = report.model_copy(update={"verdict": "PASS"})
    attempt = Attempt(sealed_set="L1/tools", attempt=1, alpha=report.alpha_k, report_key=None)
    database = Database(settings.home)
    with pytest.raises(gating.AnsweredElsewhere, match=report.key[:12]):
        gating._keep(settings, database, attempt, other)
    database.close()
    assert list_reports(settings.home) == ()


def test_a_file_that_no_attempt_ended_in_answers_nothing(asked) -> None:
    settings, (_, one, _) = asked
    report = ask(settings, one)
    (settings.home / "gates" / f"{report.key}.json").unlink()
    save_report(settings.home, report.model_copy(update={"verdict": "PASS"}))
    database = Database(settings.home)
    with database.writing() as connection:
        # As if the run had been killed after its file was written, and before it said so.
        connection.execute(gate_attempts_table.update().values(report_key=None))
    database.close()
    again = ask(settings, one)
    # Not the whole report: how fast two answers come differs, and so may the verdict on it.
    assert (again.primary, again.guards, again.attempt) == (report.primary, report.guards, 1)
    assert "PASS" not in (report.verdict, again.verdict)
    assert attempts(settings.home) == [("L1/tools", 1, one, again.key)]


def whole(settings: Settings) -> list[Suite]:
    profile = stages.profile_in_force(settings)
    return build_suites(profile, "L1", settings.seed, settings.suites)


def spend(settings: Settings, attempts: int) -> None:
    asked = {item.asked_id for item in draw(whole(settings), "L1", settings.suites)[0].items}
    database = Database(settings.home)
    for number in range(attempts):
        reserve(
            database, "L1/tools", f"q{number}", slot="L1", champion=None, challenger="c",
            alpha=0.05, units=99, asked=asked,
        )  # fmt: skip
    database.close()


def asked_now(settings: Settings) -> set[str]:
    """Return digests of what the newest attempt asked of the primary suite."""
    columns = gate_attempts_table.c
    database = Database(settings.home)
    with database.reading() as connection:
        newest = sa.select(columns.asked).order_by(columns.seq.desc()).limit(1)
        found = set(json.loads(connection.scalar(newest) or ""))
    database.close()
    return found


def test_a_spent_set_gives_way_to_items_that_nobody_was_shown_or_asked(asked) -> None:
    settings, (_, one, two) = asked
    shown = {item.asked_id for item in divide(whole(settings)[0]).search.items}
    first = ask(settings, one)
    before = asked_now(settings)
    spend(settings, MOST_ATTEMPTS - 1)
    # Fewer items and another seed would draw many of the same, and ask none of them.
    fewer = settings.suites.model_copy(update={"primary": 8})
    second = ask(settings.model_copy(update={"suites": fewer}), two)
    assert (first.sealed_set, second.sealed_set) == ("L1/tools", "L1/tools/1")
    assert (second.attempt, second.alpha_k) == (1, alpha_of(1, settings.gate.alpha))
    now = asked_now(settings)
    assert (len(before), len(now)) == (16, 8)
    assert shown
    assert not now & (before | shown)
    assert ask(settings, one) == first  # answered already, whatever was spent since


def test_where_no_set_is_left_nothing_is_asked_or_spent(asked) -> None:
    settings, (_, one, _) = asked
    most = len(divide(whole(settings)[0]).sealed.items)
    sizes = settings.suites.model_copy(update={"primary": most // 2 + 1, "guard": 200})
    large = settings.model_copy(update={"suites": sizes})
    spend(large, 3)  # 200 clusters exclude 3 points at 0.0034, not at 0.0019
    with pytest.raises(SetSpent, match=r"'L1/tools' is spent after 3 .*handover-L1 where hardly"):
        ask(large, one)
    assert len(attempts(settings.home)) == 3


def test_another_seed_is_another_attempt_on_the_same_set(asked) -> None:
    settings, (_, one, _) = asked
    ask(settings, one)
    later = ask(settings.model_copy(update={"seed": 7}), one)
    assert (later.sealed_set, later.attempt) == ("L1/tools", 2)


def test_guards_too_small_for_their_margins_are_told_before_anything_is_asked(
    asked, caplog: pytest.LogCaptureFixture
) -> None:
    settings, (_, one, _) = asked
    report = ask(settings, one)
    (told,) = [r.getMessage() for r in caplog.records if "will hardly exclude" in r.getMessage()]
    assert told.startswith("handover-L1 will hardly exclude a loss of 3 points: ")
    guard = next(result for result in report.guards if result.suite == "handover-L1")
    assert guard.status == "insufficient"


def test_a_servers_answers_are_kept_for_one_question_alone(asked) -> None:
    settings, (_, one, two) = asked
    server = settings.model_copy(update={"engine": "http://127.0.0.1:1"})
    database, base = Database(settings.home), "sha256:" + "0" * 64
    kept: dict[str, set[str]] = {"embedded": set(), "server": set()}
    for challenger in (one, two, one):
        found = gating._settle(settings, database, "L1", challenger, base)
        assert isinstance(found, gating._Asked)
        kept["embedded"].add(gating._kept_as(settings, "engine", found.identity))
        kept["server"].add(gating._kept_as(server, "engine", found.identity))
    database.close()
    assert (len(kept["embedded"]), len(kept["server"])) == (1, 2)


def test_samples_are_drawn_by_seeds_that_the_report_names(asked) -> None:
    settings, (_, one, _) = asked
    sampled = settings_of(settings.home, settings.base, samples=3, temperature=0.8)
    report = ask(sampled, one)
    assert (report.samples, report.temperature, len(set(report.sample_seeds))) == (3, 0.8, 3)
    with pytest.raises(GateInvalid, match="would all be the same answer"):
        ask(settings_of(settings.home, settings.base, samples=3), one)


def test_a_margin_of_nothing_is_refused_before_anything_is_spent(asked) -> None:
    settings, (_, one, _) = asked
    wrong = settings_of(settings.home, settings.base, margins={"rout": 0.1})
    with pytest.raises(GateInvalid, match="'rout', which is neither a kind of suite"):
        ask(wrong, one)
    assert attempts(settings.home) == []


def test_a_margin_may_be_that_of_any_slots_suite_of_whatever_size(home: Path) -> None:
    margins = {f"format-L{number}": 0.06 for number in range(4)} | {"safety-L2": 0.1}
    settings = Settings.model_validate(
        {"home": home, "suites": SIZES, "gate": {"margins": margins | {"living-L1": 0.05}}}
    )
    for slot in ("L1", "L3"):
        profile = stages.profile_in_force(settings)
        check_rules(settings, build_suites(profile, slot, settings.seed, settings.suites))


def test_nothing_of_an_item_leaves_the_sealed_set(asked, capsys) -> None:
    settings, (_, one, _) = asked
    report = ask(settings, one)
    story.tell_gate(report)
    suites = draw(whole(settings), "L1", settings.suites)
    told = "".join(capsys.readouterr()) + report.model_dump_json()
    for item in (item for suite in suites for item in suite.items):
        assert item.item_id not in told
        assert item.text not in told
    assert stat.S_IMODE((settings.home / "evals").stat().st_mode) == 0o700
    texts = [item.text.encode() for suite in suites for item in suite.items]
    assert not any(t in p.read_bytes() for p in (settings.home / "evals").iterdir() for t in texts)
    assert "attempt 1 on sealed set L1/tools" in told
    assert "nats a token" in told


def test_on_anything_but_pass_the_champion_stays_exactly(asked) -> None:
    settings, (champion, one, _) = asked
    with stages.open_registry(settings) as registry:
        before = registry.slots(), registry.events()
    assert ask(settings, one).verdict != "PASS"
    with stages.open_registry(settings) as registry:
        assert (registry.slots(), registry.events()) == before
        assert registry.slot("L1").champion == champion


def test_a_person_may_override_it_by_name_and_the_artifact_is_proved_all_the_same(asked) -> None:
    settings, (champion, one, _) = asked
    report = ask(settings, one)
    with pytest.raises(PromotionRefused, match="only 'PASS' promotes"):
        stages.promote_stage(settings, report)
    stages.override_stage(settings, report, "A. Person", "a drill", "2099-12-31")
    weights = adapter_folder(settings.home, one) / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4] + b"\0\0\0\0")
    with pytest.raises(SignatureRefused):
        stages.promote_stage(settings, report)
    with stages.open_registry(settings) as registry:
        assert registry.slot("L1").champion == champion
    weights.write_bytes(whole)
    assert stages.promote_stage(settings, report).changed
    with stages.open_registry(settings) as registry:
        assert registry.slot("L1").champion == one
        assert registry.events("L1")[-1].note["by"] == "A. Person"


def test_an_override_names_all_three_or_is_wrong_usage(home: Path) -> None:
    flows = Path(sys.executable).with_name("flows")
    command = [flows, "promote", "L1", "--override-by", "A. Person", "--home", home]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "go together" in done.stderr
    assert not home.exists()
