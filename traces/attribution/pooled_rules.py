"""Rules of pooled evidence: what success among similar requests makes of a verdict.

Each takes `Kin`, the tallies around one failed turn, and answers with another `Blame`, or None
where it has nothing to say. A rule speaks only where Wilson's 95 % intervals are apart, or where
so many similar turns went one way that a single noisy one cannot decide.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from serving.records import Turn
from traces.attribution.blame import Blame
from traces.attribution.intervals import wilson

MIN_SLOT = 8
"""Turns of a slot among similar ones, at least, for its success to count."""
HABIT = 0.8
"""Share of the successes with similar requests that one slot has, from which on it is where they
belong; if it also gets half of them."""
_MIN_EACH = 5
_MIN_CLOSE = 3
_MIN_WAYS = 2
_MANY_WAYS = 3
_SURELY = 0.6
_SOME = 0.1
"""Success of which at least this is sure is more than luck."""


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
    whole: Tally
    """Similar requests to the slot's other versions, and how many answers were not cut."""
    away: Tally
    """The slot among all requests that belong to others."""
    others: Mapping[str, Tally]
    """The other slots among similar requests."""
    home: str | None
    """Where similar requests belong."""
    names: bool
    """Whether the request has a word that names something."""
    naming: Tally
    """Successful similar requests, and how many of them have one."""
    close: int = 0
    """Requests in nearly the same words that the slot that answered did well, as far as counted."""
    ways: int = 0
    """In how many ways others that succeeded fill in what the request leaves open."""
    router: str | None = None
    """The slot that routes."""


Rule = Callable[[Kin], Blame | None]

_SURE = frozenset({"own_verifier", "malformed", "altered", "broken_call"})
"""Rules whose evidence is that the request was the answering slot's business."""


def as_good_here(kin: Kin) -> Blame | None:
    """The router is blamed, but the slot does as well with such requests as the one named."""
    right = kin.others.get(kin.blame.right_slot or "", Tally())
    if kin.blame.klass != "router" or kin.here.turns < MIN_SLOT:
        return None
    if kin.here.low < _SOME or kin.here.rate < right.rate - 0.1 or kin.close < _MIN_CLOSE:
        return None
    evidence = f"{kin.turn.slot} does as well with such requests ({_of(kin.here)})"
    return _changed(kin, "unknown", 0.0, evidence)


def better_elsewhere(kin: Kin) -> Blame | None:
    """Another slot succeeds significantly more with such requests, or always gets them."""
    blame, turn = kin.blame, kin.turn
    if turn.decision != "routed" or blame.rule in _SURE or not kin.others or kin.close:
        return None
    if blame.klass != "adapter" and blame.rule not in ("no_rule", "retried_elsewhere", "truncated"):
        return None
    best = max(sorted(kin.others), key=lambda slot: kin.others[slot].low)
    there = kin.others[best]
    mine = kin.away if kin.here.turns < _MIN_EACH and kin.home == best else kin.here
    if there.turns < MIN_SLOT or mine.turns < _MIN_EACH or there.low <= mine.high:
        return None
    evidence = f"{best} succeeds with such requests ({_of(there)}), {turn.slot} does not"
    return _changed(kin, "router", 0.8, f"{evidence} ({_of(mine)})", right_slot=best)


def names_nothing(kin: Kin) -> Blame | None:
    """Similar requests that succeeded name something, and this one does not."""
    told = kin.naming
    if kin.blame.klass != "adapter" or kin.names or kin.blame.rule in ("broken_call", "altered"):
        return None
    if told.turns < MIN_SLOT or told.low < 0.7:
        return None
    evidence = f"similar requests that succeeded name something ({_of(told)}), this one does not"
    return _changed(kin, "user", 0.7, evidence)


def undetermined(kin: Kin) -> Blame | None:
    """Others that said the same and more were answered rightly, each in its own way."""
    if kin.blame.klass != "adapter" or kin.blame.rule in ("broken_call", "altered"):
        return None
    if kin.ways < _MIN_WAYS:
        return None
    evidence = f"others fill in what this request leaves open, {kin.ways} ways with other answers"
    return _changed(kin, "user", 0.92 if kin.ways >= _MANY_WAYS else 0.8, evidence)


def others_fit(kin: Kin) -> Blame | None:
    """The answer was cut, and the slot's other versions answer such requests within the limit."""
    if kin.blame.rule != "truncated" or kin.whole.turns < MIN_SLOT or kin.whole.low < _SURELY:
        return None
    evidence = (
        f"the slot's other versions answered such requests within the limit ({_of(kin.whole)})"
    )
    return _changed(kin, "adapter", 0.95, evidence)


def nobody_succeeds(kin: Kin) -> Blame | None:
    """Every slot that tried such requests failed: no adapter's in particular."""
    tried = [kin.here, *kin.others.values()]
    tried = [tally for tally in tried if tally.turns >= _MIN_EACH]
    if kin.blame.klass != "adapter" or kin.blame.rule in _SURE or len(tried) < 2:
        return None
    if any(tally.successes for tally in tried):
        return None
    tally = Tally(sum(t.turns for t in tried), 0)
    evidence = f"no slot succeeds with such requests ({_of(tally)})"
    return _changed(kin, "adapter", 0.5 * kin.blame.confidence, evidence)


def worse_version(kin: Kin) -> Blame | None:
    """The version does significantly worse than its predecessor, here or everywhere."""
    if kin.blame.klass != "adapter":
        return None
    pairs = (kin.version, kin.predecessor), (kin.version_overall, kin.predecessor_overall)
    for now, before in pairs:
        if min(now.turns, before.turns) >= MIN_SLOT and now.high < before.low:
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
    ("undetermined", undetermined),
    ("better_elsewhere", better_elsewhere),
    ("names_nothing", names_nothing),
    ("others_fit", others_fit),
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
        slot = {"router": kin.router, "adapter": kin.turn.slot}.get(klass)
        update |= {"klass": klass, "slot": slot, "right_slot": right_slot, "hop_id": None}
        update |= {"method": "pooled"}
    return blame.model_copy(update=update)
