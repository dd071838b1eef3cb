"""Similar requests: clusters of texts, found without a model and the same at every run.

    clusters = Clusters.of(texts, similarity)      # what the groups are
    clusters.assign(more_texts)                    # a group's number each, -1 where none is near

Texts are vectors of hashed words and of hashed character pairs and triples, which serve scripts
without spaces as well (scikit-learn's HashingVectorizer, weighted by TF-IDF: Weinberger et al.,
"Feature Hashing for Large Scale Multitask Learning", 2009). A text joins the first group whose
leader is near enough by cosine, else leads a new one (leader clustering: Hartigan, "Clustering
Algorithms", 1975). Memory is bounded by the sample and by the number of leaders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from traces.attribution.literals import IDEOGRAPH, folded

MAX_LEADERS = 1500
_FEATURES = 1 << 18
_BATCH = 1000
_MAX_CHARS = 400
"""A request's first characters say what kind it is; the rest may be a pasted file."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """Groups of similar texts, each known by its leader."""

    weights: Any
    """The fitted `TfidfTransformer`."""
    leaders: Any
    """One sparse row a group."""
    similarity: float

    @classmethod
    def of(cls, texts: Sequence[str], similarity: float) -> "Clusters":
        """Find the groups of texts, in the order they come; at most `MAX_LEADERS`."""
        return cls.grouped(texts, similarity)[0]

    @classmethod
    def grouped(
        cls, texts: Sequence[str], similarity: float
    ) -> tuple["Clusters", npt.NDArray[np.int64]]:
        """Find the groups of texts, as `of` does, and return each text's number with them."""
        from scipy.sparse import vstack
        from sklearn.feature_extraction.text import TfidfTransformer

        counts = _counts(texts)
        weights = TfidfTransformer(sublinear_tf=True).fit(counts)
        rows = weights.transform(counts)
        leaders = rows[:0]
        for start in range(0, rows.shape[0], _BATCH):
            batch = rows[start : start + _BATCH]
            far = np.flatnonzero(_nearest(batch, leaders, similarity) < 0)
            room = MAX_LEADERS - leaders.shape[0]
            new = _leaders_among(batch[far], similarity)[:room]
            leaders = vstack([leaders, batch[far[new]]], format="csr")
            if leaders.shape[0] >= MAX_LEADERS:
                break
        clusters = cls(weights, leaders, similarity)
        return clusters, clusters._numbers(rows)

    def assign(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the number of each text's group, -1 where no leader is near enough."""
        found = [
            self._numbers(self.weights.transform(_counts(texts[i : i + _BATCH])))
            for i in range(0, len(texts), _BATCH)
        ]
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def _numbers(self, rows: Any) -> npt.NDArray[np.int64]:
        found = [
            _nearest(rows[i : i + _BATCH], self.leaders, self.similarity)
            for i in range(0, rows.shape[0], _BATCH)
        ]
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _counts(texts: Sequence[str]) -> Any:
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import HashingVectorizer

    clean = [folded(text[:_MAX_CHARS]) for text in texts]
    kinds = {"n_features": _FEATURES, "norm": None, "alternate_sign": False, "lowercase": False}
    words = HashingVectorizer(token_pattern=r"(?u)\w+", ngram_range=(1, 2), **kinds)
    characters = HashingVectorizer(analyzer="char_wb", ngram_range=(2, 3), **kinds)
    apart = [IDEOGRAPH.sub(r" \g<0> ", text) for text in clean]
    return hstack([words.transform(apart), characters.transform(clean)], format="csr")


def _nearest(rows: Any, leaders: Any, similarity: float) -> npt.NDArray[np.int64]:
    """Return each row's nearest leader, the first of equals; -1 where none is near enough."""
    if leaders.shape[0] == 0:
        return np.full(rows.shape[0], -1, dtype=np.int64)
    cosines = (rows @ leaders.T).toarray()
    nearest = cosines.argmax(axis=1)
    near = cosines[np.arange(len(nearest)), nearest] >= similarity
    return np.where(near, nearest, -1).astype(np.int64)


def _leaders_among(rows: Any, similarity: float) -> list[int]:
    """Return which of these rows lead a new group, in order."""
    if rows.shape[0] == 0:
        return []
    near = (rows @ rows.T).toarray() >= similarity
    new: list[int] = []
    for index in range(rows.shape[0]):
        if not near[index, new].any():
            new.append(index)
    return new
