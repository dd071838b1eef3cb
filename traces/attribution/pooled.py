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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

import duckdb

from serving.records import Turn
from traces.attribution.blame import Blame
from traces.attribution.clusters import Clusters
from traces.attribution.literals import folded
from traces.attribution.outcomes import Outcome

MAX_JUDGED = 40_000
"""Judged turns that a pool is made from, drawn by hash."""
MAX_FAILED = 200_000
"""Failed turns that are compared with it."""
MIN_JUDGED = 40
"""Below this nothing is pooled."""
SIMILARITY = 0.35
"""Cosine from which on requests are similar: on the task world's traffic groups hold one slot's
requests, and seven of eight requests are in groups of ten and more."""
_MIN_SLOT = 8
"""Turns of a slot among similar ones, at least, for its success to count."""
_MIN_EACH = 5
_HABIT = 0.8
"""Share of similar requests that one slot takes, from which on it is where they belong."""
_RARE = 0.02
"""Share of all requests that have a word, up to which it names something."""
_BATCH = 5000
_WORD = re.compile(r"\w+")
_Z = 1.959964

Judged = tuple[str, str, str, str | None, bool]
"""Turn id, request, slot, version and success of one judged turn, in order of time."""


@dataclass(slots=True)
class Tally:
    """Successes among turns."""

    turns: int = 0
    successes: int = 0

    def add(self, success: bool) -> None:
        """Count one more turn."""
        self.turns += 1
        self.successes += success

    @property
    def rate(self) -> float:
        """Share of successes."""
        return self.successes / self.turns if self.turns else 0.0

    @property
    def low(self) -> float:
        """Lower end of Wilson's interval; 0 without turns."""
        return wilson(self.successes, self.turns)[0]

    @property
    def high(self) -> float:
        """Upper end of Wilson's interval; 1 without turns."""
        return wilson(self.successes, self.turns)[1]

    def without_failure(self) -> "Tally":
        """Return the tally without one failed turn."""
        return Tally(max(self.turns - 1, self.successes), self.successes)


def wilson(successes: int, turns: int, z: float = _Z) -> tuple[float, float]:
    """Return Wilson's score interval (JASA 22, 1927), 95 % by default."""
    if turns == 0:
        return 0.0, 1.0
    rate, extra = successes / turns, z * z / turns
    middle = rate + extra / 2
    half = z * sqrt(rate * (1 - rate) / turns + extra / (4 * turns))
    return max(0.0, (middle - half) / (1 + extra)), min(1.0, (middle + half) / (1 + extra))


@dataclass(frozen=True, slots=True)
class Kin:
    """What similar requests tell of one failed turn; the turn itself does not count."""

    blame: Blame
    turn: Turn
    here: Tally
    """The slot that answered, among similar requests."""
    version: Tally
    """The version that answered, among similar requests."""
    predecessor: Tally
    """The version that the slot had before, among similar requests."""
    version_overall: Tally
    predecessor_overall: Tally
    away: Tally
    """The slot among requests that belong to others."""
    others: Mapping[str, Tally]
    """The other slots among similar requests."""
    names: bool
    """Whether the request has a word that names something."""
    naming: Tally
    """Successful similar requests, and how many of them have one."""
    router: str | None = None
    """The slot that routes."""


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
    common: frozenset[str] = frozenset()
    """Words that too many requests have to name anything."""
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
            f" ORDER BY hash(t.turn_id), t.turn_id LIMIT {MAX_JUDGED}) ORDER BY started_at, turn_id"
        ).fetchall()
        if len(judged) < MIN_JUDGED:
            return cls({}, frozenset())
        clusters = Clusters.of([row[1] for row in judged], similarity)
        failed = connection.execute(
            f"SELECT t.turn_id, t.request FROM {turns} WHERE o.blamable"
            f" ORDER BY hash(t.turn_id), t.turn_id LIMIT {MAX_FAILED}"
        )
        cluster_of: dict[str, int] = {}
        while rows := failed.fetchmany(_BATCH):
            found = clusters.assign([request for _, request in rows])
            cluster_of |= {
                turn_id: int(number)
                for (turn_id, _), number in zip(rows, found, strict=True)
                if number >= 0
            }
        numbers = clusters.assign([row[1] for row in judged]).tolist()
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
        common = _common_words([row[1] for row in judged])
        naming: dict[int, Tally] = defaultdict(Tally)
        for (_, request, _, _, success), number in zip(judged, numbers, strict=True):
            if success:
                naming[number].add(_names(request, common))
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
            names=_names(turn.request, self.common),
            naming=self.naming.get(number, Tally()),
            router=self.router,
        )


def _names(request: str, common: frozenset[str]) -> bool:
    return any(word not in common for word in _WORD.findall(folded(request)))


def _common_words(requests: Sequence[str]) -> frozenset[str]:
    counts = Counter(word for text in requests for word in set(_WORD.findall(folded(text))))
    return frozenset(w for w, count in counts.items() if count > _RARE * len(requests))


def _away(slots: Mapping[tuple[int, str], Tally]) -> dict[str, Tally]:
    """Add up what each slot did among requests that belong to another one."""
    totals: Counter[int] = Counter()
    for (number, _), tally in slots.items():
        totals[number] += tally.turns
    homes = {
        number: slot
        for (number, slot), tally in slots.items()
        if tally.turns >= max(_MIN_SLOT, _HABIT * totals[number])
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


Rule = Callable[[Kin], Blame | None]

_SURE = frozenset({"own_verifier", "malformed", "altered", "broken_call"})
"""Rules whose evidence is that the request was the answering slot's business."""


def as_good_here(kin: Kin) -> Blame | None:
    """The router is blamed, but the slot does as well with such requests as the one named."""
    right = kin.others.get(kin.blame.right_slot or "", Tally())
    if kin.blame.klass != "router" or kin.here.turns < _MIN_SLOT:
        return None
    if kin.here.low < min(0.5, right.low) or kin.here.rate < right.rate - 0.1:
        return None
    evidence = f"{kin.turn.slot} does as well with such requests ({_of(kin.here)})"
    return _changed(kin, "unknown", 0.0, evidence)


def better_elsewhere(kin: Kin) -> Blame | None:
    """Another slot succeeds significantly more with such requests, or always gets them."""
    blame, turn = kin.blame, kin.turn
    if turn.decision != "routed" or blame.rule in _SURE or not kin.others:
        return None
    if blame.klass not in ("adapter", "unknown") and blame.rule != "retried_elsewhere":
        return None
    best = max(sorted(kin.others), key=lambda slot: kin.others[slot].low)
    there = kin.others[best]
    total = kin.here.turns + sum(tally.turns for tally in kin.others.values())
    mine = kin.here
    if mine.turns < _MIN_EACH and there.turns >= _HABIT * (total + 1):
        mine = kin.away
    if there.turns < _MIN_SLOT or mine.turns < _MIN_EACH or there.low <= mine.high:
        return None
    evidence = f"{best} succeeds with such requests ({_of(there)}), {turn.slot} does not"
    return _changed(kin, "router", 0.8, f"{evidence} ({_of(mine)})", right_slot=best)


def names_nothing(kin: Kin) -> Blame | None:
    """Similar requests that succeeded name something, and this one does not."""
    told = kin.naming
    if kin.blame.klass != "adapter" or kin.names or kin.blame.rule in ("broken_call", "altered"):
        return None
    if told.turns < _MIN_SLOT or told.low < 0.7:
        return None
    evidence = f"similar requests that succeeded name something ({_of(told)}), this one does not"
    return _changed(kin, "user", 0.7, evidence)


def nobody_succeeds(kin: Kin) -> Blame | None:
    """Every slot that tried such requests failed: no adapter's in particular."""
    tried = [kin.here, *kin.others.values()]
    tried = [tally for tally in tried if tally.turns >= _MIN_EACH]
    if kin.blame.klass not in ("adapter", "router") or len(tried) < 2:
        return None
    if any(tally.high > 0.45 or tally.successes for tally in tried):
        return None
    tally = Tally(sum(t.turns for t in tried), 0)
    return _changed(
        kin, kin.blame.klass, 0.5 * kin.blame.confidence, f"no slot succeeds here ({_of(tally)})"
    )


def worse_version(kin: Kin) -> Blame | None:
    """The version does significantly worse than its predecessor, here or everywhere."""
    if kin.blame.klass != "adapter":
        return None
    pairs = (kin.version, kin.predecessor), (kin.version_overall, kin.predecessor_overall)
    for now, before in pairs:
        if min(now.turns, before.turns) >= _MIN_SLOT and now.high < before.low:
            sure = 1 - 0.5 * (1 - kin.blame.confidence)
            evidence = f"this version succeeds in {_of(now)}, its predecessor in {_of(before)}"
            return _changed(kin, "adapter", min(sure, 0.97), evidence)
    return None


def succeeds_here(kin: Kin) -> Blame | None:
    """The version nearly always succeeds with such requests: a slip, or something else."""
    if kin.blame.klass != "adapter" or kin.version.low < 0.9:
        return None
    evidence = f"the same version nearly always succeeds with such requests ({_of(kin.version)})"
    return _changed(kin, "adapter", 0.7 * kin.blame.confidence, evidence)


POOLED: tuple[tuple[str, Rule], ...] = (
    ("as_good_here", as_good_here),
    ("better_elsewhere", better_elsewhere),
    ("names_nothing", names_nothing),
    ("nobody_succeeds", nobody_succeeds),
    ("worse_version", worse_version),
    ("succeeds_here", succeeds_here),
)
"""Name and function, in the order in which they are asked; the first to speak decides."""


def _of(tally: Tally) -> str:
    return f"{tally.successes} of {tally.turns}"


def _changed(
    kin: Kin, klass: str, confidence: float, evidence: str, right_slot: str | None = None
) -> Blame:
    """Return the blame with what similar turns say; another class has another culprit."""
    blame = kin.blame
    update: dict[str, object] = {
        "confidence": round(confidence, 3),
        "evidence": f"{blame.evidence}; {evidence}",
    }
    if klass != blame.klass:
        slot = kin.router if klass == "router" else None
        update |= {"klass": klass, "slot": slot, "right_slot": right_slot, "hop_id": None}
        update |= {"method": "pooled"}
    return blame.model_copy(update=update)
