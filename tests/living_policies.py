"""Policies for the living suite, as engines: they see what a model sees, and nothing else.

Each plays the scenario's own solution, all but the oracle with one fault of character.
"""

import json
from collections.abc import Callable
from typing import Any

from promotion.suites.living.home import READERS, Home
from promotion.suites.living.scenario import Scenario
from serving.engine import ChatRequest, ChatResult, OnDelta
from serving.records import Message, ToolCall, canonical_json

DOUBTFUL = frozenset({"error", "warning", "status"})
"""Keys of a result that is no plain success."""


class Oracle:
    """Does all of it right."""

    def __init__(self, scenario: Scenario) -> None:
        self.solution = scenario.solution()
        self.calls = 0
        self.last: tuple[str, dict[str, Any]] | None = None
        self.asked: list[ChatRequest] = []

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        self.asked.append(request)
        last = request.messages[-1]
        if last.role == "tool":
            step = self.after(json.loads(last.content))
        else:
            step = self.hear(last.content)
        self.calls += 1
        message = Message(role="assistant", content="Done.")
        if step is not None:
            call = ToolCall(id=f"c{self.calls}", name=step[0], arguments=json.dumps(step[1]))
            message = Message(role="assistant", tool_calls=(call,))
        self.last = step
        return ChatResult(f"r{self.calls}", request.model, message, "stop", 10, 2)

    def hear(self, line: str) -> tuple[str, dict[str, Any]] | None:
        """Begin a turn."""
        return self.go(lambda: next(self.solution) if self.calls == 0 else self.solution.send({}))

    def after(self, result: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """Go on after a tool's result."""
        return self.go(lambda: self.solution.send(result))

    def go(self, step: Callable[[], Any]) -> tuple[str, dict[str, Any]] | None:
        try:
            return step()
        except (StopIteration, RuntimeError, AssertionError):
            # The solution is at its end, or the policy's fault leads it nowhere.
            return None


class DoesNothing(Oracle):
    """Says that all is done."""

    def hear(self, line: str) -> None:
        return None


class Hasty(Oracle):
    """Never looks: takes the home for what it was at first, and all that it did for done."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.believed = Home(scenario.start, (), scenario.tools)

    def hear(self, line: str) -> tuple[str, dict[str, Any]] | None:
        return self.from_belief(super().hear(line))

    def after(self, result: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        return self.from_belief(super().after(result))

    def from_belief(
        self, step: tuple[str, dict[str, Any]] | None
    ) -> tuple[str, dict[str, Any]] | None:
        while step is not None:
            name, arguments = step
            call = ToolCall(id="b", name=name, arguments=json.dumps(arguments))
            told = json.loads(self.believed.call(call))
            if name not in READERS:
                return step
            step = super().after(told)
        return None


class Stale(Oracle):
    """Never reads again what it has read in an earlier turn."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.known: dict[str, dict[str, Any]] = {}
        self.read: dict[str, dict[str, Any]] = {}

    def hear(self, line: str) -> tuple[str, dict[str, Any]] | None:
        self.known |= self.read
        return self.from_memory(super().hear(line))

    def after(self, result: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        assert self.last is not None
        if self.last[0] in READERS and not result.keys() & DOUBTFUL:
            self.read[canonical_json(self.last)] = result
        return self.from_memory(super().after(result))

    def from_memory(
        self, step: tuple[str, dict[str, Any]] | None
    ) -> tuple[str, dict[str, Any]] | None:
        while step is not None and (known := self.known.get(canonical_json(step))) is not None:
            step = super().after(known)
        return step


class Credulous(Oracle):
    """Takes every result for a success."""

    def after(self, result: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        told = {key: value for key, value in result.items() if key not in DOUBTFUL}
        return super().after(told or {"ok": True})


class Insistent(Oracle):
    """Calls again after whatever is not a plain success, without a look whether it was done."""

    def after(self, result: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        return self.last if result.keys() & DOUBTFUL else super().after(result)


class Deaf(Oracle):
    """Does what the first line asks for and nothing after it."""

    def hear(self, line: str) -> tuple[str, dict[str, Any]] | None:
        return super().hear(line) if self.calls == 0 else None


class Additive(Oracle):
    """Does every wish and takes nothing back: cancels nothing, and sets nothing as it was."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.start = Home(scenario.start).facts
        self.turns = 0

    def hear(self, line: str) -> tuple[str, dict[str, Any]] | None:
        self.turns += 1
        return self.skip(super().hear(line))

    def after(self, result: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        return self.skip(super().after(result))

    def skip(self, step: tuple[str, dict[str, Any]] | None) -> tuple[str, dict[str, Any]] | None:
        while step is not None and self.turns > 1 and self.takes_back(*step):
            step = super().after({"ok": True})
        return step

    def takes_back(self, name: str, arguments: dict[str, Any]) -> bool:
        if name.startswith(("cancel_", "remove_")):
            return True
        kind, *value = name.removeprefix("set_").removeprefix("play_"), *arguments.values()
        return len(value) > 0 and self.start.get((kind, *value[:-1])) == value[-1]
