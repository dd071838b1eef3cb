"""Proves pooled evidence: which requests are similar, and what that makes of blame in a lake.

Real clusters and a real lake; the traffic is made up.
"""

from pathlib import Path
from typing import Any

import pytest
from trace_records import PROFILE, at, calls, hop, says, signal, turn_of, user, write_spool

from serving.records import Record
from traces.attribute import attribute
from traces.attribution.clusters import Clusters
from traces.attribution.intervals import wilson
from traces.attribution.pooled import SIMILARITY, Judged, Pool
from traces.attribution.pooled_rules import Tally
from traces.ingest import ingest
from traces.read import read_turns

ROOMS = ("kitchen", "bedroom", "hall", "office", "garage", "attic", "cellar", "bathroom")
CITIES = ("Oslo", "Lima", "Cairo", "Rome", "Paris", "Quito", "Delhi", "Tokyo")
LIGHTS = [f"Switch the light in the {room} on." for room in ROOMS]
WEATHER = [f"How is the weather in {city} today?" for city in CITIES]
CHINESE_LIGHTS = [
    f"请把{room}的灯打开" for room in ("厨房", "卧室", "客厅", "车库", "书房", "浴室")
]
CHINESE_WEATHER = [
    f"今天{city}的天气怎么样" for city in ("北京", "上海", "广州", "深圳", "南京", "天津")
]


@pytest.mark.parametrize(
    ("one", "other"), [(LIGHTS, WEATHER), (CHINESE_LIGHTS, CHINESE_WEATHER)], ids=["en", "zh"]
)
def test_requests_of_a_kind_are_similar_and_of_two_kinds_are_not(
    one: list[str], other: list[str]
) -> None:
    found = Clusters.of([*one, *other], SIMILARITY).assign([*one, *other]).tolist()

    assert len(set(found[: len(one)])) == 1
    assert len(set(found[len(one) :])) == 1
    assert found[0] != found[-1]


def test_clusters_are_the_same_at_every_run_and_know_what_is_far() -> None:
    texts = [*LIGHTS, *WEATHER, *CHINESE_LIGHTS]
    first, again = Clusters.of(texts, SIMILARITY), Clusters.of(texts, SIMILARITY)

    assert first.assign(texts).tolist() == again.assign(texts).tolist()
    assert first.assign(["Sort these numbers.", ""]).tolist() == [-1, -1]
    assert first.assign([]).tolist() == []


def test_wilson_s_interval_is_the_published_one() -> None:
    # Notes, section 1.1: 25.5 % of 126 and 69.1 % of 58.
    assert wilson(32, 126) == pytest.approx((0.187, 0.338), abs=0.002)
    assert wilson(40, 58) == pytest.approx((0.563, 0.795), abs=0.003)
    assert wilson(0, 0) == (0.0, 1.0)


def taken(n: int, request: str, slot: str, good: bool, **fields: Any) -> list[Record]:
    """A turn of a conversation of its own, and what its user thought of it."""
    shared: dict[str, Any] = {"conversation_id": f"c{n:04d}", "turn_id": f"t{n:04d}"}
    digest = fields.pop("digest", "3fa9c1d2e4b5")
    hops = [
        hop("route", "L0", completion=says(slot), started_at=at(10 * n), **shared),
        hop(
            slot=slot, messages=(user(request),), started_at=at(10 * n + 1), response_id=f"r{n}",
            served_name=f"{slot}@{digest}", **shared,
        ),
    ]  # fmt: skip
    turn = turn_of(hops, request=request, **shared, **fields)
    thumb = signal("thumb", 1.0 if good else -1.0, user="u1", target_id=turn.turn_id)
    return [*hops, turn, thumb]


def blamed(folder: Path, records: list[Record]) -> dict[str, Any]:
    ingest(folder / ".mol", write_spool(folder / "s.jsonl", records))  # type: ignore[arg-type]
    attribute(folder / ".mol", PROFILE)
    return {b.turn.turn_id: b.blame for b in read_turns(folder / ".mol") if b.blame}


def test_a_slot_that_fails_where_another_one_succeeds_was_the_router_s_choice(
    tmp_path: Path,
) -> None:
    records: list[Record] = []
    for n in range(64):
        records += taken(n, (LIGHTS + WEATHER)[n % 16], "L1", True)
    for n in range(64, 72):
        records += taken(n, LIGHTS[n % 8], "L2", False)

    found = blamed(tmp_path, records)

    assert {(b.label, b.right_slot, b.method) for b in found.values()} == {
        ("router:L0", "L1", "pooled")
    }
    assert len(found) == 8


def test_failures_that_only_show_do_not_make_another_slot_better(tmp_path: Path) -> None:
    """Nobody would have said of a right call that it was right: they stand beside no successes.

    With the eight failures of the first test, seven of them of this kind, one proves nothing.
    """
    records: list[Record] = []
    for n in range(64):
        records += taken(n, (LIGHTS + WEATHER)[n % 16], "L1", True)
    records += taken(64, LIGHTS[0], "L2", False)
    shown = {"completion": calls("nothing"), "tools": '[{"name": "light"}]'}
    for n in range(65, 72):
        route, answer, turn, _ = taken(n, LIGHTS[n % 8], "L2", False)
        broken = answer.model_copy(update=shown)
        ids = (turn.hop_ids[0], broken.hop_id)
        records += [route, broken, turn.model_copy(update={"hop_ids": ids})]

    found = blamed(tmp_path, records)

    assert len(found) == 8
    assert (found["t0064"].label, found["t0064"].method) == ("adapter:L2", "structure")


def test_a_single_failure_elsewhere_proves_nothing(tmp_path: Path) -> None:
    records: list[Record] = []
    for n in range(64):
        records += taken(n, LIGHTS[n % 8], "L1", True)
    records += taken(64, LIGHTS[0], "L2", False)

    found = blamed(tmp_path, records)

    assert [(b.label, b.method) for b in found.values()] == [("adapter:L2", "structure")]


def test_equally_good_slots_are_not_the_router_s_fault(tmp_path: Path) -> None:
    """Four copies of one adapter take the same requests at random, and each fails in a third."""
    records: list[Record] = []
    for n in range(160):
        records += taken(n, LIGHTS[n % 8], f"L{n % 4}", (7 * n + n // 4) % 3 > 0)

    found = blamed(tmp_path, records)

    assert len(found) > 40
    assert not [b for b in found.values() if b.klass == "router"]


def test_a_version_that_is_worse_than_the_one_before_is_blamed_more_surely(
    tmp_path: Path,
) -> None:
    records: list[Record] = []
    for n in range(40):
        records += taken(n, LIGHTS[n % 8], "L1", n % 10 > 0)
    for n in range(40, 60):
        records += taken(n, LIGHTS[n % 8], "L1", n % 5 == 0, digest="aaaaaaaaaaaa")

    found = blamed(tmp_path, records)
    sure = {turn_id >= "t0040": blame.confidence for turn_id, blame in found.items()}

    assert sure[True] > sure[False]
    assert {b.label for b in found.values()} == {"adapter:L1"}


def test_an_empty_pool_changes_nothing() -> None:
    assert Pool({}, frozenset()).cluster_of == {}


def test_requests_in_no_cluster_belong_to_no_slot() -> None:
    """They have nothing in common, so that none of them is away from home."""
    judged = [Judged(f"a{n}", "q", "L1", None, True) for n in range(60)]
    judged += [Judged(f"b{n}", "z", "L2", None, n < 1) for n in range(10)]
    pool = Pool.count(judged, [-1] * 70, {})
    assert (pool.homes, pool.away, pool.slots, pool.common, pool.done) == ({}, {}, {}, {}, {})
    assert pool.overall["L2", None] == Tally(10, 1)
    together = Pool.count(judged, [0] * 70, {})
    assert (together.homes, together.away) == ({0: "L1"}, {"L2": Tally(10, 1)})


def test_equal_calls_are_one_answer_whatever_their_ids(tmp_path: Path) -> None:
    """Words that add nothing ("please") fill in nothing."""
    records: list[Record] = []
    for n in range(48):
        request = f"Set the tea timer {('please', 'now', 'quickly', 'again')[n % 4]}."
        route, answer, turn, thumb = taken(n, request, "L1", True)
        called = answer.model_copy(update={"completion": calls("timer", f"id-{n}", minutes=5)})
        ids = (turn.hop_ids[0], called.hop_id)
        changed = {"hop_ids": ids, "answer": called.completion}
        records += [route, called, turn.model_copy(update=changed), thumb]
    records += taken(48, "Set the tea timer.", "L1", False)

    found = blamed(tmp_path, records)

    assert [b.label for b in found.values()] == ["adapter:L1"]
