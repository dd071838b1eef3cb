"""Three sets of a suite: search (may be seen), sealed (the gate's), audit (never gates).

In: a suite. Out: three suites of the same name with whole clusters each.

A cluster's place is a hash of its label alone. So it is the same in every suite (a phrasing
that `tools` keeps sealed is sealed in `route` too), a suite that grows moves nothing, and what
was ever shown is never sealed.

Shares are those of clusters, kept on average: with G clusters a share p has a standard deviation
of sqrt(p (1 - p) / G). A suite of few clusters may well have a set without any; the gate finds
too few items in it and says INCONCLUSIVE, and nothing is moved to make up for it. For sets that
are never empty in practice give a suite 20 clusters or more; for a gate that can exclude a loss
of 5 points, 100.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import cycle, islice, zip_longest
from typing import Literal

from promotion.suites.suite import Item, Suite

Part = Literal["search", "sealed", "audit"]

AUDIT_SHARE = 0.2
SEALED_SHARE = 0.6
"""The rest, a fifth, is the search set."""


@dataclass(frozen=True, slots=True)
class Sets:
    """One suite in three; no cluster is in two of them."""

    search: Suite
    """For whoever trains: to tune on and to look at, never to learn from."""
    sealed: Suite
    """What the gate scores; only its verdict leaves."""
    audit: Suite
    """Scored now and then, to see whether the gate still tells the truth."""

    def part(self, name: Part) -> Suite:
        """Return one of the three."""
        return {"search": self.search, "sealed": self.sealed, "audit": self.audit}[name]


def divide(suite: Suite) -> Sets:
    """Divide a suite by clusters; items keep their order."""
    parts: dict[Part, list[Item]] = {"search": [], "sealed": [], "audit": []}
    for item in suite.items:
        parts[part_of(item.cluster)].append(item)
    search, sealed, audit = (
        replace(suite, items=tuple(parts[name])) for name in ("search", "sealed", "audit")
    )
    return Sets(search=search, sealed=sealed, audit=audit)


def part_of(cluster: str) -> Part:
    """Return the set that a cluster is in."""
    if _uniform("audit", cluster) < AUDIT_SHARE:
        return "audit"
    sealed_of_rest = SEALED_SHARE / (1 - AUDIT_SHARE)
    return "sealed" if _uniform("circle", cluster) < sealed_of_rest else "search"


def take(suite: Suite, count: int, number: int = 0) -> Suite:
    """Return `count` items (all, if there are fewer): one of each cluster in turn.

    A smaller count gives the beginning of a larger. Set `number` has as many of each cluster as
    set 0: it goes on in each where the set before ended, and begins it again where it must.
    """
    clusters: dict[str, list[Item]] = defaultdict(list)
    for item in suite.items:
        clusters[item.cluster].append(item)
    turns = zip_longest(*clusters.values())
    drawn = [item for turn in turns for item in turn if item is not None][:count]
    times = Counter(item.cluster for item in drawn)
    own = {label: islice(cycle(clusters[label]), number * n, None) for label, n in times.items()}
    return replace(suite, items=tuple(next(own[item.cluster]) for item in drawn))


def without(suite: Suite, asked: Collection[str]) -> Suite:
    """Leave out the items that ask what has one of these digests (`Item.asked_id`)."""
    left = tuple(item for item in suite.items if item.asked_id not in asked)
    return replace(suite, items=left)


def _uniform(salt: str, cluster: str) -> float:
    """Return a number in [0, 1) that only depends on the arguments."""
    digest = hashlib.sha256(f"{salt}\0{cluster}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56
