"""Leases that outlast one hop, so that a proxy's turn is answered by one version.

A turn of an MoL proxy comes as single hops: they share a conversation key, and its tool
results may come under another key, with the id of the call. While a turn goes on, its hops
get the lease that the first one took, whatever became of the slot table since.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from serving.hop_role import role_of_hop
from serving.leases import Lease
from serving.records import HopRole, Message
from serving.versions import Versions

BETWEEN_HOPS_S = 30.0
"""A proxy sends a turn's next hop at once; one that comes later draws anew."""
MOST_KEPT = 20_000


class HopLeases:
    """Leases by conversation key and by tool call; one event loop uses it."""

    def __init__(
        self,
        versions: Versions,
        results_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wait `results_s` for the result of a tool call."""
        self._versions = versions
        self._results_s = results_s
        self._clock = clock
        self._keys: OrderedDict[str, tuple[float, bool]] = OrderedDict()
        self._calls: OrderedDict[str, float] = OrderedDict()

    def take(self, key: str, slot: str, said: str | None, request: Mapping[str, Any]) -> Lease:
        """Return the lease for a hop: its turn's, or a new one if it begins a turn."""
        self._sweep()
        role, results = _read(said, request)
        kept = self._keys.get(key)
        begins = role == "route" or (role == "answer" and kept is not None and kept[1])
        names = [_call(result) for result in results]
        if not begins or results:
            names.append(_key(key))
        found = (self._versions.lease_of(name) for name in names)
        lease = next((one for one in found if one and one.alive and slot in one.names), None)
        lease = lease or self._versions.lease(key)
        lease.hold(_key(key))
        self._keys[key] = (self._clock() + BETWEEN_HOPS_S, role == "answer")
        self._keys.move_to_end(key)
        if role == "summary":
            self.forget([key])
        return lease

    def expect_results(self, lease: Lease, calls: Iterable[str]) -> None:
        """Keep a lease for the results of these tool calls."""
        for call in calls:
            lease.hold(_call(call))
            self._calls[call] = self._clock() + self._results_s
            self._calls.move_to_end(call)

    def forget(self, keys: Iterable[str]) -> None:
        """Keep nothing for these conversation keys any more."""
        for key in keys:
            if self._keys.pop(key, None) is not None:
                self._release(_key(key))

    def _sweep(self) -> None:
        now = self._clock()
        while self._keys:
            key, (until, _) = next(iter(self._keys.items()))
            if until > now and len(self._keys) < MOST_KEPT:
                break
            self.forget([key])
        while self._calls:
            call, until = next(iter(self._calls.items()))
            if until > now and len(self._calls) < MOST_KEPT:
                break
            del self._calls[call]
            self._release(_call(call))

    def _release(self, name: str) -> None:
        lease = self._versions.lease_of(name)
        if lease is not None:
            lease.release(name)


def _read(said: str | None, request: Mapping[str, Any]) -> tuple[HopRole, list[str]]:
    """Return a hop's role and the tool calls whose results end its messages."""
    messages = request.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        return "answer", []
    results: list[str] = []
    for message in reversed(messages):
        if message.get("role") != "tool":
            break
        results.append(str(message.get("tool_call_id")))
    try:
        role = role_of_hop(said, request, [Message.from_openai(m) for m in messages[-2:]])
    except (ValueError, LookupError, TypeError, AttributeError):
        role = "answer"
    return role, results


def _key(key: str) -> str:
    return f"key {key}"


def _call(call: str) -> str:
    return f"call {call}"
