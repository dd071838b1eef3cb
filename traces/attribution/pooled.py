"""Pooled evidence: what became of similar requests, by slot and version.

    pool = Pool.of(connection, at)             # once an attribution
    blame = pool.adjust(blame, turn, outcome)  # the same, surer, less sure, or another verdict

One noisy turn never decides alone, and neither do a few: a rule speaks only where Wilson's 95 %
intervals are apart. The turn itself never counts: it was looked at because it failed.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import duckdb

from serving.records import Turn
from traces.attribution.apart import apart_sql
from traces.attribution.blame import Blame
from traces.attribution.clusters import Clusters
from traces.attribution.literals import folded
from traces.attribution.outcomes import Outcome
from traces.attribution.pooled_rules import HABIT, MIN_SLOT, POOLED, Kin, Tally

MAX_JUDGED = 20_000
"""Judged turns that a pool is made from, drawn by hash."""
MAX_FAILED = 200_000
"""Failed turns that are compared with it."""
MIN_JUDGED = 40
"""Below this nothing is pooled."""
SIMILARITY = 0.3
"""Cosine from which on requests are similar: on the task world's traffic groups hold one slot's
requests, and seven of eight requests are in groups of ten and more."""
_MIN_NAMING = 50
"""Similar requests, at least, for their words to tell which ones name something."""
_RARE = 0.02
"""Share of all requests that have a word, up to which it names something."""
_RARE_HERE = 0.1
"""The same among similar requests."""
_POINTING = frozenset(
    word
    for line in (
        "it that this them those these there one ones thing things something someone somewhere",
        "anything some any other which what 它 这 那 这个 那个 某 某个",
    )
    for word in line.split()
)
"""Words that name nothing, however rare they are."""
_BATCH = 5000
_WORD = re.compile(r"\w+")

Judged = tuple[str, str, str, str | None, bool]
"""Turn id, request, slot, version and success of one judged turn, in order of time."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Success by cluster, slot and version."""

    cluster_of: Mapping[str, int]
    """Of failed turns by id."""
    counted: frozenset[str]
    """Turns that are in the tallies."""
    slots: Mapping[tuple[int, str], Tally] = field(default_factory=dict)
    versions: Mapping[tuple[int, str, str | None], Tally] = field(default_factory=dict)
    overall: Mapping[tuple[str, str | None], Tally] = field(default_factory=dict)
    away: Mapping[str, Tally] = field(default_factory=dict)
    before: Mapping[tuple[str, str | None], str | None] = field(default_factory=dict)
    """A version's predecessor in its slot."""
    labels: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Slots seen in each cluster."""
    naming: Mapping[int, Tally] = field(default_factory=dict)
    common: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """Words of each larger cluster that too many requests have to name anything."""
    router: str | None = None
    """The slot that routes."""

    @classmethod
    def of(
        cls,
        connection: duckdb.DuckDBPyConnection,
        at: str,
        router: str | None = None,
        similarity: float = SIMILARITY,
    ) -> "Pool":
        """Pool the judged turns of `judged.outcomes`; `at` is a DuckLake `AT (...)` clause."""
        turns = f"(SELECT * FROM turns {at}) t JOIN judged.outcomes o USING (turn_id)"
        judged: list[Judged] = connection.execute(
            "SELECT * EXCLUDE (started_at) FROM ("
            " SELECT t.turn_id, t.request, t.slot, t.digest, o.success, t.started_at"
            f" FROM {turns} WHERE o.success IS NOT NULL AND t.slot IS NOT NULL AND NOT t.canary"
            f" AND ({apart_sql()}) IS NULL"
            f" ORDER BY hash(t.turn_id), t.turn_id LIMIT {MAX_JUDGED}) ORDER BY started_at, turn_id"
        ).fetchall()
        if len(judged) < MIN_JUDGED:
            return cls({}, frozenset())
        clusters, found = Clusters.grouped([row[1] for row in judged], similarity)
        numbers = found.tolist()
        known = dict(zip((row[0] for row in judged), numbers, strict=True))
        failed = connection.execute(
            f"SELECT t.turn_id, t.request FROM {turns} WHERE o.blamable"
            f" ORDER BY hash(t.turn_id), t.turn_id LIMIT {MAX_FAILED}"
        )
        cluster_of: dict[str, int] = {}
        while rows := failed.fetchmany(_BATCH):
            new = [(turn_id, request) for turn_id, request in rows if turn_id not in known]
            given = clusters.assign([request for _, request in new]).tolist()
            of_batch = {turn_id: known[turn_id] for turn_id, _ in rows if turn_id in known}
            of_batch |= zip((turn_id for turn_id, _ in new), given, strict=True)
            cluster_of |= {turn_id: number for turn_id, number in of_batch.items() if number >= 0}
        return cls.count(judged, numbers, cluster_of, router)

    @classmethod
    def count(
        cls,
        judged: Sequence[Judged],
        numbers: Sequence[int],
        cluster_of: Mapping[str, int],
        router: str | None = None,
    ) -> "Pool":
        """Count judged turns, given in order of time with the number of the cluster of each."""
        slots: dict[tuple[int, str], Tally] = defaultdict(Tally)
        versions: dict[tuple[int, str, str | None], Tally] = defaultdict(Tally)
        overall: dict[tuple[str, str | None], Tally] = defaultdict(Tally)
        for (_, _, slot, digest, success), number in zip(judged, numbers, strict=True):
            slots[number, slot].add(success)
            versions[number, slot, digest].add(success)
            overall[slot, digest].add(success)
        labels: dict[int, tuple[str, ...]] = defaultdict(tuple)
        for number, slot in slots:
            labels[number] += (slot,)
        by_number: dict[int, list[str]] = defaultdict(list)
        for row, number in zip(judged, numbers, strict=True):
            by_number[number].append(row[1])
        everywhere = _common_words([row[1] for row in judged], _RARE)
        common = {
            number: everywhere & _common_words(requests, _RARE_HERE)
            for number, requests in by_number.items()
            if len(requests) >= _MIN_NAMING
        }
        naming: dict[int, Tally] = defaultdict(Tally)
        for row, number in zip(judged, numbers, strict=True):
            if row[4] and number in common:
                naming[number].add(_names(row[1], common[number]))
        return cls(
            cluster_of,
            frozenset(row[0] for row in judged),
            dict(slots),
            dict(versions),
            dict(overall),
            _away(slots),
            _predecessors(judged),
            dict(labels),
            dict(naming),
            common,
            router,
        )

    def adjust(self, blame: Blame, turn: Turn, outcome: Outcome) -> Blame:
        """Return the blame as similar turns have it; the same where they say nothing."""
        number = self.cluster_of.get(turn.turn_id)
        if number is None or turn.slot is None or outcome.success is not False:
            return blame
        kin = self._kin(blame, turn, number)
        for _, rule in POOLED:
            found = rule(kin)
            if found is not None:
                return found
        return blame

    def _kin(self, blame: Blame, turn: Turn, number: int) -> Kin:
        slot = str(turn.slot)
        before = self.before.get((slot, turn.digest), "")
        counted = turn.turn_id in self.counted

        def own(tally: Tally | None) -> Tally:
            return tally.without_failure() if tally and counted else tally or Tally()

        return Kin(
            blame,
            turn,
            here=own(self.slots.get((number, slot))),
            version=own(self.versions.get((number, slot, turn.digest))),
            predecessor=self.versions.get((number, slot, before), Tally()),
            version_overall=own(self.overall.get((slot, turn.digest))),
            predecessor_overall=self.overall.get((slot, before), Tally()),
            away=self.away.get(slot, Tally()),
            others={s: self.slots[number, s] for s in self.labels.get(number, ()) if s != slot},
            names=_names(turn.request, self.common.get(number, frozenset())),
            naming=self.naming.get(number, Tally()),
            router=self.router,
        )


def _names(request: str, common: frozenset[str]) -> bool:
    """Whether a request has a word that names something."""
    return any(word not in common and word not in _POINTING for word in _words(request))


def _words(request: str) -> set[str]:
    return set(_WORD.findall(folded(request)))


def _common_words(requests: Sequence[str], share: float) -> frozenset[str]:
    counts = Counter(word for text in requests for word in _words(text))
    return frozenset(word for word, count in counts.items() if count > share * len(requests))


def _away(slots: Mapping[tuple[int, str], Tally]) -> dict[str, Tally]:
    """Add up what each slot did among requests that belong to another one."""
    totals: Counter[int] = Counter()
    for (number, _), tally in slots.items():
        totals[number] += tally.turns
    homes = {
        number: slot
        for (number, slot), tally in slots.items()
        if tally.turns >= max(MIN_SLOT, HABIT * totals[number])
    }
    away: dict[str, Tally] = defaultdict(Tally)
    for (number, slot), tally in slots.items():
        if homes.get(number, slot) != slot:
            away[slot].turns += tally.turns
            away[slot].successes += tally.successes
    return dict(away)


def _predecessors(judged: Sequence[Judged]) -> dict[tuple[str, str | None], str | None]:
    """Return what served in a slot before each version first did."""
    latest: dict[str, str | None] = {}
    before: dict[tuple[str, str | None], str | None] = {}
    for _, _, slot, digest, _ in judged:
        if (slot, digest) not in before:
            before[slot, digest] = latest.get(slot, "")
            latest[slot] = digest
    return before
