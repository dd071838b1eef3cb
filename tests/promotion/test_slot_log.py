"""What a slot's log says now is what the whole log says. The registry is real."""

import pytest
from registry_records import digest_of, gated

from promotion.canary.trials import promoted_of, rollout_of
from promotion.registry import Registry
from promotion.slot_rows import VersionWithdrawn

HARM = {"reason": "it did harm", "by": "canary"}


def test_a_canary_is_told_by_its_own_events(registry: Registry) -> None:
    registry.bootstrap("L2", digest_of(1))
    for n in range(45):  # more than are read at a time
        registry.configure("L2", {"description": f"before {n}"})
    assert registry.log.canary("L2") == ()
    assert registry.log.canary("L1") == ()
    registry.begin_canary("L2", digest_of(3), 5, gated(registry, 1, 3))
    registry.end_canary("L2")
    registry.begin_canary("L2", digest_of(2), 5, gated(registry, 1, 2))
    for n in range(45):
        registry.configure("L2", {"description": f"during {n}"})
    registry.begin_canary("L2", digest_of(2), 20, gated(registry, 1, 2))
    own = registry.log.canary("L2")
    assert len(own) == 47
    assert rollout_of(own) == rollout_of(registry.events("L2"))


def test_a_canary_that_was_ended_and_begun_again_is_the_same_one(registry: Registry) -> None:
    def begin(challenger: int, champion: int = 1, percent: float = 5, seed: int = 0) -> None:
        report = gated(registry, champion, challenger, seed=seed)
        registry.begin_canary("L2", digest_of(challenger), percent, report)

    def generation() -> int:
        return registry.slot("L2").generation

    def trials() -> list[tuple[int, int | None]]:
        """Return since and until which of the slot's events the canary that runs was on trial."""
        every = registry.events("L2")
        own, numbers = rollout_of(registry.log.canary("L2")), {e.at: e.seq for e in every}
        assert own is not None
        assert own == rollout_of(every)
        assert own.began_at == own.trials[0].since
        return [(numbers[t.since], numbers.get(t.until)) for t in own.trials]

    registry.bootstrap("L2", digest_of(1))
    begin(2)
    begin(2, percent=20)
    registry.end_canary("L2")
    begin(3)
    registry.end_canary("L2")
    begin(2)
    assert trials() == [(2, 4), (7, None)]
    registry.end_canary("L2")

    # Beside another champion it is another question, and the same beside the first one again.
    registry.promote("L2", digest_of(4), generation(), gated(registry, 1, 4))
    begin(2, champion=4)
    assert trials() == [(10, None)]
    registry.rollback("L2")
    begin(2)
    assert trials() == [(2, 4), (7, 8), (12, None)]

    # Harm that was found closes it: what speaks for the version is newer then. So does a promotion.
    registry.end_canary("L2", note=HARM | {"rolled_back": digest_of(2)})
    begin(2, seed=1)
    assert trials() == [(14, None)]
    registry.promote("L2", digest_of(2), generation(), gated(registry, 1, 2, seed=1))
    registry.promote("L2", digest_of(1), generation(), gated(registry, 2, 1))
    begin(2, seed=2)
    assert trials() == [(17, None)]


def test_a_promotion_is_told_by_the_newest_two_moves(registry: Registry) -> None:
    registry.bootstrap("L2", digest_of(1))
    registry.promote("L2", digest_of(2), 1, gated(registry, 1, 2))
    registry.promote("L2", digest_of(3), 2, gated(registry, 2, 3))
    registry.configure("L2", {"description": "later"})
    told = promoted_of(registry.log.moves("L2", newest=2))
    assert told is not None
    assert (told.digest, told.previous) == (digest_of(3), digest_of(2))
    assert told == promoted_of(registry.events("L2"))
    registry.rollback("L2")
    assert promoted_of(registry.log.moves("L2", newest=2)) is None


def test_what_was_rolled_back_stands_so_until_it_is_champion(registry: Registry) -> None:
    registry.promote("L2", digest_of(2), 0, gated(registry, None, 2))
    assert registry.log.withdrawn() == {}
    registry.rollback("L2")  # to the bare base
    assert set(registry.log.withdrawn()) == {digest_of(2)}
    registry.rollback("L2")
    assert registry.log.withdrawn() == {}
    registry.begin_canary("L2", digest_of(3), 5, gated(registry, 2, 3))
    registry.end_canary("L2")  # by a person, without a word against it
    assert registry.log.withdrawn() == {}
    registry.begin_canary("L2", digest_of(3), 5, gated(registry, 2, 3))
    registry.end_canary("L2", note=HARM | {"rolled_back": digest_of(3)})
    (gone,) = registry.log.withdrawn("L2").values()
    assert (gone.digest, gone.reason) == (digest_of(3), "it did harm")
    assert registry.log.withdrawn("L1") == {}


def test_harm_is_told_as_long_as_going_back_is_refused_for_it(registry: Registry) -> None:
    registry.promote("L2", digest_of(1), 0, gated(registry, None, 1))
    registry.promote("L2", digest_of(2), 1, gated(registry, 1, 2))
    harm = HARM | {"rolled_back": digest_of(2)}
    registry.rollback("L2", note=harm)
    registry.rollback("L2", note={"by": "ann", "reason": "the traffic was an attack"})
    assert digest_of(2) not in registry.log.withdrawn("L2"), "it serves"
    registry.rollback("L2")  # a person leaves it again, and says nothing of harm
    gone = registry.log.withdrawn("L2")[digest_of(2)]
    assert (gone.harm, gone.by, gone.reason) == (True, "canary", "it did harm")
    with pytest.raises(VersionWithdrawn, match="for harm"):
        registry.rollback("L2")
    # A promotion lifts it: what takes the version out afterwards is what is told.
    registry.promote("L2", digest_of(2), 5, gated(registry, 1, 2, gains=21))
    registry.rollback("L2")
    gone = registry.log.withdrawn("L2")[digest_of(2)]
    assert (gone.harm, gone.by) == (False, None)
    assert registry.rollback("L2").state.champion == digest_of(2)
