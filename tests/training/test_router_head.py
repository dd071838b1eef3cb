"""Training a router head on hidden states of a real, tiny, random base model.

Proved: on requests that words tell apart the head beats naming the commonest slot, on
shuffled labels it does not; equal runs give equal bytes and are found again; the scores are
what they say. Nothing is faked; the requests are made from templates.
"""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation.routes import RouteRow, Routes
from serving.head import MAX_PARAMETERS, RouterHead, head_folder, parameter_count
from training.config import HeadConfig
from training.router_head import (
    TooFewRoutes,
    find_head,
    head_width,
    hidden_states,
    list_heads,
    score,
    train_head,
)

BASE = "sha256:" + "0" * 64
WORDS = {
    "L0": ["What is {}?", "Who was {}?", "Tell me about {}, please.", "How old is {}?"],
    "L1": ["Turn on the {} light.", "Set a timer in the {}.", "Call {} at 9.", "Switch {} off."],
    "L2": ["def {}(a, b):", "Write a function {}.", "return {} + 1", "import {}"],
}
NAMES = [f"{a}{b}" for a in ("red", "kit", "gar", "sun", "hal") for b in ("en", "chen", "den", "l")]


def make_routes(n=240, seed=0, shuffled=False):
    """Requests of three slots, a third of them of the commonest, dealt to the sides at random."""
    rng = random.Random(seed)
    rows = []
    for number in range(n):
        slot = rng.choice(["L0", "L1", "L1", "L2"])
        text = rng.choice(WORDS[slot]).format(f"{rng.choice(NAMES)} {number}")
        rows.append(
            RouteRow(
                turn_id=f"t{number:04}", text=text, slot=slot, served="L1", routed=True,
                user=f"u{number}", conversation_id=f"c{number}",
                split=rng.choice(["train", "train", "train", "validation", "holdout"]),
            )
        )  # fmt: skip
    if shuffled:
        from dataclasses import replace

        slots = [row.slot for row in rows]
        rng.shuffle(slots)
        rows = [replace(row, slot=slot) for row, slot in zip(rows, slots, strict=True)]
    return Routes(rows=tuple(rows), turns=n, dropped={})


@pytest.fixture(scope="module")
def embed(tmp_path_factory):
    """The last hidden state of the tiny base after a text, by transformers directly."""
    import torch
    from tiny import make_tiny_base
    from transformers import AutoModel, AutoTokenizer

    folder = make_tiny_base(tmp_path_factory.mktemp("tiny") / "base")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()

    async def embedded(text):
        with torch.no_grad():
            states = model(torch.tensor([tokenizer.encode(text)])).last_hidden_state
        return tuple(states[0, -1].tolist())

    return embedded


async def trained(home, embed, routes=None, seed=0, **config):
    return await train_head(home, routes or make_routes(), embed, BASE, HeadConfig(**config), seed)


def run(coroutine):
    import asyncio

    return asyncio.run(coroutine)


def test_a_head_beats_naming_the_commonest_slot(tmp_path, embed):
    made = run(trained(tmp_path, embed))
    m = made.metrics
    deviation = (m["majority"] * (1 - m["majority"]) / m["holdout"]) ** 0.5
    assert m["accuracy"] > m["majority"] + 3 * deviation
    assert m["log_loss"] < np.log(3)
    assert m["parameters"] == made.head.card.parameters < MAX_PARAMETERS


def test_on_shuffled_labels_there_is_nothing_to_learn(tmp_path, embed):
    m = run(trained(tmp_path, embed, make_routes(shuffled=True))).metrics
    deviation = (m["majority"] * (1 - m["majority"]) / m["holdout"]) ** 0.5
    assert m["accuracy"] < m["majority"] + 3 * deviation


def test_the_metrics_are_those_of_the_head_on_disk(tmp_path, embed):
    routes = make_routes()
    made = run(trained(tmp_path, embed, routes))
    head = RouterHead.load(head_folder(tmp_path, made.head.digest), made.head.digest)
    held = routes.of("holdout")
    states = run(hidden_states(held, embed))
    right = 0
    for row, state in zip(held, states, strict=True):
        chances = head.probabilities(state)
        right += max(chances, key=chances.get) == row.slot
    assert right / len(held) == made.metrics["accuracy"]


def test_equal_runs_give_equal_bytes_and_other_seeds_do_not(tmp_path, embed):
    one = run(trained(tmp_path / "one", embed, epochs=5))
    two = run(trained(tmp_path / "two", embed, epochs=5))
    three = run(trained(tmp_path / "two", embed, epochs=5, seed=1))
    assert one.head.digest == two.head.digest != three.head.digest
    assert [h.head.digest for h in list_heads(tmp_path / "two")] == [
        two.head.digest, three.head.digest,
    ]  # fmt: skip


def test_a_finished_run_is_found_and_a_damaged_head_is_made_again(tmp_path, embed):
    async def unreachable(_):
        raise AssertionError("nothing has to be embedded")

    made = run(trained(tmp_path, embed, epochs=3))
    assert run(trained(tmp_path, unreachable, epochs=3)).head.digest == made.head.digest
    (head_folder(tmp_path, made.head.digest) / "head.safetensors").write_bytes(b"x")
    assert find_head(tmp_path, made.run_key) is None
    assert run(trained(tmp_path, embed, epochs=3)).head.digest == made.head.digest
    assert find_head(tmp_path, made.run_key).metrics["accuracy"] == made.metrics["accuracy"]


def test_the_generator_of_the_caller_is_left_alone(tmp_path, embed):
    import torch

    before = torch.random.get_rng_state()
    run(trained(tmp_path, embed, epochs=1))
    assert torch.equal(before, torch.random.get_rng_state())


def without(split=None, slots=None):
    routes = make_routes()
    rows = tuple(r for r in routes.rows if r.split != split and (not slots or r.slot in slots))
    return Routes(rows, routes.turns, {"no outcome": 7})


@pytest.mark.parametrize(
    ("routes", "word"),
    [
        (without("train"), "0 training rows"),
        (without("validation"), "no validation rows"),
        (without("holdout"), "no holdout rows"),
        (without(slots={"L1"}), "slot 'L1' only"),
    ],
)
def test_too_few_rows_are_refused_in_one_line(tmp_path, embed, routes, word):
    with pytest.raises(TooFewRoutes, match=word) as caught:
        run(trained(tmp_path, embed, routes))
    assert "7 no outcome" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "heads").exists()


def test_equal_texts_are_embedded_once():
    asked = []

    async def counting(text):
        asked.append(text)
        return (float(len(text)), 1.0)

    rows = make_routes().rows[:3]
    states = run(hidden_states([*rows, *rows], counting))
    assert len(asked) == 3
    assert states.tolist() == [[float(len(r.text)), 1.0] for r in (*rows, *rows)]


def test_scores_of_a_case_worked_out_by_hand():
    chances = np.array([[0.95, 0.05], [0.85, 0.15], [0.25, 0.75], [0.5, 0.5]])
    found = score(chances, np.array([0, 1, 1, -1]))
    assert found["accuracy"] == 0.5
    logs = -(np.log(0.95) + np.log(0.15) + np.log(0.75) + np.log(1e-12)) / 4
    assert found["log_loss"] == pytest.approx(logs)
    # One row a bin: gaps of 0.05, 0.85, 0.25 and 0.5, a quarter each.
    assert found["ece"] == pytest.approx((0.05 + 0.85 + 0.25 + 0.5) / 4)


@given(st.integers(1, 20_000), st.integers(2, 64), st.integers(1, 256))
def test_a_head_of_any_base_stays_under_its_limit_and_is_as_wide_as_it_may(dims, labels, width):
    found = head_width(dims, labels, width)
    assert parameter_count(dims, found, labels) < MAX_PARAMETERS
    assert found == width or parameter_count(dims, found + 1, labels) >= MAX_PARAMETERS
