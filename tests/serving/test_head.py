"""The router head on disk and in use.

Proved: its probabilities are those of the same network in torch, its digest follows what it
says and weighs and nothing else, and a folder that is wrong in any way is refused in one
line. Real files; weights are random, as only the arithmetic matters here.
"""

import json
import pickle

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from serving.head import (
    CARD_NAME,
    MAX_PARAMETERS,
    WEIGHTS_NAME,
    HeadCard,
    HeadInvalid,
    HiddenStateInvalid,
    RouterHead,
    head_folder,
    parameter_count,
    save_head,
)
from serving.tensors import arrays_digest, read_header, tensors_digest

LABELS = ("L0", "L1", "L2")


def card(**changes):
    values = {
        "labels": LABELS, "dims": 5, "width": 8, "base_digest": "sha256:" + "0" * 64,
        "temperature": 1.5, "origin": {"seed": 0},
    }  # fmt: skip
    return HeadCard(**values | changes)


def weights(of, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {n: rng.normal(size=s).astype(np.float32) for n, s in of.shapes.items()}
    return arrays | {"std": np.abs(arrays["std"]) + 0.5}


@pytest.fixture
def head(tmp_path):
    return save_head(tmp_path, card(), weights(card()))


@pytest.fixture
def folder(tmp_path, head):
    return head_folder(tmp_path, head.digest)


def edit_card(folder, **changes):
    path = folder / CARD_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(folder, **changes):
    arrays = load_file(folder / WEIGHTS_NAME) | changes
    save_file({n: a for n, a in arrays.items() if a is not None}, folder / WEIGHTS_NAME)


def refuses(folder, *words, digest=None, slots=None):
    with pytest.raises(HeadInvalid) as caught:
        RouterHead.load(folder, digest, slots)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_probabilities_are_those_of_the_network_in_torch(head, folder):
    import torch

    arrays = {n: torch.from_numpy(a) for n, a in load_file(folder / WEIGHTS_NAME).items()}
    hidden = np.random.default_rng(1).normal(size=5)
    x = torch.nn.functional.normalize(torch.tensor(hidden, dtype=torch.float32), dim=0)
    x = (x - arrays["mean"]) / arrays["std"]
    for n in range(3):
        x = torch.nn.functional.linear(x, arrays[f"layers.{n}.weight"], arrays[f"layers.{n}.bias"])
        x = x if n == 2 else x.relu()
    expected = (x.double() / 1.5).softmax(0).tolist()
    found = head.probabilities(hidden.tolist())
    assert tuple(found) == LABELS
    assert list(found.values()) == pytest.approx(expected, abs=1e-6)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)


def test_huge_hidden_states_give_probabilities_still(head):
    assert sum(head.probabilities([1e30, -1e30, 1e30, 0.0, 1.0]).values()) == pytest.approx(1.0)


def test_a_server_that_normalises_its_embeddings_gets_the_same_answers(head):
    hidden = np.random.default_rng(2).normal(size=5)
    found = head.probabilities((hidden / np.linalg.norm(hidden)).tolist())
    assert found == pytest.approx(head.probabilities(hidden.tolist()), rel=1e-5)


def test_a_loaded_head_answers_as_the_saved_one(head, folder):
    loaded = RouterHead.load(folder, head.digest, LABELS)
    assert loaded.name == head.name
    assert loaded.name.startswith("router@")
    hidden = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert loaded.probabilities(hidden) == head.probabilities(hidden)


def test_the_digest_covers_weights_and_card_but_not_the_origin(tmp_path, head):
    same = save_head(tmp_path, card(origin={"seed": 1}), weights(card()))
    assert same.digest == head.digest
    for changed, arrays in (
        (card(labels=("L0", "L2", "L1")), weights(card())),
        (card(temperature=1.0), weights(card())),
        (card(), weights(card(), seed=1)),
    ):
        assert save_head(tmp_path, changed, arrays).digest != head.digest


def test_arrays_have_the_digest_of_the_file_with_them(folder):
    path = folder / WEIGHTS_NAME
    assert arrays_digest(load_file(path)) == tensors_digest(read_header(path))


def test_saving_over_a_damaged_folder_repairs_it(tmp_path, head, folder):
    (folder / WEIGHTS_NAME).write_bytes(b"")
    save_head(tmp_path, card(), weights(card()))
    assert RouterHead.load(folder, head.digest).digest == head.digest


@pytest.mark.parametrize("hidden", [[0.0] * 4, [0.0] * 6, [], [[0.0] * 5]])
def test_a_hidden_state_of_another_base_is_refused(head, hidden):
    with pytest.raises(HiddenStateInvalid, match="5 numbers"):
        head.probabilities(hidden)


def test_a_hidden_state_that_is_not_finite_is_refused(head):
    with pytest.raises(HiddenStateInvalid, match="not finite"):
        head.probabilities([0.0, float("nan"), 0.0, 0.0, 0.0])


def test_a_label_without_a_slot_is_refused_and_a_slot_without_a_label_is_not(head, folder):
    refuses(folder, "'L2'", "L0, L1", slots=("L0", "L1"))
    assert RouterHead.load(folder, head.digest, (*LABELS, "L4")).labels == LABELS


def test_altered_weights_are_found_by_the_digest(head, folder):
    edit_weights(folder, mean=np.ones(5, np.float32))
    refuses(folder, "digest", head.digest, digest=head.digest)


def test_an_altered_card_is_found_by_the_digest(head, folder):
    edit_card(folder, temperature=9.0)
    refuses(folder, "digest", digest=head.digest)


@pytest.mark.parametrize("name", ["head.pt", "head.bin", "old/weights.pkl"])
def test_a_pickle_in_the_folder_is_refused(folder, name):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(pickle.dumps({}))
    refuses(folder, "pickle", "runs code")


def test_a_pickle_under_the_name_of_the_weights_is_refused(folder):
    (folder / WEIGHTS_NAME).write_bytes(pickle.dumps({"layers": [1.0] * 100}))
    refuses(folder, "not a safetensors file")


@pytest.mark.parametrize(
    ("name", "array", "word"),
    [
        ("mean", np.zeros(6, np.float32), "(6,)"),
        ("layers.2.bias", np.zeros(4, np.float32), "(4,)"),
        ("layers.0.weight", np.zeros((8, 5), np.float64), "F64"),
        ("layers.1.bias", None, "missing"),
        ("layers.3.bias", np.zeros(3, np.float32), "left out"),
        ("layers.1.bias", np.full(8, np.inf, np.float32), "not finite"),
        ("std", np.zeros(5, np.float32), "not positive"),
    ],
)
def test_a_wrong_tensor_is_refused_by_name(folder, name, array, word):
    edit_weights(folder, **{name: array})
    refuses(folder, name, word)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"labels": ["L0"]}, "labels"),
        ({"labels": ["L0", "L0", "L1"]}, "differ"),
        ({"labels": ["L0", "../L1", "L2"]}, "labels.1"),
        ({"dims": 0}, "dims"),
        ({"temperature": 0}, "temperature"),
        ({"schema_version": 2}, "schema_version"),
        ({"width": 257}, "width"),
        ({"dims": 5000, "width": 256}, "parameters"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_wrong_card_is_refused_by_field(folder, changes, word):
    edit_card(folder, **changes)
    refuses(folder, CARD_NAME, word)


@pytest.mark.parametrize("name", [CARD_NAME, WEIGHTS_NAME])
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"[]", b"x" * 100])
def test_a_missing_or_broken_file_is_refused(folder, name, content):
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    refuses(folder, name)


def test_no_folder_is_refused(tmp_path):
    refuses(tmp_path / "none", "none")


def test_the_limit_counts_every_weight_and_bias():
    arrays = {n: a for n, a in weights(card()).items() if n.startswith("layers")}
    assert sum(a.size for a in arrays.values()) == card().parameters
    assert parameter_count(3600, 256, 4) < MAX_PARAMETERS < parameter_count(3700, 256, 4)


def test_serving_a_head_loads_no_torch():
    import subprocess
    import sys

    code = "import sys, serving.head; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
