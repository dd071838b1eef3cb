"""Proves that a prefix tree computes what separate rows do, with fewer tokens.

Real tiny model with a real LoRA; the reference is one plain forward pass a row.
"""

import numpy as np
import pytest
from tiny import make_tiny_base

from training.batches import collate, lay_out, plan, stack
from training.render import IGNORED, Row

# PEFT 0.21 reads a property that transformers 5.24 renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")

PAD = 2


def make_row(prompt, completion, weight=1.0) -> Row:
    return Row(f"{prompt}{completion}", (*prompt, *completion), len(prompt), weight)


SHARED = tuple(range(10, 40))
ROWS = [
    make_row((*SHARED, 50, 51), (60, 61, PAD)),
    make_row((*SHARED, 50, 52), (62, PAD), weight=0.5),
    make_row((*SHARED, 53), (63, 64, 65, PAD)),
    make_row((*SHARED, 53), (66, PAD)),
    make_row((*SHARED[:5], 70, 71, 72), (73, PAD)),
]


def test_a_shared_prompt_token_stands_once():
    tree = lay_out(ROWS)
    assert (tree.input_ids_T == SHARED[-1]).sum() == 1
    assert len(tree.input_ids_T) < sum(len(row.input_ids) for row in ROWS) / 2


def test_each_row_keeps_its_own_completion():
    tree = lay_out(ROWS)
    learnt = sorted(tree.labels_T[tree.labels_T != IGNORED])
    assert learnt == sorted(t for row in ROWS for t in row.input_ids[row.prompt_tokens :])


def test_what_a_token_sees_is_its_row_up_to_itself():
    tree = lay_out(ROWS)
    wanted = sorted(row.input_ids for row in ROWS)
    ends = [t for t in range(len(tree.input_ids_T)) if tree.sees_T_T[:, t].sum() == 1]
    seen = sorted(tuple(tree.input_ids_T[tree.sees_T_T[t]]) for t in ends)
    assert seen == wanted


def test_positions_count_within_the_row():
    tree = lay_out(ROWS)
    for t in range(len(tree.input_ids_T)):
        assert list(tree.positions_T[tree.sees_T_T[t]]) == list(range(tree.positions_T[t] + 1))


def test_rows_in_another_order_give_the_same_tree():
    one, other = lay_out(ROWS), lay_out(ROWS[::-1])
    assert np.array_equal(one.input_ids_T, other.input_ids_T)
    assert np.array_equal(one.sees_T_T, other.sees_T_T)


def test_long_rows_that_share_nothing_are_laid_out_one_by_one():
    rows = [make_row(tuple(range(n, n + 900)), (1, PAD)) for n in (1000, 3000, 5000, 7000)]
    assert len(plan(rows)) == 4
    assert len(plan(ROWS)) == 1


def test_padding_is_on_the_left_and_sees_itself_alone():
    rows = [make_row(tuple(range(n, n + 900 - n % 7)), (1, PAD)) for n in (1000, 3001, 5002)]
    batch = collate(rows, PAD)
    short = int(np.argmin([len(row.input_ids) for row in rows]))
    pads = batch["input_ids"].shape[1] - len(rows[short].input_ids)
    assert pads > 0
    assert batch["labels"][short, :pads].eq(IGNORED).all()
    mask = batch["attention_mask"][short, 0]
    assert mask[:pads].sum(dim=1).eq(1).all()
    assert not mask[pads:, :pads].any()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = make_tiny_base(tmp_path_factory.mktemp("base"))
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    lora = get_peft_model(plain, LoraConfig(r=4, target_modules="all-linear"))
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    return lora


def separate_loss(model, rows):
    import torch
    import torch.nn.functional as F

    total, count = torch.zeros(()), 0
    for row in rows:
        ids = torch.tensor([row.input_ids])
        logits = model(input_ids=ids).logits[0, row.prompt_tokens - 1 : -1]
        losses = F.cross_entropy(logits, ids[0, row.prompt_tokens :], reduction="none")
        total = total + row.weight * losses.sum()
        count += len(losses)
    return total / count


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], ROWS[3:]], ids=["tree", "one row", "fork"])
def test_loss_and_gradient_are_those_of_separate_rows(model, rows):
    import torch

    from training.sft import weighted_loss

    batch = collate(rows, PAD)
    joint = weighted_loss(model, batch, None)[0]
    apart = separate_loss(model, rows)
    torch.testing.assert_close(joint, apart, rtol=1e-5, atol=1e-6)
    wanted = gradients(model, apart)
    found = gradients(model, weighted_loss(model, batch, None)[0])
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-7)


def test_padded_rows_give_the_loss_of_separate_rows(model):
    import torch

    from training.sft import weighted_loss

    batch = stack([lay_out([row]) for row in ROWS], PAD)
    assert batch["input_ids"].shape[0] == len(ROWS)
    torch.testing.assert_close(
        weighted_loss(model, batch, None)[0], separate_loss(model, ROWS), rtol=1e-5, atol=1e-6
    )
