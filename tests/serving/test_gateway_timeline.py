"""Proves that a slot sees what it should, whatever clients did before.

Hypothesis makes up conversations: going on, asking again, going back, tool calls, results,
wrong results, results twice, users who go on without, engines that fail, clients that leave,
restarts. A plain tree of turns says what each answer must be asked with. The engine is a stub
over HTTP; server, memory and connections are real.
"""

import contextlib
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from gateway_answers import PROFILE
from gateway_asks import PATHS, ask, results
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mol_server import mol_server
from stub_engine import Answer, Asked, stub_engine

from serving.own_view import Conversation, Entry, own_view
from serving.records import Message

CHAT, RESPONSES = PATHS["chat"], PATHS["responses"]
SLOTS = st.sampled_from(PROFILE.labels)
PICK = st.integers(0, 1000)


@dataclass(frozen=True)
class Point:
    """Somewhere a client may go on from: after an answer, or before its tool results."""

    history: tuple[dict[str, Any], ...] = ()
    """The transcript as a chat client has it."""
    timeline: tuple[Entry, ...] = ()
    """Turns finished before."""
    slot: str = ""
    """Whose tool calls wait."""
    text: str = ""
    exchanged: tuple[Message, ...] = ()
    """What the waiting turn came to."""
    calls: tuple[str, ...] = ()
    """Tool calls that wait for results; of a finished turn none."""
    response_id: str | None = None
    """Where the responses protocol may go on, too."""
    chained: bool = False
    """Whether it may go on there alone."""


class Timeline(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.home = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.stub = self.stack.enter_context(stub_engine())
        self.stub.reply = self.engine
        self.points = [Point()]
        self.count = 0
        self.slot, self.answer = "L0", Answer()
        self.asked: list[Any] = []
        self.running = contextlib.ExitStack()
        self.start()

    def start(self) -> None:
        self.mol = self.running.enter_context(mol_server(self.home, self.stub.url))
        self.client = self.running.enter_context(httpx.Client(base_url=self.mol.url, timeout=30))

    def teardown(self) -> None:
        try:
            self.mol.settle()
            assert self.mol.server.services.recorder.stats().dropped == {}
            turns = self.mol.records("turn")
            assert len({turn["turn_id"] for turn in turns}) == len(turns)
        finally:
            self.running.close()
            self.stack.close()

    def engine(self, asked: Asked) -> Answer:
        body = asked.body
        last = body["messages"][-1]
        if "structured_outputs" in body:
            return Answer(text=self.slot)
        if last["content"] == PROFILE.summary_prompt:
            return Answer(text=f"summary of {body['messages'][-2]['content']}")
        if body["max_tokens"] == 1:  # the server tries a version
            return Answer()
        self.asked.append(body["messages"])
        return self.answer

    def number(self) -> int:
        self.count += 1
        return self.count

    def post(self, point: Point, said: list[dict[str, Any]], by_id: bool) -> httpx.Response:
        self.asked.clear()
        # Of a chain of responses the server knows the ids alone, not the transcript.
        if point.response_id and (by_id or point.chained):
            items = [
                m if m["role"] == "user" else results("responses", m["tool_call_id"])[0]
                for m in said
            ]
            body = ask("responses", *items, previous_response_id=point.response_id)
            return self.client.post(RESPONSES, json=body)
        if by_id and not point.history:
            return self.client.post(RESPONSES, json=ask("responses", *said))
        return self.client.post(CHAT, json=ask("chat", *point.history, *said))

    def expect(self, point: Point, slot: str, text: str, exchanged: tuple[Message, ...]) -> None:
        """Check what the slot was asked with: its own view, and this turn so far."""
        conversation = Conversation("c", timeline=list(point.timeline))
        view = (*own_view(PROFILE, conversation, slot, text), *exchanged)
        assert self.asked == [[message.to_openai() for message in view]]

    def arrived(
        self, answer: httpx.Response, point: Point, slot: str, text: str,
        said: list[dict[str, Any]], exchanged: tuple[Message, ...],
    ) -> None:  # fmt: skip
        """Note the point that an answer leads to."""
        assert answer.status_code == 200, answer.text
        body = answer.json()
        by_id = body["object"] == "response"
        calls = tuple(call["id"] for call in self.answer.tool_calls)
        message = Message.from_openai(
            {
                "role": "assistant",
                "content": self.answer.text,
                "tool_calls": [c | {"type": "function"} for c in self.answer.tool_calls],
            }
        )
        made = Point(
            history=(*point.history, *said, message.to_openai()),
            timeline=point.timeline,
            response_id=body["id"] if by_id else None,
            chained=by_id and bool(point.history),
        )
        exchanged = (*exchanged, message)
        if calls:
            made = replace(made, slot=slot, text=text, exchanged=exchanged, calls=calls)
        else:
            user = Message(role="user", content=text)
            entry = Entry(slot, (user, *exchanged), f"summary of {self.answer.text}")
            made = replace(made, timeline=(*point.timeline, entry))
        self.points.append(made)

    def answering(self, calls: int) -> Answer:
        name = {"name": "set_timer", "arguments": '{"minutes": 5}'}
        ids = [f"call-{self.number()}" for _ in range(calls)]
        made = tuple({"id": i, "function": name} for i in ids)
        return Answer(text=f"answer {self.number()}", tool_calls=made)

    def waiting(self, pick: int) -> Point:
        found = [point for point in self.points if point.calls]
        return found[pick % len(found)]

    @rule(pick=PICK, slot=SLOTS, calls=st.sampled_from([0, 0, 1, 2]), by_id=st.booleans())
    def say(self, pick: int, slot: str, calls: int, by_id: bool) -> None:
        """Go on anywhere, before tool results too, where the call is given up."""
        point = self.points[pick % len(self.points)]
        self.slot, self.answer = slot, self.answering(calls)
        text = f"question {self.number()}"
        said = [{"role": "user", "content": text}]
        answer = self.post(point, said, by_id)
        self.expect(point, slot, text, ())
        self.arrived(answer, point, slot, text, said, ())

    @rule(pick=PICK, slot=SLOTS)
    def ask_again(self, pick: int, slot: str) -> None:
        """Send the very same request once more."""
        point = self.points[pick % len(self.points)]
        said = [{"role": "user", "content": "The same."}]
        for _ in range(2):
            self.slot, self.answer = slot, self.answering(0)
            answer = self.post(point, said, by_id=False)
            self.expect(point, slot, "The same.", ())
            self.arrived(answer, point, slot, "The same.", said, ())

    @precondition(lambda self: any(point.calls for point in self.points))
    @rule(pick=PICK, calls=st.sampled_from([0, 0, 1]), by_id=st.booleans(), more=st.booleans())
    def bring_results(self, pick: int, calls: int, by_id: bool, more: bool) -> None:
        """Answer all calls, perhaps not for the first time, perhaps with a word of the user."""
        point = self.waiting(pick)
        self.slot, self.answer = "L3", self.answering(calls)
        said = results("chat", *point.calls)
        if more:
            said.append({"role": "user", "content": "Hurry."})
        answer = self.post(point, said, by_id)
        exchanged = (*point.exchanged, *(Message.from_openai(m) for m in said))
        self.expect(point, point.slot, point.text, exchanged)
        self.arrived(answer, point, point.slot, point.text, said, exchanged)

    @precondition(lambda self: any(point.calls for point in self.points))
    @rule(pick=PICK, by_id=st.booleans(), twice=st.booleans())
    def bring_wrong_results(self, pick: int, by_id: bool, twice: bool) -> None:
        point = self.waiting(pick)
        ids = (*point.calls, point.calls[0]) if twice else ("call-0", *point.calls[1:])
        answer = self.post(point, results("chat", *ids), by_id)
        assert answer.status_code == 400
        assert self.asked == []

    @rule(pick=PICK, slot=SLOTS, by_id=st.booleans(), with_results=st.booleans())
    def fail(self, pick: int, slot: str, by_id: bool, with_results: bool) -> None:
        """Let the engine fail; the point stays as it is."""
        point = self.points[pick % len(self.points)]
        self.slot, self.answer = slot, Answer(status=500)
        said = [{"role": "user", "content": f"lost {self.number()}"}]
        if with_results and point.calls:
            said = results("chat", *point.calls)
        assert self.post(point, said, by_id).status_code == 502

    @rule(pick=PICK, slot=SLOTS)
    def leave(self, pick: int, slot: str) -> None:
        """Go away while the answer is made."""
        point = self.points[pick % len(self.points)]
        self.slot, self.answer = slot, Answer(text="never seen", delay_s=20)
        self.asked.clear()
        body = ask("chat", *point.history, f"left {self.number()}")
        path = CHAT
        if point.chained:
            body = ask("responses", "left", previous_response_id=point.response_id)
            path = RESPONSES
        with contextlib.suppress(httpx.TimeoutException):
            self.client.post(path, json=body, timeout=0.15)

    @rule()
    def restart(self) -> None:
        self.running.close()
        self.start()

    @invariant()
    def nothing_is_held_for_nobody(self) -> None:
        services = self.mol.server.services
        turns = services.full_turns
        busy = services.admission.running + len(turns._tasks)
        assert services.versions.held <= len(turns._held) + busy


TestTimeline = Timeline.TestCase
TestTimeline.settings = settings(
    max_examples=int(os.environ.get("MOL_FUZZ_EXAMPLES", "6")),
    stateful_step_count=20,
    derandomize="MOL_FUZZ_EXAMPLES" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
