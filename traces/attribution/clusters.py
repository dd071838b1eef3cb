"""Similar requests: clusters of texts, found without a model and the same at every run.

    clusters = Clusters.of(texts, similarity)      # what the groups are
    clusters.assign(more_texts)                    # a group's number each, -1 where none is near

Texts are vectors of hashed words and of hashed character pairs and triples, which serve scripts
without spaces as well (scikit-learn's HashingVectorizer, weighted by TF-IDF: Weinberger et al.,
"Feature Hashing for Large Scale Multitask Learning", 2009). A text joins the first group whose
leader is near enough by cosine, else leads a new one (leader clustering: Hartigan, "Clustering
Algorithms", 1975). Memory is bounded by the sample and by the number of leaders.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from traces.attribution.literals import IDEOGRAPH, folded

MAX_LEADERS = 1500
_FEATURES = 1 << 18
_BATCH = 1000
_COMMON = 0.05
"""Share of the leaders that have a column, from which on it is dense; five at least."""
_MOST_DENSE = 1000
"""Columns that are, at most."""
_DECIMALS = 9
"""Of a cosine; more would be what the order of adding up leaves."""
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
        for batch in _batches(rows):
            far = np.flatnonzero(_nearest(batch, _Split.of(leaders), similarity) < 0)
            room = MAX_LEADERS - leaders.shape[0]
            new = _leaders_among(batch[far], similarity)[:room]
            leaders = vstack([leaders, batch[far[new]]], format="csr")
            if leaders.shape[0] >= MAX_LEADERS:
                break
        clusters = cls(weights, leaders, similarity)
        return clusters, clusters._numbers(_batches(rows))

    def assign(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the number of each text's group, -1 where no leader is near enough."""
        parts = (texts[i : i + _BATCH] for i in range(0, len(texts), _BATCH))
        return self._numbers(self.weights.transform(_counts(part)) for part in parts)

    def _numbers(self, batches: Iterable[Any]) -> npt.NDArray[np.int64]:
        leaders = _Split.of(self.leaders)
        found = [_nearest(batch, leaders, self.similarity) for batch in batches]
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _batches(rows: Any) -> Iterator[Any]:
    return (rows[i : i + _BATCH] for i in range(0, rows.shape[0], _BATCH))


def _counts(texts: Sequence[str]) -> Any:
    from scipy.sparse import hstack, vstack
    from sklearn.feature_extraction.text import HashingVectorizer

    clean = [folded(text[:_MAX_CHARS]) for text in texts]
    kinds = {"n_features": _FEATURES, "norm": None, "alternate_sign": False, "lowercase": False}
    by_words = HashingVectorizer(token_pattern=r"(?u)\w+", ngram_range=(1, 2), **kinds)
    words = by_words.transform(IDEOGRAPH.sub(r" \g<0> ", text) for text in clean)
    # The characters of a text are those of its words, and each of these is looked at once.
    often, vocabulary = _often([text.split() for text in clean])
    by_characters = HashingVectorizer(analyzer="char_wb", ngram_range=(2, 3), **kinds)
    characters = often @ by_characters.transform(vocabulary)
    parts = [slice(i, i + _BATCH) for i in range(0, len(texts), _BATCH)]
    return vstack([hstack([words[i], characters[i]]) for i in parts], format="csr")


def _often(texts: Sequence[Sequence[str]]) -> tuple[Any, list[str]]:
    """Return how often each text has each word, a row a text, and the words."""
    from scipy.sparse import csr_array

    places = {"": 0}  # there is one, even if no text has any
    columns = [places.setdefault(word, len(places)) for words in texts for word in words]
    starts = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    rows = np.ones(len(columns)), np.array(columns, np.int32), starts
    return csr_array(rows, shape=(len(texts), len(places))), [*places]


@dataclass(frozen=True, slots=True)
class _Split:
    """Leaders to compare with; most of the work is in the few columns that many of them have."""

    common: npt.NDArray[np.int64]
    """Columns that many leaders have."""
    dense: npt.NDArray[np.float64]
    """These, (columns, leaders)."""
    rest: Any
    """The others, sparse: (features, leaders)."""

    @classmethod
    def of(cls, leaders: Any) -> "_Split":
        often = np.bincount(leaders.indices, minlength=leaders.shape[1])
        common = np.flatnonzero(often > max(5, _COMMON * leaders.shape[0]))
        common = common[np.argsort(-often[common], kind="stable")[:_MOST_DENSE]]
        rest = leaders.copy()
        rest.data[np.isin(rest.indices, common)] = 0.0
        rest.eliminate_zeros()
        return cls(common, leaders[:, common].toarray().T, rest.T.tocsr())

    def cosines(self, rows: Any) -> npt.NDArray[np.float64]:
        """Return those of rows with the leaders, rounded so that equal ones are equal."""
        cosines: npt.NDArray[np.float64] = (rows @ self.rest).toarray()
        cosines += rows[:, self.common].toarray() @ self.dense
        return cosines.round(_DECIMALS)


def _nearest(rows: Any, leaders: _Split, similarity: float) -> npt.NDArray[np.int64]:
    """Return each row's nearest leader, the first of equals; -1 where none is near enough."""
    cosines = leaders.cosines(rows)
    if not cosines.shape[1]:
        return np.full(rows.shape[0], -1, dtype=np.int64)
    nearest = cosines.argmax(axis=1)
    near = cosines[np.arange(len(nearest)), nearest] >= similarity
    return np.where(near, nearest, -1).astype(np.int64)


def _leaders_among(rows: Any, similarity: float) -> list[int]:
    """Return which of these rows lead a new group, in order."""
    if rows.shape[0] == 0:
        return []
    near = (rows @ rows.T).toarray().round(_DECIMALS) >= similarity
    new: list[int] = []
    for index in range(rows.shape[0]):
        if not near[index, new].any():
            new.append(index)
    return new
