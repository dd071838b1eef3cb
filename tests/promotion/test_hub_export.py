"""A version exported for the Hugging Face Hub: PEFT loads it, the card says what is known.

A real adapter of the tiny base; the gate report is made from made-up scores. Nothing is uploaded.
"""

import base64
import json
import pickle
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from engine_calls import make_adapter
from huggingface_hub import ModelCard
from registry_records import report_of
from tiny import make_tiny_base

from curation.manifest import list_manifests, read_examples
from promotion.gate import GateReport
from promotion.hub_export import ExportRefused, export_version
from promotion.signing import signing_key
from promotion.state import RegisteredVersion
from training.artifact import adapter_folder, publish

ROOT = Path(__file__).parents[2]
PROMOTED = ROOT / "examples" / "promoted"
NAME = "someone/tiny-base"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, RegisteredVersion]:
    """A home with the bundled dataset and an adapter that names it."""
    folder = tmp_path_factory.mktemp("export")
    home, base = folder / "home", make_tiny_base(folder / "base")
    shutil.copytree(PROMOTED / "datasets", home / "datasets")
    (manifest,) = list_manifests(home)
    plain = make_adapter(folder / "plain", base, 1)
    version = publish(home, plain, "L2", base, manifest_digest=manifest.digest, run_key="r1")
    return (
        base,
        home,
        RegisteredVersion(
            slot="L2",
            digest=version.digest,
            base_digest=version.base_digest,
            manifest_digest=manifest.digest,
            run_key="r1",
            metrics={"train_loss": 0.25},
            path=str(adapter_folder(Path(), version.digest)),
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
        ),
    )


def _export(made, folder: Path, report: GateReport | None = None, **changes: object) -> Path:
    _, home, version = made
    (manifest,) = list_manifests(home)
    export_version(
        home, version, folder, base_model=NAME, key=signing_key(home), licence="apache-2.0",
        manifest=manifest, report=report, **changes,
    )  # fmt: skip
    return folder


def _report(version: RegisteredVersion) -> GateReport:
    changes = {"challenger_digest": version.digest, "base_digest": version.base_digest}
    return report_of(None, 2).model_copy(update=changes)


def test_peft_loads_it_with_the_same_weights(made, tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base, home, version = made
    folder = _export(made, tmp_path / "out")
    ids = torch.arange(1, 9).unsqueeze(0)
    outputs = []
    for place in (folder, home / version.path):
        bare = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        with torch.no_grad():
            before = bare(ids).logits
            outputs.append(PeftModel.from_pretrained(bare, str(place))(ids).logits)
        assert not torch.equal(before, outputs[-1])
    assert torch.equal(*outputs)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == NAME
    assert all(file.stat().st_mode & 0o777 == 0o644 for file in folder.iterdir())


def test_the_card_says_what_the_hub_and_a_reader_want_to_know(made, tmp_path: Path) -> None:
    version = made[2]
    report = _report(version)
    card = ModelCard.load(_export(made, tmp_path / "out", report) / "README.md")
    assert (card.data.base_model, card.data.library_name) == (NAME, "peft")
    assert card.data.license == "apache-2.0"
    assert "slot-L2" in card.data.tags
    (result,) = card.data.eval_results
    assert result.dataset_name == "functions (L2)"
    # Of 60 items 20 were won, 2 were lost and 38 were wrong in both arms.
    assert result.metric_value == round(20 / 60, 4)
    for words in ("Verdict **PASS**", version.manifest_digest, version.digest, report.key[:12]):
        assert words in card.text


def test_the_card_holds_no_row_of_the_dataset(made, tmp_path: Path) -> None:
    home = made[1]
    text = (_export(made, tmp_path / "out", _report(made[2])) / "README.md").read_text()
    (manifest,) = list_manifests(home)
    rows = read_examples(home, manifest, None)
    said = {message.content for row in rows for message in (*row.messages, row.completion)}
    assert len(said) > 100
    assert not [content for content in said if len(content) > 10 and content in text]


def test_a_version_that_the_gate_never_saw_says_so(made, tmp_path: Path) -> None:
    card = ModelCard.load(_export(made, tmp_path / "out") / "README.md")
    assert card.data.eval_results is None
    assert "The gate was not asked" in card.text


def test_the_export_is_signed(made, tmp_path: Path) -> None:
    folder, home = _export(made, tmp_path / "out"), made[1]
    command = [sys.executable, "-m", "model_signing", "verify", "key", folder, "--signature",
               folder / "model.sig", "--public_key", home / "keys" / "signing.pub"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    bundle = json.loads((folder / "model.sig").read_text())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    assert [subject["name"] for subject in statement["subject"]] == ["out"]
    assert len(list(folder.iterdir())) == 4


def test_the_folder_one_stands_in_is_a_folder(
    made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("x")
    with pytest.raises(ExportRefused, match="There is something at"):
        _export(made, Path())
    (tmp_path / "mine").unlink()
    _export(made, Path())
    assert (tmp_path / "model.sig").is_file()


_KILLED = """
import os, sys, pickle
from pathlib import Path
from promotion.hub_export import export_version
from promotion.signing import signing_key

def end(event, args):
    # In the very moment in which the signature is about to be written.
    if event == "open" and str(args[0]).endswith("model.sig") and "w" in str(args[1]):
        os._exit(9)

home, version, folder = pickle.loads(sys.stdin.buffer.read())
sys.addaudithook(end)
export_version(home, version, folder, base_model="b", key=signing_key(home))
"""


@pytest.mark.parametrize("there", [False, True])
def test_an_export_killed_before_it_is_signed_leaves_no_unsigned_folder(
    made, tmp_path: Path, there: bool
) -> None:
    _, home, version = made
    folder = tmp_path / "out"
    if there:
        folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _KILLED], input=pickle.dumps((home, version, folder)),
        check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 9
    assert folder.exists() is there
    assert not there or not list(folder.iterdir())
    (left,) = (path for path in tmp_path.iterdir() if path != folder)
    assert left.name.startswith(".out.")
    # The next one removes what was left, and is whole.
    assert (_export(made, folder) / "model.sig").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_nothing_is_written_over(made, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("kept")
    with pytest.raises(ExportRefused, match="something at"):
        _export(made, tmp_path / "out")
    assert [f.name for f in (tmp_path / "out").iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert (_export(made, tmp_path / "empty") / "README.md").is_file()


def test_a_router_head_is_no_adapter(made, tmp_path: Path) -> None:
    _, home, version = made
    head = version.model_copy(update={"path": "heads"})
    with pytest.raises(ExportRefused, match="is no LoRA adapter"):
        export_version(home, head, tmp_path / "out", base_model=NAME, key=signing_key(home))
    assert not (tmp_path / "out").exists()
