"""What each slot would have seen: rebuilt from records, compared with what the harness shows.

The conversation is made by the real harness (`serving.turn`) over an engine that answers from a
list; the records it leaves are all that `arm_views` gets.
"""

import asyncio
from collections.abc import Sequence

from trace_records import PROFILE, hop, says, turn_of, user

from serving.engine import ChatRequest, ChatResult
from serving.hops import OpenTurn, Server
from serving.own_view import Conversation, own_view
from serving.records import Message, Turn
from serving.slots import Slot
from serving.turn import accept_results, close_turn, continue_turn, start_turn
from traces.attribution.arm_views import ArmView, arm_views
from traces.attribution.outcomes import Outcome
from traces.bundles import TurnBundle

PROFILES = PROFILE.model_copy(
    update={
        "handover_template": "Before: {summaries}\n",
        "slots": (*PROFILE.slots, Slot(name="L4", description="x", system="")),
    }
)
TOOLS = ({"type": "function", "function": {"name": "weather", "parameters": {}}},)


class Listed:
    """Routes to the listed slots in order; answers and summaries say who they are from."""

    def __init__(self, routes: Sequence[str]) -> None:
        self.routes = list(routes)

    async def chat(self, request: ChatRequest, on_delta: object = None) -> ChatResult:
        message = says(f"{request.model} answer {len(request.messages)}")
        if request.choices:
            message = says(self.routes.pop(0))
        elif request.tools and request.messages[-1].role == "user":
            call = {"id": "c1", "function": {"name": "weather", "arguments": "{}"}}
            message = Message.from_openai({"role": "assistant", "tool_calls": [call]})
        return ChatResult("r", request.model, message, "stop", 1, 1)


def bundle(open_turn: OpenTurn, turn: Turn) -> TurnBundle:
    outcome = Outcome(turn_id=turn.turn_id, success=False, tier="A", rule="verified")
    return TurnBundle(turn, tuple(open_turn.hops), outcome, None)


async def talk(
    routes: Sequence[str], instructions: str = "", narrated: bool = True
) -> tuple[list[TurnBundle], Conversation]:
    """Return the turns of a conversation, and it as it was before the last of them."""
    server = Server(Listed(routes), PROFILES, {s: s for s in PROFILES.labels})
    conversation = Conversation("c1", instructions=instructions)
    before = Conversation("c1", instructions=instructions)
    bundles = []
    for n in range(len(routes)):
        before.timeline = list(conversation.timeline)
        turn = await start_turn(server, conversation, f"Question {n}?", TOOLS)
        if turn.pending_calls:
            results = [Message(role="tool", content="18", tool_call_id="c1")]
            if narrated:
                await continue_turn(server, turn, results)
            else:
                accept_results(turn, results)
        closed = await close_turn(server, conversation, turn)
        if not narrated:
            closed = closed.model_copy(update={"tail": tuple(turn.exchanged[1:])})
        bundles.append(bundle(turn, closed))
    return bundles, before


def shown(bundles: list[TurnBundle], **offered: tuple) -> dict[str, ArmView]:
    return arm_views(PROFILES, bundles[-1], bundles[:-1], offered)


def test_every_slot_is_shown_what_the_harness_would_have_shown_it() -> None:
    routes = ["L1", "L2", "L0", "L1", "L2", "L2"]
    for narrated in (True, False):
        bundles, before = asyncio.run(talk(routes, "Be brief.", narrated))
        views = shown(bundles)
        for slot in PROFILES.labels:
            assert views[slot].messages == own_view(PROFILES, before, slot, "Question 5?")
        assert {slot: view.view for slot, view in views.items()} == {
            "L0": "rebuilt", "L1": "rebuilt", "L2": "recorded", "L3": "rebuilt", "L4": "rebuilt",
        }  # fmt: skip
        assert views["L2"].messages == bundles[-1].hops[1].messages


def test_tools_are_those_of_the_turn_else_of_the_conversation_else_of_the_slot() -> None:
    first, _ = asyncio.run(talk(["L1"]))
    assert (shown(first)["L1"].tools, shown(first)["L1"].offered) == (TOOLS, "recorded")
    assert shown(first)["L0"].tools == ()
    later, _ = asyncio.run(talk(["L1", "L0"]))
    assert shown(later)["L1"].tools == TOOLS
    alone, _ = asyncio.run(talk(["L0"]))
    assert (shown(alone)["L1"].tools, shown(alone)["L1"].offered) == ((), "none")
    elsewhere = shown(alone, L1=TOOLS)["L1"]
    assert (elsewhere.tools, elsewhere.offered) == (TOOLS, "slot")


def test_a_view_that_cannot_be_rebuilt_is_borrowed_under_the_slots_own_prompt() -> None:
    bundles, _ = asyncio.run(talk(["L1", "L2"], "Be brief."))
    views = shown(bundles[1:])  # the first turn is not in the log
    assert (views["L2"].view, views["L0"].view) == ("recorded", "borrowed")
    assert views["L0"].messages[0].content == "chat\n\nBe brief."
    assert views["L0"].messages[1:] == views["L2"].messages[1:]
    assert views["L4"].messages[0].content == "Be brief."


def test_a_prompt_that_is_not_the_profiles_is_the_clients_and_all_see_it() -> None:
    messages = (Message(role="system", content="You are Otto."), user("Hi?"), says("Hm."))
    said = hop(slot="L2", messages=(*messages, user("Well?")))
    turn = turn_of([said], request="Well?")
    outcome = Outcome(turn_id="t1", success=False, tier="A", rule="verified")
    views = arm_views(PROFILES, TurnBundle(turn, (said,), outcome, None), [], {})
    assert {view.messages for view in views.values()} == {said.messages}
    assert views["L0"].view == "borrowed"
