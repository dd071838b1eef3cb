"""Proves that keys are compared in full, and that no place in the queue is lost or given twice.

Nothing is faked; the loop's own time decides the races.
"""

import asyncio
import random
import time
from typing import Any

import pytest
from starlette.datastructures import Headers

from serving.access import Admission, Keys, KeysInvalid
from serving.config import LimitsConfig
from serving.exchange import RequestInvalid

KEY, OTHER = "0123456789abcdef", "another-key-of-somebody"


def headers(**named: str) -> Headers:
    raw = [(n.replace("_", "-").encode(), v.encode()) for n, v in named.items()]
    return Headers(raw=raw)


def test_a_bearer_or_an_x_api_key_names_its_holder_and_not_itself() -> None:
    keys = Keys((KEY, OTHER))

    by_bearer = keys.caller(headers(authorization=f"Bearer {KEY}"))

    assert by_bearer == keys.caller(headers(x_api_key=KEY))
    assert by_bearer == keys.caller(headers(authorization=f"bearer  {KEY} "))
    assert by_bearer != keys.caller(headers(x_api_key=OTHER))
    assert KEY not in by_bearer


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": KEY},
        {"authorization": f"Basic {KEY}"},
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Bearer {KEY.upper()}"},
        {"authorization": "Bearer " + "x" * 100_000},
        {"authorization": "Bearer schlüssel-schlüssel"},
        {"authorization": "Bearer x", "x_api_key": KEY},
        {"x_api_key": f"{KEY},{OTHER}"},
    ],
)
def test_anything_else_is_a_401(given: dict[str, str]) -> None:
    with pytest.raises(RequestInvalid) as refusal:
        Keys((KEY, OTHER)).caller(headers(**given))
    assert refusal.value.status == 401


def test_a_key_need_not_be_ascii() -> None:
    key = "schlüssel-schlüssel"

    assert Keys((key,)).caller(headers(authorization=f"Bearer {key}"))


def test_keys_come_from_a_variable_and_a_file(tmp_path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"\n{OTHER}\n\n")

    keys = Keys.from_environment({"MOL_API_KEYS": f"{KEY}, ", "MOL_API_KEYS_FILE": str(file)})

    assert keys.caller(headers(x_api_key=KEY)) != keys.caller(headers(x_api_key=OTHER))
    assert not Keys.from_environment({"MOL_API_KEYS": " , "})
    with pytest.raises(KeysInvalid, match="fewer than 16"):
        Keys.from_environment({"MOL_API_KEYS": "short"})
    with pytest.raises(KeysInvalid, match="Cannot read"):
        Keys.from_environment({"MOL_API_KEYS_FILE": str(tmp_path)})


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.8.8.8:1", "[::1]:80", "a.localhost"]
)
def test_without_keys_requests_for_the_loopback_are_taken(host: str) -> None:
    assert Keys().caller(headers(host=host)) == ""
    assert Keys().caller(headers()) == ""  # no browser leaves it out


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example",
     "10.0.0.1", "0.0.0.0", "[", "[::2]", ":80", "127.0.0.1@evil.example"],
)  # fmt: skip
def test_without_keys_a_name_that_was_bent_to_the_loopback_is_not(host: str) -> None:
    with pytest.raises(RequestInvalid) as refusal:
        Keys().caller(headers(host=host))
    assert refusal.value.status == 403


def test_with_keys_any_name_will_do() -> None:
    assert Keys((KEY,)).caller(headers(host="mol.example", x_api_key=KEY))


def admission(running: int, waiting: int, wait_s: float = 10.0) -> Admission:
    return Admission(LimitsConfig(max_running=running, max_waiting=waiting, max_wait_s=wait_s))


def at_once(coroutine: Any) -> bool:
    """Run a coroutine's first step; return whether that was all."""
    try:
        coroutine.send(None)
    except StopIteration:
        return True
    coroutine.close()
    return False


def test_a_place_that_comes_free_as_the_wait_ends_is_neither_lost_nor_given_twice() -> None:
    async def scenario() -> None:
        places = admission(1, 1, wait_s=0.05)
        holder = places.place()
        await holder.__aenter__()
        loop, held = asyncio.get_running_loop(), []

        async def waiter() -> None:
            async with places.place():
                held.append(places.running)

        task = asyncio.create_task(waiter())
        await asyncio.sleep(0.01)
        # Both timers are due in the same round of the loop: first the place, then the time-out.
        loop.call_at(loop.time() + 0.02, lambda: at_once(holder.__aexit__(None, None, None)))
        time.sleep(0.1)
        await asyncio.wait([task])
        assert task.exception() is None
        assert held == [1]
        assert (places.running, places.waiting) == (0, 0)

    asyncio.run(scenario())


def test_one_that_has_just_given_up_waiting_keeps_nobody_from_a_free_place() -> None:
    async def scenario() -> None:
        places = admission(1, 5)
        holder = places.place()
        await holder.__aenter__()
        left = asyncio.create_task(places.place().__aenter__())
        await asyncio.sleep(0)
        assert places.waiting == 1
        left.cancel()
        assert at_once(holder.__aexit__(None, None, None))
        next_one = places.place()
        assert at_once(next_one.__aenter__())
        await asyncio.wait([left])
        assert at_once(next_one.__aexit__(None, None, None))
        assert (places.running, places.waiting) == (0, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(20))
def test_no_place_is_lost_however_many_come_and_go(seed: int) -> None:
    rng = random.Random(seed)
    most, most_waiting = rng.randint(1, 4), rng.randint(0, 20)
    places = admission(most, most_waiting, wait_s=0.003)
    now = 0
    done: list[int] = []
    refused: list[RequestInvalid] = []

    async def one() -> None:
        nonlocal now
        await asyncio.sleep(rng.random() * 0.02)
        try:
            async with places.place():
                now += 1
                assert now <= most
                assert places.waiting <= most_waiting
                try:
                    await asyncio.sleep(rng.choice([0, 0.001, 0.003, 0.004]))
                    if rng.random() < 0.1:
                        raise KeyError
                finally:
                    now -= 1
                done.append(now)
        except RequestInvalid as refusal:
            refused.append(refusal)

    async def scenario() -> None:
        tasks = [asyncio.create_task(one()) for _ in range(150)]
        while not all(task.done() for task in tasks):
            rng.choice(tasks).cancel()
            await asyncio.sleep(0.0005)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert not isinstance(result, AssertionError)
        assert (places.running, places.waiting, now) == (0, 0, 0)
        for _ in range(most):
            assert at_once(places.place().__aenter__())

    asyncio.run(scenario())
    assert done
    assert {refusal.status for refusal in refused} == {429}
    assert all(1 <= (refusal.retry_after_s or 0) <= 60 for refusal in refused)


def test_places_are_handed_on_in_the_order_of_arrival() -> None:
    places, order = admission(1, 10), []

    async def one(number: int) -> None:
        async with places.place():
            order.append(number)
            await asyncio.sleep(0)

    async def scenario() -> None:
        await asyncio.gather(*(one(number) for number in range(8)))

    asyncio.run(scenario())
    assert order == list(range(8))
