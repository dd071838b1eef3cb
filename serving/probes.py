"""The fixed texts on which the proof of what serves asks for log-probabilities.

Conversations of several skills, in English and Chinese, each ending within an answer. What
is scored is the answer's first tokens, where adapters differ most. What goes before fills a
block of vLLM's prefix cache, also the 128 tokens of one that its CPU build uses (16 on a
GPU): an answer given from a stale block is among those looked at, and what was computed for
a probe's first scored token need not be computed for the others.
"""

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from serving.records import Message
from serving.template import encode, render_chat

SCORED_TOKENS = 8
"""Tokens at a probe's end whose log-probabilities are compared."""
CONTEXT_TOKENS = 129
"""A probe's tokens before those; one more than a block, as an engine computes the last one of a
prompt always."""

_HOME = (
    "You run the home. Do what you are asked at once and say no more than you must. Rooms are "
    "the kitchen, the bedroom, the office, the bathroom and the hall. Lights can be on, off or "
    "dimmed, the heating is set in degrees, timers in minutes, and lists are called shopping, "
    "chores and ideas. Never do anything that nobody asked for. If a room is not named, take the "
    "one that was spoken of last; if there is none, ask. Times are on the 24 hour clock."
)
_ROUTE = (
    "Which expert takes the request below? Answer L0 L1 L2 L3.\n"
    "L0 chat, short questions, facts, sums\n"
    "L1 home: lights, heating, timers, lists, calendar, messages, music, weather\n"
    "L2 Python code\nL3 interfaces: cards, buttons, inputs\n\n"
    "I am putting together a small program for the club and got stuck. Every member has a name "
    "and a number of points, and I would like a function that takes the list of them and returns "
    "the three who have the most, best one first. Where two have the same number of points the "
    "one whose name comes first in the alphabet should win. Could you write that for me?"
)
_CODE = (
    "We keep the readings of the thermometer in a list, oldest first, one for every hour, and a "
    "reading that failed is None. Somebody looks at it each morning and wants to know three "
    "things: how many readings failed, what the mean of the others is, rounded to one digit, and "
    "whether it was warmer at the end than at the beginning, leaving out the failed ones. Write a "
    "function report(readings) that returns these three as a tuple, and (0, None, False) for an "
    "empty list. Use nothing but the standard library, and no loops where a comprehension does."
)
_CHINESE = (
    "你是一位耐心的助手,回答时先给结论,再用一两句话说明理由。下面是一段关于旅行的对话。我们一家四口"
    "打算在春天去海边住一个星期,孩子们喜欢看船,老人走不了很远的路。火车要坐五个小时,飞机只要一个"
    "小时,可是机场离城里很远,行李也要另外付钱。请告诉我应该怎么去比较好。"
)

_PROBES: tuple[tuple[tuple[str, str], ...], ...] = (
    (("user", _ROUTE), ("assistant", "expert=L2, as it asks for Python code")),
    (
        ("system", _HOME),
        ("user", "It is getting dark in the kitchen, and tea needs four minutes."),
        ("assistant", '<tool_call>{"name": "light", "arguments": {"room": "kitchen"}}</tool_call>'),
    ),
    (
        ("system", "Write the Python code, nothing else."),
        ("user", _CODE),
        ("assistant", "def report(readings):\n    known = [r for r in readings if r is not None]"),
    ),
    (("user", _CHINESE), ("assistant", "坐火车比较好,因为不用另外付行李的钱。")),
)


def probe_token_ids(tokenizer: Any) -> tuple[tuple[int, ...], ...]:
    """Return the probes' tokens under a base's tokenizer and chat template.

    Each is cut to its context and the answer's first tokens.
    """
    return tuple(_tokens(tokenizer, turns) for turns in _PROBES)


def _tokens(tokenizer: Any, turns: Sequence[tuple[str, str]]) -> tuple[int, ...]:
    messages = [Message(role=role, content=content) for role, content in turns]
    try:
        asked = render_chat(tokenizer, messages[:-1])
        whole = render_chat(tokenizer, messages, continue_final=True)
    except (ValueError, TemplateError):  # no template, or one that takes no system prompt
        text = "".join(f"{content}\n\n" for _, content in turns[:-1])
        asked, whole = encode(tokenizer, text), encode(tokenizer, text + turns[-1][1])
    end = min(len(asked) + SCORED_TOKENS, len(whole))
    return tuple(whole[max(0, end - SCORED_TOKENS - CONTEXT_TOKENS) : end])
