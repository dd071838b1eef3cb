"""Only what an attempt in the registry ended in is told as the gate's word, and hides nothing.

Registry, adapters, files and commands are real, the base is tiny; reports are of made-up scores,
and the run that made the adapter is its record alone.
"""

import json
import os
from pathlib import Path

import pytest
from click.testing import Result
from engine_calls import make_adapter
from registry_records import attempted, report_between
from tiny_loop import tiny_settings
from typer.testing import CliRunner

from flows import adapters, stages, views
from flows.cli import app
from flows.config import Settings
from flows.registering import register_adapter
from flows.reports import founded_judgements, founded_reports
from flows.suites import audit_stage
from promotion.gate import GateReport, read_reports, save_report
from promotion.slot_rows import PromotionRefused, ReportUnfounded
from training.runs import TrainedAdapter, write_result

SIZES = {"primary": 2, "guard": 1, "bystander": 1, "safety": 1, "format": 1, "living": 1}


@pytest.fixture
def settings(home: Path, tiny_base: Path) -> Settings:
    return tiny_settings(home, tiny_base, (), suites=SIZES, slot="L2")


@pytest.fixture
def trained(settings: Settings) -> TrainedAdapter:
    """The newest run of L2; its adapter is registered and unjudged."""
    from training.artifact import base_digest, import_adapter

    made = make_adapter(settings.home.parent / "made", settings.base, 1)
    version = import_adapter(settings.home, made, "L2", settings.base)
    run = TrainedAdapter(
        slot="L2", digest=version.digest, run_key="sha256:" + "a" * 64,
        base_digest=base_digest(settings.base), manifest_digest="sha256:" + "b" * 64, seed=0,
        metrics={"rows": 9, "train_loss": 0.5, "seconds": 1}, drops={},
    )  # fmt: skip
    write_result(settings.home, run)
    with stages.open_registry(settings) as registry:
        register_adapter(settings, registry, run.digest, {})
    return run


def report_about(run: TrainedAdapter, gains: int, seed: int = 0) -> GateReport:
    report = report_between(None, run.digest, gains=gains, seed=seed)
    return report.model_copy(update={"base_digest": run.base_digest})


def kept(settings: Settings, report: GateReport, age_s: int) -> GateReport:
    """The report as a file of so many seconds ago."""
    path = save_report(settings.home, report)
    when = path.stat().st_mtime - age_s
    os.utime(path, (when, when))
    return report


def founded(settings: Settings, report: GateReport, age_s: int = 60) -> GateReport:
    return kept(settings, attempted(settings.home, report), age_s)


def flows(settings: Settings, *words: object) -> Result:
    where = ("--home", settings.home)
    return CliRunner().invoke(app, [str(word) for word in (*words, *where)])


def promote(settings: Settings) -> Result:
    """Promote over the tiny base, which the command is told by a file."""
    config = settings.home.parent / "it.toml"
    config.write_text(f"base = '{settings.base}'\n")
    return flows(settings, "promote", "L2", "--config", config)


def test_an_unfounded_file_does_not_stand_in_the_way_of_a_promotion(settings, trained) -> None:
    real = founded(settings, report_about(trained, gains=60))
    kept(settings, report_about(trained, gains=60, seed=1), age_s=0)

    done = promote(settings)

    assert done.exit_code == 0, done.exception
    with stages.open_registry(settings) as registry:
        assert registry.slot("L2").champion == trained.digest
        assert registry.events("L2")[-1].report_key == real.key


def test_nor_does_it_answer_for_the_report_that_stops_a_canary(settings, trained) -> None:
    founded(settings, report_about(trained, gains=2))
    kept(settings, report_about(trained, gains=60, seed=1), age_s=0)

    begin = ("slots", "canary", "L2", trained.adapter.name, "--percent", 5, "--base", settings.base)
    refused = flows(settings, *begin).exception
    word = ("--override-by", "ann", "--reason", "a drill", "--expires", "2099-12-31")

    assert isinstance(refused, PromotionRefused)
    assert "says 'INCONCLUSIVE'" in str(refused)
    assert flows(settings, *begin, *word).exit_code == 0


def test_the_last_word_is_that_of_the_last_attempt_whatever_the_files_times(
    settings, trained
) -> None:
    first = founded(settings, report_about(trained, gains=60), age_s=0)
    last = founded(settings, report_about(trained, gains=2, seed=1), age_s=3600)
    canary = (
        "slots",
        "canary",
        "L2",
        trained.adapter.name,
        "--percent",
        5,
        "--base",
        settings.base,
    )

    assert founded_reports(settings, "L2") == (first, last)
    with stages.open_registry(settings) as registry:
        said = founded_judgements(settings, registry, "L2")
    assert [judgement.key for judgement in said] == [first.key, last.key]
    for refused in (promote(settings).exception, flows(settings, *canary).exception):
        assert isinstance(refused, PromotionRefused)
        assert f"{last.key[:12]!r} says 'INCONCLUSIVE'" in str(refused)


def test_where_there_is_no_other_the_refusal_says_what_is_wrong(settings, trained) -> None:
    report = kept(settings, report_about(trained, gains=60), age_s=0)

    refused = promote(settings).exception

    assert isinstance(refused, ReportUnfounded)
    assert "the gate was killed before it could say so, or" in str(refused)
    assert f"Run 'flows run gate --slot L2'; 'gates/{report.key}.json' can be" in str(refused)


def test_no_page_tells_it_as_the_gates_word(settings, trained) -> None:
    kept(settings, report_about(trained, gains=60), age_s=0)
    folder = settings.home.parent / "exported"

    done = flows(settings, "adapters", "export", trained.adapter.name, folder, "--json")

    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)[0]["verdict"] is None
    assert "PASS" not in (folder / "README.md").read_text()
    assert [row["gate"] for row in views.runs(settings)] == [None]
    assert adapters.details(settings, trained.adapter.name)["gate"] == []
    assert founded_reports(settings) == ()


def test_an_audit_and_a_difference_know_nothing_of_it(settings, trained) -> None:
    from training.artifact import import_adapter

    made = make_adapter(settings.home.parent / "other", settings.base, 2)
    other = import_adapter(settings.home, made, "L2", settings.base)
    with stages.open_registry(settings) as registry:
        register_adapter(settings, registry, other.digest, {})
        registry.bootstrap("L2", trained.digest)
    report = report_about(trained, gains=60)
    code = report.primary.model_copy(update={"suite": "code"})
    report = kept(settings, report.model_copy(update={"primary": code}), age_s=0)

    def told() -> tuple[set[object], float | None]:
        found = adapters.difference(settings, trained.adapter.name, other.name)["differences"]
        gated = {row["a"] for row in found if row["about"] == "gate"}
        return gated, audit_stage(settings, "L2").suites[0].gate

    assert told() == (set(), None)
    attempted(settings.home, report)
    assert told() == ({"PASS", 1.0}, 1.0)


def test_a_damaged_report_of_something_else_stops_nobody(settings, trained) -> None:
    real = founded(settings, report_about(trained, gains=60))
    (settings.home / "gates" / ("0" * 64 + ".json")).write_text("{")

    assert founded_reports(settings, "L2", trained.digest) == (real,)
    assert read_reports(settings.home, {"1" * 64}) == ()
    assert [row["gate"] for row in views.runs(settings)] == ["PASS"]
