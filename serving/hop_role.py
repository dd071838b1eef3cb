"""What a hop is for, told from the request of a proxy that only marks its route hops."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from serving.records import HopRole, Message

ROLE_HEADER = "x-mol-internal-hop"
KEY_HEADER = "x-smg-routing-key"
_SUMMARY_TOKENS = 192


def role_of_hop(
    said: str | None,
    request: Mapping[str, Any],
    messages: Sequence[Message],
    summary_prompt: str | None = None,
) -> HopRole:
    """Tell a hop's role.

    A summary hop asks, after an assistant message, for the profile's summary; where that
    prompt is not known, it is told by its 192 tokens, the bound of Mind Lab's harness.

    Args:
        said: the value of `ROLE_HEADER`, if any.
        request: the body of the call.
        messages: those of the body.
        summary_prompt: the text that asks for a summary.
    """
    if said in ("route", "answer", "summary"):
        return cast(HopRole, said)
    if request.get("stream") or not messages or messages[-1].role != "user":
        return "answer"
    if summary_prompt is not None:
        return "summary" if messages[-1].content.strip() == summary_prompt else "answer"
    after_answer = len(messages) > 1 and messages[-2].role == "assistant"
    bounded = request.get("max_tokens") == _SUMMARY_TOKENS and not request.get("tools")
    return "summary" if after_answer and bounded else "answer"
