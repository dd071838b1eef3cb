"""Makes turn bundles for the tests of curation: what the lake would give, from few words.

Real records throughout; the texts stand in for what a model and a user wrote.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from serving.records import Hop, Message, ToolCall, Turn
from serving.slots import Profile, Slot
from traces.attribution.blame import Blame
from traces.attribution.outcomes import Outcome
from traces.read import TurnBundle

START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)

VERIFIERS = {"L0": (), "L1": ("tool_call",), "L2": ("python_tests",), "L3": ("interface",)}

PROFILE = Profile(
    slots=tuple(
        Slot(name=name, description=name, system=f"You are {name}.", verifiers=verifiers)
        for name, verifiers in VERIFIERS.items()
    ),
    route_prompt="Pick one of {labels}.\n{slots}",
    route_prefill="model_id=",
    summary_prompt="Summarise.",
    handover_template="{summaries}",
)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def says(text: str) -> Message:
    return Message(role="assistant", content=text)


def calls(name: str, call_id: str = "call-1", **arguments: Any) -> Message:
    call = ToolCall(id=call_id, name=name, arguments=json.dumps(arguments))
    return Message(role="assistant", tool_calls=(call,))


def hop(slot: str, messages: list[Message], completion: Message | None, **fields: Any) -> Hop:
    values: dict[str, Any] = {
        "source": "mol",
        "conversation_id": "c1",
        "seq": 1,
        "role": "answer",
        "model": slot,
        "served_name": f"{slot}@3fa9c1d2e4b5",
        "messages": tuple(messages),
        "completion": completion,
        "finish_reason": "stop",
        "status": "ok",
        "started_at": START,
        "duration_s": 0.5,
    }
    return Hop(**values | fields)


def route_hop(text: str, label: str, **fields: Any) -> Hop:
    """The router's hop: the request with the route prompt, and a prefill to continue."""
    view = [user(f"{text}\n\nPick one of L0 L1 L2 L3."), says("model_id=")]
    return hop("L0", view, says(label), role="route", **{"seq": 0} | fields)


def bundle(
    turn_id: str = "t1",
    *,
    slot: str | None = "L2",
    hops: list[Hop] | None = None,
    request: str | None = None,
    answer: str = "an answer",
    success: bool | None = True,
    tier: str | None = "A",
    correction: Message | None = None,
    blame: Blame | None = None,
    who: str | None = "ann",
    conversation: str | None = None,
    minute: int = 0,
    canary: bool = False,
    status: str = "ok",
) -> TurnBundle:
    """One turn; by default routed and answered by L2, verified."""
    request = f"request {turn_id}" if request is None else request
    served = says(answer)
    if hops is None:
        view = [Message(role="system", content=f"You are {slot}."), user(request)]
        hops = [route_hop(request, str(slot)), hop(str(slot), view, served)]
    turn = Turn(
        turn_id=turn_id,
        source="mol",
        conversation_id=conversation or f"c-{turn_id}",
        user=who,
        position=0,
        request=request,
        answer=served,
        slot=slot,
        digest="3fa9c1d2e4b5",
        decision="routed",
        status=status,
        hop_ids=tuple(h.hop_id for h in hops),
        started_at=START + timedelta(minutes=minute),
        duration_s=1.0,
        canary=canary,
    )
    outcome = Outcome(
        turn_id=turn_id,
        success=success,
        tier=tier,
        rule="as given",
        signals="[]",
        correction=correction,
    )
    return TurnBundle(turn=turn, hops=tuple(hops), outcome=outcome, blame=blame)


def blamed(
    klass: str, slot: str | None = None, confidence: float = 0.9, right_slot: str | None = None
) -> Blame:
    return Blame(
        turn_id="t1",
        klass=klass,
        slot=slot,
        confidence=confidence,
        evidence="as given",
        right_slot=right_slot,
        code_version="1",
    )


def edited(turn_id: str = "t1", text: str = "the right answer", **fields: Any) -> TurnBundle:
    """A failure of L2's own that the user corrected."""
    values = {
        "success": False,
        "tier": "B",
        "correction": says(text),
        "blame": blamed("adapter", "L2"),
    }
    return bundle(turn_id, **values | fields)


def misrouted(turn_id: str = "t1", right: str = "L1", **fields: Any) -> TurnBundle:
    """A failure of the router's: L2 answered what another slot should have."""
    values = {"success": False, "blame": blamed("router", "L0", right_slot=right)}
    return bundle(turn_id, **values | fields)
