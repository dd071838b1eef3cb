"""The outcome model of doubly robust estimates: how likely a slot succeeds with a request.

In: requests, the slots that took them, rewards, conversations. Out: a prediction for every slot
and turn by a model that never saw the turn's conversation (cross-fitting; Chernozhukov et al.
2018, arXiv 1608.00060). A logistic regression on hashed words, with weights that all slots share
and weights of each slot's own; both are regularised, so that a rare slot leans on what is shared.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from traces.attribution.off_policy import Floats, Ints

FOLDS = 5
FEATURES = 2**12
MAX_CHARS = 1000
"""Of a request; what it is about shows at its beginning."""
STRENGTH = 1.0
"""Inverse of the regularisation, `C` of scikit-learn."""
TOKEN = r"(?u)[\u2e80-\u9fff\uac00-\ud7ff]|\w+"
"""Words, and single characters of scripts that join words without spaces."""


def cross_fitted(
    texts: Sequence[str],
    action_N: Ints,
    reward_N: Floats,
    conversation_N: Ints,
    actions: int,
    seed: int = 0,
) -> Floats:
    """Return the expected reward of each action for each turn, shape (N, actions)."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hashed = HashingVectorizer(
        n_features=FEATURES, ngram_range=(1, 2), token_pattern=TOKEN, alternate_sign=False
    )
    text_N_F = hashed.transform(text[:MAX_CHARS] for text in texts).tocsr()
    fold_N = folds(conversation_N, FOLDS, seed)
    predicted_N_K = np.empty((len(reward_N), actions))
    for fold in np.unique(fold_N):
        apart_N = fold_N == fold
        model = _fit(text_N_F[~apart_N], action_N[~apart_N], reward_N[~apart_N], actions)
        predicted_N_K[apart_N] = model(text_N_F[apart_N])
    return predicted_N_K


def folds(conversation_N: Ints, count: int, seed: int = 0) -> Ints:
    """Deal whole conversations to folds of about equal numbers of conversations."""
    unique, index_N = np.unique(conversation_N, return_inverse=True)
    dealt_G = np.random.default_rng(seed).permutation(len(unique)) % count
    fold_N: Ints = dealt_G[index_N]
    return fold_N


def _fit(text_N_F: Any, action_N: Ints, reward_N: Floats, actions: int) -> Any:
    """Return a function from texts to predictions."""
    from scipy.sparse import csr_matrix, hstack
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(reward_N)) < 2:
        smoothed = (reward_N.sum() + 0.5) / (len(reward_N) + 1)
        return lambda apart_N_F: np.full((apart_N_F.shape[0], actions), smoothed)
    n = len(reward_N)
    taken_N_K = csr_matrix((np.ones(n), (np.arange(n), action_N)), shape=(n, actions))
    own = [text_N_F.multiply(taken_N_K[:, [a]]) for a in range(actions)]
    model = LogisticRegression(C=STRENGTH, solver="liblinear", random_state=0)
    features = hstack([taken_N_K, text_N_F, *own], format="csr")
    # A reward between 0 and 1 counts as that much of a success and the rest of a failure.
    model.fit(
        features[np.r_[np.arange(n), np.arange(n)]],
        np.repeat([1, 0], n),
        sample_weight=np.r_[reward_N, 1 - reward_N],
    )
    weights = model.coef_[0]
    offset_K = model.intercept_[0] + weights[:actions]
    shared_F, own_K_F = weights[actions : actions + FEATURES], weights[actions + FEATURES :]
    weight_F_K = shared_F[:, None] + own_K_F.reshape(actions, FEATURES).T
    return lambda apart_N_F: 1 / (1 + np.exp(-(apart_N_F @ weight_F_K + offset_K)))
