"""Proves that the task world is solvable and repeatable, and that its partitions never meet.

The real world at the seeds in use; no engine runs.
"""

import json
import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache

import pytest

from curation.examples import prompt_id
from promotion.suites.chat import _draw_fact, make_chat_task
from promotion.suites.chat_facts import FACTS, number_name
from promotion.suites.functions import KINDS
from promotion.suites.household import TOOLS, run_tool
from promotion.suites.task import Partition, Task, assistant, read_phrasings
from promotion.suites.world import MAKERS, make_tasks, plan_traffic
from serving.records import Message, ToolCall
from serving.slots import load_profile
from traces.verifiers.registry import checker
from traces.verifiers.short_answer import check_short_answer, check_words

PROFILE = load_profile()
PARTITIONS: tuple[Partition, ...] = ("seed", "traffic", "gate")
FIRST_DAY = datetime(2026, 11, 2, tzinfo=UTC)


def traffic_tasks(seed: int = 1, turns: int = 440) -> list[Task]:
    return [t.task for plan in plan_traffic(turns, seed, FIRST_DAY) for t in plan.turns]


@cache
def gate_questions() -> Mapping[str, Sequence[Task]]:
    """Short questions of the gate by topic; so many that each phrasing is among them."""
    rng = random.Random(0)
    topics: dict[str, list[Task]] = defaultdict(list)
    for _ in range(15_000):
        task = make_chat_task(rng, "gate")
        topics[task.template.removeprefix("chat-").rsplit("-", 1)[0]].append(task)
    return topics


def accepted(task: Task) -> tuple[str, ...]:
    return tuple(task.reference["accepted"])


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("slot", [slot for slot in MAKERS if slot != "L2"])
def test_the_right_answer_passes_its_check(slot: str, partition: Partition) -> None:
    tasks = [MAKERS[slot](random.Random(seed), partition) for seed in range(300)]

    failed = [(task.text, task.check(task.answer).detail) for task in tasks
              if not task.check(task.answer).passed]  # fmt: skip

    assert failed == []


@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_right_code_passes_its_tests(partition: Partition) -> None:
    tasks = [MAKERS["L2"](random.Random(seed), partition) for seed in range(600)]
    kinds = {task.template.split("-")[1]: task for task in tasks}
    gate_alone = {name.removesuffix("_$k") for name in KINDS}  # checked in `test_functions.py`
    one_each = {kind: task for kind, task in kinds.items() if kind not in gate_alone}

    assert len(one_each) == 14
    assert kinds.keys() - one_each.keys() == (gate_alone if partition == "gate" else set())
    assert [t.text for t in one_each.values() if not t.check(t.answer).passed] == []


@pytest.mark.parametrize("slot", MAKERS)
def test_another_tasks_answer_does_not_pass(slot: str) -> None:
    tasks = make_tasks(slot, 12, 0, "gate")

    for task, other in zip(tasks, tasks[1:] + tasks[:1], strict=True):
        if task.keywords != other.keywords:
            assert not task.check(other.answer).passed, (task.text, other.text)
        assert not task.check(Message(role="assistant", content="I cannot.")).passed


def test_the_gate_asks_short_questions_in_all_phrasings_of_all_topics() -> None:
    asked = {task.template for tasks in gate_questions().values() for task in tasks}

    assert asked == {
        f"chat-{topic}-gate{index}"
        for topic, phrasings in read_phrasings("chat").items()
        for index in range(len(phrasings.gate))
    }
    assert len(asked) >= 340
    assert len(gate_questions()) >= 24


def test_no_short_question_is_left_with_a_blank() -> None:
    texts = [task.text for tasks in gate_questions().values() for task in tasks]

    assert [text for text in texts if "{" in text or "}" in text] == []


def test_every_right_answer_to_a_short_question_passes() -> None:
    for tasks in gate_questions().values():
        for task in tasks:
            assert task.check(task.answer).passed, task.text
            for answer in accepted(task):
                assert task.check(assistant(answer)).passed, (task.text, answer)


def test_the_answer_to_another_question_of_the_topic_does_not_pass() -> None:
    for topic, tasks in gate_questions().items():
        by_answers = {accepted(task): task for task in tasks}
        assert len(by_answers) > 3, topic
        for answers, task in by_answers.items():
            wrong = {answer for other in by_answers for answer in other} - set(answers)
            passed = [answer for answer in wrong if task.check(assistant(answer)).passed]
            assert passed == [], (topic, answers)


def test_no_accepted_number_is_part_of_another_that_may_be_answered() -> None:
    checked = set()
    for topic, facts in FACTS.items():
        numbers = {int(fact.accepted[0]): fact for fact in facts if fact.accepted[0].isdigit()}
        for right, fact in numbers.items():
            in_range = {n for n in range(min(numbers), max(numbers)) if n < 100}
            same_tens = range(right // 10 * 10, right // 10 * 10 + 10) if right < 100 else ()
            for n in {*in_range, *same_tens} - {right}:
                wrong = f"It is {number_name(n)}."
                assert not check_short_answer(wrong, fact.accepted).passed, (topic, right, wrong)
                checked.add(topic)

    assert checked >= {"sum", "units", "double", "product", "sequence", "legs"}


@pytest.mark.parametrize(
    ("topic", "wrong"),
    [
        ("currency", "The US dollar"),
        ("currency", "French franc"),
        ("currency", "Norwegian krona"),
        ("currency", "The Pakistani rupee"),
        ("currency", "Philippine peso"),
        ("currency", "Belarusian ruble"),
        ("currency", "Ugandan shilling"),
        ("currency", "Italian lira"),
        ("trade", "A bus driver"),
    ],
)
def test_what_is_wrong_of_every_key_does_not_pass(topic: str, wrong: str) -> None:
    assert [f for f in FACTS[topic] if check_short_answer(wrong, f.accepted).passed] == []


@pytest.mark.parametrize("right", ["2000", "2,000", "2 000 grams"])
def test_a_large_quantity_may_have_its_thousands_set_off(right: str) -> None:
    (fact,) = (fact for fact in FACTS["units"] if fact.values["key"] == "2 kilograms")

    assert check_short_answer(right, fact.accepted).passed
    assert not check_short_answer("20000", fact.accepted).passed


def test_quantities_are_asked_for_in_digits() -> None:
    texts = read_phrasings("chat")["units"].gate

    assert [text for text in texts if not re.search("digits|figures", text)] == []


def test_the_sums_that_are_asked_are_those_that_are_checked_here() -> None:
    asked = {
        tuple(fact.values.values())
        for fact in (_draw_fact(random.Random(seed), "sum") for seed in range(2000))
    }

    assert asked == {tuple(fact.values.values()) for fact in FACTS["sum"]}


def test_a_short_question_said_again_does_not_pass() -> None:
    questions = [
        (text.format(**fact.values), fact.accepted)
        for topic, phrasings in read_phrasings("chat").items()
        for text in phrasings.gate
        for fact in FACTS[topic]
    ]

    assert len(questions) > 10_000
    assert [q for q in questions if check_short_answer(*q).passed] == []


def test_the_answer_to_another_question_beside_the_right_one_does_not_pass() -> None:
    for topic, tasks in gate_questions().items():
        for task in tasks[:200]:
            right = accepted(task)[0]
            wrong = task.reference["rejected"]
            assert wrong, (topic, task.text)
            for text in (f"{right} or {wrong[0]}", f"{wrong[-1]}, {right}."):
                assert not task.check(assistant(text)).passed, (task.text, text)


@pytest.mark.parametrize(
    ("topic", "listed"),
    [
        ("day-after", "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday or Sunday."),
        ("month-after", "January February March April May June July August September October "
         "November December"),
        ("continent", "Africa, Asia, Europe, North America, South America"),
        ("legs", "2, 4, 6 or 8"),
        ("product", "41, 42 or 43"),
        ("double", "26 or maybe 27"),
        ("sum", " ".join(map(str, range(2, 19)))),
        ("sum", " ".join(map(number_name, range(2, 19)))),
        ("half", " ".join(map(str, range(4, 20)))),
        ("capital", "Paris Rome Madrid Berlin Tokyo Oslo Lima Cairo Athens Vienna Moscow Beijing"),
        ("letter-after", "B C E F G H J K L N O P Q R U V W X Y Z"),
        ("last-letter", "E R P K L Y W X G H F B C N"),
        ("mix", "orange green purple grey pink brown"),
    ],
)  # fmt: skip
def test_a_list_of_what_may_be_right_is_no_answer(topic: str, listed: str) -> None:
    tasks = gate_questions()[topic]

    assert any(check_words(listed, accepted(task), 24).passed for task in tasks)
    assert [task.text for task in tasks if task.check(assistant(listed)).passed] == []


def test_what_the_question_says_may_be_said_again_beside_the_right_answer() -> None:
    for tasks in gate_questions().values():
        for task in tasks:
            for answer in accepted(task):
                long = {**task.reference, "max_words": 99}
                check = checker(long)
                assert check is not None
                finding = check(assistant(f"{task.text} {answer}"))
                assert finding.passed, (task.text, finding.detail)


@pytest.mark.parametrize(
    ("topic", "values", "text"),
    [
        ("sum", (2, 3), "2 + 3 = 5"),
        ("sum", (2, 3), "Two and three are five, so the two make 5."),
        ("units", ("2 hours", "minutes"), "2 x 60 = 120 minutes"),
        ("units", ("2 days", "hours"), "24 + 24 = 48"),
        ("day-after", ("Monday",), "If today is Monday, tomorrow is Tuesday."),
        ("mix", ("red and yellow",), "Red and yellow make orange."),
        ("product", (6, 7), "Six times seven is forty-two, 6 x 7 = 42."),
        ("half", ("24",), "24 / 2 = 12"),
        ("digits", ("thirty-five",), "Thirty-five is 35: 3 tens and 5 ones."),
        ("sequence", ("1, 5, 9, 13",), "1, 5, 9, 13, 17: always 4 more."),
        ("legs", ("spider",), "A spider has eight (8) legs."),
        ("last-letter", ("garden",), "g-a-r-d-e-n ends in N."),
        ("kin", ("mother's mother",), "Your mother's mother is your grandmother (grandma)."),
        ("currency", ("China",), "The renminbi; its unit is the yuan (CNY)."),
    ],
)
def test_a_right_answer_may_show_its_way(topic: str, values: tuple[object, ...], text: str) -> None:
    tasks = gate_questions()[topic]
    (fact,) = (fact for fact in FACTS[topic] if tuple(fact.values.values()) == values)
    asked = [task for task in tasks if accepted(task) == fact.accepted
             and all(str(value) in task.text for value in values)]  # fmt: skip

    assert asked
    assert [task.text for task in asked if not task.check(assistant(text)).passed] == []


@pytest.mark.parametrize("partition", ["seed", "traffic"])
def test_users_compare_with_one_answer_alone(partition: Partition) -> None:
    references = [make_chat_task(random.Random(n), partition).reference for n in range(100)]

    assert {frozenset(reference) for reference in references} == {
        frozenset(["verifier", "accepted"])
    }
    assert {len(reference["accepted"]) for reference in references} == {1}


def test_a_card_shows_what_is_asked_for_in_any_order_and_nothing_else() -> None:
    more = [{"type": "button", "label": "Save"}, {"type": "text", "value": "Welcome back"}]
    for task in make_tasks("L3", 100, 0, "gate"):
        card = json.loads(task.answer.content)
        parts = [part | {"id": f"part-{n}"} for n, part in enumerate(card["children"])]

        def shown(children: list[dict[str, str]], card: dict[str, str] = card) -> Message:
            return assistant(json.dumps(card | {"children": children}, indent=1))

        assert task.check(shown(parts[::-1])).passed, task.text
        assert not task.check(shown(parts[1:])).passed, task.text
        for part in more:
            assert not task.check(shown([*parts, part])).passed, task.text


def test_users_ask_about_four_of_the_gates_topics() -> None:
    asked = {make_chat_task(random.Random(seed), "traffic").template for seed in range(300)}

    assert {template.rsplit("-", 1)[0] for template in asked} == {
        "chat-capital", "chat-opposite", "chat-young", "chat-sum",
    }  # fmt: skip


@pytest.mark.parametrize("slot", MAKERS)
def test_tasks_of_a_slot_use_its_verifier(slot: str) -> None:
    assert {t.verifier for t in make_tasks(slot, 20, 0, "traffic")} == set(
        PROFILE.slot(slot).verifiers
    )


def test_no_phrasing_of_one_partition_can_make_a_text_of_another() -> None:
    texts: dict[Partition, set[str]] = {
        partition: {
            prompt_id(MAKERS[slot](random.Random(seed), partition).text)
            for slot in MAKERS
            for seed in range(1500)
        }
        for partition in PARTITIONS
    }
    texts["traffic"] |= {prompt_id(task.text) for task in traffic_tasks()}

    assert not texts["gate"] & texts["traffic"]
    assert not texts["gate"] & texts["seed"]
    assert not texts["seed"] & texts["traffic"]


def test_retries_and_handovers_ask_nothing_of_the_gate() -> None:
    handovers = [t for t in traffic_tasks() if t.template == "household-handover"]
    gate = {prompt_id(t.text) for slot in MAKERS for t in make_tasks(slot, 150, 0, "gate")}

    assert handovers
    assert not {prompt_id(task.text) for task in handovers} & gate


def test_more_tasks_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"Only \d+ distinct seed tasks of L0, not 120"):
        make_tasks("L0", 120, 0, "seed")


def test_traffic_is_the_same_by_seed() -> None:
    def shape(seed: int):
        return [
            (p.conversation_id, p.user, p.started_at,
             [(t.task.text, t.task.answer, t.reaction, t.narrated, t.device_broken)
              for t in p.turns])
            for p in plan_traffic(120, seed, FIRST_DAY)
        ]  # fmt: skip

    assert shape(1) == shape(1)
    assert shape(1) != shape(2)


def test_traffic_has_all_that_happens() -> None:
    plans = plan_traffic(440, 1, FIRST_DAY)
    turns = [turn for plan in plans for turn in plan.turns]

    assert len(turns) >= 440
    assert {turn.task.slot for turn in turns} == set(MAKERS)
    assert any(turn.narrated for turn in turns)
    assert any(turn.device_broken for turn in turns)
    assert len({plan.user for plan in plans}) > 20
    assert len({plan.started_at.date() for plan in plans}) == 10
    assert [p.started_at for p in plans] == sorted(p.started_at for p in plans)
    assert len({plan.conversation_id for plan in plans}) == len(plans)


def test_the_home_answers_calls() -> None:
    for offered in TOOLS:
        call = ToolCall(id="1", name=offered["function"]["name"], arguments="{}")
        assert json.loads(run_tool(call))["ok"] is True
        assert json.loads(run_tool(call, broken=True)) == {"error": "device unreachable"}
    assert json.loads(run_tool(ToolCall(id="1", name="fly", arguments="")))["error"]
