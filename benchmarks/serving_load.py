"""A load generator: so many clients, each asking again as soon as it has its answer.

    python -m benchmarks.serving_load '<JSON of a Load>'

One process over plain sockets, which costs less than whatever it measures. In: a `Load`. Out,
as one JSON line: a `Measured`. Latency is from the first byte sent to the last received, of
the requests answered within the measured time; every answer must have status 200 and contain
the expected text, or it counts as failed. Measuring begins when every client has had an answer
and goes on until there are a few for each, however slow whoever answers is. SIGTERM ends it.
"""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import uvloop

from serving.child import HOST

MARK = "@@@@@@@@@@@@@@@@"
"""Stands for sixteen hexadecimal digits that differ from conversation to conversation."""
ANSWERS_A_CLIENT = 3
"""Measured at least, within `PATIENCE_S`."""
PATIENCE_S = 20.0
DRAIN_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """What to ask, of whom, how hard and how long."""

    port: int
    bodies: tuple[str, ...]
    """The requests of one conversation, in order; then the client begins another."""
    clients: int
    measure_s: float
    warm_s: float = 0.5
    """Asked for as long before, not measured."""
    path: str = "/v1/chat/completions"
    headers: dict[str, str] = field(default_factory=dict)
    expected: str = ""
    """Text that every answer has."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of it."""

    p50_ms: float
    p99_ms: float
    rps: float
    requests: int
    """Answered within the measured time."""
    answered: int
    """Answered in all, before and after it too."""
    failed: int
    """Of all."""
    problems: dict[str, int]
    """What they failed of."""


class _Generator:
    """What the clients share."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.latencies_s: list[float] = []
        self.answered = 0
        self.problems: Counter[str] = Counter()
        self.started = time.perf_counter()
        self.begin: float | None = None
        self.end: float | None = None
        self.idle = asyncio.Event()
        self.active = load.clients
        self.expected = load.expected.encode()
        self._conversations = 0
        # The number of conversations is not the same in two generators; the time is neither.
        self._prefix = time.monotonic_ns() & 0xFFFFFFFF
        self._requests = [self._request(body) for body in load.bodies]

    def conversation(self) -> list[bytes]:
        """Return the requests of a new conversation."""
        self._conversations += 1
        mark = b"%08x%08x" % (self._prefix, self._conversations)
        return [mark.join(parts) for parts in self._requests]

    def answer(self, asked_at: float, problem: str | None) -> bool:
        """Count an answer; return whether to ask again."""
        now = time.perf_counter()
        if problem is not None:
            self.problems[problem] += 1
        else:
            self.answered += 1
            if self.begin is not None and self.end is None:
                self.latencies_s.append(now - asked_at)
        self._move_on(now)
        if self.end is None:
            return True
        self.active -= 1
        if self.active == 0:
            self.idle.set()
        return False

    def stop(self) -> None:
        """Measure no longer; what is on its way is waited for."""
        self.end = self.end or time.perf_counter()

    def _move_on(self, now: float) -> None:
        load, asked = self.load, self.answered + sum(self.problems.values())
        if self.begin is None:
            if now - self.started < load.warm_s or (
                asked < load.clients and now - self.started < PATIENCE_S
            ):
                return
            self.begin = now
        elif self.end is None and now - self.begin >= load.measure_s:
            enough = len(self.latencies_s) >= ANSWERS_A_CLIENT * load.clients
            if enough or self.problems or now - self.begin >= PATIENCE_S:
                self.end = now

    def _request(self, body: str) -> list[bytes]:
        head = [f"POST {self.load.path} HTTP/1.1", f"Host: {HOST}:{self.load.port}"]
        more = {"Content-Type": "application/json", "Content-Length": str(len(body.encode()))}
        head += [f"{name}: {value}" for name, value in (more | self.load.headers).items()]
        return ("\r\n".join(head) + "\r\n\r\n" + body).encode().split(MARK.encode())


class _Client(asyncio.Protocol):
    """One connection with at most one request on its way."""

    def __init__(self, generator: _Generator) -> None:
        self._generator = generator
        self._transport: asyncio.Transport | None = None
        self._todo: list[bytes] = []
        self._read = b""
        self._asked_at = 0.0
        self._waits = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's class.
        self._transport = cast(asyncio.Transport, transport)

    def ask(self) -> None:
        assert self._transport is not None
        if not self._todo:
            self._todo = self._generator.conversation()
        self._waits, self._asked_at = True, time.perf_counter()
        self._transport.write(self._todo.pop(0))

    def data_received(self, data: bytes) -> None:
        self._read = self._read + data if self._read else data
        if not _is_whole(self._read):
            return
        answer, self._read, self._waits = self._read, b"", False
        problem = None
        if answer[9:12] != b"200":
            problem = answer[9:12].decode() + " " + _body(answer)[:200].decode(errors="replace")
        elif self._generator.expected not in answer:
            problem = "unexpected " + _body(answer)[:200].decode(errors="replace")
        if problem is not None:
            self._todo = []
        if self._generator.answer(self._asked_at, problem):
            self.ask()
        elif self._transport is not None:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._waits:
            self._waits, self._read, self._todo = False, b"", []
            if self._generator.answer(self._asked_at, f"connection lost: {error}"):
                asyncio.ensure_future(self._again())  # noqa: RUF006

    async def _again(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self, HOST, self._generator.load.port)
        except OSError as error:
            if self._generator.answer(time.perf_counter(), f"no connection: {error}"):
                await asyncio.sleep(0.05)
                await self._again()
            return
        self.ask()


def _is_whole(answer: bytes) -> bool:
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = answer[:end].lower()
    begin = head.find(b"\r\ncontent-length:")
    if begin < 0:
        return answer.endswith(b"\r\n0\r\n\r\n")
    stop = head.find(b"\r\n", begin + 17)
    return len(answer) - end - 4 >= int(head[begin + 17 : stop if stop >= 0 else None])


def _body(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


async def generate(load: Load) -> Measured:
    """Put the load on and return what was measured."""
    generator = _Generator(load)
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(load.clients):
        _, client = await loop.create_connection(lambda: _Client(generator), HOST, load.port)
        clients.append(client)
    loop.add_signal_handler(signal.SIGTERM, generator.stop)
    generator.started = time.perf_counter()
    for client in clients:
        client.ask()
    async with asyncio.timeout(load.warm_s + load.measure_s + 2 * PATIENCE_S + DRAIN_LIMIT_S):
        await generator.idle.wait()
    latencies = sorted(generator.latencies_s)
    took_s = (generator.end or 0.0) - (generator.begin or 0.0)
    return Measured(
        p50_ms=_percentile_ms(latencies, 0.50),
        p99_ms=_percentile_ms(latencies, 0.99),
        rps=round(len(latencies) / took_s, 1) if latencies else 0.0,
        requests=len(latencies),
        answered=generator.answered,
        failed=sum(generator.problems.values()),
        problems=dict(generator.problems.most_common(5)),
    )


def start(load: Load) -> "subprocess.Popen[str]":
    """Put a load on from a process of its own; `finish` waits for it."""
    command = [sys.executable, "-m", "benchmarks.serving_load", json.dumps(asdict(load))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(child: "subprocess.Popen[str]") -> Measured:
    """Return what a started load measured."""
    said, _ = child.communicate()
    if child.returncode:
        raise RuntimeError(f"The load generator ended with status {child.returncode!r}.")
    return Measured(**json.loads(said.splitlines()[-1]))


def run(load: Load) -> Measured:
    """Put a load on from a process of its own and return what it measured."""
    return finish(start(load))


def _percentile_ms(latencies_s: list[float], share: float) -> float:
    """Return the nearest rank; 0 if there is nothing."""
    if not latencies_s:
        return 0.0
    return round(latencies_s[min(len(latencies_s) - 1, int(share * len(latencies_s)))] * 1000, 3)


def main() -> None:
    """Generate the load that the command line describes."""
    raw: dict[str, Any] = json.loads(sys.argv[1])
    load = Load(**raw | {"bodies": tuple(raw["bodies"])})
    print(json.dumps(asdict(uvloop.run(generate(load)))))


if __name__ == "__main__":
    main()
