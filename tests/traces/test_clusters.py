"""Proves that clusters are reckoned as scikit-learn and scipy would, however they are sped up.

Nothing is faked.
"""

import random

import numpy as np
import numpy.testing as npt
from scipy.sparse import hstack
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

from traces.attribution.clusters import _FEATURES, Clusters, _counts, _nearest, _Split
from traces.attribution.literals import IDEOGRAPH, folded

ODD = ["", " ", "a", "it's\u00a0b\x1cz", "你好 吗你好", "A b A b", "x" * 500, "naïve  café\n\tx"]
KINDS = {"n_features": _FEATURES, "norm": None, "alternate_sign": False, "lowercase": False}


def texts(count: int) -> list[str]:
    """Requests of a few words, of which some are in most."""
    drawn = random.Random(3)
    words = [f"w{drawn.randrange(36**4):x}" for _ in range(300)]
    return [
        " ".join(["turn", "on", *drawn.choices(words, k=drawn.randrange(1, 9))])
        for _ in range(count)
    ]


def test_words_and_characters_are_counted_as_scikit_learn_does() -> None:
    asked = [*ODD, *texts(1500)]
    clean = [folded(text[:400]) for text in asked]
    apart = [IDEOGRAPH.sub(r" \g<0> ", text) for text in clean]
    words = HashingVectorizer(token_pattern=r"(?u)\w+", ngram_range=(1, 2), **KINDS)
    characters = HashingVectorizer(analyzer="char_wb", ngram_range=(2, 3), **KINDS)

    expected = hstack([words.transform(apart), characters.transform(clean)], format="csr")

    assert abs(_counts(asked) - expected).sum() == 0
    assert _counts(["", " "]).shape == (2, 2 * _FEATURES)


def test_cosines_are_those_of_the_whole_rows() -> None:
    counts = _counts([*ODD, *texts(600)])
    rows = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    leaders = rows[:400]
    split = _Split.of(leaders)

    assert 0 < len(split.common) < 0.1 * np.count_nonzero(np.diff(leaders.T.tocsr().indptr))
    npt.assert_allclose(split.cosines(rows), (rows @ leaders.T).toarray(), atol=1e-9)


def test_of_leaders_equally_near_the_first_counts() -> None:
    clusters = Clusters.of(["red lamp", "blue door"], 0.9)
    rows = clusters.weights.transform(_counts(["lamp door", "red lamp", ""]))

    assert _nearest(rows, _Split.of(clusters.leaders), 0.1).tolist()[1:] == [0, -1]
    assert _nearest(rows, _Split.of(clusters.leaders[:0]), 0.1).tolist() == [-1, -1, -1]
    twice = clusters.leaders[[1, 0, 0]]
    assert _nearest(rows, _Split.of(twice), 0.1).tolist()[1] == 1


def test_equal_requests_are_one_group_however_their_cosines_add_up() -> None:
    things = "lamp", "fan", "heater", "oven", "radio", "kettle", "toaster"
    kinds = [f"turn on the {thing}" for thing in things]

    clusters, groups = Clusters.grouped(kinds * 300, 1.0)

    assert clusters.leaders.shape[0] == len(kinds)
    assert sorted(set(groups.tolist())) == [*range(len(kinds))]
