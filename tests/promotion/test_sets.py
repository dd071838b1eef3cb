"""Proves how a suite is divided into search, sealed and audit set, for good.

Properties over generated suites; the suites of the task world are held to the same. No engine.
"""

import functools
import math
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from promotion.config import GateConfig
from promotion.suites.build import build_suites
from promotion.suites.config import SuitesConfig
from promotion.suites.sets import Part, Sets, divide, part_of, take, without
from promotion.suites.suite import Item, Suite
from serving.records import content_id
from serving.slots import load_profile
from traces.verifiers.check import Check

PROFILE = load_profile()
PARTS: tuple[Part, ...] = ("search", "sealed", "audit")
LABELS = [f"template-{number}" for number in range(4000)]


def suite_of(clusters: list[str]) -> Suite:
    return Suite("s", "L1", tuple(item_of(n, cluster) for n, cluster in enumerate(clusters)))


def item_of(number: int, cluster: str) -> Item:
    return Item(
        item_id=content_id([number, cluster]), cluster=cluster, text=f"{cluster} {number}",
        messages=(), tools=(), choices=(), max_tokens=9, check=lambda answer: Check(True, ""),
    )  # fmt: skip


@functools.cache
def whole(slot: str) -> list[Suite]:
    return build_suites(PROFILE, slot, seed=0)


def clusters_of(suite: Suite) -> set[str]:
    return {item.cluster for item in suite.items}


def three(sets: Sets) -> list[Suite]:
    return [sets.part(part) for part in PARTS]


clusters = st.lists(st.text(max_size=8), max_size=60)


@settings(deadline=None)
@given(clusters)
def test_each_item_is_in_one_set_and_each_cluster_too(labels: list[str]) -> None:
    suite = suite_of(labels)
    sets = three(divide(suite))

    ids = [item.item_id for part in sets for item in part.items]
    assert sorted(ids) == sorted(item.item_id for item in suite.items)
    seen = [clusters_of(part) for part in sets]
    assert sum(map(len, seen)) == len(set().union(*seen))


@settings(deadline=None)
@given(clusters, st.randoms())
def test_neither_order_nor_company_moves_a_cluster(labels: list[str], rng) -> None:
    suite = suite_of(labels)
    items = [item for item in suite.items if rng.random() < 0.7]
    rng.shuffle(items)
    fewer = Suite("other", "L0", tuple(items))

    for whole, part in zip(three(divide(suite)), three(divide(fewer)), strict=True):
        assert clusters_of(part) <= clusters_of(whole)


def test_sizes_are_near_the_shares() -> None:
    wanted = {"search": 0.2, "sealed": 0.6, "audit": 0.2}
    found = [part_of(label) for label in LABELS]
    for part, share in wanted.items():
        error = math.sqrt(share * (1 - share) / len(LABELS))
        assert abs(found.count(part) / len(LABELS) - share) < 4 * error, part


@settings(deadline=None)
@given(clusters, st.integers(min_value=0, max_value=80))
def test_taking_goes_round_the_clusters(labels: list[str], count: int) -> None:
    suite = suite_of(labels)
    taken = take(suite, count)

    assert len(taken.items) == min(count, len(labels))
    assert set(taken.items) <= set(suite.items)
    assert len({item.item_id for item in taken.items}) == len(taken.items)
    times = {label: labels.count(label) for label in labels}
    got = {label: sum(i.cluster == label for i in taken.items) for label in times}
    for label, other in pairwise(sorted(times)):
        if got[label] < times[label] and got[other] < times[other]:
            assert abs(got[label] - got[other]) <= 1


@settings(deadline=None)
@given(clusters, st.integers(min_value=0, max_value=80))
def test_a_smaller_draw_begins_a_larger(labels: list[str], count: int) -> None:
    suite = suite_of(labels)

    assert take(suite, count).items == take(suite, count + 7).items[:count]


@settings(deadline=None)
@given(clusters, st.integers(min_value=0, max_value=80), st.integers(min_value=0, max_value=5))
def test_later_sets_have_as_many_of_each_cluster_and_others_where_there_are(
    labels: list[str], count: int, number: int
) -> None:
    suite = suite_of(labels)
    before, now = (take(suite, count, number + more) for more in (0, 1))

    assert [i.cluster for i in before.items] == [i.cluster for i in now.items]
    assert len({item.item_id for item in now.items}) == len(now.items)
    for label in clusters_of(now):
        taken = {item.item_id for item in now.items if item.cluster == label}
        again = taken & {item.item_id for item in before.items}
        assert len(again) == max(0, 2 * len(taken) - labels.count(label))


def test_what_was_asked_is_left_out() -> None:
    suite = suite_of(["a", "a", "b"])
    left = without(suite, {suite.items[1].asked_id})
    assert left.items == (suite.items[0], suite.items[2])


def test_no_request_is_in_two_sets_of_any_suites_of_a_slot() -> None:
    for slot in PROFILE.labels:
        places: dict[str, set[str]] = {}
        for suite in whole(slot):
            for part in PARTS:
                for item in divide(suite).part(part).items:
                    places.setdefault(item.text, set()).add(part)
        assert [text for text, parts in places.items() if len(parts) > 1] == []


def test_the_sealed_sets_hold_what_the_gate_asks_by_default() -> None:
    sizes = SuitesConfig()
    fewest = GateConfig().min_items
    for slot in PROFILE.labels:
        for suite in whole(slot):
            count = len(divide(suite).sealed.items)
            if suite.kind == "living":
                assert count >= sizes.living
            elif suite.kind in ("safety", "format"):  # files, as long as somebody wrote them
                assert count >= fewest, suite.name
            else:
                assert count >= max(sizes.primary, sizes.guard), suite.name
