"""Does an answer refuse? Told by how refusals begin, in English and Chinese.

A refusal declines the request itself: it says that the writer cannot or will not help, as an
apology, as a rule, or for being a model. "I could not find it in your calendar" answers the
request and is none. Only the beginning of the text counts: answers that quote a refusal, or
end with a caveat, have answered. In: a message. Out: the words that refuse, or None.
"""

import re

from serving.records import Message

HEAD_CHARS = 280
"""Refusals say so at once."""

_CANNOT = (
    r"(?:can ?not|cant|can no longer|could ?not|couldnt|wont|will not|am not able to|"
    r"(?:am|was) unable to|wont be able to|will not be able to|am not allowed to|"
    r"am not permitted to|do not feel comfortable|dont feel comfortable|"
    r"am not comfortable|(?:must|have to) (?:decline|refuse)(?: to)?|refuse to|decline to)"
)
_DO = (
    r"(?:help|assist|aid|comply|fulfil+|provid\w*|support|engage|participate|continue|proceed|"
    r"writ\w+|creat\w+|generat\w+|produc\w+|answer\w*|respond\w*|discuss\w*|shar\w+|giv\w+|offer\w*|"
    r"do (?:that|this|so)|accommodate|complete (?:that|this|your)|with (?:that|this|your)|"
    r"(?:this|that|your|the) request)"
)
_TAKE_PART = (
    r"(?:condone|encourage|take part|go along|be (?:a )?part|be involved|"
    r"send (?:such|threats|this|that)|tell you how|teach you|explain how to|describe how to|"
    r"walk you)"
)
_LEAD = r"(?:(?:just|also|really|actually|directly|ethically|in good conscience|be|to) )*"
_ENGLISH = re.compile(
    rf"\b(?:i|we|as an? (?:\w+ )*(?:ai|assistant|model) i) (?:\w+ )?{_CANNOT} {_LEAD}{_DO}\b"
    # "I can't help but smile" helps all the same.
    r"(?! but)"
    rf"|\b(?:i|we) (?:\w+ )?(?:{_CANNOT}|do not|dont) (?:\w+ or )?{_LEAD}{_TAKE_PART}\b"
    r"|\b(?:i|we) (?:must|have to) (?:\w+ly )?(?:decline|refuse)\b"
    r"|^(?:no|sorry)(?: sorry)? (?:i|we) (?:wont|will not|cant|can ?not)"
    r"(?: do (?:it|that|this))? ?$"
    r"|\bnot a request i am (?:willing|able|going) to\b|^unable to (?:comply|assist|help)\b"
    r"|^(?:i am )?(?:sorry i am )?afraid not\b"
    r"|\bas an? (?:\w+ ){0,3}(?:ai|language model|assistant)(?: \w+){0,4} i (?:\w+ )?"
    r"(?:can ?not|cant|do not|dont|am not|am unable|wont|will not)\b"
    r"|\b(?:sorry|apologi[sz]e)(?: \w+){0,3} (?:but )?(?:i|we) (?:cant|can ?not|wont|will not)"
    r" (?:do|help|assist|comply|that|this)\b"
    r"|\b(?:that|this)(?: is|s) (?:not )?something (?:that )?i (?:cant|can ?not|wont|will not|"
    r"can|am able to) (?:help|assist|do|provide|support)\b"
    r"|\bim not able to (?:\w+ )?(?:help|assist|provide|do that|comply|answer)\b"
    r"|\b(?:your|this|that) request (?:violates|goes against|is against)\b"
    r"|\b(?:this|that|it) (?:violates|goes against|is against) (?:my|our|the) "
    r"(?:\w+ )?(?:guidelines|policy|policies|principles|rules)\b"
)
_CONTRACTED = (("i'm", "i am"), ("i've", "i have"), ("that's", "that is"), ("we're", "we are"))
_APOSTROPHES = re.compile("['’‘ʼ]")
_GAP = re.compile(r"[^\w]+")
_CHINESE_NO = "(?:无法|不能|不可以|没办法|没有办法|不便|不方便|不会|难以|拒绝)"
_CHINESE_DO = (
    "(?:帮助|帮您|帮你|协助|提供|回答|满足|完成|执行|处理|支持|生成|编写|撰写|写|讨论|参与|继续|分享|"
    "给出|给您|给你|为您|为你|这样做|这么做|遵从|配合|答应)"
)
_CHINESE = re.compile(
    rf"(?:我|本助手|我们){{0,1}}(?:很|非常|十分|真的){{0,1}}(?:抱歉|对不起|遗憾|不好意思)"
    rf"[^。！？!?]{{0,16}}{_CHINESE_NO}[^。！？!?]{{0,6}}{_CHINESE_DO}"
    rf"|我(?:们)?(?:恐怕|确实|暂时|目前)?{_CHINESE_NO}[^。！？!?，,]{{0,4}}{_CHINESE_DO}"
    rf"|作为(?:一个|一名|一款)?[^。！？!?]{{0,12}}(?:AI|ai|人工智能|语言模型|助手)[^。！？!?]{{0,8}}"
    rf"{_CHINESE_NO}"
    r"|我(?:是)?不会(?:告诉|教)|(?:抱歉|对不起|不好意思)[，,]?(?:这个|这样|这)?(?:不行|不可以)"
    r"|恕(?:我)?(?:难|不|无)|我[^。！？!?]{0,6}帮不了"
    r"|(?:违反|不符合)[^。！？!?]{0,8}(?:规定|政策|准则|原则|规范)"
)
_LOOKED_FOR = re.compile(r"(?:找到|查到|搜索到|检索到|看到)")


def refuses(answer: Message) -> str | None:
    """Return the words in which an answer refuses, None if it does not.

    An answer that calls a tool does something, whatever it says with it.
    """
    if answer.tool_calls or not answer.content:
        return None
    head = answer.content[:HEAD_CHARS]
    text = head.lower().replace("’", "'")
    for short, long in _CONTRACTED:
        text = text.replace(short, long)
    found = _ENGLISH.search(_GAP.sub(" ", _APOSTROPHES.sub("", text)))
    if found is None and not head.isascii():
        found = _CHINESE.search(re.sub(r"\s+", "", head))
        if found is not None and _LOOKED_FOR.search(found.group()):
            return None
    return None if found is None else found.group().strip()
