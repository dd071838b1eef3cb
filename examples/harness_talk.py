"""What a client of Mind Lab's harness says: chats, tools, responses, one that leaves.

In: the harness's address. Out: every request with its answer, and which of them belong to
one turn. The texts are such as the example adapters were trained on, so that the routes
and the tool calls are real ones.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from promotion.suites.household import TOOLS
from serving.sse import reassemble

MODEL = "Macaron-V1-Tall"
"""One of the two names that the harness admits."""
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
LIMIT_S = 300.0


@dataclass
class Said:
    """One request of the client."""

    turn: int
    """Requests that carry tool results go on with the turn of the one before."""
    path: str
    request: dict[str, Any]
    status: int = 0
    answer: str = ""
    left: bool = False
    """The client left after some pieces of the answer."""


@dataclass
class Talk:
    """Everything that the client said and got."""

    client: httpx.AsyncClient
    said: list[Said] = field(default_factory=list)
    turns: int = 0

    def as_json(self) -> list[dict[str, Any]]:
        """Return the requests as JSON."""
        return [asdict(one) for one in self.said]

    async def ask(
        self, path: str, request: dict[str, Any], *, goes_on: bool = False, leave_after: int = 0
    ) -> Said:
        """Send a request; `leave_after` so many pieces of text, if not 0, the client is gone."""
        self.turns += not goes_on
        one = Said(self.turns - 1, path, {"model": MODEL, "temperature": 0.0, **request})
        self.said.append(one)
        async with self.client.stream("POST", path, json=one.request) as answer:
            one.status = answer.status_code
            async for line in answer.aiter_lines():
                one.answer += line + "\n"
                if leave_after and one.answer.count('"content"') > leave_after:
                    one.left = True
                    break
        return one


async def talk(url: str) -> Talk:
    """Hold the whole conversation."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=LIMIT_S) as client:
        talk = Talk(client)
        await _chat(talk)
        await _use_tools(talk, "Play some folk.", stream=False)
        await _use_tools(talk, "Put on techno music.", stream=True)
        await _respond(talk)
        await _leave(talk)
        await _say_too_much(talk)
        return talk


async def _chat(talk: Talk) -> None:
    """Three turns of one conversation, in the middle a streamed one."""
    history: list[dict[str, Any]] = []
    for text, stream in (
        ("What is the capital of Germany?", False),
        ("Write a Python function first_5(items) that returns the first 5 elements.", True),
        ("Show a card titled Contacts with a button Open.", False),
    ):
        history.append({"role": "user", "content": text})
        said = await talk.ask(
            CHAT, {"messages": list(history), "max_tokens": 24, "stream": stream, "user": "u1"}
        )
        history.append({"role": "assistant", "content": message_of(said)["content"]})


async def _use_tools(talk: Talk, text: str, stream: bool) -> None:
    """Have a tool called and bring its result."""
    music = [tool for tool in TOOLS if tool["function"]["name"] == "play_music"]
    rest = {"tools": music, "max_tokens": 40, "stream": stream}
    history: list[dict[str, Any]] = [{"role": "user", "content": text}]
    forced = {"type": "function", "function": {"name": "play_music"}}
    said = await talk.ask(CHAT, {"messages": list(history), "tool_choice": forced, **rest})
    message = message_of(said)
    history += [
        message,
        {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": '{"ok": true}'},
    ]
    await talk.ask(CHAT, {"messages": history, "tool_choice": "none", **rest}, goes_on=True)


async def _respond(talk: Talk) -> None:
    """Three turns that follow one another by id, the last one streamed."""
    previous: dict[str, Any] = {}
    for text, how in (
        ("What is the capital of China?", {}),
        ("Write a Python function ends_with_a(text) that tells whether a text ends with a.", {}),
        ("What is a young cow called?", {"stream": True}),
    ):
        said = await talk.ask(
            RESPONSES, {"input": text, "max_output_tokens": 24, **previous, **how}
        )
        if not how:
            previous = {"previous_response_id": json.loads(said.answer)["id"]}


async def _leave(talk: Talk) -> None:
    """Go away in the middle of an answer, and ask again."""
    messages = [{"role": "user", "content": "Count from one to one hundred in words."}]
    request = {"messages": messages, "max_tokens": 200}
    await talk.ask(CHAT, {**request, "stream": True}, leave_after=4)
    await talk.ask(CHAT, {**request, "max_tokens": 16})


async def _say_too_much(talk: Talk) -> None:
    """Send more than the engine can read, which it refuses."""
    messages = [{"role": "user", "content": "far" + " far" * 2400}]
    await talk.ask(CHAT, {"messages": messages, "max_tokens": 16})


def message_of(said: Said) -> dict[str, Any]:
    """Return the assistant's message of a chat answer.

    Raises:
        RuntimeError: if there is none.
    """
    if said.request.get("stream"):
        message = reassemble(said.answer).message()
    else:
        choices = json.loads(said.answer).get("choices")
        message = choices[0]["message"] if choices else None
    if said.status != 200 or message is None:
        raise RuntimeError(f"{said.status}: {said.answer[:500]}")
    return {k: v for k, v in message.items() if v not in (None, [])}
