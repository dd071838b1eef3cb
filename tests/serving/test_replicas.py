"""Proves which replica a call goes to, and that adapters are on all replicas or on none.

Three stub engines on the loopback stand for three servers.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stub_engine import StubEngine, stub_engine

from serving.child import HOST, free_port
from serving.engine import ChatRequest
from serving.errors import EngineRefused, EngineUnavailable
from serving.openai_engine import OpenAIEngine
from serving.records import Message
from serving.replicas import Replicas

NAME = "L1@aaaaaaaaaaaa"
USER = (Message(role="user", content="Hello"),)
ADDRESSES = [f"http://127.0.0.1:{port}" for port in range(8000, 8005)]


@pytest.fixture
def stubs() -> Iterator[list[StubEngine]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(stub_engine()) for _ in range(3)]


def use(stubs: list[StubEngine], call: Callable[[Replicas], Awaitable[Any]]) -> Any:
    return on([stub.url for stub in stubs], call)


def on(addresses: list[str], call: Callable[[Replicas], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        replicas = Replicas([OpenAIEngine(address) for address in addresses])
        try:
            return await call(replicas)
        finally:
            await replicas.close()

    return asyncio.run(run())


def first_of(addresses: list[str], affinity: str) -> str:
    return Replicas([OpenAIEngine(a) for a in addresses]).order(affinity)[0].base_url


def asked(stubs: list[StubEngine]) -> list[int]:
    return [len(stub.chats) for stub in stubs]


def test_an_affinity_stays_where_it_is_whatever_the_order_of_addresses() -> None:
    for n in range(50):
        assert first_of(ADDRESSES, f"c{n}") == first_of(ADDRESSES[::-1], f"c{n}")


def test_affinities_are_spread_evenly() -> None:
    counts = Counter(first_of(ADDRESSES, f"c{n}") for n in range(2000))

    assert len(counts) == 5
    assert all(300 < count < 500 for count in counts.values())


def test_a_replica_that_goes_moves_only_its_own_affinities() -> None:
    gone = ADDRESSES[2]
    rest = [address for address in ADDRESSES if address != gone]
    for n in range(500):
        before = first_of(ADDRESSES, f"c{n}")
        assert before == gone or first_of(rest, f"c{n}") == before


def test_each_attempt_of_a_call_goes_to_another_replica(stubs: list[StubEngine]) -> None:
    async def attempts(replicas: Replicas) -> None:
        for attempt in range(3):
            await replicas.chat(ChatRequest("base", USER, affinity="c1", attempt=attempt))

    use(stubs, attempts)

    assert asked(stubs) == [1, 1, 1]


def test_chat_and_forwarding_agree_where_an_affinity_belongs(stubs: list[StubEngine]) -> None:
    async def both(replicas: Replicas) -> None:
        for attempt in range(2):
            await replicas.chat(ChatRequest("base", USER, affinity="c1", attempt=attempt))
            body = b'{"model": "base", "messages": []}'
            path = "/v1/chat/completions"
            async with replicas.forward(path, body, {}, affinity="c1", attempt=attempt) as answer:
                assert answer.status == 200
                await answer.read()

    use(stubs, both)

    assert sorted(asked(stubs)) == [0, 2, 2]


def test_calls_without_an_affinity_take_turns(stubs: list[StubEngine]) -> None:
    async def several(replicas: Replicas) -> None:
        for _ in range(6):
            await replicas.chat(ChatRequest("base", USER))

    use(stubs, several)

    assert asked(stubs) == [2, 2, 2]


def test_a_second_attempt_gets_past_a_dead_replica(stubs: list[StubEngine]) -> None:
    addresses = [f"http://{HOST}:{free_port()}", stubs[0].url]
    affinity = next(f"c{n}" for n in range(99) if first_of(addresses, f"c{n}") == addresses[0])

    async def call(replicas: Replicas) -> str:
        with pytest.raises(EngineUnavailable):
            await replicas.chat(ChatRequest("base", USER, affinity=affinity))
        request = ChatRequest("base", USER, affinity=affinity, attempt=1)
        return (await replicas.chat(request)).message.content

    assert on(addresses, call) == "Hi."


def test_an_adapter_is_loaded_everywhere_and_unloaded_everywhere(
    stubs: list[StubEngine], tmp_path: Path
) -> None:
    use(stubs, lambda replicas: replicas.load_adapter(NAME, tmp_path))
    assert [list(stub.adapters) for stub in stubs] == [[NAME]] * 3

    use(stubs, lambda replicas: replicas.unload_adapter(NAME))

    assert [list(stub.adapters) for stub in stubs] == [[]] * 3


def test_only_names_that_all_replicas_serve_are_models(stubs: list[StubEngine]) -> None:
    stubs[0].adapters = {NAME: "/there", "L2@bbbbbbbbbbbb": "/there"}
    stubs[1].adapters = stubs[2].adapters = {NAME: "/there"}

    assert use(stubs, lambda replicas: replicas.models()) == ("base", NAME)
    assert use(stubs, lambda replicas: replicas.names_by_replica()) == {
        stubs[0].url: ("base", NAME, "L2@bbbbbbbbbbbb"),
        stubs[1].url: ("base", NAME),
        stubs[2].url: ("base", NAME),
    }


def test_a_load_that_one_replica_refuses_is_undone_on_the_others(
    stubs: list[StubEngine], tmp_path: Path
) -> None:
    stubs[1].load_status[NAME] = 500

    with pytest.raises(EngineRefused, match=stubs[1].url) as refusal:
        use(stubs, lambda replicas: replicas.load_adapter(NAME, tmp_path))

    assert refusal.value.status == 500
    assert [list(stub.adapters) for stub in stubs] == [[]] * 3
    assert [stub.loads for stub in stubs] == [[NAME]] * 3


def test_a_replica_that_lost_a_name_gets_it_back_and_keeps_the_others(
    stubs: list[StubEngine], tmp_path: Path
) -> None:
    stubs[0].adapters = stubs[2].adapters = {NAME: str(tmp_path)}

    use(stubs, lambda replicas: replicas.load_adapter(NAME, tmp_path))

    assert [stub.loads for stub in stubs] == [[], [NAME], []]


def test_a_name_that_all_have_is_refused_and_stays(stubs: list[StubEngine], tmp_path: Path) -> None:
    for stub in stubs:
        stub.adapters = {NAME: "/there"}

    with pytest.raises(EngineRefused, match="already been loaded"):
        use(stubs, lambda replicas: replicas.load_adapter(NAME, tmp_path))

    assert [stub.adapters for stub in stubs] == [{NAME: "/there"}] * 3


def test_a_name_is_forgotten_where_it_is_and_unknown_where_it_is_nowhere(
    stubs: list[StubEngine],
) -> None:
    stubs[1].adapters = {NAME: "/there"}

    use(stubs, lambda replicas: replicas.unload_adapter(NAME))

    assert stubs[1].adapters == {}
    with pytest.raises(EngineRefused, match="cannot be found"):
        use(stubs, lambda replicas: replicas.unload_adapter(NAME))


def test_a_replica_that_is_away_fails_a_load_and_is_seen(
    stubs: list[StubEngine], tmp_path: Path
) -> None:
    addresses = [stubs[0].url, f"http://{HOST}:{free_port()}", stubs[1].url]

    assert on(addresses, lambda replicas: replicas.health()) == [True, False, True]
    with pytest.raises(EngineUnavailable, match=addresses[1]):
        on(addresses, lambda replicas: replicas.load_adapter(NAME, tmp_path))

    assert [stub.adapters for stub in stubs] == [{}] * 3


def test_no_call_runs_on_behind_the_failure_of_another(stubs: list[StubEngine]) -> None:
    stubs[1].models_delay_s = 0.2
    addresses = [f"http://{HOST}:{free_port()}", stubs[0].url, stubs[1].url]

    async def ask(replicas: Replicas) -> int:
        with pytest.raises(EngineUnavailable, match=addresses[0]):
            await replicas.models()
        return len(asyncio.all_tasks())

    assert on(addresses, ask) == 1


def test_an_embedding_comes_from_any_replica(stubs: list[StubEngine]) -> None:
    assert use(stubs, lambda replicas: replicas.embed("Hello")) == (0.1, 0.2, 0.3)
