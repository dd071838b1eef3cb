"""Pooled evidence: what became of similar requests, by slot and version.

    pool = Pool.of(connection, at)             # once an attribution
    blame = pool.adjust(blame, turn, outcome)  # the same, surer, less sure, or another verdict

One noisy turn never decides alone, and neither do a few: a rule speaks only where Wilson's 95 %
intervals are apart. The turn itself never counts: it was looked at because it failed.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import duckdb

from serving.records import Turn
from traces.attribution.apart import apart_sql, one_sided_sql
from traces.attribution.blame import Blame
from traces.attribution.clusters import Clusters
from traces.attribution.outcomes import Outcome
from traces.attribution.pooled_rules import HABIT, MIN_SLOT, POOLED, Kin, Tally
from traces.attribution.wording import POINTING, Wordings, words_of

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
_MOST_DONE = 50
"""Different requests that a slot did well, of a cluster, that one request is compared with."""
_BATCH = 5000
# What an answer says: of its calls not the ids, and no spaces.
_SAID = r"""json_extract_string(t.answer, '$.content'),
    t.answer -> '$.tool_calls[*].name',
    regexp_replace((t.answer -> '$.tool_calls[*].arguments')::VARCHAR, '\s', '', 'g')"""


class Judged(NamedTuple):
    """One judged turn."""

    turn_id: str
    request: str
    slot: str
    digest: str | None
    success: bool
    answer: int = 0
    """A hash of what was answered."""
    cut: bool = False
    """Whether the answer was cut at its token limit."""

    @property
    def counts(self) -> bool:
        """Whether it says something about who answered: a right answer may have been cut too."""
        return self.success or not self.cut


@dataclass(frozen=True, slots=True)
class Pool:
    """Success by cluster, slot and version."""

    cluster_of: Mapping[str, int]
    """Of failed turns by id."""
    counted: frozenset[str]
    """Turns that are in the tallies of success."""
    slots: Mapping[tuple[int, str], Tally] = field(default_factory=dict)
    versions: Mapping[tuple[int, str, str | None], Tally] = field(default_factory=dict)
    overall: Mapping[tuple[str, str | None], Tally] = field(default_factory=dict)
    whole: Mapping[tuple[int, str], Tally] = field(default_factory=dict)
    """Answers that were not cut at the token limit, as successes."""
    version_whole: Mapping[tuple[int, str, str | None], Tally] = field(default_factory=dict)
    homes: Mapping[int, str] = field(default_factory=dict)
    away: Mapping[str, Tally] = field(default_factory=dict)
    before: Mapping[tuple[str, str | None], str | None] = field(default_factory=dict)
    """A version's predecessor in its slot."""
    labels: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Slots seen in each cluster."""
    naming: Mapping[int, Tally] = field(default_factory=dict)
    common: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """Words of each larger cluster that too many requests have to name anything."""
    done: Mapping[tuple[int, str], Sequence[set[str]]] = field(default_factory=dict)
    """Words of some different requests that a slot did well."""
    wordings: Wordings = field(default_factory=Wordings)
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
        found = connection.execute(
            "SELECT * EXCLUDE (started_at) FROM ("
            " SELECT t.turn_id, t.request, t.slot, t.digest, o.success,"
            f" hash({_SAID}),"
            f" coalesce(o.truncated, false), t.started_at FROM {turns}"
            " WHERE o.success IS NOT NULL AND t.slot IS NOT NULL AND NOT t.canary"
            f" AND coalesce({apart_sql()}, 'truncated') = 'truncated' AND NOT {one_sided_sql()}"
            f" ORDER BY hash(t.turn_id), t.turn_id LIMIT {MAX_JUDGED}) ORDER BY started_at, turn_id"
        ).fetchall()
        judged = [Judged(*row) for row in found]
        if len(judged) < MIN_JUDGED:
            return cls({}, frozenset())
        clusters, groups = Clusters.grouped([row.request for row in judged], similarity)
        numbers = groups.tolist()
        known = dict(zip((row.turn_id for row in judged), numbers, strict=True))
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
        """Count judged turns, given in order of time with the number of the cluster of each.

        Those in no cluster (-1) have nothing in common: they count by slot and version alone.
        """
        slots: dict[tuple[int, str], Tally] = defaultdict(Tally)
        versions: dict[tuple[int, str, str | None], Tally] = defaultdict(Tally)
        overall: dict[tuple[str, str | None], Tally] = defaultdict(Tally)
        whole: dict[tuple[int, str], Tally] = defaultdict(Tally)
        version_whole: dict[tuple[int, str, str | None], Tally] = defaultdict(Tally)
        for row, number in zip(judged, numbers, strict=True):
            if row.counts:
                overall[row.slot, row.digest].add(row.success)
            if number < 0:
                continue
            whole[number, row.slot].add(not row.cut)
            version_whole[number, row.slot, row.digest].add(not row.cut)
            if row.counts:
                slots[number, row.slot].add(row.success)
                versions[number, row.slot, row.digest].add(row.success)
        counted = [pair for pair in zip(judged, numbers, strict=True) if pair[0].counts]
        labels: dict[int, tuple[str, ...]] = defaultdict(tuple)
        for number, slot in slots:
            labels[number] += (slot,)
        common, homes = _common_by_cluster(counted), _homes(slots)
        naming: dict[int, Tally] = defaultdict(Tally)
        for row, number in counted:
            if row.success and number in common:
                naming[number].add(_names(row.request, common[number]))
        return cls(
            cluster_of, frozenset(row.turn_id for row, _ in counted),
            slots=dict(slots), versions=dict(versions), overall=dict(overall),
            whole=dict(whole), version_whole=dict(version_whole),
            homes=homes, away=_away(slots, homes), labels=dict(labels), naming=dict(naming),
            before=_predecessors([row for row, _ in counted]), common=common, done=_done(counted),
            wordings=Wordings.of((row.request, row.answer) for row in judged if row.success),
            router=router,
        )  # fmt: skip

    def adjust(self, blame: Blame, turn: Turn, outcome: Outcome) -> Blame:
        """Return the blame as similar turns have it; the same where they say nothing."""
        number = self.cluster_of.get(turn.turn_id)
        if number is None or turn.slot is None or outcome.success is not False:
            return blame
        kin = self._kin(blame, turn, number)
        for name, rule in POOLED:
            found = rule(kin)
            if found is not None:
                changed = found.klass != blame.klass
                return found.model_copy(update={"rule": name}) if changed else found
        return blame

    def _kin(self, blame: Blame, turn: Turn, number: int) -> Kin:
        slot = str(turn.slot)
        before = self.before.get((slot, turn.digest), "")
        counted = turn.turn_id in self.counted

        def own(tally: Tally | None) -> Tally:
            return tally.without_failure() if tally and counted else tally or Tally()

        here = own(self.slots.get((number, slot)))
        others = {s: self.slots[number, s] for s in self.labels.get(number, ()) if s != slot}
        return Kin(
            blame,
            turn,
            here=here,
            version=own(self.versions.get((number, slot, turn.digest))),
            predecessor=self.versions.get((number, slot, before), Tally()),
            version_overall=own(self.overall.get((slot, turn.digest))),
            whole=_less(
                self.whole.get((number, slot)), self.version_whole.get((number, slot, turn.digest))
            ),
            predecessor_overall=self.overall.get((slot, before), Tally()),
            home=(home := self.homes.get(number)),
            # The turn itself is among these where it is far from home.
            away=own(self.away.get(slot)) if home != slot else self.away.get(slot, Tally()),
            others=others,
            names=_names(turn.request, self.common.get(number, frozenset())),
            naming=self.naming.get(number, Tally()),
            close=self._close(turn.request, number, slot) if others else 0,
            ways=self.wordings.blanks(turn.request, alone=turn.position == 0),
            router=self.router,
        )

    def _close(self, request: str, number: int, slot: str) -> int:
        """Count the slot's successes here in nearly the same words."""
        words = words_of(request)
        known = self.done.get((number, slot), ())
        return sum(2 * len(words & each) >= len(words | each) for each in known)


def _less(all_of: Tally | None, some: Tally | None) -> Tally:
    """Return a tally without some of what it counts."""
    whole, part = all_of or Tally(), some or Tally()
    return Tally(whole.turns - part.turns, whole.successes - part.successes)


def _done(judged: Sequence[tuple[Judged, int]]) -> dict[tuple[int, str], list[set[str]]]:
    done: dict[tuple[int, str], list[set[str]]] = defaultdict(list)
    for row, number in judged:
        if number < 0:
            continue
        known = done[number, row.slot]
        words = words_of(row.request) if row.success and len(known) < _MOST_DONE else None
        if words is not None and words not in known:
            known.append(words)
    return dict(done)


def _common_by_cluster(judged: Sequence[tuple[Judged, int]]) -> dict[int, frozenset[str]]:
    by_number: dict[int, list[str]] = defaultdict(list)
    for row, number in judged:
        by_number[number].append(row.request)
    everywhere = _common_words([row.request for row, _ in judged], _RARE)
    return {
        number: everywhere & _common_words(requests, _RARE_HERE)
        for number, requests in by_number.items()
        if number >= 0 and len(requests) >= _MIN_NAMING
    }


def _names(request: str, common: frozenset[str]) -> bool:
    """Whether a request has a word that names something."""
    return any(word not in common and word not in POINTING for word in words_of(request))


def _common_words(requests: Sequence[str], share: float) -> frozenset[str]:
    counts = Counter(word for text in requests for word in words_of(text))
    return frozenset(word for word, count in counts.items() if count > share * len(requests))


def _homes(slots: Mapping[tuple[int, str], Tally]) -> dict[int, str]:
    """Return the slot where the requests of a cluster belong: that does well, and gets most."""
    totals: dict[int, Tally] = defaultdict(Tally)
    for (number, _), tally in slots.items():
        totals[number].turns += tally.turns
        totals[number].successes += tally.successes
    return {
        number: slot
        for (number, slot), tally in slots.items()
        if tally.turns >= max(MIN_SLOT, totals[number].turns / 2)
        and tally.successes >= max(1, HABIT * totals[number].successes)
    }


def _away(slots: Mapping[tuple[int, str], Tally], homes: Mapping[int, str]) -> dict[str, Tally]:
    """Add up what each slot did among requests that belong to another one."""
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
    for row in judged:
        if (row.slot, row.digest) not in before:
            before[row.slot, row.digest] = latest.get(row.slot, "")
            latest[row.slot] = row.digest
    return before
