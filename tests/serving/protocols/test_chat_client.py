"""The official OpenAI client reads our chat completions, plain and streamed.

Real: client, HTTP, parsing, writers. Faked: the engine, by a scripted answer.
"""

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from scripted_server import CALLS, THOUGHT, WORDS, Script, ScriptedServer

from serving.records import Message

HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("weather", "clock")
]


def chunks(client: OpenAI, **options: object) -> list[ChatCompletionChunk]:
    stream = client.chat.completions.create(model="mol", messages=HELLO, stream=True, **options)
    read = list(stream)
    for chunk in read:
        # The client takes whatever comes; its types tell what it should be.
        ChatCompletionChunk.model_validate(chunk.model_dump(by_alias=True))
    return read


def test_plain_answer_with_usage_and_metadata(openai_client: OpenAI) -> None:
    answer = openai_client.chat.completions.create(model="mol", messages=HELLO)
    ChatCompletion.model_validate(answer.model_dump(by_alias=True))
    assert answer.choices[0].message.content == "Grüße, 你好!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == 37
    assert answer.usage.prompt_tokens_details.cached_tokens == 20
    assert answer.metadata == {"mol_slot": "L2"}
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "mol"


def test_streamed_pieces_join_to_the_answer(openai_client: OpenAI) -> None:
    read = chunks(openai_client)
    assert [c.choices[0].delta.content for c in read] == ["", "Grüße", ", 你", "好!", None]
    assert read[0].choices[0].delta.role == "assistant"
    assert read[-1].choices[0].finish_reason == "stop"
    assert len({c.id for c in read}) == 1
    assert all(c.usage is None for c in read)


def test_stream_tells_usage_if_asked(openai_client: OpenAI) -> None:
    read = chunks(openai_client, stream_options={"include_usage": True})
    assert read[-1].choices == []
    assert read[-1].usage.prompt_tokens_details.cached_tokens == 20
    assert all(c.usage is None for c in read[:-1])


def test_answer_that_no_engine_streamed_comes_in_one_piece(
    openai_client: OpenAI, server: ScriptedServer
) -> None:
    server.script = Script(message=CALLS.message, finish_reason="tool_calls")
    with openai_client.chat.completions.stream(model="mol", messages=HELLO, tools=TOOLS) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.content == "Let me see."
    assert [c.function.arguments for c in message.tool_calls] == ['{"city": "Köln"}', "{}"]


def test_stream_helper_collects_tool_calls(openai_client: OpenAI, server: ScriptedServer) -> None:
    server.script = CALLS
    with openai_client.chat.completions.stream(model="mol", messages=HELLO, tools=TOOLS) as stream:
        events = list(stream)
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    called = [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls]
    assert called == [("call_a", "weather", '{"city": "Köln"}'), ("call_b", "clock", "{}")]
    pieces = [e.arguments_delta for e in events if e.type == "tool_calls.function.arguments.delta"]
    assert pieces == ["", '{"city": ', '"Köln"}', "{}"]


def test_plain_tool_calls_come_back_as_a_valid_request(
    openai_client: OpenAI, server: ScriptedServer
) -> None:
    server.script = CALLS
    first = openai_client.chat.completions.create(model="mol", messages=HELLO, tools=TOOLS)
    assert first.choices[0].finish_reason == "tool_calls"
    said = first.choices[0].message
    server.script = WORDS
    results = [{"role": "tool", "tool_call_id": c.id, "content": "ok"} for c in said.tool_calls]
    openai_client.chat.completions.create(
        model="mol", messages=[*HELLO, said, *results], tools=TOOLS
    )
    assert server.asks[-1].messages[1] == CALLS.message
    assert [m.tool_call_id for m in server.asks[-1].messages[2:]] == ["call_a", "call_b"]


def test_reasoning_is_told_apart(openai_client: OpenAI, server: ScriptedServer) -> None:
    server.script = THOUGHT
    answer = openai_client.chat.completions.create(model="mol", messages=HELLO)
    message = answer.choices[0].message
    assert (message.content, message.reasoning) == ("Four.", "two and two")
    assert message.reasoning_content == "two and two"
    deltas = [c.choices[0].delta for c in chunks(openai_client)]
    thought = [d.reasoning for d in deltas if getattr(d, "reasoning", None)]
    assert thought == ["two and ", "two"]
    assert [d.reasoning_content for d in deltas if getattr(d, "reasoning_content", None)] == thought


def test_cut_answer_says_so(openai_client: OpenAI, server: ScriptedServer) -> None:
    server.script = Script(WORDS.message, WORDS.deltas, finish_reason="length")
    answer = openai_client.chat.completions.create(model="mol", messages=HELLO)
    assert answer.choices[0].finish_reason == "length"
    assert chunks(openai_client)[-1].choices[0].finish_reason == "length"


def test_broken_stream_is_an_api_error(openai_client: OpenAI, server: ScriptedServer) -> None:
    server.script = Script(WORDS.message, WORDS.deltas[:1], failure="The engine died.")
    with pytest.raises(openai.APIError, match=r"The engine died\.") as caught:
        chunks(openai_client)
    assert caught.value.code == "engine_died"


def test_half_a_surrogate_pair_of_a_model_reaches_the_client(
    openai_client: OpenAI, server: ScriptedServer
) -> None:
    server.script = Script(Message(role="assistant", content="a\ud83d"))
    read = chunks(openai_client)
    assert "".join(c.choices[0].delta.content or "" for c in read) == "a\ud83d"


@pytest.mark.parametrize(
    ("request_", "error", "param"),
    [
        ({"model": "mol", "messages": []}, openai.BadRequestError, "messages"),
        ({"model": "mol", "messages": HELLO, "n": 2}, openai.BadRequestError, "n"),
        ({"model": "missing", "messages": HELLO}, openai.NotFoundError, None),
        ({"model": "busy", "messages": HELLO}, openai.RateLimitError, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_clients_own(
    openai_client: OpenAI,
    request_: dict[str, object],
    error: type[openai.APIStatusError],
    param: str | None,
    stream: bool,
) -> None:
    with pytest.raises(error) as caught:
        openai_client.chat.completions.create(**request_, stream=stream)
    assert caught.value.param == param
    assert caught.value.body["request_id"] == "req_1"
