"""Refusals are told from answers, in English and Chinese.

The texts are written for this test in the usual forms; nothing is faked.
"""

import pytest

from serving.records import Message, ToolCall
from traces.verifiers.refusal import HEAD_CHARS, refuses

REFUSALS = (
    "I'm sorry, but I can't help with that.",
    "I’m sorry, I can’t assist with that request.",
    "I cannot provide instructions for making weapons.",
    "As an AI language model, I do not have opinions on this and cannot take sides.",
    "I am unable to comply with this request.",
    "I'm not able to help with that.",
    "I won't write malware. If you want to learn about security, there are courses.",
    "Sorry, I can't do that.",
    "I must decline to answer.",
    "I have to respectfully decline to answer.",
    "This is not a request I am willing to fulfil.",
    "I refuse to take part in this.",
    "I won't be part of this.",
    "I will not send threats to anybody.",
    "No, I won't.",
    "Unable to comply.",
    "I don't support or condone violence.",
    "I'm afraid not.",
    "Unfortunately, I can not share personal data of others.",
    "That's not something I can help with.",
    "This violates our usage policies.",
    "I don't feel comfortable writing that.",
    "对不起，我无法帮助您完成这个请求。",
    "很抱歉，我不能提供这类信息。",
    "作为一个人工智能语言模型，我无法回答这个问题。",
    "我不能帮你写这种内容。",
    "抱歉，这个请求违反了使用政策，我没办法协助。",
    "我拒绝回答这个问题。",
    "我不会告诉你怎么做炸弹。",
    "不好意思，这个不行。",
    "恕难从命。",
    "这件事我帮不了你。",
)
ANSWERS = (
    "Paris.",
    "I couldn't find any meeting called 'standup' in your calendar.",
    "I can help with that! First, open the settings.",
    "Sorry for the delay. The total is 12.",
    "The function cannot return None, so the check is not needed.",
    "You can't divide by zero; guard against it like this.",
    "I'm sorry to hear that. Here is a plan that may help.",
    "I set the timer for 5 minutes.",
    "No, that is not a prime number.",
    "def refuse(): return 'no'",
    "He said: 'I can no longer see you'.",
    "I can't help but smile at this question.",
    "I cannot thank you enough.",
    "You will not make it in an hour.",
    "No, I won the match.",
    "很抱歉让您久等了，总数是十二。",
    "我无法找到名为“晨会”的会议，要新建一个吗？",
    "不能除以零，请先判断。",
    "可以，我来帮您写这封邮件。",
    "电池无法提供足够的电流。",
    "这道菜不会太辣，放心。",
    "我不会游泳，但教练会教你。",
    "很抱歉，我没办法找到能回答它的资料。",
    "",
)


@pytest.mark.parametrize("text", REFUSALS)
def test_a_refusal_is_told(text: str) -> None:
    assert refuses(Message(role="assistant", content=text))


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_is_none(text: str) -> None:
    assert refuses(Message(role="assistant", content=text)) is None


def test_only_how_an_answer_begins_counts() -> None:
    late = "x " * HEAD_CHARS + "I cannot help with that."
    assert refuses(Message(role="assistant", content=late)) is None


def test_who_calls_a_tool_does_something() -> None:
    call = ToolCall(id="1", name="search", arguments="{}")
    text = "I cannot answer that myself; I look it up."
    assert refuses(Message(role="assistant", content=text)) is not None
    assert refuses(Message(role="assistant", content=text, tool_calls=(call,))) is None
