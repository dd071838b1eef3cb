"""The table of pooled evidence: what similar turns make of a verdict, rule by rule."""

from dataclasses import dataclass, field
from typing import Any

from trace_records import hop, turn_of

from traces.attribution.blame import Blame
from traces.attribution.pooled_rules import POOLED, Kin, Rule, Tally


@dataclass(frozen=True)
class PooledCase:
    """A verdict, the tallies of similar turns, and what comes of it: label and confidence."""

    name: str
    rule: str | None
    expected: tuple[str, float]
    blame: dict[str, Any]
    tallies: dict[str, Any] = field(default_factory=dict)
    names: bool = True
    decision: str = "routed"

    def found(self, rules: tuple[tuple[str, Rule], ...] = POOLED) -> tuple[str, float]:
        """Return what the rules make of the verdict."""
        values = {"turn_id": "t1", "evidence": "", "slot": None, "rule": "edited"} | self.blame
        kin = Kin(
            blame=Blame.model_validate(values),
            turn=turn_of([hop()], decision=self.decision),
            names=self.names,
            router="L0",
            **({name: Tally() for name in TALLIES} | {"others": {}, "home": None} | self.tallies),
        )
        for _, rule in rules:
            changed = rule(kin)
            if changed is not None:
                return changed.label, changed.confidence
        return kin.blame.label, kin.blame.confidence


TALLIES = (
    "here", "version", "predecessor", "version_overall", "predecessor_overall", "whole", "away",
    "naming",
)  # fmt: skip
ADAPTER = {"klass": "adapter", "slot": "L2", "confidence": 0.7}
VERIFIED = ADAPTER | {"rule": "own_verifier", "confidence": 0.9}
CUT = {"klass": "unknown", "confidence": 0.0, "rule": "truncated"}
ROUTER = {"klass": "router", "slot": "L0", "confidence": 0.9, "right_slot": "L1"}
ABROAD: dict[str, Any] = {"others": {"L1": Tally(40, 36)}, "home": "L1"}

POOLED_CASES = (
    PooledCase("nothing is known of similar requests", None, ("adapter:L2", 0.7), ADAPTER),
    PooledCase(
        "the slot that answered does as well as the one named", "as_good_here", ("unknown", 0.0),
        ROUTER, {"here": Tally(20, 15), "others": {"L1": Tally(40, 30)}, "close": 5},
    ),
    PooledCase(
        "it does as well, but with other requests", None, ("router:L0", 0.9),
        ROUTER, {"here": Tally(20, 15), "others": {"L1": Tally(40, 30)}},
    ),
    PooledCase(
        "it does much worse", None, ("router:L0", 0.9),
        ROUTER, {"here": Tally(20, 2), "others": {"L1": Tally(40, 38)}},
    ),
    PooledCase(
        "another slot succeeds more", "better_elsewhere", ("router:L0", 0.8),
        ADAPTER, {"here": Tally(10, 1), "others": {"L1": Tally(40, 36)}},
    ),
    PooledCase(
        "another slot gets all of them, and this one fails abroad", "better_elsewhere",
        ("router:L0", 0.8), ADAPTER, ABROAD | {"away": Tally(12, 1)},
    ),
    PooledCase(
        "another slot gets all of them, and this one does well abroad", None,
        ("adapter:L2", 0.7), ADAPTER, ABROAD | {"away": Tally(12, 11)},
    ),
    PooledCase(
        "another slot succeeds more, but this one did well with the same words", None,
        ("adapter:L2", 0.7), ADAPTER,
        {"here": Tally(10, 1), "others": {"L1": Tally(40, 36)}, "close": 1},
    ),
    PooledCase(
        "another slot succeeds more, and the answer was cut", "better_elsewhere",
        ("router:L0", 0.8), CUT, {"here": Tally(10, 1), "others": {"L1": Tally(40, 36)}},
    ),
    PooledCase(
        "others fill in what is left open", "undetermined", ("user", 0.92), ADAPTER, {"ways": 4},
    ),
    PooledCase("two others do", "undetermined", ("user", 0.8), ADAPTER, {"ways": 2}),
    PooledCase("one other says more", None, ("adapter:L2", 0.7), ADAPTER, {"ways": 1}),
    PooledCase(
        "the answer was cut, other versions' are not", "others_fit", ("adapter:L2", 0.95), CUT,
        {"whole": Tally(20, 19)},
    ),
    PooledCase(
        "the answer was cut, and so are other versions'", None, ("unknown", 0.0), CUT,
        {"whole": Tally(20, 8)},
    ),
    PooledCase(
        "similar requests belong nowhere", None, ("adapter:L2", 0.7), ADAPTER,
        {"away": Tally(12, 1), "others": {"L1": Tally(40, 36)}},
    ),
    PooledCase(
        "two turns prove nothing", None, ("adapter:L2", 0.7),
        ADAPTER, {"here": Tally(1, 0), "others": {"L1": Tally(2, 2)}},
    ),
    PooledCase(
        "the slot's own verifier stands against the habit", None, ("adapter:L2", 0.9),
        VERIFIED, {"here": Tally(10, 1), "others": {"L1": Tally(40, 36)}},
    ),
    PooledCase(
        "a record that contradicts itself stays unknown", None, ("unknown", 0.0),
        {"klass": "unknown", "confidence": 0.0, "rule": "contradicted"},
        {"here": Tally(10, 1), "others": {"L1": Tally(40, 36)}},
    ),
    PooledCase(
        "a hint and what similar requests say", "better_elsewhere", ("router:L0", 0.8),
        ROUTER | {"rule": "retried_elsewhere", "confidence": 0.55},
        {"here": Tally(10, 1), "others": {"L1": Tally(40, 36)}},
    ),
    PooledCase(
        "no router chose", None, ("adapter:L2", 0.7), ADAPTER,
        {"here": Tally(10, 1), "others": {"L1": Tally(40, 36)}}, decision="direct",
    ),
    PooledCase(
        "the others name something", "names_nothing", ("user", 0.7),
        ADAPTER, {"naming": Tally(20, 20)}, names=False,
    ),
    PooledCase(
        "the others name nothing either", None, ("adapter:L2", 0.7),
        ADAPTER, {"naming": Tally(20, 9)}, names=False,
    ),
    PooledCase(
        "no slot succeeds", "nobody_succeeds", ("adapter:L2", 0.35),
        ADAPTER, {"here": Tally(9, 0), "others": {"L1": Tally(12, 0)}},
    ),
    PooledCase(
        "worse than its predecessor here", "worse_version", ("adapter:L2", 0.85),
        ADAPTER, {"version": Tally(20, 4), "predecessor": Tally(30, 27)},
    ),
    PooledCase(
        "worse than its predecessor everywhere", "worse_version", ("adapter:L2", 0.95),
        VERIFIED, {"version_overall": Tally(60, 20), "predecessor_overall": Tally(60, 50)},
    ),
    PooledCase(
        "it nearly always succeeds", "succeeds_here", ("adapter:L2", 0.49),
        ADAPTER, {"version": Tally(80, 79)},
    ),
)  # fmt: skip
