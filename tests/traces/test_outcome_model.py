"""The cross-fitted outcome model: what it may know of a turn, and that it learns at all.

Proved: no prediction depends on the turn's own conversation, slots are told apart by the words of
a request, also where words have no spaces between them. Nothing is faked.
"""

import numpy as np
import pytest

from traces.attribution.outcome_model import cross_fitted, folds

HOME, CODE = ("turn the kitchen lights on", "请打开厨房的灯"), ("sort this list", "请写排序函数")


def asked(n=1200, seed=0, language=0):
    """Return requests of two topics; slot 0 is good at one, slot 1 at the other."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(0, 2, n)
    texts = [(HOME, CODE)[t][language] + f" {rng.integers(50)}" for t in topic]
    action = rng.integers(0, 2, n)
    chance = np.where(topic[:, None] == np.arange(2), 0.9, 0.1)
    reward = (rng.random(n) < chance[np.arange(n), action]).astype(float)
    return texts, action, reward, np.arange(n) // 3, chance


@pytest.mark.parametrize("language", [0, 1])
def test_it_learns_which_slot_is_good_at_what(language) -> None:
    texts, action, reward, conversation, chance = asked(language=language)
    predicted = cross_fitted(texts, action, reward, conversation, 2)
    assert np.abs(predicted - chance).mean() < 0.1


def test_no_prediction_depends_on_its_own_conversation() -> None:
    texts, action, reward, conversation, _ = asked(300)
    before = cross_fitted(texts, action, reward, conversation, 2)
    own = conversation == 17
    other = np.where(own, 1 - reward, reward)
    after = cross_fitted(texts, action, other, conversation, 2)
    assert (before[own] == after[own]).all()
    assert (before != after).any()


def test_folds_are_made_of_whole_conversations_of_about_equal_number() -> None:
    conversation = np.repeat([5, 9, 9, 7, 30, 2, 11, 5], 20)
    dealt = folds(conversation, 3)
    assert all(len(set(dealt[conversation == c])) == 1 for c in set(conversation))
    assert sorted(np.bincount([dealt[conversation == c][0] for c in set(conversation)])) == [
        2,
        2,
        2,
    ]
    assert (folds(conversation, 3) == dealt).all()


def test_where_every_turn_succeeds_it_predicts_nearly_that() -> None:
    texts, action, reward, conversation, _ = asked(300)
    predicted = cross_fitted(texts, action, np.ones_like(reward), conversation, 2)
    assert predicted.shape == (300, 2)
    assert ((predicted > 0.99) & (predicted < 1)).all()
    assert np.isfinite(cross_fitted([""] * 300, action, reward, conversation, 2)).all()
