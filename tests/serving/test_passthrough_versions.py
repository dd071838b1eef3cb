"""Proves which version answers a proxy's hops: one arm a key, one version a turn.

The engine is a stub over HTTP; server, recorder and slot table are real.
"""

import itertools
import math
import threading
import time
from pathlib import Path

import httpx
import pytest
from mol_server import Running, mol_server, version, write_slots
from stub_engine import Answer

from serving import leases
from serving.slot_table import SlotEntry

KEY, SESSION, HOP = "X-SMG-Routing-Key", "X-Session-ID", "X-MOL-Internal-Hop"
CHAMPION, CANARY = version("L1", "a"), version("L1", "b")
CALL = {"id": "chatcmpl-tool-1", "function": {"name": "set_timer", "arguments": "{}"}}
USER = {"role": "user", "content": "Hi"}
ASK = {"model": "L1", "messages": [USER], "max_tokens": 40}
SUMMARY = {
    "model": "L1",
    "messages": [USER, {"role": "assistant", "content": "Hi."}, USER],
    "max_tokens": 192,
}


def l1(mark: str, percent: float = 0.0, generation: int = 1) -> SlotEntry:
    canary = {
        "canary": CANARY["champion"],
        "canary_digest": CANARY["digest"],
        "canary_path": CANARY["path"],
        "canary_percent": percent,
    }
    return SlotEntry(
        slot="L1", generation=generation, **version("L1", mark), **(canary if percent else {})
    )


def flip(mol: Running, entry: SlotEntry) -> None:
    """Put a version in force and wait until it is."""
    write_slots(mol.home, SlotEntry(slot="L0", **version("L0")), entry)
    deadline = time.monotonic() + 20
    while mol.server.services.versions.table.get("L1") != entry:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def mol(tmp_path: Path, stub):
    write_slots(tmp_path, SlotEntry(slot="L0", **version("L0")), l1("a"))
    with mol_server(tmp_path, stub.url) as mol:
        yield mol


@pytest.fixture
def proxy(mol):
    with httpx.Client(base_url=mol.url, timeout=30) as client:
        yield client


def name(proxy: httpx.Client, request=ASK, **headers: str) -> str:
    """Return the version that answers a hop."""
    answer = proxy.post("/v1/chat/completions", json=request, headers=headers)
    assert answer.status_code == 200
    return answer.headers["x-mol-adapter"]


@pytest.mark.parametrize("by", [KEY, SESSION, "user"])
def test_a_canary_gets_its_share_of_keys_and_keeps_each(mol, proxy, by) -> None:
    flip(mol, l1("a", percent=50))
    keys = [f"conversation-{n}" for n in range(240)]

    def arm(key: str) -> str:
        if by == "user":
            return name(proxy, {**ASK, "user": key})
        return name(proxy, **{by: key})

    arms = {key: arm(key) for key in keys}
    # The same as in turns of our own, so that a user has one arm everywhere.
    drawn = {key: (CHAMPION, CANARY)[leases.share("L1", key) < 50]["champion"] for key in keys}
    assert arms == drawn
    again = {key: arm(key) for key in reversed(keys)}

    assert again == arms
    share = sum(one == CANARY["champion"] for one in arms.values())
    # Six standard deviations of a fair coin.
    assert abs(share - 120) < 6 * math.sqrt(240 * 0.25)
    assert set(arms.values()) == {CHAMPION["champion"], CANARY["champion"]}
    for hop in mol.records("hop", 480):
        assert hop["canary"] is (hop["model"] == CANARY["champion"])
        assert hop["served_name"] == hop["model"]
        if by != "user":
            assert hop["model"] == arms[hop["conversation_id"]]


def test_without_any_key_a_conversation_is_told_by_how_it_began(mol, proxy) -> None:
    flip(mol, l1("a", percent=50))
    begun = [{"role": "system", "content": "s"}, {"role": "user", "content": "Hi"}]
    arms = set()
    for number in range(40):
        start = [*begun[:1], {"role": "user", "content": f"Hi {number}"}]
        longer = [*start, {"role": "assistant", "content": "Hi."}, USER]
        first, second = ({**ASK, "messages": m} for m in (start, longer))
        arm = name(proxy, first)
        assert name(proxy, second) == arm
        # Nor does it matter how the same is written: the record knows no difference.
        parts = [{"type": "text", "text": f"Hi {number}"}]
        other = [{"content": "s", "role": "developer"}, {"content": parts, "role": "user"}]
        assert name(proxy, {**ASK, "messages": other}) == arm
        arms.add(arm)
    assert len(arms) == 2


def test_a_turn_under_way_ends_with_the_version_it_began_with(mol, proxy) -> None:
    assert name(proxy, {**ASK, "model": "L0"}, **{KEY: "k1", HOP: "route"})
    flip(mol, l1("c", generation=2))

    assert name(proxy, **{KEY: "k1"}) == CHAMPION["champion"]
    assert name(proxy, SUMMARY, **{KEY: "k1"}) == CHAMPION["champion"]
    # The next turn has the new one, and so has everybody else's.
    assert name(proxy, {**ASK, "model": "L0"}, **{KEY: "k1", HOP: "route"})
    assert name(proxy, **{KEY: "k1"}) == version("L1", "c")["champion"]
    assert name(proxy, **{KEY: "k2"}) == version("L1", "c")["champion"]


@pytest.mark.parametrize("routed", [False, True])
def test_a_turn_without_a_summary_ends_where_the_next_begins(mol, proxy, routed) -> None:
    assert name(proxy, **{KEY: "k1"}) == CHAMPION["champion"]
    flip(mol, l1("c", generation=2))

    if routed:
        name(proxy, {**ASK, "model": "L0"}, **{KEY: "k1", HOP: "route"})

    assert name(proxy, **{KEY: "k1"}) == version("L1", "c")["champion"]


@pytest.mark.parametrize("path", ["routing-key", "routing-keys"])
def test_a_key_that_is_given_back_holds_nothing(mol, stub, proxy, path) -> None:
    assert name(proxy, **{KEY: "k1"})
    flip(mol, l1("c", generation=2))
    assert CHAMPION["champion"] in stub.adapters

    if path == "routing-key":
        proxy.delete("/_internal/routing-key", headers={KEY: "k1"})
    else:
        proxy.request("DELETE", "/_internal/routing-keys", json={"routing_keys": ["no", "k1"]})

    deadline = time.monotonic() + 20
    while CHAMPION["champion"] in stub.adapters:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert name(proxy, SUMMARY, **{KEY: "k1"}) == version("L1", "c")["champion"]


@pytest.mark.parametrize("stream", [False, True])
def test_tool_results_under_another_key_go_to_the_version_that_called(
    mol, stub, proxy, stream
) -> None:
    stub.default = Answer(text="", tool_calls=(CALL,))
    flip(mol, l1("a", percent=50))
    keys = (f"k{n}" for n in itertools.count())
    first = next(k for k in keys if name(proxy, **{KEY: k}) == CANARY["champion"])
    other = next(k for k in keys if name(proxy, **{KEY: k}) == CHAMPION["champion"])
    assert name(proxy, {**ASK, "stream": stream}, **{KEY: first}) == CANARY["champion"]
    call = CALL | {"type": "function"}
    results = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": CALL["id"], "content": "ok"},
    ]
    stub.default = Answer(text="It runs.")

    continued = name(proxy, {**ASK, "messages": results}, **{KEY: other})
    summed_up = name(proxy, SUMMARY, **{KEY: other})

    assert continued == CANARY["champion"]
    assert summed_up == CANARY["champion"]
    assert name(proxy, **{KEY: other}) == CHAMPION["champion"]


def test_ten_flips_under_load_fail_no_hop_and_mix_no_turn(mol, stub) -> None:
    """A proxy's turns of three hops, each under its own key, while versions change."""
    stop, turns, failures = threading.Event(), [], []

    def talk(number: int) -> None:
        with httpx.Client(base_url=mol.url, timeout=30) as client:
            for turn in itertools.count():
                if stop.is_set():
                    return
                key = f"molchat_{number}_{turn}"
                route = {**ASK, "model": "L0"}
                try:
                    name(client, route, **{KEY: key, HOP: "route"})
                    turns.append((name(client, **{KEY: key}), name(client, SUMMARY, **{KEY: key})))
                    client.request(
                        "DELETE", "/_internal/routing-keys", json={"routing_keys": [key]}
                    )
                except Exception as error:
                    failures.append(error)

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for generation in range(2, 12):
            flip(mol, l1("ac"[generation % 2], generation=generation))
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)

    assert failures == []
    assert [turn for turn in turns if turn[0] != turn[1]] == []
    assert {turn[0] for turn in turns} == {CHAMPION["champion"], version("L1", "c")["champion"]}
    assert len(mol.records("hop", 3 * len(turns))) == 3 * len(turns)
