"""Proves a training run: guards, determinism, what is published, and restart after SIGKILL.

Real TRL and PEFT on the tiny base with real datasets on disk; nothing is faked. Each guard
is shown the fault it is there for.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import make_tiny_base
from training_rows import make_dataset, route_example, text_example, tool_example

from training.artifact import base_digest, list_adapters, read_version
from training.config import TrainConfig
from training.runs import find_run, list_runs, run_folder, run_key
from training.train import NothingToLearn, train

CONFIG = TrainConfig(learning_rate=3e-3, epochs=2, batch_size=4, r=4, alpha=8, threads=1)
EXAMPLES = [
    *(text_example(n) for n in range(8)),
    *(route_example(n) for n in range(8, 11)),
    *(tool_example(n) for n in range(11, 14)),
]


# PEFT 0.21 reads a property that transformers 5.24 renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, base):
    """A home with one finished run: (home, manifest, result, progress calls)."""
    home = tmp_path_factory.mktemp("trained") / ".mol"
    manifest = make_dataset(home, EXAMPLES)
    calls: list[tuple[int, int, float]] = []
    result = train(home, manifest, base, CONFIG, None, lambda *call: calls.append(call))
    return home, manifest, result, calls


def weights(home: Path, result) -> bytes:
    return (home / result.path / "adapter_model.safetensors").read_bytes()


def test_the_result_names_its_inputs_and_is_on_disk(trained, base):
    home, manifest, result, _ = trained
    version = read_version(home / result.path)
    assert (version.slot, version.digest) == ("L2", result.digest)
    assert version.manifest_digest == result.manifest_digest == manifest.digest
    assert version.base_digest == result.base_digest == base_digest(base)
    assert version.run_key == result.run_key
    assert list_runs(home) == [result]


def test_all_rows_and_only_the_adapter_were_trained(trained):
    metrics = trained[2].metrics
    assert metrics["rows"] == len(EXAMPLES)
    assert metrics["trainable_parameters"] == 2 * (
        2 * 4 * (64 + 64) + 2 * 4 * (64 + 32) + 3 * 4 * (64 + 128)
    )
    assert metrics["steps"] == 8
    assert 0 < metrics["supervised_tokens"] < metrics["tokens"]
    assert metrics["computed_tokens"] < metrics["tokens"]


def test_progress_is_told_each_step_and_the_loss_falls(trained):
    calls = trained[3]
    assert [(step, total) for step, total, _ in calls] == [(n, 8) for n in range(1, 9)]
    assert calls[-1][2] < calls[0][2]


def test_nothing_but_the_adapter_and_its_proof_is_published(trained):
    home, _, result, _ = trained
    files = sorted(p.relative_to(home).as_posix() for p in home.rglob("*") if p.is_file())
    folder, run = result.path.as_posix(), run_folder(Path(), result.run_key).as_posix()
    assert [f for f in files if not f.startswith("datasets/")] == [
        f"{folder}/adapter_config.json",
        f"{folder}/adapter_model.safetensors",
        f"{folder}/version.json",
        f"proofs/{folder.removeprefix('adapters/')}.json",
        f"{run}/config.json",
        f"{run}/train.json",
    ]
    assert (home / result.path / "adapter_model.safetensors").stat().st_mode & 0o777 == 0o644


def test_the_resolved_configuration_lies_beside_the_result(trained):
    home, _, result, _ = trained
    text = (run_folder(home, result.run_key) / "config.json").read_text()
    assert TrainConfig.model_validate_json(text) == CONFIG


def test_the_adapter_loads_and_changes_answers(trained, base):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    home, _, result, _ = trained
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    ids = torch.tensor([[1, 40, 50, 60]])
    with torch.no_grad():
        before = model(input_ids=ids).logits
        after = PeftModel.from_pretrained(model, home / result.path)(input_ids=ids).logits
    assert not torch.allclose(before, after)


def test_a_finished_run_is_found_and_not_run_again(trained, base):
    home, manifest, result, _ = trained
    told: list[int] = []
    again = train(home, manifest, base, CONFIG, None, lambda step, *_: told.append(step))
    assert again == result
    assert told == []


def test_the_same_seed_gives_the_same_bytes(trained, base, home):
    first_home, _, first, _ = trained
    second = train(home, make_dataset(home, EXAMPLES), base, CONFIG)
    assert weights(home, second) == weights(first_home, first)
    assert (second.digest, second.run_key) == (first.digest, first.run_key)


def test_another_seed_gives_another_adapter(trained, base, home):
    config = CONFIG.model_copy(update={"seed": 1})
    assert train(home, make_dataset(home, EXAMPLES), base, config).digest != trained[2].digest


def test_weights_of_rows_count(trained, base, home):
    light = [text_example(n, weight=0.1) for n in range(8)] + EXAMPLES[8:]
    assert train(home, make_dataset(home, light), base, CONFIG).digest != trained[2].digest


def test_a_lost_adapter_is_trained_again(trained, base, tmp_path):
    home = shutil.copytree(trained[0], tmp_path / "copy")
    manifest, result = trained[1], trained[2]
    shutil.rmtree(home / result.path)
    assert find_run(home, result.run_key, base) is None
    again = train(home, manifest, base, CONFIG)
    assert again.digest == result.digest
    assert weights(home, again) == weights(*trained[::2][:2])


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from curation.manifest import load_manifest
from training.config import TrainConfig
from training.train import train

home, base, digest, config = Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5], sys.argv[6]
def kill(step, total, loss):
    if step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
train(home, load_manifest(home, digest), base, TrainConfig.model_validate_json(config), None, kill)
"""


def test_a_killed_run_ends_in_the_same_state_when_run_again(trained, base, home):
    manifest = make_dataset(home, EXAMPLES)
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            KILLED,
            tests.parent,
            tests,
            home,
            base,
            manifest.digest,
            CONFIG.model_dump_json(),
        ],
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == -signal.SIGKILL
    assert list_runs(home) == []
    assert list_adapters(home) == []
    result = train(home, manifest, base, CONFIG)
    assert result.digest == trained[2].digest

    def state(folder):
        return {
            p.relative_to(folder): None if p.name == "train.json" else p.read_bytes()
            for p in folder.rglob("*")
            if p.is_file()
        }

    assert state(home) == state(trained[0])


def test_rows_that_cannot_be_learnt_are_counted(base, home):
    examples = [*EXAMPLES, text_example(50, "word " * 400)]
    config = CONFIG.model_copy(update={"max_length": 256, "epochs": 1})
    result = train(home, make_dataset(home, examples), base, config)
    assert result.drops == {"too_long": 1}
    assert result.metrics["rows"] == len(EXAMPLES)


def test_a_dataset_without_a_row_to_learn_is_refused(base, home):
    config = CONFIG.model_copy(update={"max_length": 8})
    with pytest.raises(NothingToLearn, match="too_long"):
        train(home, make_dataset(home, EXAMPLES), base, config)
    assert list_adapters(home) == []


def test_the_run_key_knows_every_input(trained, base, home, tmp_path):
    manifest = trained[1]
    other_base = make_tiny_base(tmp_path / "other", seed=2)
    keys = {
        run_key(manifest, base, CONFIG),
        run_key(manifest, base, CONFIG.model_copy(update={"seed": 1})),
        run_key(manifest, base, CONFIG.model_copy(update={"learning_rate": 1e-3})),
        run_key(manifest, base, CONFIG, "{{ other }}"),
        run_key(manifest, other_base, CONFIG),
        run_key(make_dataset(home, EXAMPLES[:5]), base, CONFIG),
    }
    assert len(keys) == 6


def test_the_chat_template_given_is_the_one_trained_on(trained, base, home):
    template = (base / "chat_template.jinja").read_text().replace("Tools:", "Your tools:")
    other = train(home, make_dataset(home, EXAMPLES), base, CONFIG, template)
    assert other.digest != trained[2].digest


# Guards, each shown its fault.


@pytest.fixture
def peft_model(base):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = get_peft_model(plain, LoraConfig(r=4, target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.ones_(parameter)
    return model


def lora_b(model):
    return next(p for n, p in model.named_parameters() if "lora_B" in n)


def test_a_frozen_adapter_is_refused(peft_model):
    from training.sft import TrainingFailed, check_trainable

    check_trainable(peft_model)
    peft_model.requires_grad_(False)
    with pytest.raises(TrainingFailed, match="0 parameters"):
        check_trainable(peft_model)


def test_a_base_that_is_not_frozen_is_refused(peft_model):
    from training.sft import TrainingFailed, check_trainable

    peft_model.get_input_embeddings().weight.requires_grad_(True)
    with pytest.raises(TrainingFailed, match="not the adapter's"):
        check_trainable(peft_model)


def test_weights_that_did_not_move_are_refused(peft_model):
    import torch

    from training.sft import TrainingFailed, check_moved

    check_moved(peft_model)
    torch.nn.init.zeros_(lora_b(peft_model))
    with pytest.raises(TrainingFailed, match="did not move"):
        check_moved(peft_model)


def test_weights_that_are_not_finite_are_refused(peft_model):
    import torch

    from training.sft import TrainingFailed, check_moved

    with torch.no_grad():
        lora_b(peft_model)[0, 0] = float("nan")
    with pytest.raises(TrainingFailed, match="not finite"):
        check_moved(peft_model)


def test_a_base_that_moved_by_one_bit_is_refused(peft_model):
    import torch

    from training.sft import BaseChanged, check_base, parameters_digest

    before = parameters_digest(peft_model)
    torch.nn.init.zeros_(lora_b(peft_model))
    check_base(before, parameters_digest(peft_model))
    with torch.no_grad():
        peft_model.get_input_embeddings().weight[0, 0] += 1e-3
    with pytest.raises(BaseChanged):
        check_base(before, parameters_digest(peft_model))


def test_rows_that_went_missing_are_refused():
    from training.sft import TrainingFailed, check_rows

    check_rows(4, 4)
    with pytest.raises(TrainingFailed, match="saw 3 rows"):
        check_rows(3, 4)


def test_rows_without_a_token_to_learn_are_refused():
    from training.render import Row
    from training.sft import TrainingFailed, check_supervised

    check_supervised([Row("a", (1, 2), 1, 1.0)])
    for rows in ([], [Row("a", (1, 2), 2, 1.0)]):
        with pytest.raises(TrainingFailed, match="no token to learn"):
            check_supervised(rows)


def test_unknown_settings_and_bad_values_are_refused():
    with pytest.raises(ValueError, match="extra"):
        TrainConfig.model_validate({"lr": 1})
    with pytest.raises(ValueError, match="less than or equal"):
        TrainConfig(r=513)


def test_the_configuration_survives_json():
    assert TrainConfig.model_validate(json.loads(CONFIG.model_dump_json())) == CONFIG
