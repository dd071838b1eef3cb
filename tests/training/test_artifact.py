"""Proves what may be published and served, and that a published adapter is found out if changed.

Real PEFT folders over the real tiny base, made by PEFT itself and then damaged one way
each; no engine runs here.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest
from tiny import make_tiny_base

from serving.errors import AdapterNotServable, MolError
from training.artifact import (
    AlteredAdapter,
    BaseNotFound,
    WrongBase,
    adapter_digest,
    adapter_folder,
    base_digest,
    import_adapter,
    list_adapters,
    publish,
    read_version,
    verify_adapter,
)
from training.servable import CONFIG_NAME, WEIGHTS_NAME, UnsafeAdapter, check_servable

# PEFT 0.21 reads a property that transformers 5.24 renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory, base):
    """A PEFT folder as PEFT saves it: a path of this machine, mode 0600, a model card."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    lora = get_peft_model(
        model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    folder = tmp_path_factory.mktemp("peft")
    lora.save_pretrained(folder)
    (folder / WEIGHTS_NAME).chmod(0o600)
    return folder


@pytest.fixture
def folder(tmp_path, pristine):
    return shutil.copytree(pristine, tmp_path / "peft")


def edit_config(folder, **changes):
    file = folder / CONFIG_NAME
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_tensors(folder, change):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / WEIGHTS_NAME)
    change(tensors)
    save_file(tensors, folder / WEIGHTS_NAME)


def first_b(tensors):
    return next(name for name in sorted(tensors) if "lora_B" in name)


def test_importing_needs_no_torch():
    code = (
        "import sys, training.config, training.artifact, training.runs, training.train; "
        "print({'torch', 'transformers', 'trl', 'peft'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_exactly_three_files_are_published_readable_by_all(home, folder, base):
    (folder / "ref").mkdir()
    shutil.copy(folder / WEIGHTS_NAME, folder / "ref")
    before = os.umask(0o077)
    try:
        version = publish(home, folder, "L2", base)
    finally:
        os.umask(before)
    files = sorted(adapter_folder(home, version.digest).iterdir())
    assert [f.name for f in files] == [CONFIG_NAME, WEIGHTS_NAME, "version.json"]
    assert {f.stat().st_mode & 0o777 for f in files} == {0o644}
    assert files[0].parent.stat().st_mode & 0o777 == 0o755


def test_the_folder_is_named_by_the_digest(home, folder, base):
    version = publish(home, folder, "L2", base)
    path = adapter_folder(home, version.digest)
    assert adapter_digest(path) == version.digest == "sha256:" + path.name
    assert version.name == f"L2@{path.name[:12]}"


def test_the_base_is_named_by_digest_and_not_by_path(home, folder, base):
    path = adapter_folder(home, publish(home, folder, "L2", base).digest)
    text = (path / CONFIG_NAME).read_text()
    assert json.loads(text)["base_model_name_or_path"] == base_digest(base)
    assert str(base) not in text


def test_a_plain_folder_has_the_digest_it_is_published_under(home, folder, base):
    edit_config(folder, base_model_name_or_path="/somewhere/else")
    assert adapter_digest(folder) == publish(home, folder, "L2", base).digest


def test_a_base_name_changed_after_publication_is_refused(home, folder, base):
    version = publish(home, folder, "L2", base)
    path = adapter_folder(home, version.digest)
    edit_config(path, base_model_name_or_path="elsewhere")
    with pytest.raises(AlteredAdapter, match="names base 'elsewhere'"):
        verify_adapter(path, base, version.base_digest)


def test_the_digest_ignores_the_order_of_modules_keys_and_tensors(folder, tmp_path):
    other = shutil.copytree(folder, tmp_path / "other")
    config = json.loads((other / CONFIG_NAME).read_text())
    config["target_modules"].reverse()
    (other / CONFIG_NAME).write_text(json.dumps(dict(reversed(config.items())), indent=3))
    from safetensors.numpy import load_file, save_file

    tensors = load_file(other / WEIGHTS_NAME)
    save_file(dict(reversed(tensors.items())), other / WEIGHTS_NAME, metadata={"a": "b"})
    assert (other / WEIGHTS_NAME).read_bytes() != (folder / WEIGHTS_NAME).read_bytes()
    assert adapter_digest(other) == adapter_digest(folder)


@pytest.mark.parametrize("change", ["value", "name", "setting"])
def test_the_digest_changes_with_what_the_adapter_says(folder, change):
    before = adapter_digest(folder)
    if change == "value":
        edit_tensors(folder, lambda t: t[first_b(t)].__setitem__((0, 0), 9.0))
    elif change == "name":
        edit_tensors(folder, lambda t: t.__setitem__("x", t.pop(first_b(t))))
    else:
        edit_config(folder, lora_alpha=99)
    assert adapter_digest(folder) != before


def test_publishing_again_changes_nothing(home, folder, base):
    first = publish(home, folder, "L2", base, run_key="one")
    assert publish(home, folder, "L2", base, run_key="two") == first
    assert len(list_adapters(home)) == 1


def test_an_import_is_found_by_the_next(home, folder, base):
    assert import_adapter(home, folder, "L1", base) == import_adapter(home, folder, "L1", base)
    assert [v.slot for v in list_adapters(home)] == ["L1"]


def test_a_published_folder_can_be_imported_elsewhere(home, tmp_path, folder, base):
    version = publish(home, folder, "L2", base, seed=3)
    there = import_adapter(tmp_path / "else", adapter_folder(home, version.digest), "L2", base)
    assert there.digest == version.digest


def test_one_adapter_belongs_to_one_slot(home, folder, base):
    publish(home, folder, "L2", base)
    with pytest.raises(AdapterNotServable, match="one adapter belongs to one slot"):
        publish(home, folder, "L1", base)


def test_a_damaged_published_folder_is_replaced(home, folder, base):
    version = publish(home, folder, "L2", base)
    path = adapter_folder(home, version.digest)
    (path / WEIGHTS_NAME).write_bytes(b"cut")
    publish(home, folder, "L2", base)
    assert verify_adapter(path, base, version.base_digest) == version


def test_a_folder_left_by_a_killed_run_is_not_listed(home, folder, base):
    publish(home, folder, "L2", base)
    (home / "adapters" / f".{'a' * 64}.123.tmp").mkdir()
    assert len(list_adapters(home)) == 1


def test_altered_weights_are_refused(home, folder, base):
    version = publish(home, folder, "L2", base)
    path = adapter_folder(home, version.digest)
    file = path / WEIGHTS_NAME
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)
    with pytest.raises(AlteredAdapter, match="was published as"):
        verify_adapter(path, base, version.base_digest)


def test_an_altered_setting_is_refused(home, folder, base):
    version = publish(home, folder, "L2", base)
    path = adapter_folder(home, version.digest)
    edit_config(path, lora_alpha=64)
    with pytest.raises(AlteredAdapter):
        verify_adapter(path, base, version.base_digest)


def test_a_renamed_folder_is_refused(home, folder, base):
    version = publish(home, folder, "L2", base)
    path = adapter_folder(home, version.digest)
    moved = path.rename(path.with_name("0" * 64))
    with pytest.raises(AlteredAdapter):
        verify_adapter(moved, base, version.base_digest)


def test_another_base_is_refused(home, tmp_path, folder, base):
    version = publish(home, folder, "L2", base)
    path = adapter_folder(home, version.digest)
    other = make_tiny_base(tmp_path / "other", seed=5)
    with pytest.raises(WrongBase, match="Train it again on this base"):
        verify_adapter(path, other, base_digest(other))


def test_importing_an_adapter_of_another_base_is_refused(home, tmp_path, folder, base):
    version = publish(home, folder, "L2", base)
    other = make_tiny_base(tmp_path / "other", seed=5)
    with pytest.raises(WrongBase):
        import_adapter(tmp_path / "new", adapter_folder(home, version.digest), "L2", other)
    assert not (tmp_path / "new").exists()


def test_the_base_digest_knows_one_changed_bit(tmp_path, base):
    copy = shutil.copytree(base, tmp_path / "copy")
    assert base_digest(copy) == base_digest(base)
    file = copy / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert base_digest(copy) != base_digest(base)


def test_a_missing_base_is_named(tmp_path):
    with pytest.raises(BaseNotFound, match=r"config\.json"):
        base_digest(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["adapter_model.bin", "training_args.bin", "x.pkl", "w.pt"])
def test_a_pickle_anywhere_in_the_folder_is_refused(home, folder, base, name):
    (folder / "sub").mkdir()
    (folder / "sub" / name).write_bytes(b"\x80\x04.")
    with pytest.raises(UnsafeAdapter, match="runs code"):
        publish(home, folder, "L2", base)
    assert not home.exists()


def test_a_pickle_under_the_weights_name_is_refused(home, folder, base):
    import pickle

    (folder / WEIGHTS_NAME).write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(AdapterNotServable, match="not a safetensors file"):
        publish(home, folder, "L2", base)
    assert not home.exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa"}, "changes the base"),
        ({"peft_type": "IA3"}, "must be 'LORA'"),
        ({"r": 0}, "must be 1 to 512"),
        ({"r": 1024}, "must be 1 to 512"),
        ({"r": "4"}, "must be 1 to 512"),
        ({"rank_pattern": {"q_proj": 600}}, "must be 1 to 512"),
        ({"r": 8}, "has rank 4, the config says 8"),
    ],
)
def test_a_setting_that_engines_reject_is_refused(folder, base, changes, reason):
    edit_config(folder, **changes)
    with pytest.raises(AdapterNotServable, match=reason):
        check_servable(folder, base)


def test_a_rank_of_its_own_for_some_modules_is_taken(folder, base):
    edit_config(folder, r=8, rank_pattern={".*_proj": 4})
    check_servable(folder, base)


def rename_first(tensors, new):
    name = first_b(tensors)
    tensors[new(name)] = tensors.pop(name)


def set_first(tensors, value):
    name = first_b(tensors)
    tensors[name][0, 0] = value


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: set_first(t, float("nan")), "not finite"),
        (lambda t: set_first(t, float("inf")), "not finite"),
        (lambda t: t.pop(first_b(t)), "lora_B None"),
        (lambda t: rename_first(t, lambda n: n + "x"), "is not a module's lora_A or lora_B"),
        (lambda t: rename_first(t, lambda n: n[len("base_model.model.") :]), "is not a module's"),
        (lambda t: [t.pop(n) for n in list(t)], "holds no tensors"),
        (
            lambda t: [t.__setitem__(n.replace(".q_proj", ".qq_proj"), t.pop(n)) for n in list(t)],
            "the base has no module",
        ),
        (
            lambda t: [
                t.__setitem__(n.replace("up_proj", "down_proj"), t.pop(n))
                for n in list(t)
                if "up_proj" in n
            ],
            "in the base",
        ),
        (
            lambda t: [
                t.__setitem__(n.replace("model.layers.0.self_attn.q_proj", "lm_head"), t.pop(n))
                for n in list(t)
            ],
            "adapts the vocabulary",
        ),
    ],
)
def test_tensors_that_would_not_serve_are_refused(folder, base, change, reason):
    edit_tensors(folder, change)
    with pytest.raises(AdapterNotServable, match=reason):
        check_servable(folder, base)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("value", [1.0, float("inf"), float("nan")])
def test_half_precision_is_checked_too(folder, base, dtype, value):
    import torch
    from safetensors.torch import load_file, save_file

    tensors = {k: v.to(getattr(torch, dtype)) for k, v in load_file(folder / WEIGHTS_NAME).items()}
    set_first(tensors, value)
    save_file(tensors, folder / WEIGHTS_NAME)
    if value == 1.0:
        check_servable(folder, base)
    else:
        with pytest.raises(AdapterNotServable, match="not finite"):
            check_servable(folder, base)


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_cut_weights_are_refused(folder, base, keep):
    file = folder / WEIGHTS_NAME
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(AdapterNotServable, match=r"safetensors"):
        check_servable(folder, base)


@pytest.mark.parametrize("name", [CONFIG_NAME, WEIGHTS_NAME])
def test_a_missing_file_is_named(folder, base, name):
    (folder / name).unlink()
    with pytest.raises(AdapterNotServable, match=f"{name} is missing"):
        check_servable(folder, base)


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\x00\x01"])
def test_a_config_that_is_no_json_object_is_refused(folder, base, text):
    (folder / CONFIG_NAME).write_text(text)
    with pytest.raises(AdapterNotServable, match=CONFIG_NAME):
        check_servable(folder, base)


@pytest.mark.parametrize("text", [None, "{}", "not json", '{"slot": 3}'])
def test_a_bad_version_file_is_refused(home, folder, base, text):
    path = adapter_folder(home, publish(home, folder, "L2", base).digest)
    (path / "version.json").unlink()
    if text is not None:
        (path / "version.json").write_text(text)
    with pytest.raises(AdapterNotServable, match=r"version\.json"):
        read_version(path)


def test_a_missing_folder_and_a_bad_slot_are_refused(home, tmp_path, folder, base):
    with pytest.raises(AdapterNotServable, match="No adapter folder"):
        import_adapter(home, tmp_path / "nowhere", "L1", base)
    with pytest.raises(MolError, match="Slot name"):
        publish(home, folder, "../L1", base)
    assert not home.exists()
