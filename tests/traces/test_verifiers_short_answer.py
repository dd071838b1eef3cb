"""Proves which short answers pass, which fail, and of which it cannot be told. Nothing is faked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.verifiers.check import Check
from traces.verifiers.short_answer import check_short_answer, check_words


@pytest.mark.parametrize("text", ["Paris", "paris.", "It is PARIS!", "The capital is Paris, sir"])
def test_the_expected_word_passes(text: str) -> None:
    assert check_short_answer(text, ("Paris",)).passed


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", "missing"),
        ("Parish", "missing"),
        ("Rome", "missing"),
        ("Paris " + "really " * 24, "25 words where at most 24"),
    ],
)
def test_another_word_or_a_long_answer_fails(text: str, detail: str) -> None:
    finding = check_short_answer(text, ("Paris",))

    assert not finding.passed
    assert detail in finding.detail


def test_a_number_is_a_whole_word() -> None:
    assert check_short_answer("7 plus 5 is 12.", ("12",)).passed
    assert not check_short_answer("It is 120.", ("12",)).passed


def test_any_of_the_accepted_will_do_also_of_several_words() -> None:
    assert check_short_answer("That is New  York", ("NYC", "new york")).passed


@pytest.mark.parametrize("text", ["\u6771\u4eac", "\u7b54\u6848\u662f\u6771\u4eac\u3002"])
def test_a_script_without_spaces_is_read_by_character(text: str) -> None:
    assert check_short_answer(text, ("\u6771\u4eac",)).passed
    assert not check_short_answer(text, ("\u4eac\u6771",)).passed


def test_a_number_with_decimals_is_another_number() -> None:
    assert not check_short_answer("It is 12.5.", ("12",)).passed
    assert check_short_answer("It is 12.5.", ("12.5",)).passed


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("-5", "5"), ("It is \u22125.", "5"), ("-$5", "5"), ("\u7b54\u6848\u662f-5", "5"),
        ("-3.5", "3.5"), ("1/2", "2"), ("\u00bd", "2"), ("C++", "C"), ("It is C#.", "C"),
        ("C++17", "C"),
    ],
)  # fmt: skip
def test_a_sign_or_mark_makes_another_answer(text: str, accepted: str) -> None:
    assert check_short_answer(text, (accepted,)).passed is False


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("\u22125", "-5"), ("-$5", "-5"), ("(-5)", "-5"), ("\uff11\uff12", "12"),
        ("\ufb01ne", "fine"), ("\u00bd", "1/2"), ("It's C#!", "c#"), ("C++17", "C++"),
        ("5+3=8", "8"), ("7-5=2", "2"), ("- 5", "5"), ("A+B", "A"), ("**5**", "5"),
        ("#1", "1"), ("twenty-four", "twenty-four"), ("add_5(n)", "add_5"),
    ],
)  # fmt: skip
def test_one_answer_in_other_characters_or_amid_signs_is_the_same(text: str, accepted: str) -> None:
    assert check_short_answer(text, (accepted,)).passed


def test_another_answer_beside_the_expected_one_fails() -> None:
    def found(text: str) -> Check:
        return check_short_answer(text, ("New York", "NYC"), rejected=("York", "Rome", "?"))

    assert found("New York").passed
    assert found("New York, or NYC? New York!").passed
    assert found("Romeo lives in New York").passed
    assert found("New York, not ROME").detail == "beside the expected answer stands 'Rome'"
    assert not found("York or New York").passed
    assert found("Rome").detail == "the expected answer is missing"


def test_nothing_to_look_for_finds_nothing() -> None:
    assert check_short_answer("x", ()).passed is None
    assert check_short_answer("x", ("?",)).passed is None


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("It is not Paris.", "Paris"), ("It isn't Paris", "Paris"), ("Not the Paris", "Paris"),
        ("It cannot be in Paris", "Paris"), ("Neither Paris nor Rome", "Paris"), ("not 12", "12"),
        ("not 12 but 13", "12"), ("I can't", "can"), ("不是北京", "北京"), ("并非北京", "北京"),
        ("不在北京", "北京"), ("不等于5", "5"), ("不是北京,而是上海", "北京"),
    ],
)  # fmt: skip
def test_what_is_denied_is_wrong(text: str, accepted: str) -> None:
    assert check_short_answer(text, (accepted,)).passed is False
    assert check_short_answer(text, (accepted,), rejected=("Oslo",)).passed is False


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("Not Rome but Paris", "Paris"), ("Paris, not Rome", "Paris"), ("Why not Paris?", "Paris"),
        ("Not only Paris", "Paris"), ("not guilty", "not guilty"), ("Not Paris? Paris!", "Paris"),
        ("是不是北京?是北京", "北京"), ("不是上海,是北京", "北京"), ("12, not 13", "12"),
    ],
)  # fmt: skip
def test_a_denial_of_something_else_is_none(text: str, accepted: str) -> None:
    assert check_short_answer(text, (accepted,)).passed


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("Rome, Paris, London, Berlin", "Paris"), ("The capital is Rome, Paris, London", "Paris"),
        ("- Rome\n- Paris\n- London", "Paris"), ("罗马、北京、伦敦", "北京"), ("yes or no", "yes"),
        ("Rome, or Paris", "Paris"), ("北京或上海", "北京"), (" ".join(map(str, range(24))), "7"),
        ("7, 8", "7"), ("7 and 8", "8"), ("It is 7. It is 8.", "7"), ("7. 8. 9. 10.", "10"),
        ("5+3=8", "5"), ("1\u00bd", "1/2"),
    ],
)  # fmt: skip
def test_of_several_answers_it_is_not_known_which_one_is_meant(text: str, accepted: str) -> None:
    assert check_short_answer(text, (accepted,)).passed is None
    assert check_short_answer(text, (accepted,), rejected=("Oslo",)).passed


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("Paris, France", "Paris"), ("Paris, the capital of France, on the Seine", "Paris"),
        ("There are 120 minutes in 2 hours.", "120"), ("Asked: 9 + 4 = ? Answer: 13", "13"),
        ("56 (7 \u00d7 8)", "56"), ("12 or so", "12"), ("It is 7. No, it is 8.", "8"),
        ("Red, white and blue", "red white and blue"), ("Sent at 15:27.", "15:27"),
        ('{"type": "card", "title": "heating", "children": ["attic"]}', "attic"),
    ],
)  # fmt: skip
def test_what_stands_beside_an_answer_need_not_be_another(text: str, accepted: str) -> None:
    assert check_short_answer(text, (accepted,)).passed


@pytest.mark.parametrize(
    ("text", "accepted", "same"),
    [
        ("1,000", "1000", True), ("1'000,000", "1000000", True), ("1000.5", "1,000.5", True),
        ("1,00", "100", False), ("1,0000", "10000", False), ("10\u00b2", "10^2", True),
        ("10\u00b2", "102", False), ("10\u00b2", "10", False), ("1\u00bd", "11/2", False),
        ("1\u00bd", "1 1/2", True), ("H\u2082O", "H2O", True), ("20 m\u00b2", "20 m2", True),
    ],
)  # fmt: skip
def test_a_number_is_the_same_in_another_writing(text: str, accepted: str, same: bool) -> None:
    assert (check_short_answer(text, (accepted,)).passed is True) is same


def test_a_script_without_spaces_has_two_characters_a_word() -> None:
    sentence = "法国的首都是巴黎，它位于塞纳河畔，是一座历史悠久的美丽城市。"

    assert check_short_answer(sentence, ("巴黎",)).passed
    assert check_short_answer(sentence * 2, ("巴黎",)).detail.startswith("27 words where at most")


def test_words_that_a_text_has_to_hold_may_stand_in_any_list() -> None:
    assert check_words("Not tea: milk, bread, 5 eggs, 6 or 7 plums", ("7",), 80).passed
    assert check_words("tea or milk", ("milk",), 2).passed is False


@settings(deadline=None)
@given(st.text(alphabet="0123456789.,-' \n/^!|:=ab和或不是北\u00b2\u00bd", max_size=40))
def test_no_text_is_too_odd(text: str) -> None:
    assert check_short_answer(text, ("1", "a", "北")).detail


@pytest.mark.parametrize(
    "part", ["a, ", "1,", "not ", "1 or ", "a1 ", "北", "1\u00bd", "a or ", "1,000"]
)
def test_a_long_answer_is_read_in_one_go(part: str) -> None:
    # Read again from every word, it would take minutes.
    assert check_short_answer(part * 50_000, ("a", "1", "北"), 10**9).detail
