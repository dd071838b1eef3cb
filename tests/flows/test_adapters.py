"""`flows adapters` as a person uses it: signatures, lineage, differences, the log.

The command runs in this process, on a real registry with real adapters of the tiny base; the
dataset and the turns are those of `examples/promoted`. Nothing is trained: weights are random.
"""

import contextlib
import json
import math
import shutil
import sqlite3
import subprocess
from pathlib import Path

import numpy as np
import pytest
from engine_calls import make_adapter
from tiny_loop import tiny_settings
from typer.testing import CliRunner, Result

from flows import lineage, stages
from flows.cli import app
from flows.config import RegistryConfig
from flows.registering import register_adapter
from serving.child import free_port
from serving.errors import MolError
from traces import provenance
from traces.ingest import ingest

PROMOTED = Path(__file__).parents[2] / "examples" / "promoted"
RUN = "sha256:" + "b" * 64


def flows(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="flows")


def said(*words: object):
    done = flows(*words, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def assert_refused(done: Result, *words: str) -> None:
    """As `flows.cli.main` prints it: one line on stderr, status 1."""
    assert isinstance(done.exception, MolError), (done.output, done.exception)
    for word in words:
        assert word in " ".join(str(done.exception).split())


@pytest.fixture(scope="module")
def taught(tiny_base, tmp_path_factory):
    """A home with two versions of L1: 'learned' names the dataset, 'other' none."""
    from training.artifact import import_adapter, publish

    home = tmp_path_factory.mktemp("adapters") / "home"
    shutil.copytree(PROMOTED, home, ignore=shutil.ignore_patterns("traces", "registry.sqlite"))
    ingest(home, next((PROMOTED / "traces").glob("*.gz")))
    settings = tiny_settings(home, tiny_base, ())
    manifest = stages.latest_manifest(settings, "L1")
    made = [make_adapter(home.parent / f"made-{seed}", tiny_base, seed) for seed in (1, 2)]
    origin = {"manifest_digest": manifest.digest, "run_key": RUN}
    learned = publish(home, made[0], "L1", tiny_base, **origin)
    other = import_adapter(home, made[1], "L1", tiny_base)
    with stages.open_registry(settings) as registry:
        register_adapter(settings, registry, learned.digest, {"train_loss": 0.5})
        register_adapter(settings, registry, other.digest, {})
        registry.bootstrap("L1", learned.digest)
    lineage.publish(settings)
    return settings, manifest, learned, other


@pytest.mark.parametrize(
    "command", ["list", "show", "diff", "log", "verify", "sign", "keys", "export", "mirror"]
)
def test_every_command_has_a_help_text(command: str) -> None:
    done = flows("adapters", command, "--help")
    assert done.exit_code == 0
    assert f"Usage: flows adapters {command}" in done.stdout


def test_lineage_goes_from_a_version_to_the_turns_it_learned_from(taught) -> None:
    settings, manifest, learned, _ = taught
    shown = said("adapters", "show", "L1", "--home", settings.home)
    origin = shown["lineage"]
    assert (shown["digest"], origin["run"]) == (learned.digest, RUN)
    assert (origin["dataset"], origin["rows"]) == (manifest.digest, len(manifest.row_ids))
    rows = said("adapters", "show", learned.name, "--rows", "--home", settings.home)
    assert [row["row"] for row in rows] == list(manifest.row_ids)
    assert origin["turns"] == len({row["turn"] for row in rows})
    page = flows("adapters", "show", "L1", "--home", settings.home).stdout
    assert f"adapter   {learned.name}, champion" in page
    assert f"{origin['rows']} rows" in page


def test_lineage_goes_from_a_turn_to_the_versions_that_learned_from_it(taught) -> None:
    """The bundled dataset is of earlier turns, so one of its rows is told of a turn of today."""
    settings, manifest, learned, _ = taught
    (turn,) = said("traces", "list", "--limit", 1, "--home", settings.home)
    row = manifest.row_ids[0]
    lesson = {
        "lesson_id": "today", "manifest_digest": manifest.digest, "slot": "L1",
        "example_id": row, "turn_id": turn["turn_id"], "hop_id": "h", "split": "train",
        "duty": "skill", "source": "own", "weight": 1.0,
    }  # fmt: skip
    provenance.publish(settings.home, {}, {"lessons": [lesson]})
    told = said("traces", "show", turn["turn_id"], "--home", settings.home)
    short = learned.digest.removeprefix("sha256:")[:12]
    assert [(row["digest"], row["example_id"]) for row in told["taught"]] == [(short, row)]
    page = flows("traces", "show", turn["turn_id"], "--home", settings.home).stdout
    assert f"-> L1@{short}" in page


def test_a_turn_is_followed_to_the_version_that_answered(taught) -> None:
    """The bundled traffic was served by versions that this registry does not know."""
    settings, *_ = taught
    (turn,) = said("traces", "list", "--limit", 1, "--home", settings.home)
    answered = f"{turn['slot']}@{turn['digest']}"
    shown = flows("adapters", "show", turn["turn_id"], "--home", settings.home)
    assert_refused(shown, f"No adapter {answered!r}")


def test_the_weights_distance_is_that_of_the_whole_matrices(taught) -> None:
    from safetensors.numpy import load_file

    settings, _, learned, other = taught
    found = said("adapters", "diff", learned.name, other.name, "--home", settings.home)
    folders = [settings.home / "adapters" / v.digest[7:] for v in (learned, other)]
    first, second = (load_file(folder / "adapter_model.safetensors") for folder in folders)
    config = json.loads((folders[0] / "adapter_config.json").read_text())
    assert {row["what"] for row in found["differences"]} >= {"manifest_digest", "train_loss"}
    assert len(found["weights"]) == len(first) / 2
    for row in found["weights"]:
        name = f"base_model.model.{row['module']}.lora_{{}}.weight"
        scale = config["lora_alpha"] / config["r"]
        changes = [
            scale * t[name.format("B")].astype(float) @ t[name.format("A")] for t in (first, second)
        ]
        assert math.isclose(row["a"], np.linalg.norm(changes[0]), rel_tol=1e-6)
        assert math.isclose(row["distance"], np.linalg.norm(changes[0] - changes[1]), rel_tol=1e-6)
    page = flows("adapters", "diff", "L1", other.name, "--home", settings.home).stdout
    assert "train_loss" in page
    same = flows("adapters", "diff", "L1", learned.name, "--home", settings.home)
    assert_refused(same, "are one version")


def test_the_log_and_what_serves_are_verified(taught) -> None:
    settings, _, learned, other = taught
    rows = said("adapters", "verify", "--home", settings.home)
    told = [(row["what"], row["ok"]) for row in rows]
    assert told == [("log", True), (learned.name, True), ("slots.json", True)]
    log = said("adapters", "log", "--home", settings.home)
    assert [(row["kind"], row["serves"]) for row in log] == [("bootstrap", learned.name)]
    signature = settings.home / "adapters" / other.digest[7:] / "model.sig"
    kept = signature.read_bytes()
    signature.unlink()
    try:
        done = flows("adapters", "verify", other.name, "--json", "--home", settings.home)
        assert done.exit_code == 1
        assert [row["ok"] for row in json.loads(done.stdout)] == [True, False]
    finally:
        signature.write_bytes(kept)


@pytest.mark.parametrize(
    ("tampering", "words"),
    [
        (f"UPDATE slots SET champion = '{RUN}' WHERE slot = 'L1'", "No adapter"),
        ("UPDATE slots SET generation = 'x' WHERE slot = 'L1'", "SlotState 'L1': generation"),
    ],
)
def test_a_registry_that_was_altered_is_told_of_in_rows(
    tiny_base: Path, tmp_path: Path, tampering: str, words: str
) -> None:
    settings = tiny_settings(tmp_path / "home", tiny_base, ())
    stages.open_registry(settings).close()
    with contextlib.closing(sqlite3.connect(settings.home / "registry.sqlite")) as database:
        database.execute(tampering)
        database.commit()
    done = flows("adapters", "verify", "--json", "--home", settings.home)
    assert done.exit_code == 1
    log, slot, _ = json.loads(done.stdout)
    assert (log["what"], log["ok"], slot["ok"]) == ("log", False, False)
    assert words in slot["found"]


def test_no_more_rows_are_asked_for_than_a_database_counts(tmp_path: Path) -> None:
    done = flows("adapters", "list", "--limit", 10**20, "--home", tmp_path)
    assert done.exit_code == 2


def test_versions_from_before_there_were_signatures_are_signed_by_a_person(
    tiny_base: Path, tmp_path: Path
) -> None:
    from training.artifact import import_adapter

    settings = tiny_settings(tmp_path / "home", tiny_base, ())
    version = import_adapter(
        settings.home, make_adapter(tmp_path / "made", tiny_base, 3), "L2", tiny_base
    )
    with stages.open_registry(settings) as registry:
        register_adapter(settings, registry, version.digest, {})
        registry.bootstrap("L2", version.digest)
    (settings.home / "adapters" / version.digest[7:] / "model.sig").unlink()
    database = sqlite3.connect(settings.home / "registry.sqlite")
    database.execute("UPDATE versions SET signer = NULL")
    database.commit()
    database.close()
    where = ("--home", settings.home)
    (row,) = said("adapters", "list", *where)
    assert row["signed"] is None
    done = flows("adapters", "verify", *where)
    assert done.exit_code == 1
    assert "flows adapters sign" in done.stdout.replace("\n", " ")
    (row,) = said("adapters", "sign", *where)
    assert row["adapter"] == version.name
    assert flows("adapters", "verify", *where).exit_code == 0
    assert_refused(flows("adapters", "sign", *where), "Every version is signed")
    config = settings.home / "adapters" / version.digest[7:] / "adapter_config.json"
    config.write_text(config.read_text().replace('"r": 4', '"r": 8'))
    assert_refused(flows("adapters", "sign", version.name, *where), "rank")


def test_a_key_that_the_registry_does_not_know_signs_nothing_until_it_is_added(
    taught, tmp_path: Path
) -> None:
    settings, _, _, other = taught
    key = tmp_path / "own.pem"
    openssl = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key]
    subprocess.run(openssl, check=True, capture_output=True)
    config = tmp_path / "own.toml"
    config.write_text(f'[registry]\nkey = "{key}"\n')
    where = ("--home", settings.home, "--config", config)
    assert_refused(flows("adapters", "sign", other.name, *where), "flows adapters keys --add")
    own = {row["known"]: row for row in said("adapters", "keys", *where)}
    assert own[False]["own"] == str(key)
    assert all(row["known"] for row in said("adapters", "keys", "--add", *where))
    said("adapters", "sign", other.name, *where)
    said("adapters", "keys", "--remove", own[False]["key"][:12], *where)
    done = flows("adapters", "verify", other.name, *where)
    assert done.exit_code == 1
    said("adapters", "sign", other.name, "--home", settings.home)
    assert flows("adapters", "verify", other.name, *where).exit_code == 0


# MLflow's own modules warn of libraries that are to come.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_configured_mirror_follows_and_a_dead_one_is_only_said(
    taught, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, _, learned, _ = taught
    assert_refused(flows("adapters", "mirror", "--home", settings.home), "No MLflow registry")
    dead = f"http://127.0.0.1:{free_port()}"
    for uri in (dead, f"sqlite:///{tmp_path}/mlflow.db"):
        registry = RegistryConfig(mirror=uri)
        lineage.publish_or_say(settings.model_copy(update={"registry": registry}))
        said_so = "the mirror is not up to date" in capsys.readouterr().err
        assert said_so == (uri == dead)
    (row,) = said("adapters", "mirror", uri, "--home", settings.home)
    assert (row["model"], row["champion"], row["added"]) == ("mol-loop-L1", 1, 0)
    with stages.open_registry(settings) as opened:
        assert opened.slot("L1").champion == learned.digest
