"""What the stub engine says in tests of the MoL server."""

from collections.abc import Callable
from typing import Any

from stub_engine import Answer, Asked

from serving.slots import load_profile

PROFILE = load_profile()
TOOL = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "description": "Set a timer.",
        "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}},
    },
}
CALL = {"id": "call-1", "function": {"name": "set_timer", "arguments": '{"minutes": 5}'}}


def slots_answer(slot: str, text: str = "Done.", **more: Any) -> Callable[[Asked], Answer]:
    """Let the stub route every turn to `slot`, which says `text`; summaries say 'summed up'."""

    def reply(asked: Asked) -> Answer:
        body = asked.body
        if "structured_outputs" in body:
            return Answer(text=slot)
        last = body["messages"][-1]
        if last["role"] == "user" and last["content"] == PROFILE.summary_prompt:
            return Answer(text="summed up")
        return Answer(text=text, **more)

    return reply
