"""Turn chat messages into the exact text and tokens that an engine sees.

Training, the embedded engine and vLLM must agree on every token. So the conversion
from the OpenAI protocol to what a chat template receives is here once, and does what
vLLM's chat endpoint does before templating.
"""

import json
from collections.abc import Sequence
from typing import Any

from serving.records import Message


def render_chat(
    tokenizer: Any,
    messages: Sequence[Message],
    tools: Sequence[dict[str, Any]] = (),
    *,
    continue_final: bool = False,
    add_generation_prompt: bool = True,
) -> list[int]:
    """Return the token ids of a conversation; arguments as for `render_text`."""
    text = render_text(
        tokenizer,
        messages,
        tools,
        continue_final=continue_final,
        add_generation_prompt=add_generation_prompt,
    )
    return encode(tokenizer, text)


def render_text(
    tokenizer: Any,
    messages: Sequence[Message],
    tools: Sequence[dict[str, Any]] = (),
    *,
    continue_final: bool = False,
    add_generation_prompt: bool = True,
) -> str:
    """Render a conversation through the tokenizer's chat template.

    `continue_final` leaves the last (assistant) message open, so that the model goes on
    writing it; `add_generation_prompt` is then ignored, as opening a new message and
    continuing the last one exclude each other.
    """
    text: str = tokenizer.apply_chat_template(
        [template_message(m) for m in messages],
        tools=[template_tool(t) for t in tools] or None,
        add_generation_prompt=add_generation_prompt and not continue_final,
        continue_final_message=continue_final,
        tokenize=False,
    )
    return text


def encode(tokenizer: Any, text: str) -> list[int]:
    """Tokenize text that a template rendered: its control tokens are already in it."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def template_message(message: Message) -> dict[str, Any]:
    """Return the dict a chat template receives: tool arguments as an object, not as JSON text.

    Source: vLLM 0.32 `renderers/chat_utils.py` `_postprocess_messages`; like there, arguments
    that are not a JSON object are shown to the model as `{}`.
    """
    raw = message.to_openai()
    for call in raw.get("tool_calls", ()):
        call["function"]["arguments"] = _arguments_object(call["function"]["arguments"])
    return raw


def template_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool with the keys, in the order, that a chat template gets from vLLM.

    Templates print tools with `tojson`, so the order of keys is part of the prompt.
    Source: vLLM 0.32 `FunctionDefinition`, which also drops keys it does not know.
    """
    function = tool.get("function", tool)
    known = {key: function.get(key) for key in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        known["strict"] = function["strict"]
    return {"type": "function", "function": known}


def _arguments_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
