"""Proves what a turn does and what each adapter sees of a conversation.

The engine is a script: it answers what the test says. What is proved is the turn.
"""

import asyncio
import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import make_tiny_tokenizer

from serving.engine import ChatRequest, ChatResult, OnDelta
from serving.errors import EngineRefused, EngineUnavailable
from serving.hops import Server, TurnFailed
from serving.own_view import Conversation, Entry, clipped_summary, own_view
from serving.records import Message, ToolCall
from serving.slots import load_profile
from serving.template import render_text
from serving.turn import accept_results, close_turn, continue_turn, finished, start_turn

PROFILE = load_profile()
NAMES = {slot: f"{slot}@{n}a9c1d2e4b5f" for n, slot in enumerate(PROFILE.labels)}
TOOL = {"type": "function", "function": {"name": "set_timer", "parameters": {}}}
CALL = Message(role="assistant", tool_calls=(ToolCall(id="k1", name="set_timer", arguments="{}"),))
DONE = Message(role="tool", content='{"ok": true}', tool_call_id="k1")


@dataclass
class Script:
    """An engine that answers from a list; an exception in it is raised."""

    answers: list[Message | str | BaseException]
    asked: list[ChatRequest] = field(default_factory=list)

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, str):
            answer = Message(role="assistant", content=answer)
        return ChatResult(
            response_id=f"r{len(self.asked)}",
            served_name=request.model,
            message=answer,
            finish_reason="stop",
            prompt_tokens=3,
            completion_tokens=2,
            choice_probability=0.75 if request.choices else None,
            duration_s=0.5,
        )


def serve(*answers: Message | str | BaseException) -> tuple[Script, Server]:
    script = Script(list(answers))
    clock = datetime(2026, 3, 1, tzinfo=UTC)
    return script, Server(script, PROFILE, NAMES, clock=lambda: clock)  # type: ignore[arg-type]


def take(server: Server, conversation: Conversation, text: str):
    """Run a turn without tools from start to end."""

    async def run():
        turn = await start_turn(server, conversation, text)
        return await close_turn(server, conversation, turn)

    return asyncio.run(run())


def test_a_turn_is_a_route_an_answer_and_a_summary() -> None:
    script, server = serve("L2", "def f(): ...", "Asked for f.")
    conversation = Conversation("c", user="u")

    turn = take(server, conversation, "Write f.")

    assert [request.model for request in script.asked] == [NAMES["L0"], NAMES["L2"], NAMES["L2"]]
    route, answer, summary = script.asked
    assert route.choices == PROFILE.labels
    assert route.max_tokens == 24
    assert route.continue_final
    assert answer.max_tokens == PROFILE.max_answer_tokens
    assert summary.max_tokens == PROFILE.max_summary_tokens
    assert summary.messages[:-1] == (
        *answer.messages, Message(role="assistant", content="def f(): ...")
    )  # fmt: skip
    assert turn.status == "ok"
    assert conversation.timeline[0].summary == "Asked for f."


def test_the_record_of_a_turn_names_its_hops_its_slot_and_its_version() -> None:
    _, server = serve("L2", "def f(): ...", "Asked for f.")
    conversation = Conversation("c", user="u")

    async def run():
        turn = await start_turn(server, conversation, "Write f.")
        return turn, await close_turn(server, conversation, turn)

    open_turn, turn = asyncio.run(run())

    assert [hop.role for hop in open_turn.hops] == ["route", "answer", "summary"]
    assert turn.hop_ids == tuple(hop.hop_id for hop in open_turn.hops)
    assert {hop.turn_id for hop in open_turn.hops} == {turn.turn_id}
    assert {hop.harness_digest for hop in open_turn.hops} == {PROFILE.digest}
    assert f"{turn.slot}@{turn.digest}" == NAMES["L2"]
    assert (turn.user, turn.position, turn.request) == ("u", 0, "Write f.")
    assert turn.answer == Message(role="assistant", content="def f(): ...")
    assert turn.response_ids == ("r2",)
    assert turn.decision == "routed"
    assert turn.duration_s == 1.5
    assert open_turn.hops[0].confidence == 0.75
    assert [hop.seq for hop in open_turn.hops] == [0, 1, 2]
    assert [(hop.started_at - turn.started_at).total_seconds() for hop in open_turn.hops] == [
        0, 0.5, 1.0
    ]  # fmt: skip


def test_the_route_hop_sees_the_text_and_nothing_of_the_past() -> None:
    script, server = serve("L0", "Paris.", "Said Paris.", "L0", "Rome.", "Said Rome.")
    conversation = Conversation("c")
    take(server, conversation, "Capital of France?")

    take(server, conversation, "And of Italy?")

    route = script.asked[3]
    assert "And of Italy?" in route.messages[0].content
    assert "Paris" not in route.messages[0].content
    assert all(label in route.messages[0].content for label in PROFILE.labels)


def test_others_are_seen_as_summaries_and_the_own_past_verbatim() -> None:
    script, server = serve(
        "L0", "PARIS VERBATIM", "said Paris", "L2", "CODE VERBATIM", "wrote code",
        "L0", "again", "said again",
    )  # fmt: skip
    conversation = Conversation("c")
    for text in ("Capital?", "Write f.", "Capital again?"):
        take(server, conversation, text)

    of_code = "".join(m.content for m in script.asked[4].messages)
    of_chat = "".join(m.content for m in script.asked[7].messages)
    assert "said Paris" in of_code
    assert "PARIS VERBATIM" not in of_code
    assert "PARIS VERBATIM" in of_chat
    assert "wrote code" in of_chat
    assert "CODE VERBATIM" not in of_chat
    assert "said Paris" not in of_chat


def test_tools_are_offered_to_slots_that_take_them() -> None:
    for label in PROFILE.labels:
        script, server = serve(label, "answer", "summary")
        asyncio.run(start_turn(server, Conversation("c"), "x", [TOOL]))

        offered = script.asked[1].tools == (TOOL,)
        assert offered == PROFILE.slot(label).offers_tools
        assert script.asked[0].tools == ()


def test_tool_results_stick_to_the_slot_that_called() -> None:
    script, server = serve("L1", CALL, "The timer runs.", "Set a timer.")
    conversation = Conversation("c")

    async def run():
        turn = await start_turn(server, conversation, "Timer!", [TOOL])
        assert turn.pending_calls == CALL.tool_calls
        await continue_turn(server, turn, [DONE])
        assert turn.pending_calls == ()
        return turn, await close_turn(server, conversation, turn)

    open_turn, turn = asyncio.run(run())

    assert [hop.role for hop in open_turn.hops] == ["route", "answer", "answer", "summary"]
    assert {hop.slot for hop in open_turn.hops[1:]} == {"L1"}
    assert script.asked[2].messages[-2:] == (CALL, DONE)
    assert script.asked[2].tools == (TOOL,)
    assert turn.response_ids == ("r2", "r3")
    assert turn.answer == Message(role="assistant", content="The timer runs.")
    assert [m.role for m in conversation.timeline[0].messages] == [
        "user", "assistant", "tool", "assistant"
    ]  # fmt: skip


def test_results_may_end_a_turn_without_another_answer() -> None:
    script, server = serve("L1", CALL, "Set a timer.")
    conversation = Conversation("c")

    async def run():
        turn = await start_turn(server, conversation, "Timer!", [TOOL])
        accept_results(turn, [DONE])
        return await close_turn(server, conversation, turn)

    turn = asyncio.run(run())

    assert turn.answer == CALL
    assert [m.role for m in script.asked[2].messages[-3:]] == ["assistant", "tool", "user"]


def test_a_result_of_an_unknown_call_is_refused_and_changes_nothing() -> None:
    script, server = serve("L1", CALL)
    conversation = Conversation("c")

    async def run():
        turn = await start_turn(server, conversation, "Timer!", [TOOL])
        stranger = DONE.model_copy(update={"tool_call_id": "k2"})
        with pytest.raises(ValueError, match=r"'k2', but pending are \['k1'\]"):
            await continue_turn(server, turn, [DONE, stranger])
        assert turn.exchanged == [CALL]

    asyncio.run(run())

    assert len(script.asked) == 2


@pytest.mark.parametrize("error", [EngineRefused("no (500)"), EngineUnavailable("gone")])
@pytest.mark.parametrize("calls_before", [0, 1])
def test_a_failed_call_leaves_the_timeline_and_a_record(calls_before: int, error) -> None:
    conversation = Conversation("c")
    take(serve("L0", "first", "summary")[1], conversation, "Hello")
    before = list(conversation.timeline)
    script, server = serve(*["L2"][:calls_before], error)

    with pytest.raises(TurnFailed) as failure:
        take(server, conversation, "Write f.")

    open_turn = failure.value.turn
    turn = finished(open_turn)
    assert conversation.timeline == before
    assert len(open_turn.hops) == calls_before + 1
    last = open_turn.hops[-1]
    assert (last.status, last.error, last.completion) == ("engine_error", str(error), None)
    assert last.messages == script.asked[-1].messages
    assert (turn.status, turn.error) == ("failed", str(error))
    assert turn.hop_ids == tuple(hop.hop_id for hop in open_turn.hops)
    assert turn.position == 1


@pytest.mark.parametrize("text", ["书" * 400, "b" * 4000, "书 a " * 300, ""])
def test_first_words_are_few_tokens_in_any_script(text: str) -> None:
    said = clipped_summary(PROFILE, [Message(role="assistant", content=text)])

    assert text.startswith(said)
    assert len(said.encode()) <= 3 * PROFILE.max_summary_tokens
    assert bool(said) == bool(text)


@pytest.mark.parametrize("error", [EngineRefused("no (500)"), EngineUnavailable("gone")])
def test_a_delivered_turn_stands_without_a_summary_its_first_words_do(error) -> None:
    conversation = Conversation("c")
    _, server = serve("L2", "one  two\nthree " + "word " * 300, error)

    turn = take(server, conversation, "Write f.")

    (entry,) = conversation.timeline
    assert entry.summary.startswith("one two three word")
    assert len(entry.summary.split()) <= PROFILE.max_summary_tokens
    assert (turn.status, turn.error) == ("ok", None)
    assert len(turn.hop_ids) == 3


def test_a_failed_turn_is_not_seen_by_the_next() -> None:
    script, server = serve(
        "L0", EngineRefused("no"), "L0", "Paris.", "Said Paris."
    )  # fmt: skip
    conversation = Conversation("c")
    with pytest.raises(TurnFailed):
        take(server, conversation, "LOST TEXT")

    turn = take(server, conversation, "Capital?")

    assert all("LOST TEXT" not in m.content for r in script.asked[2:] for m in r.messages)
    assert turn.position == 1


def test_a_router_that_names_no_slot_fails_the_turn() -> None:
    _, server = serve("I would say L2")
    conversation = Conversation("c")

    with pytest.raises(TurnFailed) as failure:
        take(server, conversation, "Write f.")

    turn = finished(failure.value.turn)
    assert turn.status == "failed"
    assert "'I would say L2', not to one of L0, L1, L2, L3" in str(turn.error)
    assert conversation.timeline == []


def test_a_dropped_turn_leaves_the_timeline_as_it_was() -> None:
    _, server = serve("L0", asyncio.CancelledError())
    conversation = Conversation("c")

    with pytest.raises(asyncio.CancelledError):
        take(server, conversation, "Capital?")

    assert conversation.timeline == []


def test_the_same_words_twice_are_two_turns() -> None:
    _, server = serve(*["L0", "Paris.", "Said Paris."] * 2)
    conversation = Conversation("c")

    first, second = take(server, conversation, "Capital?"), take(server, conversation, "Capital?")

    assert first.turn_id != second.turn_id
    assert not set(first.hop_ids) & set(second.hop_ids)


def test_equal_conversations_give_equal_records() -> None:
    runs = []
    for _ in range(2):
        _, server = serve("L1", CALL, "summary")
        runs.append(take(server, Conversation("c"), "Timer!"))

    assert runs[0] == runs[1]


words = st.text("ab {}\n<|é", min_size=1, max_size=8)
entries = st.builds(
    lambda slot, text, answer, summary: Entry(
        slot,
        (Message(role="user", content=text), Message(role="assistant", content=answer)),
        summary,
    ),
    st.sampled_from(PROFILE.labels), words, words, words,
)  # fmt: skip
TOKENIZER = make_tiny_tokenizer()


@settings(deadline=None, max_examples=60)
@given(st.lists(entries, max_size=8), words)
def test_a_view_only_grows_from_visit_to_visit(timeline: list[Entry], text: str) -> None:
    conversation = Conversation("c")
    seen: dict[str, tuple[Message, ...]] = {}
    texts: dict[str, str] = {}
    last = Entry("L0", (Message(role="user", content=text),), "")
    for entry in [*timeline, *(replace(last, slot=slot) for slot in PROFILE.labels)]:
        view = own_view(PROFILE, conversation, entry.slot, entry.messages[0].content)
        rendered = render_text(TOKENIZER, view, add_generation_prompt=False)
        before = seen.get(entry.slot, ())
        assert view[: len(before)] == before
        assert rendered.startswith(texts.get(entry.slot, ""))
        seen[entry.slot] = (*view, *entry.messages[1:])
        texts[entry.slot] = render_text(TOKENIZER, seen[entry.slot], add_generation_prompt=False)
        conversation.timeline.append(entry)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(PROFILE.labels), min_size=1, max_size=7))
def test_every_request_starts_with_what_its_slot_saw_before(slots: list[str]) -> None:
    answers = [a for n, slot in enumerate(slots) for a in (slot, f"answer {n}", f"summary {n}")]
    script, server = serve(*answers)
    conversation = Conversation("c")
    seen: dict[str, tuple[Message, ...]] = {}
    for n, slot in enumerate(slots):
        take(server, conversation, f"text {n}")
        request = script.asked[-2]
        before = seen.get(slot, ())
        assert request.messages[: len(before)] == before
        shown = json.dumps([m.to_openai() for m in request.messages])
        for past, other in enumerate(slots[:n]):
            assert shown.count(f"answer {past}") == (other == slot)
            assert shown.count(f"summary {past}") == (other != slot)
        seen[slot] = (*request.messages, Message(role="assistant", content=f"answer {n}"))
