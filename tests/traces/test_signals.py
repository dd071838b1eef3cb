"""Proves what the course of a conversation tells: phrases, repeated requests, endings.

Conversations are made up; nothing is faked.
"""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.records import NO_KEY, UNDATED
from traces.attribution.outcomes import settle, tier_of
from traces.attribution.phrases import plain, said
from traces.attribution.signals import AGAIN_WITHIN, QUIET, Exchange, implied

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
ANSWER = "It is rainy and 14 degrees."
QUESTION = "I can do that. Do you want it in red?"


def talk(*requests, answer=ANSWER, **fields):
    return [
        Exchange(
            **{
                "turn_id": f"t{place}",
                "conversation_id": "c",
                "user": "u",
                "request": request,
                "answer": answer,
                "status": "ok",
                "started_at": NOON + timedelta(minutes=place),
                "duration_s": 1.0,
            }
            | fields
        )
        for place, request in enumerate(requests)
    ]


def kinds(*requests, **fields):
    return [signal.kind for signal in implied(talk(*requests, **fields), 0)]


CORRECTIONS = """
No, I meant Berlin.
no i meant the other file
Nope, that is a different person.
That's wrong.
thats wrong, it has two legs
That’s not right - the sum is 12
This is incorrect.
Wrong. Try the second column.
Hmm, no. The blue one.
Not what I asked for.
You misunderstood me, I need the total
I said tomorrow, not today
It still doesn't work
That didn't work either
Thanks, but that's wrong
No problem, but that is wrong
OK, try again
不对
不对，我要的是上海
你错了，应该是七月
我是说下个星期
我的意思是把它删掉
不是这个，是上面那个
答非所问
这个答案不对，再算算
谢谢，可是结果错了
还是不行
呃，不对吧
不對，是臺北
你理解错了
你說的不對
错了，重算
""".strip().splitlines()

NO_CORRECTIONS = """
No problem
No worries, what about tomorrow?
no need to hurry, next question
No thanks
No, that's all, see you
No doubt it will rain. Should I take a coat?
What's wrong with my code?
Correct me if I'm wrong: is it a fruit?
Oh no, my server crashed. What now?
What if that's wrong?
Sorry, I meant to ask about Berlin
My mistake, I meant Berlin
Translate "that's wrong" into French
Run `no, that's wrong` in the shell
What did she mean with no man's land?
Norway, please
Is a no-fly list legal?
Who wrote Nothing Is Wrong?
There is no one here, is there?
不错
没错，就是这样
对不对？
这样做对不对
不错，再来一个
矩阵不对称怎么办？
他是不是我要找的人
我的代码哪里错了？
如果不对怎么办
下列说法不正确的是哪一项
我打错了，是北京
我错了，应该问上海
“不对”用英语怎么说
要不要带伞
对不起，打扰了
不要紧，继续
翻译：「你错了」
沒錯
这两列不对齐，怎么调整样式
""".strip().splitlines()

THANKS = """
Thanks!
thank you so much
Great, thanks. Now the same for Rome?
Perfect.
That works, what about Sunday?
OK, thx
Exactly what I needed!
谢谢
好的，谢谢你
太好了！
很不错，再写一个
感谢感谢
搞定了
謝謝你
""".strip().splitlines()

NO_THANKS = """
No thanks
no, thank you
Thanks in advance for the list of rivers
Thanks for nothing
Thanks, but could you make it shorter?
Write a thank you note to Anna
Thank you notes: what do I write in them?
Thanks to whom do we have penicillin?
What does merci mean, thanks or please?
Great Britain has how many people?
How do I say "thank you" in Danish?
不用谢
谢谢用英语怎么说
感谢信怎么写
谢谢，但是太长了
这个问题解决了吗
帮我写一段谢谢老师的话
不太好
""".strip().splitlines()


@pytest.mark.parametrize("request_", CORRECTIONS)
def test_a_correction_is_read(request_):
    assert kinds("What is the weather in Paris?", request_) == ["correction"]


@pytest.mark.parametrize("request_", NO_CORRECTIONS)
def test_no_correction_is_read_where_there_is_none(request_):
    assert "correction" not in kinds("What is the weather in Paris?", request_)


@pytest.mark.parametrize("request_", THANKS)
def test_thanks_are_read(request_):
    assert kinds("What is the weather in Paris?", request_) == ["thanks"]


@pytest.mark.parametrize("request_", NO_THANKS)
def test_no_thanks_are_read_where_there_are_none(request_):
    assert "thanks" not in kinds("What is the weather in Paris?", request_)


@pytest.mark.parametrize("reply", ["No, in blue.", "不，蓝色", "No", "不是"])
def test_a_no_to_a_question_of_the_answer_corrects_nothing(reply):
    assert kinds("Paint the door.", reply, answer=QUESTION) == []
    assert kinds("Paint the door.", reply) == ["correction"]


SAME = [
    ("What is the weather in Paris?", "what's the weather in paris"),
    ("show me the open invoices", "Please list the open invoices"),
    ("What is the wether in Pariss", "What is the weather in Paris"),
    ("Write a poem about autumn leaves and rain", "a poem about autumn leaves and rain please"),
    ("北京天气怎么样", "北京的天气如何？"),
    ("帮我订一张去上海的火车票", "请订一张去上海的火车票"),
]
OTHER = [
    ("What is the weather in Paris?", "What is the weather in Rome?"),
    ("Set a timer for 10 minutes", "Set a timer for 20 minutes"),
    ("show open invoices", "delete open invoices"),
    ("Translate this letter to German", "Summarise this letter in German"),
    ("weather in Paris", "and the weather in Paris on Sunday"),
    ("北京天气怎么样", "上海天气怎么样"),
    ("帮我订一张去上海的火车票", "帮我订一张去广州的火车票"),
    ("increase the volume of the radio", "decrease the volume of the radio"),
    ("Write a function that adds two numbers", "Now write tests for that"),
]


@pytest.mark.parametrize(("before", "after"), SAME)
def test_the_same_in_other_words_is_a_rephrase(before, after):
    assert kinds(before, after) == ["rephrase"]


@pytest.mark.parametrize(("before", "after"), OTHER)
def test_the_same_of_something_else_is_a_new_request(before, after):
    assert kinds(before, after) == []


def test_more_detail_after_a_question_is_its_answer():
    asked = ("Book a table for the evening", "Book a table for the evening near the river")
    assert kinds(*asked) == ["rephrase"]
    assert kinds(*asked, answer="Where should it be?") == []


@pytest.mark.parametrize(
    "text", ["continue", "Yes, please!", "继续", "tell me another joke", "再来"]
)
def test_what_may_be_said_twice_is_no_retry(text):
    assert kinds(text, text) == []


def test_the_same_request_again_is_a_retry_within_the_hour_by_the_same_user():
    first, second = talk("Add milk to the list", "add milk to the list!")
    assert [s.kind for s in implied([first, second], 0)] == ["retry"]
    late = second._replace(started_at=first.started_at + AGAIN_WITHIN + timedelta(seconds=1))
    assert implied([first, late], 0) == []
    assert implied([first, second._replace(user="another")], 0) == []
    no_talk = [turn._replace(conversation_id=NO_KEY) for turn in (first, second)]
    assert implied(no_talk, 0) == []
    again = second._replace(request="yes", supersedes=first.turn_id)
    assert [s.name for s in implied([first, again], 0)] == ["asked_again"]


def ended(*requests, after=QUIET, **fields):
    turns = talk(*requests, **fields)
    last = turns[-1].started_at + timedelta(seconds=turns[-1].duration_s)
    return implied(turns, len(turns) - 1, last + after)


def test_a_conversation_that_ends_without_an_answer_or_with_a_doubted_one_is_abandoned():
    assert [s.kind for s in ended("Add milk", status="failed", answer=None)] == ["abandonment"]
    assert [s.kind for s in ended("Add milk", answer=" ")] == ["abandonment"]
    assert [s.kind for s in ended("Add milk", "No, I meant bread")] == ["abandonment"]
    assert ended("Add milk", "Add bread") == []
    assert ended("Add milk", "Thanks!") == []


def test_a_conversation_may_be_alive_until_it_was_quiet_long_enough():
    request = {"status": "failed", "answer": None}
    assert ended("Add milk", after=QUIET - timedelta(seconds=1), **request) == []
    assert implied(talk("Add milk", **request), 0) == []
    assert ended("Add milk", started_at=UNDATED, after=timedelta(days=9999), **request) == []
    assert ended("Add milk", after=timedelta(days=-2), **request) == []


def test_signals_are_implicit_derived_by_code_and_the_same_each_time():
    turns = talk("What is the weather in Paris?", "That's wrong.", "Thanks!")
    for index, kind, value in ((0, "correction", -1.0), (1, "thanks", 1.0)):
        (signal,) = implied(turns, index)
        assert (signal.kind, signal.value, signal.target_id) == (kind, value, f"t{index}")
        assert (signal.source, signal.annotator, tier_of(signal)) == ("derived", "code", "C")
        assert signal.feedback_id == implied(turns, index)[0].feedback_id
    doubted, thanked = (settle(turns[i], implied(turns, i)) for i in (0, 1))
    assert (doubted.rule, doubted.success) == ("suspect", None)
    assert (thanked.rule, thanked.success) == ("unjudged", None)


@pytest.mark.parametrize(
    "text", ["", " ", "\x00", "|||", "```", '"""', "🙂" * 900, "不" * 5000, "no " * 9000]
)
def test_odd_texts_are_no_exception(text):
    for turns in (talk(text, text), talk("no", text, answer=None), talk(text, "no", answer=text)):
        assert all(s.kind for i in range(2) for s in implied(turns, i, NOON + timedelta(days=1)))


@settings(max_examples=500, deadline=None)
@given(st.text(st.sampled_from("aZ_0'-.,:;|(){}\n\t !?~[]/ "), max_size=60))
def test_ascii_is_rendered_as_any_other_text(text: str) -> None:
    # One letter that is no ASCII sends the same text through the patterns.
    assert plain(text) == plain(f"{text} ö").removesuffix("ö").rstrip()
    assert said(text).clauses.strip(" |") == said(f"{text} ö").clauses.rstrip(" ö").strip(" |")


def test_a_bar_ends_a_clause() -> None:
    assert said("that's wrong|12|13").clauses == " thats wrong | 12 | 13 "
    assert said("No. (That's wrong) x").words == " no thats wrong x "
    assert kinds("How many legs?", "that's wrong|it has two") == ["correction"]
